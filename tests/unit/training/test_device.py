"""The loops on devices: where they wait for one, what they launch there, and PT steps that torch compiles.

Domains' own loops, steps of the head among them, are rehearsed in `tests/contract/test_domain_devices.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from metapt.hypergrad import Adam, Identity, Neumann, Params, Pretrained, Unroll
from metapt.hypergrad.layers.batch_norm import batch_norm
from metapt.hypergrad.layers.convolution import convolution
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Recorder

from ...clock import Clock
from ..hypergrad.problems import WithoutRidge
from .problems import Batch, Placed, classification, draw, loop_of

Rehearse = Callable[..., dict[str, int]]


SPECS = {
    "momentum": OptimizerSpec("SGD", {"lr": 0.1, "momentum": 0.9}),
    "fused": OptimizerSpec("Adam", {"lr": 0.1, "fused": True}),
    "schedule": OptimizerSpec("AdamW", {"lr": 0.1}, schedule=lambda made: CosineAnnealingLR(made, 9)),
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_pt_step_waits_nowhere(spec: str, rehearse: Rehearse) -> None:
    def plain(device: str) -> Callable[[], Any]:
        problem = Placed(device)
        trainer = Pretrainer(problem, problem.batches, problem.pretrained, SPECS[spec])
        return lambda: (trainer.step(problem.meta), trainer.pretrained)

    assert rehearse(plain) == {}


def test_a_pt_run_reads_its_loss_for_the_check_and_the_log_at_its_end_and_every_100th_step(
    rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metapt.training.progress.time", Clock())  # no line of the log is due before the end

    def plain(device: str) -> Callable[[], Any]:
        problem = Placed(device)
        trainer = Pretrainer(problem, problem.batches, problem.pretrained, OptimizerSpec())
        loss = trainer.step(problem.meta)
        monkeypatch.setattr(trainer, "step", lambda meta: loss)
        return lambda: (trainer.run(problem.meta, 101), trainer.pretrained)

    places = "training.pretraining: check_finite", "training.progress: _number", "training.pretraining: check_loss"
    assert rehearse(plain) == dict.fromkeys(places, 1)


OPTIONS = {
    "pretrain_steps": 2,
    "inverse": Neumann(3, 0.05),
    "finetuning": Unroll(1, Adam(0.1), network=True),
    "curvature": "hessian",
    "accumulate": 2,
    "clip_norm": 1.0,
    "normalise": True,
    "average_decay": 0.5,
    "reuse_gradient": True,
}


def test_a_meta_update_waits_once_and_each_of_its_hypergradients_three_times(rehearse: Rehearse) -> None:
    def updates(device: str) -> Callable[[], Any]:
        loop = loop_of(problem := Placed(device), problem.batches, iterations=9, **OPTIONS)
        return lambda: (loop.iterate(), loop.pretrained, loop.meta, loop.head, loop.averaged_meta, loop.loss)

    places = ("hypergrad.finetune: finished", "hypergrad.inverse: Neumann.__call__", "hypergrad.hybrid: hypergradient")
    assert rehearse(updates) == dict.fromkeys(places, 2) | {"training.meta: MetaPretraining._meta_update": 1}


def test_the_reads_of_the_diagnosis_do_not_depend_on_the_number_of_iterations(rehearse: Rehearse) -> None:
    def diagnosed(device: str, iterations: int) -> Callable[[], Any]:
        settings = {"iterations": iterations, "pretrain_steps": 1, "inverse": Identity()}
        loop = loop_of(problem := Placed(device), problem.batches, **settings)
        for _ in range(iterations):
            loop.iterate()
        return lambda: (loop.trace.diagnosis({}).figures, loop.meta)

    few, many = (rehearse(lambda device, i=i: diagnosed(device, i)) for i in (1, 2))
    assert few == many != {}


def test_a_recorder_copies_each_value(rehearse: Rehearse) -> None:
    def observed(device: str) -> Callable[[], None]:
        values = {name: torch.ones(3).to(device) for name in ("first", "second")}
        recorder = Recorder(lambda: values, every=2)
        return lambda: [recorder(step) for step in range(4)] and None

    found = {name.removesuffix(".<locals>.<dictcomp>"): times for name, times in rehearse(observed).items()}
    assert found == {"training.recorder: Recorder.__call__": 4}


# Kernels that a meta-update launches


Launches = Callable[..., Counter[str]]
ELSEWHERE = {"_engine_run_backward", "pretrain_loss", "encode", "head_loss"}
"""The functions in which the engine and the problem compute."""


class Deep(WithoutRidge):
    """The same with several layers, and with a ridge with a learned weight for each layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        encoder = {str(layer): draw(layer, 5, 5 if layer else 4) for layer in range(layers)}
        self.pretrained = self.pretrained._replace(encoder=encoder)
        self.meta |= {str(layer): draw(100 + layer, 1) - 2 for layer in range(layers)}

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        ridges = [meta[name].exp().sum() * value.square().sum() for name, value in pretrained.encoder.items()]
        return super().pretrain_loss(pretrained, meta, batch) + torch.stack(ridges).sum()

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        values = batch.inputs
        for weight in encoder.values():
            values = torch.tanh(values @ weight.T)
        return values


def updating(layers: int, **settings: Any) -> Callable[[], object]:
    batch = classification("", 0, torch.Generator().manual_seed(0))
    batches = SimpleNamespace(pretrain=lambda: batch, train=lambda: batch, validation=lambda: batch)
    adam = OptimizerSpec("Adam", {"lr": 1e-3, "weight_decay": 1e-2})
    how = {"iterations": 9, "pretrain_steps": 1, "pretrain_optimizer": adam, "meta_optimizer": adam}
    loop = loop_of(Deep(layers), batches, **how | settings)
    loop.iterate()  # the first checks the problem
    return loop.iterate


UPDATES: dict[str, dict[str, Any]] = {
    "identity": {"inverse": Identity()},
    "Neumann": {"inverse": Neumann(3, 0.1)},
    "reused": {"inverse": Neumann(1, 0.1), "reuse_gradient": True},
    "accumulated": {"inverse": Neumann(1, 0.1), "accumulate": 2, "normalise": True, "clip_norm": 1.0},
}


@pytest.mark.parametrize("name", UPDATES)
def test_a_meta_update_launches_as_many_for_any_number_of_parameters(name: str, launches: Launches) -> None:
    few, many = (launches(updating(layers, **UPDATES[name]), ELSEWHERE) for layers in (2, 9))
    assert few == many
    assert few["_foreach_norm"]


# Compiled PT steps


@pytest.mark.slow
def test_compiled_layers_have_the_same_derivatives() -> None:
    def layers(values: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.relu_(batch_norm(convolution(values, kernel, (1, 2), (0, 1)), weight, bias))

    inputs = [torch.randn(*shape, requires_grad=True) for shape in ((6, 2, 1, 16), (4, 2, 1, 3), (4,), (4,))]
    expected, found = layers(*inputs), torch.compile(layers, backend="aot_eager")(*inputs)
    cotangent = torch.randn_like(expected)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, cotangent), torch.autograd.grad(expected, inputs, cotangent)
    )
