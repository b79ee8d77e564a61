"""Pre-training: encoder and PT head under given meta-parameters, step by step."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from metapt.errors import TrainingError
from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.hypergrad.checks import Checked
from metapt.hypergrad.params import check_inference_mode, detached
from metapt.training.batches import Batches
from metapt.training.checkpoint import Checkpoint
from metapt.training.optimizers import OptimizerSpec
from metapt.training.progress import steps
from metapt.training.recorder import Recorder
from metapt.training.timing import Every

log = logging.getLogger(__name__)


class Pretrainer:
    """Encoder, PT head, buffers and their optimiser.

    Args:
        problem: of which the PT loss is used.
        batches: where PT minibatches come from.
        pretrained: initial encoder, PT head and buffers (copied).
        optimizer: of encoder and PT head.
    """

    def __init__(self, problem: MetaProblem, batches: Batches, pretrained: Pretrained, optimizer: OptimizerSpec) -> None:
        self.problem = problem
        self.batches = batches
        buffers = {name: value.detach().clone() for name, value in pretrained.buffers.items()}
        self.pretrained = Pretrained(trainable(pretrained.encoder), trainable(pretrained.head), buffers)
        self._optimizer = optimizer.build(_named(self.pretrained))

    def step(self, meta: Params) -> Tensor:
        """One PT step on the next PT minibatch, no derivative w.r.t. `meta` taken. Returns the loss before it.

        Raises:
            RuntimeError: derivatives are forbidden (`torch.inference_mode`).
            TypeError, ValueError: the loss is no scalar tensor, has no graph, or depends on none of the parameters.
        """
        check_inference_mode()
        loss = Checked(self.problem).pretrain_loss(self.pretrained, detached(meta), self.batches.pretrain())
        loss.backward()  # type: ignore[no-untyped-call]
        if all(value.grad is None for value in self.pretrained.vector()):
            raise ValueError(
                "pretrain_loss depends on no parameter of `pretrained`, so that PT changes nothing; call the module with them: "
                "functional_call(module, {**pretrained.encoder, **pretrained.buffers}, inputs)"
            )
        self._take_step()
        return loss.detach()

    def step_along(self, gradient: Pretrained) -> None:
        """One PT step with a gradient that was taken at the present weights; its buffers are those that came of it."""
        for name, value in _named(self.pretrained).items():
            value.grad = _named(gradient)[name]
        self._take_step()
        for name, value in self.pretrained.buffers.items():
            value.copy_(gradient.buffers[name])

    def _take_step(self) -> None:
        """The gradients are let go of at once, since a meta-update needs the memory."""
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the rest of the run, minibatches too; its tensors are the trainer's own."""
        return {
            "encoder": detached(self.pretrained.encoder),
            "pretrain_head": detached(self.pretrained.head),
            "buffers": dict(self.pretrained.buffers),
            "pretrain_optimizer": self._optimizer.state_dict(),
            "batches": self.batches.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        parts = {"encoder": self.pretrained.encoder, "pretrain_head": self.pretrained.head, "buffers": self.pretrained.buffers}
        with torch.no_grad():
            for part, params in parts.items():
                for name, value in params.items():
                    value.copy_(state[part][name])
        self._optimizer.load_state_dict(state["pretrain_optimizer"])
        self.batches.load_state_dict(state["batches"])

    def run(
        self,
        meta: Params,
        count: int,
        label: str = "PT",
        checkpoint: Checkpoint | None = None,
        seconds_between_checkpoints: float = 60.0,
        recorder: Recorder | None = None,
    ) -> int:
        """`count` steps with fixed meta-parameters, from the checkpoint if there is one; the caller removes it.

        `recorder` is told of each step.

        Returns:
            steps that were still to be taken.

        Raises:
            TrainingError: the loss is not finite.
        """
        saved = checkpoint.load() if checkpoint is not None else None
        first = 0
        if saved is not None:
            self.load_state_dict(saved["pretrainer"])
            first = saved["step"]
            if recorder is not None:
                recorder.load_state_dict(saved["recorder"])
            log.info("%s goes on at step %d", label, first)
        due = Every(seconds_between_checkpoints)
        for step in steps(first, count, label):
            loss = self.step(meta)
            if recorder is not None:
                recorder(step + 1)
            if checkpoint is not None and (due() or step + 1 == count):
                check_finite(loss, step)
                recorded = recorder.state_dict() if recorder is not None else {}
                checkpoint.save({"step": step + 1, "pretrainer": self.state_dict(), "recorder": recorded})
        if first < count:
            check_finite(loss, count - 1)
        return count - first


def check_finite(loss: Tensor, step: int) -> None:
    """Raises TrainingError where a PT loss is not finite."""
    if not torch.isfinite(loss).all():
        raise TrainingError(
            f"the PT loss at step {step} is {float(loss.sum())}: lower the PT learning rate, or look for NaN in the data."
        )


def trainable(params: Params) -> Params:
    """Copies that require a gradient."""
    check_inference_mode()
    return {name: value.detach().clone().requires_grad_() for name, value in params.items()}


def _named(pretrained: Pretrained) -> Params:
    return {f"encoder.{k}": v for k, v in pretrained.encoder.items()} | {f"head.{k}": v for k, v in pretrained.head.items()}
