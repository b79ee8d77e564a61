"""Pre-training of encoder and PT head with given meta-parameters."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.hypergrad.checks import check_params, check_pretrained, check_same, check_same_params
from metapt.hypergrad.distributed import processes_of
from metapt.hypergrad.nested import cloned
from metapt.hypergrad.params import all_finite, check_context, copied, detached, joined
from metapt.hypergrad.problem import Checked
from metapt.training.batches import Batches, explained
from metapt.training.capture import Captured, drawing, recorded_on
from metapt.training.checkpoint import Checkpoint, described
from metapt.training.guard import NO_VALUE
from metapt.training.interruption import Every
from metapt.training.optimizers import OptimizerSpec, check_spec, gradients_of
from metapt.training.progress import steps
from metapt.training.recorder import Recorder

log = logging.getLogger(__name__)
_COUPLED = {"SGD", "Adam", "Adamax", "Adadelta", "Adagrad", "ASGD", "NAdam", "RAdam", "RMSprop"}
"""Optimisers that add the weight decay to the gradient."""


class Pretrainer:
    """Encoder, PT head, buffers and their optimiser.

    Args:
        problem: provides the PT loss.
        batches: source of PT minibatches.
        pretrained: initial encoder, PT head and buffers; they are copied.
        optimizer: optimiser of encoder and PT head, with its learning-rate schedule.
        capture: on a GPU, replay the PT loss and its gradient as a CUDA graph (see `Captured`). A step then takes the
            time of its kernels, and the memory of one stays taken.

    Attributes:
        pretrained: the present encoder, PT head and buffers.
        optimizer: their optimiser with its schedule.
        loss: the PT loss before the last step that `run` has taken, a scalar; 0 if it has taken none.
        processes: those that share the problem (see `metapt.distributed`).

    Raises:
        TypeError: the problem has no PT loss, or `pretrained` does not consist of dictionaries of tensors.
        ValueError: a parameter has a gradient hook.
        ConfigError: the encoder is empty, or a parameter is not of a floating type or not finite; or steps are
            captured of a problem that processes share.
    """

    def __init__(
        self,
        problem: MetaProblem,
        batches: Batches,
        pretrained: Pretrained,
        optimizer: OptimizerSpec,
        capture: bool = False,
    ) -> None:
        if not callable(getattr(problem, "pretrain_loss", None)):
            raise TypeError(f"the problem, a {type(problem).__name__}, has no method pretrain_loss (see MetaProblem)")
        check_pretrained(pretrained)
        check_trainable("encoder", pretrained.encoder, may_be_empty=False)
        check_trainable("PT head", pretrained.head, may_be_empty=True)
        self.problem, self.processes = problem, processes_of(problem)
        self.batches = batches
        self._tried = self._told = False
        self.pretrained = Pretrained(*map(copied, pretrained)).leaves()
        self.loss = torch.zeros(())
        check_spec(optimizer, "optimizer")
        self.optimizer = optimizer.stepper(joined(*self.pretrained[:2]))
        if capture and self.processes.size > 1:
            raise ConfigError("steps of a problem that processes share can't be captured; legal: capture=False")
        captured = Captured(self._differentiated, self._tensors, self._loss, "pretrain_loss")
        self._captured = captured if capture and recorded_on(self.pretrained.vector()) else None

    @explained
    @torch.enable_grad()
    def step(self, meta: Params) -> Tensor:
        """Take one PT step on the next PT minibatch, without a derivative w.r.t. `meta`.

        Returns:
            The PT loss before the step, a scalar.

        Raises:
            RuntimeError: the call is made under `torch.inference_mode` or `torch.autocast`.
            TypeError: the loss is no tensor.
            ValueError: the loss is no scalar, has no graph, depends on none of the parameters, or changes its
                minibatch.
            ConfigError, TrainingError: the step can't be captured, or the loss depends on what is not captured.
        """
        check_context()
        self.optimizer.check("pretrained", joined(*self.pretrained[:2]))
        batch = self.batches.pretrain()
        if self._tried:
            loss, gradients = self._gradient(detached(meta), batch)
        else:  # the first step shows on copies whether the loss changes what it is given
            check_params("set of meta-parameters", meta)
            self.check_equal(meta)
            phi, copy = cloned((detached(meta), batch))
            loss, gradients = self._differentiated(phi, copy)
            check_same_params("pretrain_loss", "meta-parameter", meta, phi)
            check_same("pretrain_loss", batch, copy)
            self._tried = True
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                "pretrain_loss depends on no parameter of `pretrained`, so that PT changes nothing; call the module "
                "with them: functional_call(module, {**pretrained.encoder, **pretrained.buffers}, inputs)"
            )
        for value, gradient in zip(self.pretrained.vector(), gradients, strict=True):
            value.grad = gradient
        self.optimizer.step()  # it frees the gradients, since a meta-update needs the memory
        return loss

    def _gradient(self, meta: Params, batch: Any) -> tuple[Tensor, list[Tensor | None]]:
        """Return what `_differentiated` does, captured or not."""
        if self._captured is None:
            return self._differentiated(meta, batch)
        with drawing(batch, self._tensors()) as plain:
            loss, gradients = self._captured(meta, plain)
        return loss.clone(), gradients

    def _differentiated(self, meta: Params, batch: Any) -> tuple[Tensor, list[Tensor | None]]:
        """Return the PT loss, and its gradient w.r.t. each parameter of encoder and PT head."""
        loss = Checked(self.problem).pretrain_loss(self.pretrained, meta, batch)
        return loss.detach(), gradients_of(loss, self.pretrained.vector())

    def _loss(self, meta: Params, batch: Any) -> Tensor:
        """Return the PT loss; buffers stay as they are."""
        return self.problem.pretrain_loss(self.pretrained.leaves(), meta, batch).detach()

    def _tensors(self) -> list[Tensor]:
        return [*self.pretrained.vector(), *self.pretrained.buffers.values()]

    def step_along(self, gradient: Pretrained) -> None:
        """Take one PT step with a gradient that was computed at the present weights, and take over its buffers."""
        gradients = joined(*gradient[:2])
        for name, value in joined(*self.pretrained[:2]).items():
            value.grad = gradients.get(name)
        self.optimizer.step()
        for name, value in self.pretrained.buffers.items():
            value.copy_(gradient.buffers[name])

    def weight_decay(self) -> list[float]:
        """Return the weight decay of each parameter of encoder and PT head, where it is a part of the gradient.

        The gradient is then that of the loss plus weight_decay / 2 |w|^2. Warn of a decay that is not, as of AdamW.
        """
        optimizer, found, apart = self.optimizer.optimizer, {}, 0.0
        kind = type(optimizer).__name__
        for group in optimizer.param_groups:
            decay = float(group.get("weight_decay", 0.0))
            if kind not in _COUPLED or group.get("decoupled_weight_decay", False):
                decay, apart = 0.0, max(apart, decay)
            found.update(dict.fromkeys(map(id, group["params"]), decay))
        if apart and not self._told:
            self._told = True
            log.warning(
                "the weight decay of %s, up to %g, is apart from the gradient, so that the Hessian of hypergradients "
                "leaves it out; that of SGD or Adam is in it",
                kind,
                apart,
            )
        return [found[id(value)] for value in self.pretrained.vector()]

    def state_dict(self) -> dict[str, Any]:
        """Return all that determines the rest of the run, minibatches included; the tensors are not copied."""
        return {
            "encoder": detached(self.pretrained.encoder),
            "pretrain_head": detached(self.pretrained.head),
            "buffers": dict(self.pretrained.buffers),
            "pretrain_optimizer": self.optimizer.state_dict(),
            "batches": self.processes.gather(self.batches.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises errors as `restore` and `replay`."""
        self.restore(state)
        self.replay(state)

    def restore(self, state: dict[str, Any]) -> None:
        """Take `state` but for its minibatches. Raises ValueError if it has other parameters, buffers or processes."""
        if len(state["batches"]) != self.processes.size:
            raise ValueError(f"it has {len(state['batches'])} processes, not {self.processes.size}")
        parts = zip(self.pretrained, ("encoder", "pretrain_head", "buffers"), strict=True)
        self.pretrained = Pretrained(*(restored(part, params, state[part]) for params, part in parts))
        self.optimizer.load_state_dict(state["pretrain_optimizer"])

    def replay(self, state: dict[str, Any]) -> None:
        """Go to the minibatches after those of `state`. Raises ConfigError if they are others; can fail as loaders."""
        own = state["batches"][self.processes.rank]
        try:
            self.batches.load_state_dict(own)
        except (KeyError, ValueError) as error:
            if hasattr(error, "__notes__"):  # by which loaders say that they have failed
                raise
            names = f"{', '.join(own)}, and these are of {', '.join(self.batches.state_dict())}"
            why = f"{type(error).__name__}: {error}); give it the old ones, or the run another file or fingerprint"
            raise ConfigError(f"the run to be resumed had minibatches of {names} ({why}") from error

    def check_equal(self, meta: Params, head: Params | None = None) -> None:
        """Raise ConfigError if weights, buffers, meta-parameters or an FT head differ between processes."""
        parts = {"meta-parameters": meta, "FT head": head or {}, "buffers": self.pretrained.buffers}
        own = {f"{part}.{name}": value for part, params in parts.items() for name, value in params.items()}
        self.processes.check_equal(joined(*self.pretrained[:2]) | own)

    def run(
        self,
        meta: Params,
        count: int,
        label: str = "PT",
        checkpoint: Checkpoint | None = None,
        seconds_between_checkpoints: float = 60.0,
        recorder: Recorder | None = None,
    ) -> int:
        """Take `count` steps with fixed meta-parameters, less those that a checkpoint has, and go on from there.

        Args:
            meta: the meta-parameters.
            count: number of PT steps of the whole run.
            label: label of the progress bar.
            checkpoint: where the state is saved during the run; the caller removes it when its results are written.
            seconds_between_checkpoints: wall time.
            recorder: is called after each step.

        Returns:
            The number of steps that this call has taken.

        Raises:
            TrainingError: the PT loss or the weights are not finite; a GPU's loss is read at every 100th step.
            ConfigError: the checkpoint is of a run with other parts, settings or meta-parameters, or of more steps.
            Interrupted: a signal came inside `interruption.noticed()`; the state is saved.
        """
        saved = checkpoint.load() if checkpoint is not None else None
        first, settings = 0, {} if checkpoint is None else described({"meta": meta}) | self.optimizer.settings
        if checkpoint is not None and saved is not None:
            with checkpoint.taken_up(saved, settings):
                self.restore(saved["pretrainer"])
                first = saved["step"]
                if recorder is not None:
                    recorder.load_state_dict(saved["recorder"])
            goes_on(label, "step", first, count)
            self.replay(saved["pretrainer"])
        due = Every(seconds_between_checkpoints, self.processes.gather)
        seen: dict[str, Tensor] = {}
        for step in steps(first, count, label, status=seen):
            self.loss = seen["loss"] = self.step(meta)
            if is_read(self.loss, step + 1):
                check_loss(self.loss, f"step {step + 1}")
            if recorder is not None:
                recorder(step + 1)
            if checkpoint is not None and (due() or step + 1 == count):
                check_finite(self.loss, f"step {step + 1}", self.pretrained)
                recorded = recorder.state_dict() if recorder is not None else {}
                state = {"step": step + 1, "pretrainer": self.state_dict(), "recorder": recorded}
                checkpoint.save(state | {"settings": settings}, self.processes)
        if first < count:
            check_finite(self.loss, f"step {count}", self.pretrained)
            self.check_equal(meta)
        return count - first


