"""The ridge head: the closed form of each task, evaluated on what it has not seen, with the derivative of refits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.errors import DataError
from metapt.hypergrad import FineTuned, Params, RidgeHead, Status

from .problems import DTYPE, Batch, Classifier, central_difference, draw

L2 = 0.03


class Regressed(Classifier):
    """Four binary tasks on the features of a two-layer network."""

    def targets(self, batch: Batch) -> Tensor:
        return batch.targets


def labelled(seed: int, size: int = 9) -> Batch:
    inputs = draw(seed, size, 4)
    return Batch(inputs, (inputs @ draw(seed + 1, 4, 4) + draw(seed + 2, size, 4) > 0.2).to(DTYPE))


PROBLEM = Regressed()
ENCODER = PROBLEM.pretrained.encoder
PARTS = [labelled(400 + 10 * i, 9 + i) for i in range(4)]
TRAIN, VALIDATION = PARTS[:3], PARTS[3]


def tune(
    solver: RidgeHead, train: list[Batch] = TRAIN, validation: Batch = VALIDATION, problem: Any = PROBLEM
) -> FineTuned:
    return solver(problem, ENCODER, {}, PROBLEM.head, None, train, validation)


def dense(x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    """Solve each task's ridge, with a free intercept, by one linear system; errors relative to a constant guess."""
    size = (x - x.mean(0)).square().mean().sqrt()
    design = torch.cat([x / size, torch.ones(len(x), 1, dtype=DTYPE)], 1)
    penalty = l2 * len(x) * torch.diag(torch.tensor([1.0] * x.shape[1] + [0.0], dtype=DTYPE))
    fits: list[Tensor] = []
    held_errors: list[Tensor] = []
    for task in range(y.shape[1]):
        weights = torch.linalg.solve(design.T @ design + penalty, design.T @ y[:, task])
        held_design = torch.cat([held_x / size, torch.ones(len(held_x), 1, dtype=DTYPE)], 1)
        for rows, labels, into in ((design, y, fits), (held_design, held_y, held_errors)):
            own = labels[:, task]
            if len(set(own.tolist())) == 2:
                into.append((rows @ weights - own).square().mean() / ((own - own.mean()).square().mean()))
    return torch.stack(fits).mean(), torch.stack(held_errors).mean()


def evaluated(encoder: Params, train: list[Batch], held_out: Batch, l2: float = L2) -> tuple[Tensor, Tensor]:
    x, y = (torch.cat(parts) for parts in ([PROBLEM.encode(encoder, b) for b in train], [b.targets for b in train]))
    return dense(x, y, PROBLEM.encode(encoder, held_out), held_out.targets, l2)


@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_the_loss_is_that_of_the_closed_form(l2: float) -> None:
    result = tune(RidgeHead(l2, minibatches=3))
    fit, error = evaluated(ENCODER, TRAIN, VALIDATION, l2)
    torch.testing.assert_close(result.validation_loss, error, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(result.train_losses, fit[None], rtol=1e-10, atol=0.0)
    assert 0 < float(fit) < 1
    assert result.status is Status.OK


def test_the_encoder_gradient_is_the_derivative_of_refits() -> None:
    result = tune(RidgeHead(L2))
    expected = central_difference(lambda encoder: evaluated(encoder, TRAIN, VALIDATION)[1], ENCODER)
    torch.testing.assert_close(result.encoder_gradient, expected, rtol=1e-7, atol=1e-8)
    assert max(float(value.abs().max()) for value in expected.values()) > 1e-2


def test_cross_fitting_is_the_mean_over_held_out_parts() -> None:
    result = tune(RidgeHead(L2, cross_fit=True, minibatches=3))
    alone = [tune(RidgeHead(L2), [b for b in PARTS if b is not held], held) for held in PARTS]
    losses = torch.stack([each.validation_loss for each in alone])
    torch.testing.assert_close(result.validation_loss, losses.mean(), rtol=1e-10, atol=0.0)
    torch.testing.assert_close(result.train_losses, torch.cat([each.train_losses for each in alone]))
    for name, value in result.encoder_gradient.items():
        torch.testing.assert_close(value, torch.stack([each.encoder_gradient[name] for each in alone]).mean(0))
    shuffled = tune(RidgeHead(L2, cross_fit=True), [PARTS[3], PARTS[0], PARTS[2]], PARTS[1])
    torch.testing.assert_close(shuffled.validation_loss, result.validation_loss, rtol=1e-12, atol=0.0)


def test_each_part_is_encoded_once() -> None:
    class Counted(Regressed):
        encoded = 0

        def encode(self, encoder: Params, batch: Batch) -> Tensor:
            self.encoded += 1
            return super().encode(encoder, batch)

    problem = Counted()
    tune(RidgeHead(L2, cross_fit=True), problem=problem)
    assert problem.encoded == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [3, 7, 97, 1000])
