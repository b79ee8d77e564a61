"""Estimates of the derivative of the FT loss w.r.t. hyperparameters of PT, at the end of a PT run with fixed ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from metapt.hypergrad import ConjugateGradient, MetaProblem, Neumann, Params, Pretrained, hypergradient
from metapt.hypergrad.finetune import FineTuned, FineTuning
from metapt.hypergrad.hybrid import Curvature
from metapt.hypergrad.inverse import Inverse
from metapt.hypergrad.optimizers import DifferentiableOptimizer, OptimizerState
from metapt.hypergrad.params import add, like
from metapt.training.batches import Batches
from metapt.training.progress import steps
from metapt.training.replay import Replay, joined, parted, pretraining

PERIOD = 10
"""PT steps between two meta-updates, as in the paper.

It determines how many steps the FT head has taken at the end of PT.
"""


@dataclass(frozen=True)
class Estimator:
    """How a derivative is estimated: the FT solver gives d(FT loss) / d(encoder), and the rest d(encoder) / d(phi).

    Attributes:
        finetuning: the FT solver.
        inverse: approximates the inverse of the curvature matrix, for the implicit derivative of one PT step (Eq. 4).
            None: the derivative is exact, through the last PT steps.
        curvature: the matrix that `inverse` inverts.
        horizons: numbers of last PT steps of the exact derivative; those beyond the run count as the whole run.
        head_steps: calls of the FT solver before the estimate, which train the FT head as the meta-updates of a whole
            run would have.
    """

    finetuning: FineTuning
    inverse: Inverse | None
    curvature: Curvature = "hessian"
    horizons: tuple[int, ...] = ()
    head_steps: int = 0


def unrolled(unroll: Callable[[int], FineTuning], pretrain_lr: float, updates: int) -> dict[str, Estimator]:
    """Return the paper's estimators: Neumann series of 0 and 1 terms, with K = 0, 1 and 5 unrolled FT steps.

    `unroll` returns the FT solver of K steps; `updates` is the number of meta-updates of a PT run.
    """
    return {
        f"Neumann {terms}, K = {k}": Estimator(unroll(k), Neumann(terms, pretrain_lr), head_steps=updates if k else 0)
        for k in (0, 1, 5)
        for terms in (0, 1)
    }


def refitted(name: str, finetuning: FineTuning, pretrain_lr: float) -> dict[str, Estimator]:
    """Return estimators of one PT step with a refitted head: with the identity, and with the Gauss-Newton matrix."""
    solver = ConjugateGradient(rtol=1e-3, max_steps=20, relative_damping=0.1)
    return {
        f"Neumann 0, {name}": Estimator(finetuning, Neumann(0, pretrain_lr)),
        f"Gauss-Newton, {name}": Estimator(finetuning, solver, "gauss_newton"),
    }


def exact(name: str, finetuning: FineTuning, horizons: Sequence[int], updates: int = 0) -> dict[str, Estimator]:
    """Return the exact derivative through the last PT steps and through the whole run, for an FT solver."""
    whole = sys.maxsize
    return {f"exact, {name}": Estimator(finetuning, None, horizons=(*horizons, whole), head_steps=updates)}


class Slope(NamedTuple):
    """An estimate.

    Attributes:
        estimator: its name.
        horizon: PT steps that it goes back.
        gradient: d(FT loss) / d(phi), named like the meta-parameters; it may be not finite.
        cost: time of the PT run and of the estimate together, divided by that of the PT run; of evolution strategies
            the time of all runs with their FT, divided by that of the PT steps of one run.
    """

    estimator: str
    horizon: int
    gradient: Params
    cost: float


@dataclass(frozen=True)
class End:
    """The end of a PT run, with all that an estimate needs.

    Attributes:
        problem: the three losses.
        batches: minibatches of the estimates; those that are left after the run, or others.
        run: the PT run.
        pretrained: encoder, PT head and buffers.
        meta: the meta-parameters of the run.
        head: the initial FT head.
        seconds: time of the run, see `clock`.
    """

    problem: MetaProblem
    batches: Batches
    run: Replay
    pretrained: Pretrained
    meta: Params
    head: Params
    seconds: float


def pretrain(
    problem: MetaProblem,
    batches: Batches,
    pretrained: Pretrained,
    meta: Params,
    head: Params,
    optimizer: DifferentiableOptimizer,
    count: int,
) -> End:
    """Pre-train with fixed meta-parameters for `count` steps, and return the end of the run."""
    run = pretraining(problem, batches, pretrained, optimizer)
    start = clock(pretrained)
    weights = run.run(meta, count, "PT")
    seconds = clock(pretrained) - start
    return End(problem, batches, run, parted(weights, pretrained, run.buffers), meta, head, seconds)


def slopes(end: End, estimators: Mapping[str, Estimator], draws: int) -> Iterator[Slope]:
    """Yield the estimates, each the mean over `draws` draws of FT minibatches (and of PT minibatches, if implicit).

    All estimators start with the same minibatches, so that an estimate does not depend on the others.
    """
    names, first = list(estimators), end.batches.state_dict()
    for index in steps(0, len(names), "estimators", kind=lambda index: names[index]):
        estimator = estimators[names[index]]
        if estimator.inverse is None:
            yield from _exact(end, names[index], estimator, draws)
        else:
            yield _implicit(end, names[index], estimator, estimator.inverse, draws)
        end.batches.load_state_dict(first)


def estimates(
    end: End,
    folds: Batches,
    unroll: Callable[[int], FineTuning],
    ridge: FineTuning,
    pretrain_lr: float,
    draws: int,
    horizons: Sequence[int],
) -> list[Slope]:
    """Return the estimates of all estimators at the end of a PT run.

    Args:
        end: the end of the run; its minibatches are those of unrolled FT steps.
        folds: the minibatches of `ridge`, which are large, so that it has an eighth of the draws.
        unroll: returns the FT solver of K steps.
        ridge: the FT solver with a refitted head.
        pretrain_lr: learning rate of PT, which is the step size of Neumann series.
        draws: draws of FT minibatches of unrolled steps.
        horizons: numbers of last PT steps of the exact derivatives, beside the whole run.
    """
    updates = end.run.steps // PERIOD
    one_step = unrolled(unroll, pretrain_lr, updates) | exact("K = 1", unroll(1), horizons, updates)
    refits = refitted("ridge head", ridge, pretrain_lr) | exact("ridge head", ridge, horizons)
    return [*slopes(end, one_step, draws), *slopes(replace(end, batches=folds), refits, max(1, draws // 8))]


def clock(pretrained: Pretrained) -> float:
    """Return processor time on a CPU, and on a GPU wall time after all work that it was given, seconds."""
    if not next(iter(pretrained.encoder.values())).is_cuda:
        return time.process_time()
    torch.cuda.synchronize()
    return time.monotonic()


class _Head:
    """The FT head and the state of its optimiser, carried from one call of an FT solver to the next."""

    def __init__(self, end: End, finetuning: FineTuning, calls: int) -> None:
        self._end, self._finetuning = end, finetuning
        self.head = end.head
        self.state: OptimizerState | None = None
        for _ in range(calls):
            self.step()

    def minibatches(self) -> tuple[list[Any], Any]:
        """Return FT training minibatches and an FT validation minibatch."""
        batches = self._end.batches
        return [batches.train() for _ in range(self._finetuning.minibatches)], batches.validation()

    def step(self) -> FineTuned:
        """Call the FT solver, and keep its head."""
        pretrained = self._end.pretrained
        given = self._end.problem, pretrained.encoder, pretrained.buffers, self.head, self.state
        tuned = self._finetuning(*given, *self.minibatches())
        self.head, self.state = tuned.head, tuned.head_state
        return tuned


def _implicit(end: End, name: str, estimator: Estimator, inverse: Inverse, draws: int) -> Slope:
    start = clock(end.pretrained)
    head = _Head(end, estimator.finetuning, estimator.head_steps)
    pretrain_batch: Callable[[], Any] = getattr(end.batches, "hypergradient", end.batches.pretrain)
    found = []
    for _ in range(draws):
        train, validation = head.minibatches()
        result = hypergradient(
            end.problem,
            end.pretrained,
            end.meta,
            head.head,
            pretrain_batch=pretrain_batch(),
            train_batches=train,
            validation_batch=validation,
            inverse=inverse,
            finetuning=estimator.finetuning,
            head_state=head.state,
            curvature=estimator.curvature,
            keep_gradient=False,
        )
        head.head, head.state = result.head, result.head_state
        found.append(result.gradient)
    return Slope(name, 1, _mean(found), _cost(end, start))


def _exact(end: End, name: str, estimator: Estimator, draws: int) -> Iterator[Slope]:
    start = clock(end.pretrained)
    head = _Head(end, estimator.finetuning, estimator.head_steps)
    encoder_gradient = _mean([head.step().encoder_gradient for _ in range(draws)])
    horizons = sorted({min(horizon, end.run.steps) for horizon in estimator.horizons})
    for horizon, gradient, _ in end.run.derivatives(joined(encoder_gradient, {}), horizons, "exact derivative"):
        yield Slope(name, horizon, gradient, _cost(end, start))


def _cost(end: End, start: float) -> float:
    return 1 + (clock(end.pretrained) - start) / end.seconds


def _mean(gradients: list[Params]) -> Params:
    total = list(gradients[0].values())
    for gradient in gradients[1:]:
        total = add(total, list(gradient.values()))
    return like(gradients[0], [torch.div(value, len(gradients)) for value in total])