def is_read(loss: Tensor, step: int) -> bool:
    """Return whether the PT loss of a step is to be checked: each on a CPU, else every 100th, since reading waits."""
    return loss.device.type == "cpu" or step % 100 == 0


def check_loss(loss: Tensor | float, place: str, also: Callable[[], str] = str) -> None:
    """Raise TrainingError if the PT loss at a place in the run, such as "step 60", is not finite.

    `also` returns the end of the advice.
    """
    if not math.isfinite(value := float(loss)):
        raise TrainingError(
            f"the PT loss at {place} is {value}: look for NaN in the PT minibatches, and for {NO_VALUE} in the PT "
            f"loss; then lower the PT learning rate{also()}."
        )


def check_finite(loss: Tensor, place: str, pretrained: Pretrained) -> None:
    """Raise TrainingError if the PT loss at a place in the run, such as "step 60", or the weights are not finite."""
    if all_finite([loss, *pretrained.vector()]):
        return
    check_loss(loss, place)
    raise TrainingError(
        f"the weights after {place} are not finite, though the PT loss was: lower the PT learning rate, or look for an "
        "operation without a finite derivative, such as the square root of 0."
    )


def goes_on(label: str, unit: str, taken: int, count: int) -> None:
    """Say where a resumed run goes on. Raises ConfigError if its checkpoint has more steps than it should take."""
    if taken > count:
        raise ConfigError(
            f"the checkpoint of {label} was saved after {unit} {taken}, and the run should take {count}: ask for as "
            "many or more, give it another fingerprint, or remove the checkpoint."
        )
    log.info("%s goes on at %s %d", label, unit, taken)
    if taken == count:
        log.warning(
            "%s has finished before: it is resumed at %s %d of %d, and nothing is run", label, unit, taken, count
        )


