"""Meta-pre-training: Algorithm 2 of the paper."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from metapt.errors import ConfigError
from metapt.hypergrad import Diagnostics, Hypergradient, Identity, MetaProblem, Params, Pretrained, hypergradient
from metapt.hypergrad.checks import check_arguments, check_problem
from metapt.hypergrad.distributed import processes_of
from metapt.hypergrad.hybrid import Implicit, check_curvature, implicit
from metapt.hypergrad.inverse import Unread
from metapt.hypergrad.optimizers import OptimizerState
from metapt.hypergrad.params import Vector, all_finite, copied, detached, leaves, like, mean, norm, scaled, vjp
from metapt.hypergrad.problem import Checked
from metapt.hypergrad.trial import Given
from metapt.training.batches import Batches, explained
from metapt.training.capture import recorded_on
from metapt.training.checkpoint import Checkpoint, described
from metapt.training.diagnosis import Diagnosis, Trace
from metapt.training.guard import HypergradientGuard, cause_of
from metapt.training.implicit import CapturedImplicit
from metapt.training.interruption import Every
from metapt.training.meta_settings import MetaSettings
from metapt.training.overlap import warn_of_repeated
from metapt.training.pretraining import (
    Pretrainer,
    check_finite,
    check_loss,
    check_trainable,
    goes_on,
    is_read,
    restored,
)
from metapt.training.progress import steps
from metapt.training.recorder import Recorder

log = logging.getLogger(__name__)

_LOOKS = 10
"""Hypergradients whose FT minibatches are looked at for common examples: some take minibatches of two passes."""


class MetaPretraining:
    """Joint training of encoder, PT head, FT head and meta-parameters.

    Encoder, PT head, FT head and the state of the head's optimiser are carried from one meta-update to the next
    ("online updates"). Each hypergradient draws its own PT minibatch for the Hessian and the mixed derivative (see
    `Batches`), except one whose PT gradient the next PT step reuses.

    A meta-update with a hypergradient, head or PT gradient that is not finite (see `Hypergradient`), and such a step of
    the head, change nothing; they are counted (`guard.skipped`, `Diagnosis.statuses`) and logged. `iterate` raises
    TrainingError if a PT loss is not finite; on a GPU it looks at every 100th, since reading one waits for it. `run`
    does so if the weights are not finite, at the next checkpoint or at the end.

    The first hypergradient of a run, also of a resumed one, checks the problem (see `check_problem`); this raises
    TypeError or ValueError if something is wrong with it.

    Args:
        problem: the three losses.
        batches: source of minibatches.
        pretrained: initial encoder, PT head and buffers; they are copied.
        meta: initial meta-parameters; they are copied.
        head: initial FT head; it is copied.
        settings: the settings.
        step_problem: the problem of plain PT steps, if they compute the same PT loss in another way; None: `problem`.
            A PT step that reuses the gradient of a hypergradient takes that of `problem`.
        capture: on a GPU, replay as CUDA graphs PT steps (see `Pretrainer`) and, if the inverse is `Neumann` or
            `Identity`, the part of a hypergradient after FT.

    Attributes:
        meta: the present meta-parameters.
        averaged_meta: their average (see `MetaSettings.average_decay`); without one the present ones.
        head: the present FT head.
        iteration: number of iterations taken.
        loss: PT loss of the last PT step, or of the next one with `reuse_gradient`, a scalar; 0 before the first one.
        diagnostics: those of the last hypergradient; None before the first one, and after a resume until the next one.

    Raises:
        TypeError: the problem lacks a method, or an argument does not consist of dictionaries of tensors.
        ValueError: a tensor has a gradient hook, or the problem does not offer the curvature.
        ConfigError: encoder or meta-parameters are empty, a parameter is not of a floating type or not finite, or the
            learning rate of one of PT is 0, or a millionth of another.
    """

    def __init__(
        self,
        problem: MetaProblem,
        batches: Batches,
        pretrained: Pretrained,
        meta: Params,
        head: Params,
        settings: MetaSettings,
        step_problem: MetaProblem | None = None,
        capture: bool = False,
    ) -> None:
        check_arguments(problem, pretrained, meta, head)
        check_curvature(problem, settings.curvature)
        for name, params in {"FT head": head, "set of meta-parameters": meta}.items():
            check_trainable(name, params, may_be_empty="head" in name)
        self.problem = problem
        self.batches = batches
        self._hypergradient_batch: Callable[[], Any] = getattr(batches, "hypergradient", batches.pretrain)
        self.settings = settings
        optimizer = settings.pretrain_optimizer
        self._pretrainer = Pretrainer(step_problem or problem, batches, pretrained, optimizer, capture)
        self._pretrainer.optimizer.check_moving()
        if processes_of(problem) != self._pretrainer.processes:
            raise ConfigError("one of problem and step_problem is shared by processes, and one is not; legal: both")
        self._implicit: Callable[..., Implicit] = implicit
        if capture and isinstance(settings.inverse, Unread) and recorded_on(self.pretrained.vector()):
            self._implicit = CapturedImplicit()
        self._spare_gradient: Pretrained | None = None
        self._checked = False
        self._looks = _LOOKS
        self.meta = leaves(copied(meta))
        self.averaged_meta = detached(self.meta) if settings.average_decay is None else copied(meta)
        self.head = copied(head)
        inner = settings.finetuning.optimizer
        self.head_state = {} if inner is None else inner.init(self.head)
        self.iteration = 0
        self.first_iteration = 0
        self.loss = torch.zeros(())
        self.diagnostics: Diagnostics | None = None
        self.guard = HypergradientGuard(settings.explosion_factor, settings.max_skipped)
        self.trace = Trace(self.meta, settings.iterations - settings.warmup)
        self._meta_optimizer = settings.meta_optimizer.stepper(self.meta)

    def run(
        self,
        label: str = "meta-PT",
        checkpoint: Checkpoint | None = None,
        seconds_between_checkpoints: float = 60.0,
        recorder: Recorder | None = None,
    ) -> Diagnosis:
        """Run to the end, resuming from the checkpoint if there is one.

        Args:
            label, checkpoint, seconds_between_checkpoints: as of `Pretrainer.run`.
            recorder: is called after each iteration.

        Returns:
            The diagnosis of the run, which is also logged.

        Raises:
            TrainingError: the PT loss or the weights are not finite, or too many hypergradients in a row were skipped.
            ConfigError: the checkpoint is of a run with other parts, other settings or more iterations.
            Interrupted: a signal came inside `interruption.noticed()`; the state is saved.
        """
        saved = checkpoint.load() if checkpoint is not None else None
        settings = {} if checkpoint is None else self._described()
        if checkpoint is not None and saved is not None:
            with checkpoint.taken_up(saved, settings):
                self._restore(saved["loop"])
                if recorder is not None:
                    recorder.load_state_dict(saved["recorder"])
            goes_on(label, "iteration", self.iteration, self.settings.iterations)
            self._pretrainer.replay(saved["loop"]["pretrainer"])
        self.first_iteration = self.iteration
        due = Every(seconds_between_checkpoints, self._pretrainer.processes.gather)
        for _ in self.iterations(label):
            self.iterate()
            if recorder is not None:
                recorder(self.iteration)
            if checkpoint is not None and (due() or self.iteration == self.settings.iterations):
                check_finite(self.loss, f"iteration {self.iteration}", self.pretrained)
                recorded = {} if recorder is None else recorder.state_dict()
                state = {"loop": self.state_dict(), "recorder": recorded, "settings": settings}
                checkpoint.save(state, self._pretrainer.processes)
        check_finite(self.loss, f"iteration {self.iteration}", self.pretrained)
        self._pretrainer.check_equal(self.meta, self.head)
        diagnosis = self.trace.diagnosis(self.guard.skipped)
        log.log(logging.WARNING if diagnosis.alarming else logging.INFO, "%s", diagnosis)
        return diagnosis

    def iterations(self, label: str | None = None) -> Iterator[int]:
        """Count the iterations that are left, as `iteration` does; `label` is that of the progress bar."""
        seen: dict[str, Tensor | list[Tensor]] = {"loss": self.loss, "phi": list(self.meta.values())}
        for iteration in steps(self.iteration, self.settings.iterations, label, status=seen):
            yield iteration
            seen["loss"] = self.loss

    def iterate(self) -> None:
        """Take one iteration of Algorithm 2: P PT steps and, after the warm-up, one meta-update.

        The last iteration takes the PT steps of `remainder`, too.
        """
        for step in range(self.settings.pretrain_steps):
            self._pretrain_step()
            self._check_loss(step)
            if step + 1 < self.settings.pretrain_steps or self.iteration < self.settings.warmup:
                for _ in range(self.settings.head_steps_between_updates):
                    self._head_step()
        if self.iteration >= self.settings.warmup:
            self._meta_update()
        self.iteration += 1
        if self.iteration == self.settings.iterations:
            for step in range(self.settings.remainder):
                self._pretrain_step()
                self._check_loss(step)
        self.trace.record_loss(self.loss)

    @property
    def steps_taken(self) -> int:
        """Return the number of PT steps of a finished run since it was started or resumed."""
        left = self.settings.iterations - self.first_iteration
        return left * self.settings.pretrain_steps + (self.settings.remainder if left else 0)

    @property
    def weight_decay(self) -> float | list[float]:
        """Return the present one of each parameter in PT, as `hypergradient` takes it: a schedule may change it."""
        return 0.0 if isinstance(self.settings.inverse, Identity) else self._pretrainer.weight_decay()

    @property
    def pretrained(self) -> Pretrained:
        """Return the present encoder, PT head and buffers, without a copy."""
        return self._pretrainer.pretrained

    def _pretrain_step(self) -> None:
        """Take a PT step, with the PT gradient of the last meta-update if that is to be reused."""
        if self._spare_gradient is None:
            self.loss = self._pretrainer.step(self.meta)
        else:
            self._pretrainer.step_along(self._spare_gradient)
            self._spare_gradient = None

    def _check_loss(self, number: int, read: float | None = None) -> None:
        """Raise TrainingError if the loss of the `number`-th PT step of the iteration, read or due, is not finite."""
        step = self.iteration * self.settings.pretrain_steps + number + 1
        if read is not None or is_read(self.loss, step):
            phi = list(detached(self.meta).values())
            also = ", or that of the meta-parameters, whose norm is {:.3g}"
            check_loss(self.loss if read is None else read, f"PT step {step}", lambda: also.format(float(norm(phi))))

    @explained
    @torch.enable_grad()
    def _head_step(self) -> None:
        """Take one FT step of the head, with a frozen encoder."""
        optimizer = self.settings.finetuning.optimizer
        assert optimizer is not None  # see MetaSettings
        batch = self.batches.train()
        with torch.no_grad():
            features = self.problem.encode({**self.pretrained.encoder, **self.pretrained.buffers}, batch)
        head = leaves(self.head)
        loss = Checked(self.problem).head_loss(head, features, batch)
        gradients = like(head, vjp([loss], list(head.values())))
        with torch.no_grad():
            stepped, state = optimizer.step(head, gradients, self.head_state)
            if all_finite([loss, *stepped.values(), *state.values()]):
                self.head, self.head_state = stepped, state
            else:
                self.trace.record_skipped_head_step()
                text = "a step of the FT head at iteration %d is not taken: the FT loss or the new head is not finite"
                log.warning(f"{text}; look for NaN in the FT training minibatches", self.iteration)

    def _meta_update(self) -> None:
        """Take a step of phi with the mean of `accumulate` hypergradients, and their FT head; or skip both."""
        loss, head, head_state = self.loss, self.head, self.head_state
        if not self._checked:
            self._check_loss(self.settings.pretrain_steps - 1, float(loss))
        gradients: list[Vector] = []
        seen: list[Diagnostics] = []
        for number in range(self.settings.accumulate):
            reuse = self.settings.reuse_gradient and number + 1 == self.settings.accumulate
            result = self._hypergradient(head, head_state, reuse)
            head, head_state = result.head, result.head_state
            if result.pretrain_gradient is not None:
                self._spare_gradient = result.pretrain_gradient
                self.loss = result.diagnostics.pretrain_loss
            gradients.append(list(result.gradient.values()))
            seen.append(result.diagnostics)
        gradient = mean(gradients)
        total = norm(gradient)
        size, read = torch.stack([total, loss.to(total.device)]).tolist()
        self._check_loss(self.settings.pretrain_steps - 1, read)
        cause, advice = cause_of(seen, size, self.settings.finetuning)
        if self.guard.accepts(size, self.iteration, cause, advice):
            # A skipped update leaves the head as it was, too, since the steps of the head may have diverged.
            self.head, self.head_state = head, head_state
            self._apply(gradient)
        self.trace.record_update(size, self.meta, cause)

    @explained
    def _hypergradient(self, head: Params, head_state: OptimizerState, reuse: bool = False) -> Hypergradient:
        """Return a hypergradient on new minibatches; with `reuse` on that of the next PT step, with its PT gradient."""
        pretrain_batch = self.batches.pretrain() if reuse else self._hypergradient_batch()
        train_batches = [self.batches.train() for _ in range(self.settings.finetuning.minibatches)]
        validation_batch = self.batches.validation()
        if not self._checked:
            self._pretrainer.check_equal(self.meta, head)
            given = Given(self.pretrained, self.meta, head, pretrain_batch, validation_batch)
            check_problem(self.problem, given, uses_head_loss=self.settings.finetuning.uses_head_loss)
            self._checked = True
        if self._looks:
            repeated = warn_of_repeated(self.settings.finetuning, [*train_batches, validation_batch])
            self._looks = 0 if repeated else self._looks - 1
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
            weight_decay=self.weight_decay,
            solve=self._implicit,
        )
        self.diagnostics = result.diagnostics
        self.trace.record_hypergradient(result.diagnostics)
        return result

    def _apply(self, gradient: Vector) -> None:
        """Normalise and clip the hypergradient as set, take the step of phi, and update its average."""
        size = norm(gradient)
        tiny = torch.finfo(size.dtype).tiny
        scale = 1 / size.clamp_min(tiny) if self.settings.normalise else torch.ones_like(size)
        if self.settings.clip_norm is not None:
            scale = scale * (self.settings.clip_norm / (scale * size).clamp_min(tiny)).clamp_max(1.0)
        self._meta_optimizer.check("meta", self.meta)
        for value, each in zip(self.meta.values(), scaled(gradient, scale), strict=True):
            value.grad = each.to(value.dtype)
        self._meta_optimizer.step()
        if self.settings.average_decay is not None:
            new, weight = detached(self.meta), 1 - self.settings.average_decay
            self.averaged_meta = {name: old.lerp(new[name], weight) for name, old in self.averaged_meta.items()}

    def _described(self) -> dict[str, str]:
        """Return to what a checkpoint is bound. A run without `remainder` may go on to more iterations."""
        own = {each.name: getattr(self.settings, each.name) for each in fields(self.settings)}
        if not self.settings.remainder:
            del own["iterations"]
        own["pretrain_optimizer"] = self._pretrainer.optimizer.settings
        own["meta_optimizer"] = self._meta_optimizer.settings
        return described(own)

    def state_dict(self) -> dict[str, Any]:
        """Return all that determines the rest of the run; the tensors are not copied, as in torch's optimisers."""
        return {
            "iteration": self.iteration,
            "pretrainer": self._pretrainer.state_dict(),
            "spare_gradient": None if self._spare_gradient is None else list(self._spare_gradient),
            "loss": self.loss,
            "meta": detached(self.meta),
            "averaged_meta": self.averaged_meta,
            "head": self.head,
            "head_state": self.head_state,
            "meta_optimizer": self._meta_optimizer.state_dict(),
            "guard": self.guard.state_dict(),
            "trace": self.trace.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; on a CPU all later results are bitwise the same.

        Raises:
            ValueError: it has other parameters or buffers.
        """
        self._restore(state)
        self._pretrainer.replay(state["pretrainer"])

    def _restore(self, state: dict[str, Any]) -> None:
        self.iteration = state["iteration"]
        self._pretrainer.restore(state["pretrainer"])
        spare = state["spare_gradient"]
        self._spare_gradient = None if spare is None else Pretrained(*spare)
        self.loss = state["loss"]
        self.meta = restored("meta", self.meta, state["meta"])
        self.averaged_meta = restored("averaged_meta", self.averaged_meta, state["averaged_meta"])
        self.head, self.head_state = restored("head", self.head, state["head"]), state["head_state"]
        self._meta_optimizer.load_state_dict(state["meta_optimizer"])
        self.guard.load_state_dict(state["guard"])
        self.trace.load_state_dict(state["trace"])