def test_a_task_with_one_label_is_left_out(size: int, dtype: torch.dtype) -> None:
    """Held out without a positive, its labels minus the others' mean are constant, so their variance is exactly 0."""
    parts = [labelled(500 + 10 * i, size) for i in range(3)]
    constant = [part._replace(targets=part.targets.clone()) for part in parts]
    constant[2].targets[:, 1] = 0.0
    constant[1].targets[:, 3] = 1.0
    cast = [Batch(*(values.to(dtype) for values in part)) for part in constant]
    encoder = {name: value.to(dtype) for name, value in ENCODER.items()}
    result = RidgeHead(L2)(PROBLEM, encoder, {}, {}, None, cast[:2], cast[2])
    rest = [part._replace(targets=part.targets[:, [0, 2, 3]]) for part in constant]
    expected = evaluated(ENCODER, rest[:2], rest[2])[1]
    assert float(result.validation_loss) == pytest.approx(float(expected), rel=1e-3 if dtype is torch.float32 else 1e-9)


def test_the_ft_head_is_left_as_it_is_and_nothing_has_a_graph() -> None:
    result = tune(RidgeHead(L2))
    assert all(torch.equal(result.head[name], value) for name, value in PROBLEM.head.items())
    assert result.head_state == {}
    assert float(result.head_gradient_norm) == 0
    values = [*result.encoder_gradient.values(), result.train_losses, result.validation_loss]
    assert not any(value.requires_grad for value in values)


@pytest.mark.parametrize("factor", [math.nan, 0.0])
def test_features_that_are_not_finite_or_all_equal_are_a_status(factor: float) -> None:
    class Broken(Regressed):
        def encode(self, encoder: Params, batch: Batch) -> Tensor:
            return factor * super().encode(encoder, batch)

    assert tune(RidgeHead(L2), problem=Broken()).status is Status.NON_FINITE


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("cross_fit", [False, True])
def test_a_label_that_is_not_finite_is_not_left_out_as_a_task_with_one_label_is(
    cross_fit: bool, part: int, bad: float
) -> None:
    parts = [each._replace(targets=each.targets.clone()) for each in PARTS]
    parts[part].targets[0, 1] = bad
    result = tune(RidgeHead(L2, cross_fit), parts[:3], parts[3])
    assert result.status is Status.NON_FINITE
    assert not result.validation_loss.isfinite()


def test_a_system_that_rounding_has_made_indefinite_is_no_result() -> None:
    """More features than examples, in float32, with a penalty below the rounding."""
    x, y = draw(1, 4, 64).float(), draw(2, 4, 2).float()
    weights = RidgeHead(1e-12)._predictions(1 + 1e-3 * x.repeat(1, 4), y, x.repeat(1, 4), y)[0][0]
    assert not weights.isfinite().any()


CONSTANT = VALIDATION._replace(targets=torch.zeros_like(VALIDATION.targets))


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: RidgeHead(0.0), ValueError, r"l2 is 0\.0; legal: a positive number"),
        (lambda: RidgeHead(minibatches=0), ValueError, "minibatches is 0; legal: 1 or more"),
        (lambda: tune(RidgeHead(L2), []), ValueError, "at least one FT training minibatch"),
        (lambda: tune(RidgeHead(L2), problem=Classifier()), ValueError, "needs a problem with targets"),
        (lambda: tune(RidgeHead(L2, True), [VALIDATION]), ValueError, "at least two different FT minibatches"),
        (lambda: tune(RidgeHead(L2), TRAIN, CONSTANT), DataError, "all labels of each task are equal in a part"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(make: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make()
