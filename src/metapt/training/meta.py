"""The meta-PT loop: Algorithm 2 of the paper, whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from metapt.errors import ConfigError
from metapt.hypergrad import (
    Diagnostics,
    FineTuning,
    Hypergradient,
    MetaProblem,
    Neumann,
    Params,
    Pretrained,
    Status,
    Unroll,
    hypergradient,
)
from metapt.hypergrad.checks import Checked, check_arguments, check_problem
from metapt.hypergrad.hybrid import Curvature
from metapt.hypergrad.inverse import Inverse
from metapt.hypergrad.optimizers import OptimizerState
from metapt.hypergrad.params import all_finite, detached, leaves, like, norm
from metapt.training.batches import Batches
from metapt.training.checkpoint import Checkpoint
from metapt.training.diagnosis import Diagnosis, Trace
from metapt.training.guard import HypergradientGuard
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer, check_finite, trainable
from metapt.training.progress import steps
from metapt.training.recorder import Recorder
from metapt.training.timing import Every

log = logging.getLogger(__name__)
_SOLVER_ATTRIBUTES = ("minibatches", "optimizer", "uses_head_loss")


@dataclass(frozen=True)
class MetaSettings:
    """How meta-PT runs. The options from `accumulate` on are off by default: the paper has none of them.

    Args:
        iterations: N, meta-iterations of P PT steps each.
        pretrain_steps: P, PT steps per iteration.
        warmup: the first iterations, which leave the meta-parameters as they are (in Algorithm 2, n < N_warmup: one fewer).
        inverse: of the PT Hessian.
        finetuning: the FT leg.
        curvature: what stands for the PT Hessian.
        pretrain_optimizer: of encoder and PT head.
        meta_optimizer: of the meta-parameters, with its own learning rates per group.
        head_steps_between_updates: plain steps of the FT head after each PT step that no meta-update follows (the released
            code takes 1).
        accumulate: hypergradients, each on minibatches of its own, whose mean is one meta-update's; if one of them is not
            finite, none is applied.
        clip_norm: largest norm of an applied hypergradient.
        normalise: divide the hypergradient by its norm.
        average_decay: decay of an exponential moving average of the meta-parameters (it begins at the initial ones), kept as
            `averaged_meta`.
        explosion_factor: a meta-update whose hypergradient is this many times larger than the running median is skipped.
        max_skipped: skipped meta-updates in a row after which the run stops.
        reuse_gradient: the PT gradient that the (last) hypergradient of a meta-update leaves serves as the next PT step's, which
            then costs nothing; so that hypergradient takes its minibatch from `Batches.pretrain`. A PT gradient that is not
            finite is dropped, and the PT step takes a minibatch of its own.
    """

    iterations: int
    pretrain_steps: int = 1
    warmup: int = 0
    inverse: Inverse = field(default_factory=lambda: Neumann(terms=1, step_size=1e-3))
    finetuning: FineTuning = field(default_factory=Unroll)
    curvature: Curvature = "hessian"
    pretrain_optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    meta_optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    head_steps_between_updates: int = 0
    accumulate: int = 1
    clip_norm: float | None = None
    normalise: bool = False
    average_decay: float | None = None
    explosion_factor: float = 1e4
    max_skipped: int = 10
    reuse_gradient: bool = False

    def __post_init__(self) -> None:
        for name, least in {
            "iterations": 1,
            "pretrain_steps": 1,
            "warmup": 0,
            "head_steps_between_updates": 0,
            "accumulate": 1,
            "max_skipped": 1,
        }.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} is {value}; legal: {least} or more")
        if self.warmup >= self.iterations:
            raise ConfigError(
                f"warmup is {self.warmup} of {self.iterations} iterations, so that phi would never be learned; legal: fewer"
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm is {self.clip_norm}; legal: a positive number, or nothing")
        if self.average_decay is not None and not 0 < self.average_decay < 1:
            raise ConfigError(f"average_decay is {self.average_decay}; legal: between 0 and 1, or nothing")
        if not self.explosion_factor > 1:
            raise ConfigError(f"explosion_factor is {self.explosion_factor}; legal: more than 1")
        solver = type(self.finetuning).__name__
        missing = [name for name in _SOLVER_ATTRIBUTES if not hasattr(self.finetuning, name)]
        if missing:
            raise ConfigError(f"the FT solver, a {solver}, has no attribute {' and no '.join(missing)} (see FineTuning)")
        if self.head_steps_between_updates and self.finetuning.optimizer is None:
            raise ConfigError(
                f"head_steps_between_updates is {self.head_steps_between_updates}, but the FT solver, a {solver}, has no "
                "optimizer for steps of the head; legal: 0, or a solver that has one, such as Unroll"
            )


class MetaPretraining:
    """Encoder, PT head, FT head and meta-parameters, trained together.

    The FT head and its optimiser's state go on from one meta-update to the next, and so do encoder and PT head ("online
    updates"). Each hypergradient draws a PT minibatch of its own for the Hessian and the mixed derivative (see `Batches`).

    Nothing that is not finite is applied: a meta-update whose hypergradients, heads or PT gradients are not (see `Hypergradient`)
    and a plain step of the head leave everything as it was, are counted (`guard.skipped`, `Diagnosis.statuses`) and logged.

    Args:
        problem: the three losses.
        batches: where minibatches come from.
        pretrained: initial encoder, PT head and buffers (copied).
        meta: initial meta-parameters (copied).
        head: initial FT head (copied).

    Raises:
        TypeError: the problem lacks a method, or an argument is not made of dictionaries of tensors.
        ConfigError: there is no encoder or no meta-parameter, or a parameter is not floating or not finite.

    The first hypergradient of a run, also of one that is resumed, checks the problem (see `check_problem`); TypeError and
    ValueError say what is wrong with it.
    """

    def __init__(
        self, problem: MetaProblem, batches: Batches, pretrained: Pretrained, meta: Params, head: Params, settings: MetaSettings
    ) -> None:
        check_arguments(problem, pretrained, meta, head)
        for name, params in {
            "encoder": pretrained.encoder,
            "PT head": pretrained.head,
            "FT head": head,
            "set of meta-parameters": meta,
        }.items():
            _check(name, params, may_be_empty="head" in name)
        self.problem = problem
        self.batches = batches
        self._hypergradient_batch: Callable[[], Any] = getattr(batches, "hypergradient", batches.pretrain)
        self.settings = settings
        self._pretrainer = Pretrainer(problem, batches, pretrained, settings.pretrain_optimizer)
        self._spare_gradient: Pretrained | None = None
        self._checked = False
        self.meta = trainable(meta)
        self.averaged_meta = {name: value.detach().clone() for name, value in meta.items()}
        self.head = {name: value.detach().clone() for name, value in head.items()}
        optimizer = settings.finetuning.optimizer
        self.head_state = {} if optimizer is None else optimizer.init(self.head)
        self.iteration = 0
        self.first_iteration = 0
        self._loss = torch.zeros(())
        self.guard = HypergradientGuard(settings.explosion_factor, settings.max_skipped)
        self.trace = Trace(self.meta, settings.iterations - settings.warmup)
        self._meta_optimizer = settings.meta_optimizer.build(self.meta)

    def run(
        self,
        label: str = "meta-PT",
        checkpoint: Checkpoint | None = None,
        seconds_between_checkpoints: float = 60.0,
        recorder: Recorder | None = None,
    ) -> Diagnosis:
        """Runs to the end, from the checkpoint if there is one, and says how it went.

        Args:
            label: beside the progress bar.
            checkpoint: where the state is kept while the run lasts; the caller removes it when its results are written.
            seconds_between_checkpoints: wall time.
            recorder: told of each iteration.

        Raises:
            TrainingError: the PT loss is not finite, or too many hypergradients in a row could not be applied.
        """
        saved = checkpoint.load() if checkpoint is not None else None
        if saved is not None:
            self.load_state_dict(saved["loop"])
            if recorder is not None:
                recorder.load_state_dict(saved["recorder"])
            log.info("%s goes on at iteration %d", label, self.iteration)
        self.first_iteration = self.iteration
        due = Every(seconds_between_checkpoints)
        for _ in steps(self.iteration, self.settings.iterations, label):
            self.iterate()
            if recorder is not None:
                recorder(self.iteration)
            if checkpoint is not None and (due() or self.iteration == self.settings.iterations):
                check_finite(self._loss, self.iteration - 1)
                checkpoint.save({"loop": self.state_dict(), "recorder": recorder.state_dict() if recorder is not None else {}})
        check_finite(self._loss, self.iteration - 1)
        diagnosis = self.trace.diagnosis(self.guard.skipped)
        log.info("%s", diagnosis)
        return diagnosis

    def iterate(self) -> None:
        """One iteration of Algorithm 2: P PT steps, then, after the warm-up, one meta-update."""
        for step in range(self.settings.pretrain_steps):
            self._pretrain_step()
            if step + 1 < self.settings.pretrain_steps or self.iteration < self.settings.warmup:
                for _ in range(self.settings.head_steps_between_updates):
                    self._head_step()
        if self.iteration >= self.settings.warmup:
            self._meta_update()
        self.iteration += 1
        self.trace.record_loss(self._loss)

    @property
    def pretrained(self) -> Pretrained:
        """Encoder, PT head and buffers as they are now."""
        return self._pretrainer.pretrained

    def _pretrain_step(self) -> None:
        """A PT step; its gradient is the last meta-update's where that is to be reused."""
        if self._spare_gradient is None:
            self._loss = self._pretrainer.step(self.meta)
        else:
            self._pretrainer.step_along(self._spare_gradient)
            self._spare_gradient = None

    def _head_step(self) -> None:
        """One plain FT step of the head, the encoder frozen."""
        optimizer = self.settings.finetuning.optimizer
        assert optimizer is not None  # see MetaSettings
        batch = self.batches.train()
        with torch.no_grad():
            features = self.problem.encode({**self.pretrained.encoder, **self.pretrained.buffers}, batch)
        head = leaves(self.head)
        loss = Checked(self.problem).head_loss(head, features, batch)
        gradients = like(head, torch.autograd.grad(loss, list(head.values())))
        with torch.no_grad():
            stepped, state = optimizer.step(head, gradients, self.head_state)
            if all_finite([loss, *stepped.values(), *state.values()]):
                self.head, self.head_state = stepped, state
            else:
                self.trace.record_skipped_head_step()
                log.warning("a step of the FT head at iteration %d is not taken: %s", self.iteration, Status.NON_FINITE.value)

    def _meta_update(self) -> None:
        """One step of phi along the mean of `accumulate` hypergradients, and the head that they leave; or neither."""
        head, head_state = self.head, self.head_state
        mean = {name: torch.zeros_like(value) for name, value in self.meta.items()}
        seen: list[Diagnostics] = []
        for number in range(self.settings.accumulate):
            reuse = self.settings.reuse_gradient and number + 1 == self.settings.accumulate
            result = self._hypergradient(head, head_state, reuse)
            head, head_state = result.head, result.head_state
            if result.pretrain_gradient is not None:
                self._spare_gradient = result.pretrain_gradient
                self._loss = result.diagnostics.pretrain_loss
            mean = {name: value + result.gradient[name] / self.settings.accumulate for name, value in mean.items()}
            seen.append(result.diagnostics)
        size = float(norm(list(mean.values())))
        if self.guard.accepts(size, self.iteration, *_cause(seen)):
            self.head, self.head_state = head, head_state  # else the head stays, too: what diverged may be its steps
            self._apply(mean)
        self.trace.record_update(size, self.meta)

    def _hypergradient(self, head: Params, head_state: OptimizerState, reuse: bool = False) -> Hypergradient:
        pretrain_batch = self.batches.pretrain() if reuse else self._hypergradient_batch()
        train_batches = [self.batches.train() for _ in range(self.settings.finetuning.minibatches)]
        validation_batch = self.batches.validation()
        if not self._checked:
            arguments = (self.problem, self.pretrained, self.meta, head, pretrain_batch, validation_batch)
            check_problem(*arguments, uses_head_loss=self.settings.finetuning.uses_head_loss)
            self._checked = True
        result = hypergradient(
            self.problem,
            self.pretrained,
            self.meta,
            head,
            pretrain_batch=pretrain_batch,
            train_batches=train_batches,
            validation_batch=validation_batch,
            inverse=self.settings.inverse,
            finetuning=self.settings.finetuning,
            head_state=head_state,
            curvature=self.settings.curvature,
            keep_gradient=reuse,
        )
        self.trace.record_hypergradient(result.diagnostics)
        return result

    def _apply(self, gradient: Params) -> None:
        size = norm(list(gradient.values()))
        scale = torch.ones_like(size)
        if self.settings.normalise:
            scale = 1 / size.clamp_min(torch.finfo(size.dtype).tiny)
        if self.settings.clip_norm is not None:
            scale = scale * (self.settings.clip_norm / (scale * size).clamp_min(torch.finfo(size.dtype).tiny)).clamp_max(1.0)
        for name, value in self.meta.items():
            value.grad = scale * gradient[name]
        self._meta_optimizer.step()
        if self.settings.average_decay is not None:
            for name, average in self.averaged_meta.items():
                average.lerp_(self.meta[name].detach(), 1 - self.settings.average_decay)
        else:
            self.averaged_meta = {name: value.detach().clone() for name, value in self.meta.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the rest of the run; its tensors are the loop's own, as torch's optimisers do it."""
        return {
            "iteration": self.iteration,
            "pretrainer": self._pretrainer.state_dict(),
            "spare_gradient": None if self._spare_gradient is None else list(self._spare_gradient),
            "loss": self._loss,
            "meta": detached(self.meta),
            "averaged_meta": self.averaged_meta,
            "head": self.head,
            "head_state": self.head_state,
            "meta_optimizer": self._meta_optimizer.state_dict(),
            "guard": self.guard.state_dict(),
            "trace": self.trace.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken: on a CPU to the same bits."""
        self.iteration = state["iteration"]
        self._pretrainer.load_state_dict(state["pretrainer"])
        spare = state["spare_gradient"]
        self._spare_gradient = None if spare is None else Pretrained(*spare)
        self._loss = state["loss"]
        with torch.no_grad():
            for name, value in self.meta.items():
                value.copy_(state["meta"][name])
        self.averaged_meta, self.head, self.head_state = state["averaged_meta"], state["head"], state["head_state"]
        self._meta_optimizer.load_state_dict(state["meta_optimizer"])
        self.guard.load_state_dict(state["guard"])
        self.trace.load_state_dict(state["trace"])


def _cause(seen: list[Diagnostics]) -> tuple[str, str | None]:
    """What was not finite first in a meta-update's hypergradients and how their solves ended; the advice where that is why."""
    bad = next((name for figures in seen for name in figures.not_finite()), None)
    statuses = [status for figures in seen for status in (figures.fit_status, figures.solve_status) if status is not Status.OK]
    first = f"; the first figure that is not finite: {bad}" if bad is not None else ""
    advice = next((status.value for status in statuses if status in (Status.DIVERGED, Status.SINGULAR)), None)
    return first + "".join(f"; {text}" for text in dict.fromkeys(status.value for status in statuses)), advice


def _check(part: str, params: Params, may_be_empty: bool) -> None:
    if not params and not may_be_empty:
        raise ConfigError(f"the {part} has no parameters")
    for name, value in params.items():
        if not value.is_floating_point():
            raise ConfigError(f"the parameter {name!r} of the {part} is of type {value.dtype}; legal: a floating type")
        if not torch.isfinite(value).all():
            raise ConfigError(f"the parameter {name!r} of the {part} has values that are not finite at the start")