def restored(part: str, present: Params, saved: Params) -> Params:
    """Copy saved values into tensors in place; return these in the saved order, in which sums have the same bits.

    Raises:
        ValueError: names, shapes or types differ.
    """
    kinds, others = ({name: (value.shape, value.dtype) for name, value in each.items()} for each in (present, saved))
    if kinds != others:
        differ = sorted(name for name in kinds | others if kinds.get(name) != others.get(name))
        raise ValueError(f"other names, shapes or types in {part}: {', '.join(differ)}")
    with torch.no_grad():
        for name, value in present.items():
            value.copy_(saved[name])
    return {name: present[name] for name in saved}


def check_trainable(part: str, params: Params, may_be_empty: bool) -> None:
    """Check that parameters can be trained.

    Raises:
        ConfigError: there are none, or one is not of a floating type or not finite.
    """
    if not any(value.numel() for value in params.values()) and not may_be_empty:
        why = ": those of a module with requires_grad=False are buffers. Unfreeze some before the ModuleProblem is made"
        raise ConfigError(f"the {part} has no parameters{f' that are trained{why}' if part == 'encoder' else ''}")
    for name, value in params.items():
        if not value.is_floating_point():
            raise ConfigError(f"the parameter {name!r} of the {part} is of type {value.dtype}; legal: a floating type")
        if not torch.isfinite(value).all():
            raise ConfigError(f"the parameter {name!r} of the {part} has values that are not finite at the start")
