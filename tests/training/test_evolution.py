"""Persistent evolution strategies, against lines whose derivative is known and against the exact derivative."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Params, RidgeHead
from metapt.training.estimators import Estimator, pretrain, slopes
from metapt.training.evolution import COORDINATES, Trajectory, persistent_gradient, perturbations, slope

from .problems import DTYPE, OwnStreams, Regressed, Streams, classification

STEPS, SIZE = 9, 1e-3
RIDGE = RidgeHead(cross_fit=True, minibatches=2)


def all_signs(windows: int, coordinates: int = 1, size: float = 1.0) -> Tensor:
    """Return each possible perturbation once, [pairs, windows, coordinates]."""
    signs = itertools.product((-size, size), repeat=windows * coordinates)
    return torch.tensor(list(signs), dtype=DTYPE).view(-1, windows, coordinates)


def trajectory(steps: int = STEPS, streams: Any = None) -> Trajectory:
    problem, streams = Regressed(), streams or Streams(classification)
    return Trajectory(
        problem=problem,
        pretrained=problem.pretrained,
        head=problem.head,
        optimizer=SGD(0.3),
        steps=steps,
        pretrain=streams,
        finetune=streams,
        finetuning=RIDGE,
    )


def moved(change: Tensor) -> Params:
    """Return the meta-parameters of `Regressed` with other weights of its three classes, or of the first ones."""
    meta = Regressed().meta
    return meta | {"weights": meta["weights"] + torch.nn.functional.pad(change, (0, 3 - len(change)))}


def test_perturbations_are_both_signs_of_one_size_and_repeat_with_the_generator() -> None:
    found = perturbations(400, 3, 2, 0.5, torch.Generator().manual_seed(1))
    assert found.shape == (400, 3, 2)
    assert set(found.flatten().tolist()) == {-0.5, 0.5}
    assert found.mean(0).abs().max() < 0.1
    assert torch.equal(found, perturbations(400, 3, 2, 0.5, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(("windows", "coordinates"), [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_over_all_perturbations_the_mean_is_the_derivative_of_the_mean_loss(windows: int, coordinates: int) -> None:
    """Each window's loss is a line in the hyperparameters of this window and of those before it."""
    slopes = torch.randn(windows, windows, coordinates, dtype=DTYPE, generator=torch.Generator().manual_seed(2))
    slopes = slopes * torch.ones(windows, windows, dtype=DTYPE).tril()[..., None]  # [loss of window, phi of window, :]
    changes = all_signs(windows, coordinates, 0.5)
    losses = torch.einsum("wvc,pvc->pw", slopes, changes)
    found = persistent_gradient(changes, 2 * losses, 0.5)
    torch.testing.assert_close(found, slopes.sum(1).mean(0))


def test_what_a_window_does_to_later_losses_counts() -> None:
    """The loss depends on the hyperparameter of the first of four windows alone: 3 phi, from the first window on."""
    changes = all_signs(4)
    losses = 3 * changes[:, :1, 0].expand(-1, 4)
    torch.testing.assert_close(persistent_gradient(changes, 2 * losses, 1.0), torch.tensor([3.0], dtype=DTYPE))
    truncated = (changes * 2 * losses[..., None]).mean((0, 1)) / 2
    torch.testing.assert_close(truncated, torch.tensor([0.75], dtype=DTYPE))


def test_with_one_window_it_is_the_exact_derivative_of_the_whole_run() -> None:
    problem = Regressed()
    end = pretrain(problem, OwnStreams(classification), problem.pretrained, problem.meta, problem.head, SGD(0.3), STEPS)
    (exact,) = slopes(end, {"exact": Estimator(RIDGE, None, horizons=(STEPS,))}, draws=1)
    streams = OwnStreams(classification)
    found = slope(trajectory(streams=streams), moved, all_signs(1, 3, SIZE), SIZE)
    assert found.horizon == STEPS
    torch.testing.assert_close(found.gradient[COORDINATES], exact.gradient["weights"], rtol=1e-4, atol=1e-8)


def test_with_several_windows_it_is_the_mean_of_the_exact_derivatives_of_their_ends() -> None:
    windows, expected = 3, []
    for steps in (3, 6, 9):
        problem, streams = Regressed(), Streams(classification)
        for _ in range((steps // 3 - 1) * 2):  # the FT minibatches of the windows before
            streams.train()
        for _ in range(steps // 3 - 1):
            streams.validation()
        end = pretrain(problem, streams, problem.pretrained, problem.meta, problem.head, SGD(0.3), steps)
        (exact,) = slopes(end, {"exact": Estimator(RIDGE, None, horizons=(steps,))}, draws=1)
        expected.append(exact.gradient["weights"])
    found = slope(trajectory(), moved, all_signs(windows, 2, SIZE), SIZE)
    torch.testing.assert_close(found.gradient[COORDINATES], torch.stack(expected).mean(0)[:2], rtol=1e-3, atol=1e-7)


def test_windows_of_unequal_length_take_all_steps_once() -> None:
    one, meta = trajectory(7), Regressed().meta
    losses, _ = one.losses([meta] * 3)
    streams = Streams(classification)
    for steps, loss in zip((2, 4, 7), losses, strict=True):
        end = pretrain(one.problem, Streams(classification), one.pretrained, meta, one.head, SGD(0.3), steps)
        train, validation = [streams.train() for _ in range(2)], streams.validation()
        tuned = RIDGE(one.problem, end.pretrained.encoder, {}, one.head, None, train, validation)
        torch.testing.assert_close(loss, tuned.validation_loss)


def test_minibatches_are_where_they_were_so_that_all_runs_have_the_same_ones() -> None:
    one = trajectory()
    first, _ = one.losses([Regressed().meta] * 2)
    again, _ = one.losses([Regressed().meta] * 2)
    assert torch.equal(first, again)


def test_costs_are_in_plain_runs_and_a_run_that_diverges_makes_the_estimate_not_finite() -> None:
    found = slope(trajectory(), moved, all_signs(1, 3, SIZE), SIZE)
    assert found.cost > 2 * 2**3
    diverged = slope(trajectory(), lambda change: moved(change * float("nan")), all_signs(1, 3, SIZE), SIZE)
    assert not torch.isfinite(diverged.gradient[COORDINATES]).any()
