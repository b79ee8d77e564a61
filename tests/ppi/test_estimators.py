"""Estimates on small graphs: the slope along the weight of a group, and the estimators that are made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from metapt.domains.ppi.arms import fixed_weights
from metapt.domains.ppi.batches import PpiBatches
from metapt.domains.ppi.config import Supervised
from metapt.domains.ppi.data.dataset import on_device
from metapt.domains.ppi.problem import WEIGHTS, MultitaskProblem
from metapt.domains.ppi.studies import evolution
from metapt.domains.ppi.studies.estimators import FOLDED, RIDGE, along, estimate
from metapt.hypergrad import Adam, Params
from metapt.training.estimators import pretrain
from metapt.training.evolution import COORDINATES

from .graphs_helper import related_graphs
from .small_arms import setting_in


@pytest.fixture
def setting(tmp_path: Path):  # type: ignore[no-untyped-def]
    return setting_in(tmp_path, on_device(related_graphs(), "cpu"), learned=None)


def test_the_slope_along_the_weight_of_a_group_is_that_of_an_arm_with_this_weight(setting) -> None:  # type: ignore[no-untyped-def]
    """The PT loss of arms with group weights is the function whose derivative at equal weights `along` gives."""
    problem, batch = MultitaskProblem(setting.trained()), setting.batches(PpiBatches).pretrain()
    pretrained, groups = setting.initial(), torch.from_numpy(setting.groups(3))

    def loss(weights: list[float]) -> float:
        meta = fixed_weights(setting, Supervised(method="supervised", group_weights=weights))
        return float(problem.pretrain_loss(pretrained.leaves(), meta, batch).detach())

    meta = {WEIGHTS: torch.zeros(len(groups), requires_grad=True)}
    value = problem.pretrain_loss(pretrained.leaves(), meta, batch)
    gradient: Params = {WEIGHTS: torch.autograd.grad(value, meta[WEIGHTS])[0]}
    found, step = along(gradient, groups), 0.05
    for number in range(3):
        above, below = ([1 + sign * step * (each == number) for each in range(3)] for sign in (1, -1))
        slope = (loss(above) - loss(below)) / (2 * step)
        assert found[f"group_{number:02d}"] == pytest.approx(slope, rel=1e-3)


def test_all_estimators_give_a_slope_for_each_task(setting) -> None:  # type: ignore[no-untyped-def]
    found = estimate(setting, lr=1e-3, finetune_lr=1e-3, draws=2, horizons=[1, 5])
    names = [(each.estimator, each.horizon) for each in found]
    assert names[:6] == [(f"Neumann {terms}, K = {k}", 1) for k in (0, 1, 5) for terms in (0, 1)]
    exact = [(f"exact, {head}", horizon) for head in ("K = 1", "ridge head") for horizon in (1, 5, 12)]
    refitted = [("Neumann 0, ridge head", 1), ("Gauss-Newton, ridge head", 1)]
    assert names[6:] == [*exact[:3], *refitted, *exact[3:]]
    for each in found:
        assert torch.isfinite(each.gradient[WEIGHTS]).all()
        assert each.gradient[WEIGHTS].any()
    again = estimate(dataclasses.replace(setting), lr=1e-3, finetune_lr=1e-3, draws=2, horizons=[1, 5])
    assert torch.equal(found[-1].gradient[WEIGHTS], again[-1].gradient[WEIGHTS])


def test_perturbed_runs_are_those_of_arms_with_moved_weights_of_groups(setting, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Without a move the last loss is that of the other estimates: of a ridge head at the end of PT."""
    given: list[Any] = []
    monkeypatch.setattr(evolution, "slope", lambda *words: given.extend(words))
    evolution.estimate(setting, lr=1e-3, count=3, pairs=5, windows=4, size=0.5)
    trajectory, meta, moves, size = given
    assert (moves.shape, size) == ((5, 4, 3), 0.5)
    arm = Supervised(method="supervised", group_weights=[1.5, 0.5, 1.5])
    moved = meta(torch.tensor([0.5, -0.5, 0.5], dtype=torch.float64))
    torch.testing.assert_close(moved[WEIGHTS], fixed_weights(setting, arm)[WEIGHTS])
    losses, _ = trajectory.losses([meta(torch.zeros(3))])
    batches, folds = setting.batches(PpiBatches), setting.batches(PpiBatches, FOLDED)
    problem, start = MultitaskProblem(setting.trained()), setting.initial_meta(setting.dataset.coarse_tasks)
    end = pretrain(problem, batches, setting.initial(), start, setting.initial_head(), Adam(1e-3), setting.steps)
    train = [folds.train() for _ in range(RIDGE.minibatches)]
    encoder, buffers = end.pretrained.encoder, end.pretrained.buffers
    tuned = RIDGE(problem, encoder, buffers, end.head, None, train, folds.validation())
    assert losses.tolist() == pytest.approx([float(tuned.validation_loss)], rel=1e-5)


def test_moves_differ_between_pt_seeds_and_repeat(setting) -> None:  # type: ignore[no-untyped-def]
    def found(seed: int) -> list[float]:
        own = dataclasses.replace(setting, seed=seed)
        slope = evolution.estimate(own, lr=1e-3, count=3, pairs=2, windows=3, size=0.5)
        return list(slope.gradient[COORDINATES].tolist())

    assert found(0) == found(0)
    assert found(0) != found(1)
