"""PT depends only on the labels that its setting grants: other labels change no bit of its outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from metapt.domains.ppi.arms import pretrain
from metapt.domains.ppi.config import Arm, uses_labels, weights_of
from metapt.domains.ppi.data.dataset import PpiDataset, on_device
from metapt.domains.ppi.data.graphs import pack, unpack
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.stages import pretrain_setting
from metapt.hypergrad import Params

from ..twostage import whole_runs
from .graphs_helper import related_graphs
from .small_arms import ARMS_HERE, setting_in
from .small_graphs import COARSE, FINE

ARMS = {name: arm for name, arm in ARMS_HERE.items() if name not in ("meta-identity", "meta-fitted", "meta-released")}
"""Without those that differ from others in what they do with their labels alone."""
SETTINGS = ["half_data", "held_out_0"]
"""Half data grants less than full access, in which PT without FT data then is."""
Pretrained = Callable[[str, str, PpiDataset], list[Params]]


@pytest.fixture(scope="module")
def dataset() -> PpiDataset:
    """Return graphs whose PT tasks 3 and 6 are implied by FT tasks 0 and 2."""
    return on_device(related_graphs(pairs=((3, 0), (6, 2))), "cpu")


@pytest.fixture(scope="module")
def pretrained() -> Pretrained:
    """Return a function (arm, setting, dataset) -> the outputs of the PT run that serves FT in this setting.

    Each run is made once. Runs that learn needed task weights come first.
    """
    done: dict[tuple[str, str, int], list[Params]] = {}

    def run(name: str, setting: str, dataset: PpiDataset) -> list[Params]:
        arm = ARMS_HERE[name]
        source, planned = weights_of(arm), pretrain_setting(arm, setting)
        key = name, planned, id(dataset)
        if key not in done:
            learned = None if source is None else run(source, planned, dataset)[-1]["task_weights"]
            small: dict[str, Any] = {"learned": learned, "epochs": 1, "batch_size": 25, "online_evaluations": 0}
            setting_here = setting_in(Path(), dataset, planned, checkpoint=whole_runs.Unsaved, **small)
            result = pretrain(arm, setting_here)
            done[key] = [*result.pretrained, result.meta]
        return done[key]

    return run


@pytest.fixture(scope="module")
def without(dataset: PpiDataset) -> Callable[[str], PpiDataset]:
    """Return a function: setting -> the graphs with other labels than its own where it grants none."""

    def changed(setting: str) -> PpiDataset:
        pairs = zip(labels_of(dataset), granted(dataset, setting), strict=True)
        return relabelled(dataset, *(label ^ ~mask for label, mask in pairs))

    return cache(changed)


@pytest.fixture(scope="module")
def unrelated(dataset: PpiDataset) -> Callable[[str], PpiDataset]:
    """Return a function: setting -> the graphs where no FT task implies PT task 3, by labels that it grants."""

    def changed(setting: str) -> PpiDataset:
        coarse, fine = labels_of(dataset)
        mask = granted(dataset, setting)[1][:, 0]
        fine[mask, 0] = fine[mask, 2]
        return relabelled(dataset, coarse, fine)

    return cache(changed)


def granted(dataset: PpiDataset, name: str) -> tuple[Any, Any]:
    """Return masks of the labels that a setting grants to PT: [graphs, PT tasks], [graphs, FT tasks]."""
    setting: PpiSetting = setting_in(Path(), dataset, name)
    coarse, fine = (np.zeros((len(dataset.graphs), tasks), bool) for tasks in (COARSE, FINE))
    coarse[setting.graphs] = True
    fine[np.ix_(np.concatenate(setting.finetune), setting.tasks.numpy())] = True
    return coarse, fine


def relabelled(dataset: PpiDataset, coarse: Any, fine: Any) -> PpiDataset:
    return on_device(dataclasses.replace(dataset.graphs, coarse=pack(coarse), fine=pack(fine)), "cpu")


def labels_of(dataset: PpiDataset) -> tuple[Any, Any]:
    return unpack(dataset.graphs.coarse, COARSE) > 0, unpack(dataset.graphs.fine, FINE) > 0


def equal(first: list[Params], second: list[Params]) -> bool:
    return all(whole_runs.equal(a, b) for a, b in zip(first, second, strict=True))


def test_every_kind_of_arm_is_among_these() -> None:
    kinds = get_args(get_args(Arm)[0])
    assert {type(arm) for arm in ARMS.values()} == set(kinds)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ARMS)
def test_labels_that_a_setting_does_not_grant_change_nothing(
    name: str, setting: str, dataset: PpiDataset, pretrained: Pretrained, without: Callable[[str], PpiDataset]
) -> None:
    assert equal(pretrained(name, setting, dataset), pretrained(name, setting, without(setting)))


@pytest.mark.parametrize("setting", ["half_data", "held_out_1"])
@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if weights_of(arm) is None])
def test_only_arms_that_use_ft_labels_depend_on_those_that_are_granted(
    name: str, setting: str, dataset: PpiDataset, pretrained: Pretrained, unrelated: Callable[[str], PpiDataset]
) -> None:
    same = equal(pretrained(name, setting, dataset), pretrained(name, setting, unrelated(setting)))
    assert same is not uses_labels(ARMS[name])
