"""Groups of PT tasks follow their labels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from metapt.domains.ppi.arms import fixed_weights
from metapt.domains.ppi.config import Supervised
from metapt.domains.ppi.data.dataset import on_device
from metapt.domains.ppi.data.task_relations import task_groups
from metapt.domains.ppi.problem import task_weights
from metapt.errors import DataError

from .small_arms import setting_in
from .small_graphs import FINE, small_graphs


def blocks(noise: float = 0.05) -> NDArray[np.bool_]:
    """Return labels [500, 12] of three groups of four tasks, which take turns."""
    random = np.random.default_rng(0)
    causes = random.random((500, 3)) < 0.3
    return causes[:, [0, 1, 2] * 4] ^ (random.random((500, 12)) < noise)


def test_tasks_of_one_cause_are_one_group_numbered_by_its_first_task() -> None:
    assert task_groups(blocks(), 3).tolist() == [0, 1, 2] * 4
    labels = blocks(0.3)
    for count in (2, 5, 12):
        assert set(task_groups(labels, count).tolist()) == set(range(count))
    assert task_groups(labels, 12).tolist() == list(range(12))
    with pytest.raises(DataError, match="12 PT tasks don't make 13 groups"):
        task_groups(labels, 13)


def test_tasks_that_correlate_with_none_are_apart() -> None:
    permuted, constant, random = blocks(), blocks(), np.random.default_rng(1)
    for task in range(6, 12):
        permuted[:, task] = random.permutation(permuted[:, task])
    found = task_groups(permuted, 4)
    assert not set(found[:6]) & set(found[6:])
    constant[:, 0], constant[:, 1] = False, True
    assert len(set(task_groups(constant, 5).tolist())) == 5


def test_an_arm_gives_each_task_the_weight_of_its_group(tmp_path: Path) -> None:
    setting = setting_in(tmp_path, on_device(small_graphs(), "cpu"))
    weights = [0.02, 1.0, 1.98]
    found = task_weights(fixed_weights(setting, Supervised(method="supervised", group_weights=weights)))
    torch.testing.assert_close(found, torch.tensor(weights)[torch.from_numpy(setting.groups(3))])


@pytest.mark.parametrize("percent", [1, 29, 57, 58, 99])
def test_the_share_of_permuted_tasks_is_exact(percent: int, tmp_path: Path) -> None:
    """29 % of 100 tasks are 29, although 100 * 0.29 is below 29."""
    graphs = dataclasses.replace(small_graphs(), tasks=np.array([100, FINE]))
    dataset = dataclasses.replace(on_device(small_graphs(), "cpu"), graphs=graphs)
    assert len(setting_in(tmp_path, dataset, f"permuted_{percent}").permuted()) == percent
