"""The search of group weights on protein graphs: its runs, and the AUROC by which it chooses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from metapt.config import validate
from metapt.domains.ppi import config, group_search
from metapt.domains.ppi.arms import fixed_weights, pretrain
from metapt.domains.ppi.config import GroupSearch, Supervised
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, task_weights
from metapt.domains.ppi.settings import group
from metapt.jobs import Place
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC


def search(**keys: Any) -> GroupSearch:
    return GroupSearch(method="group_search", **{"groups": 3, "rounds": 2, "folds": 3, **keys})


@pytest.mark.parametrize("propose", ["secants", "random"])
@pytest.mark.parametrize("name", ["full_access", "permuted_50"])
def test_the_result_is_plain_pt_with_the_chosen_weights(
    make: Callable[..., PpiSetting], propose: str, name: str
) -> None:
    run = pretrain(search(propose=propose), make(name=name))
    values = {each: [row["value"] for row in run.series if row["name"] == each] for each in map(group, range(3))}
    aurocs = [row["value"] for row in run.series if row["name"] == CROSS_VALIDATED_AUROC]
    assert [len(each) for each in (*values.values(), aurocs)] == [4] * 4
    last = aurocs if propose == "random" else [-math.inf, -math.inf, *aurocs[2:]]
    chosen = [each[int(np.argmax(last))] for each in values.values()]
    for checkpoint in run.checkpoints:
        checkpoint.remove()
    plain = Supervised(method="supervised", group_weights=chosen)
    expected = pretrain(plain, make(name=name))
    weights = task_weights(fixed_weights(make(name=name), plain))
    torch.testing.assert_close(task_weights(run.meta), weights, rtol=1e-5, atol=1e-6)
    assert set(run.meta) == {WEIGHTS}
    for key, value in expected.pretrained.encoder.items():
        torch.testing.assert_close(run.pretrained.encoder[key], value, rtol=0, atol=1e-4)


def test_secants_begin_on_both_sides_of_equal_weights(make: Callable[..., PpiSetting]) -> None:
    run = pretrain(search(step=1.5), make())
    values = np.array([[row["value"] for row in run.series if row["name"] == group(number)] for number in range(3)])
    np.testing.assert_allclose(values[:, 0] + values[:, 1], 2, rtol=1e-6)
    strong = 2 / (1 + math.exp(-1.5))
    assert all(value in (pytest.approx(strong), pytest.approx(2 - strong)) for value in values[:, 0])


def test_random_weights_lie_in_their_range_and_differ_between_seeds() -> None:
    arm = search(weight=(0.1, 1.5), rounds=10)
    places = group_search.random_places(arm, 0)
    weights = [2 / (1 + math.exp(-phi)) for place in places for phi in place]
    assert len(weights) == 20 * 3
    assert min(weights) >= 0.1 - 1e-9
    assert max(weights) <= 1.5 + 1e-9
    assert places != group_search.random_places(arm, 1)


def test_random_weights_have_a_lower_end() -> None:
    with pytest.raises(ValueError, match=r"weight is \[1.5, 0.1\]; legal: the lower end first"):
        search(weight=(1.5, 0.1))


def test_each_ft_graph_is_held_out_once(make: Callable[..., PpiSetting], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    held_out = []
    original = group_search.linear_heads

    def spied(train: Any, validation: Any, *others: Any, **more: Any) -> Any:
        sizes.append((len(train.features), len(validation.features)))
        held_out.append(validation.features)
        return original(train, validation, *others, **more)

    monkeypatch.setattr(group_search, "linear_heads", spied)
    setting = make()
    found = group_search.cross_validated_auroc(setting, search(), setting.initial())
    assert 0 < found < 100
    known = sum(map(len, setting.finetune))
    assert [sum(pair) for pair in sizes] == [known] * 3
    assert sum(out for _, out in sizes) == known
    again = group_search.cross_validated_auroc(setting, search(), setting.initial())
    assert found == again


def test_a_search_and_its_controls() -> None:
    arms = config.ARMS
    assert config.controls("group_search", arms) == ["graph_supervised", "group_search-random"]
    assert config.controls("group_search-random", arms) == []
    slow = {**arms, "group_search": search(pretrain_lr=1e-4)}
    assert config.controls("group_search", slow) == ["graph_supervised-slow"], "random candidates at another rate"


def test_the_job_of_a_search_knows_how_heads_train_and_other_jobs_do_not() -> None:
    own = {"source": "simulated", "test_species": [900005], "finetune": {"linear_epochs": 7}, "full_access": {}}
    section = validate({"ppi": own}).ppi
    made = PpiJobs("ppi", section, Place("results", "raw", {}, [], False))
    searched, plain = (made.pretrain(arm, "permuted_50", 0) for arm in ("group_search", "graph_supervised"))
    assert searched.config["finetune"]["linear_epochs"] == 7
    assert "finetune" not in plain.config
    assert searched.minutes > 4 * plain.minutes
