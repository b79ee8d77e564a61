"""Estimates at the end of a PT run, against the functions that they are made of."""

from __future__ import annotations

import math

import pytest
import torch

from metapt.hypergrad import SGD, ConjugateGradient, Identity, Neumann, RidgeHead, Unroll, hypergradient
from metapt.training.estimators import End, Estimator, pretrain, slopes
from metapt.training.replay import joined

from .problems import OwnStreams, Regressed, classification

STEPS = 9


def end() -> End:
    problem = Regressed()
    streams = OwnStreams(classification)
    return pretrain(problem, streams, problem.pretrained, problem.meta, problem.head, SGD(0.3), STEPS)


def test_an_implicit_estimate_is_the_mean_hypergradient_with_a_head_that_is_carried_along() -> None:
    solver, inverse = Unroll(2, SGD(0.1)), Neumann(1, 0.3)
    (found,) = slopes(end(), {"neumann": Estimator(solver, inverse, head_steps=2)}, draws=3)
    at, gradients = end(), []
    head, state = at.head, None
    for call in range(5):
        train, validation = [at.batches.train() for _ in range(2)], at.batches.validation()
        result = hypergradient(
            at.problem,
            at.pretrained,
            at.meta,
            head,
            pretrain_batch=at.batches.hypergradient() if call >= 2 else _peek(at),
            train_batches=train,
            validation_batch=validation,
            inverse=inverse,
            finetuning=solver,
            head_state=state,
        )
        head, state = result.head, result.head_state
        gradients += [result.gradient] * (call >= 2)
    assert (found.estimator, found.horizon) == ("neumann", 1)
    for name, value in found.gradient.items():
        torch.testing.assert_close(value, torch.stack([each[name] for each in gradients]).mean(0))


def test_estimates_do_not_depend_on_the_estimators_before_them() -> None:
    solver = Estimator(Unroll(1, SGD(0.1)), Neumann(0, 0.3), head_steps=2)
    exact = Estimator(Unroll(1, SGD(0.1)), None, horizons=(2,), head_steps=2)
    alone, last = end(), end()
    (expected,) = slopes(alone, {"implicit": solver}, draws=4)
    found = list(slopes(last, {"exact": exact, "same": solver, "implicit": solver}, draws=4))
    for name, value in expected.gradient.items():
        assert all(torch.equal(each.gradient[name], value) for each in found[1:])
    again = list(slopes(last, {"exact": exact}, draws=4))
    assert all(torch.equal(value, found[0].gradient[name]) for name, value in again[0].gradient.items())


def _peek(at: End) -> object:
    """Return a PT minibatch without moving the stream of hypergradients."""
    state = at.batches.state_dict()
    batch = at.batches.pretrain()
    at.batches.load_state_dict(state)
    return batch


def test_an_exact_estimate_goes_back_through_the_run_from_the_encoders_gradient() -> None:
    solver = RidgeHead(cross_fit=True, minibatches=2)
    found = list(slopes(end(), {"exact": Estimator(solver, None, horizons=(1, 4, 1000))}, draws=1))
    at = end()
    train, validation = [at.batches.train() for _ in range(2)], at.batches.validation()
    tuned = solver(at.problem, at.pretrained.encoder, {}, at.head, None, train, validation)
    expected = {h: value for h, value, _ in at.run.derivatives(joined(tuned.encoder_gradient, {}), [1, 4, STEPS])}
    assert [each.horizon for each in found] == [1, 4, STEPS]
    for each in found:
        for name, value in each.gradient.items():
            torch.testing.assert_close(value, expected[each.horizon][name])


def test_one_exact_step_of_plain_gradient_descent_is_the_identity_in_place_of_the_inverse_at_the_weights_before() -> (
    None
):
    """d(w - lr g(w, phi)) / d(phi) is -lr times the mixed derivative, which Eq. 4 has with the step for the inverse."""
    problem = Regressed()
    ends = [
        pretrain(problem, OwnStreams(classification), problem.pretrained, problem.meta, problem.head, SGD(0.3), n)
        for n in (STEPS - 1, STEPS)
    ]
    solver = Unroll(0)
    ((_, exact, _),) = ends[1].run.derivatives(_validation_gradient(ends[1], solver), [1])
    before, batch = ends[0].pretrained, ends[0].batches.pretrain()
    step = hypergradient(
        problem,
        before,
        problem.meta,
        problem.head,
        pretrain_batch=batch,
        train_batches=[],
        validation_batch=ends[1].batches.validation(),
        inverse=Identity(),
        finetuning=_At(solver, ends[1]),
    )
    for name, value in exact.items():
        torch.testing.assert_close(value, 0.3 * step.gradient[name])


def _validation_gradient(at: End, solver: Unroll) -> dict[str, torch.Tensor]:
    state = at.batches.state_dict()
    validation = at.batches.validation()
    at.batches.load_state_dict(state)
    return joined(solver(at.problem, at.pretrained.encoder, {}, at.head, None, [], validation).encoder_gradient, {})


class _At:
    """An FT solver that takes the gradient at the encoder of another PT run."""

    minibatches, optimizer, uses_head_loss = 0, None, True

    def __init__(self, solver: Unroll, at: End) -> None:
        self.solver, self.at = solver, at

    def __call__(self, problem, encoder, buffers, head, head_state, train, validation):  # type: ignore[no-untyped-def]
        return self.solver(problem, self.at.pretrained.encoder, buffers, head, head_state, train, validation)


def test_costs_are_in_plain_runs_and_rise_with_the_horizon() -> None:
    estimators = {
        "exact": Estimator(RidgeHead(), None, horizons=(1, STEPS)),
        "curved": Estimator(RidgeHead(), ConjugateGradient(max_steps=3)),
    }
    short, long, curved = slopes(end(), estimators, draws=1)
    assert 1 < short.cost < long.cost
    assert curved.cost > 1


def test_an_estimate_that_is_not_finite_is_nan() -> None:
    at = end()
    (found,) = slopes(at, {"neumann": Estimator(Unroll(0), Neumann(1, 1e300))}, draws=1)
    assert all(math.isnan(float(value.sum())) for value in found.gradient.values())


@pytest.mark.parametrize("draws", [1, 3])
def test_estimates_repeat_with_the_seeds(draws: int) -> None:
    first, second = (next(slopes(end(), {"n": Estimator(Unroll(1), Neumann(1, 0.3))}, draws)) for _ in range(2))
    for name, value in first.gradient.items():
        assert torch.equal(value, second.gradient[name])
