"""Captured steps compute what plain ones do, to the last bit, and what can't be captured is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from metapt import LoaderBatches, MetaPretraining, MetaSettings, OptimizerSpec, Pretrainer
from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import Adam, Identity, Neumann, Params, Pretrained, Unroll
from metapt.training.capture import Captured

from ..hypergrad.problems import WithoutRidge
from . import toys
from .problems import Batch, Classifier, Normed, OwnStreams, Placed, Streams, classification, same

SPECS = {
    "Adam": OptimizerSpec("Adam", {"lr": 0.05, "fused": True}),
    "momentum": OptimizerSpec("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "schedule": OptimizerSpec("AdamW", {"lr": 0.1}, schedule=lambda made: CosineAnnealingLR(made, 9)),
}


def trainer(problem: Any, spec: str = "Adam", batches: Any = None, captured: bool = True) -> Pretrainer:
    return Pretrainer(problem, batches or Streams(classification), problem.pretrained, SPECS[spec], captured)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", [Classifier, Normed])
def test_a_captured_run_is_the_plain_one(kind: type[Classifier], spec: str, recordings: Callable[[], int]) -> None:
    plain, ours = (trainer(kind(), spec, captured=each) for each in (False, True))
    losses = [[each.step(kind().meta) for _ in range(9)] for each in (plain, ours)]
    assert same(*losses)
    assert same(plain.state_dict(), ours.state_dict())
    assert recordings() == 1


def meta_run(captured: bool, problem: Any, batches: Any, **settings: Any) -> MetaPretraining:
    how = {"pretrain_optimizer": SPECS["momentum"], "meta_optimizer": SPECS["Adam"], "finetuning": Unroll(1, Adam(0.1))}
    given = problem, batches, problem.pretrained, problem.meta, problem.head, MetaSettings(6, 3, **how | settings)
    loop = MetaPretraining(*given, capture=captured)
    loop.run()
    return loop


META: dict[str, dict[str, Any]] = {
    "Neumann": {"inverse": Neumann(2, 0.1)},
    "Gauss-Newton": {"inverse": Neumann(2, 0.1), "curvature": "gauss_newton"},
    "a series that diverges": {"inverse": Neumann(3, 100.0), "explosion_factor": 2.0},
    "identity": {"inverse": Identity(), "average_decay": 0.5},
    "gradient reused": {"inverse": Neumann(1, 0.1), "reuse_gradient": True},
    "two hypergradients": {"inverse": Neumann(1, 0.1), "accumulate": 2, "reuse_gradient": True},
}


@pytest.mark.parametrize("name", META)
def test_so_is_one_with_meta_updates(name: str, recordings: Callable[[], int]) -> None:
    plain, ours = (meta_run(each, WithoutRidge(), OwnStreams(classification), **META[name]) for each in (False, True))
    assert same(plain.state_dict(), ours.state_dict())
    assert plain.trace.diagnosis({}) == ours.trace.diagnosis({})
    figures, others = (
        vars(each.diagnostics) | {"solve_residual": str(each.diagnostics.solve_residual)} for each in (plain, ours)
    )
    assert same(figures, others)
    assert recordings() == (3 if name == "two hypergradients" else 2)


def test_so_is_one_of_a_loss_with_a_gradient_of_weights(recordings: Callable[[], int]) -> None:
    def penalised(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        weights = [value for value in encoder.parameters() if value.requires_grad]
        loss = toys.pretrain_loss(encoder, head, meta, batch)
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        return loss + torch.stack([each.square().sum() for each in slopes]).sum()

    toy: Any = toys.problem(pretrain_loss=penalised)
    toy.meta = toys.META
    plain, ours = (meta_run(each, toy, toys.loaders(), inverse=Neumann(1, 0.1)) for each in (False, True))
    assert same(plain.state_dict(), ours.state_dict())
    assert recordings() == 2


def test_a_hypergradient_that_is_not_finite_says_why_as_the_plain_one(recordings: Callable[[], int]) -> None:
    def made(name: str, count: int, generator: torch.Generator) -> Batch:
        batch = classification(name, count, generator)
        return batch._replace(inputs=batch.inputs * (torch.inf if (name, count) == ("hypergradient", 3) else 1))

    plain, ours = (meta_run(each, WithoutRidge(), OwnStreams(made), inverse=Neumann(1, 0.1)) for each in (False, True))
    assert plain.guard.skipped["not finite"] == 1
    assert plain.trace.diagnosis({}) == ours.trace.diagnosis({})
    assert same(*((each.pretrained, each.meta, each.head) for each in (plain, ours)))


class Dropped(nn.Module):
    """BatchNorm and dropout, which draws from torch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = toys.linear(1), nn.BatchNorm1d(3, dtype=torch.float64)

    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.dropout(self.norm(torch.tanh(self.first(values))), training=self.training)


def test_so_are_those_of_modules_with_dropout_and_minibatches_of_two_sizes(recordings: Callable[[], int]) -> None:
    def run(captured: bool) -> tuple[Any, Tensor]:
        toy, data = toys.problem(Dropped()), list(zip(toys.X.split(5), toys.Y.split(5), strict=True))  # 5, 5 and 2
        torch.manual_seed(3)
        plain = trainer(toy, batches=LoaderBatches(pretrain=data, train=data, validation=data), captured=captured)
        plain.run(toys.META, 14)
        batches = LoaderBatches(pretrain=data, train=data[:1], validation=data[1:2])
        given = toy, batches, toy.pretrained, toys.META, toy.head
        loop = MetaPretraining(*given, MetaSettings(12, inverse=Neumann(1, 0.1)), capture=captured)
        loop.run()
        return (plain.pretrained, loop.pretrained, loop.meta), torch.rand(1)

    assert same(run(False), run(True))
    assert recordings() == 6


def test_a_run_that_goes_on_is_the_run_in_one_go(recordings: Callable[[], int]) -> None:
    problem = Normed()
    whole, first, second = (trainer(problem) for _ in range(3))
    for ours, steps in ((whole, 9), (first, 5)):
        ours.run(problem.meta, steps)
    second.load_state_dict(first.state_dict())
    second.run(problem.meta, 4)
    assert same(whole.state_dict(), second.state_dict())


def test_a_buffer_that_is_assigned_anew_is_read(recordings: Callable[[], int]) -> None:
    def run(captured: bool) -> Pretrained:
        ours = trainer(Normed(), captured=captured)
        for _ in range(2):
            ours.run(Normed().meta, 4)
            ours.pretrained.buffers["1.running_mean"] = ours.pretrained.buffers["1.running_mean"] + 1
        return ours.pretrained

    assert same(run(False), run(True))
    assert recordings() == 2


def test_on_a_cpu_nothing_is_recorded() -> None:
    plain, ours = (trainer(Normed(), captured=each) for each in (False, True))
    for each in (plain, ours):
        each.run(Normed().meta, 5)
    assert same(plain.state_dict(), ours.state_dict())


class Scaled(Classifier):
    scale = 1.0

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return super().pretrain_loss(pretrained, meta, batch) * self.scale


def test_a_number_that_changes_is_found(recordings: Callable[[], int]) -> None:
    problem = Scaled()
    ours = trainer(problem)
    ours.run(problem.meta, 10)
    problem.scale = 2.0
    with pytest.raises(TrainingError, match=r"pretrain_loss is .*, and its replay .*legal: capture=False"):
        ours.run(problem.meta, 110)
    assert recordings() == 1


class Waiting(Classifier):
    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return super().pretrain_loss(pretrained, meta, batch) * float(batch.inputs[0, 0] > -100)


class Drawing(Classifier):
    """The PT loss draws from a generator of its own."""

    generator = torch.Generator()

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        self.generator.manual_seed(1)
        return super().pretrain_loss(pretrained, meta, batch) * (1 + torch.rand((), generator=self.generator))


@pytest.mark.parametrize("problem", [Waiting(), Drawing()])
def test_a_loss_that_waits_or_draws_by_itself_is_refused(problem: Classifier, recordings: Callable[[], int]) -> None:
    ours = trainer(problem)
    with pytest.raises(ConfigError, match=r"pretrain_loss can't be recorded as a CUDA graph \(operation not perm"):
        ours.run(problem.meta, 5)


def test_a_problem_that_processes_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metapt.training.pretraining.processes_of", lambda problem: SimpleNamespace(size=2))
    with pytest.raises(ConfigError, match="legal: capture=False"):
        trainer(Normed())


def captured(function: Callable[..., Tensor] = torch.sum) -> Captured[tuple[Tensor]]:
    return Captured(lambda batch: (function(batch["x"]),), list, lambda batch: function(batch["x"]), "the loss")


def test_numbers_and_shapes_make_kinds_of_minibatches(recordings: Callable[[], int]) -> None:
    ours = Captured(lambda x, scale: (x.sum() * scale,), list, lambda x, scale: x.sum() * scale, "the loss")
    for size, scale in [(3, 1), (4, 1), (3, 2.0)] * 4:
        assert ours(torch.arange(size), scale)[0] == scale * size * (size - 1) / 2
    assert recordings() == 3


def test_what_holds_other_things_or_too_many_shapes_is_refused(recordings: Callable[[], int]) -> None:
    with pytest.raises(ConfigError, match="its minibatch has a ndarray"):
        captured()({"x": torch.ones(2).numpy()})
    ours = captured()
    for size in range(8):
        ours({"x": torch.ones(size)})
    with pytest.raises(ConfigError, match="would be recorded as 9 CUDA graphs"):
        ours({"x": torch.ones(8)})


def test_a_tensor_of_the_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="its minibatch has a tensor of the CPU"):
        captured()({"x": torch.ones(2)})


GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; torch.cuda.is_available() is false"),
]


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spec", [pytest.param(each, marks=GPU) for each in SPECS])
def test_a_captured_run_on_a_gpu_is_the_plain_one_on_the_cpu(spec: str) -> None:
    def run(device: str) -> Pretrained:
        problem = Placed(device)
        ours = trainer(problem, spec, problem.batches)
        ours.run(problem.meta, 9)
        return ours.pretrained.to("cpu")

    close(run("cuda"), run("cpu"))


@pytest.mark.parametrize("name", [pytest.param(each, marks=GPU) for each in ("Neumann", "gradient reused")])
def test_so_is_captured_meta_pt_on_a_gpu(name: str) -> None:
    loops = [meta_run(True, each, each.batches, **META[name]) for each in map(Placed, ("cpu", "cuda"))]
    here, there = ([*loop.pretrained.to("cpu"), {k: v.cpu() for k, v in loop.meta.items()}] for loop in loops)
    close(here, there)


@pytest.mark.parametrize("captured", [pytest.param(True, marks=GPU)])
def test_dropout_of_captured_steps_on_a_gpu_is_that_of_plain_ones(captured: bool) -> None:
    def run(captured: bool) -> Pretrained:
        toy, data = toys.problem(Dropped().cuda(), head=toys.linear(20, 3, 2).cuda()), [(toys.X, toys.Y)]
        batches = LoaderBatches(pretrain=data, train=data, validation=data, device="cuda")
        ours = trainer(toy, "momentum", batches, captured)
        ours.run({"w": toys.META["w"].cuda()}, 9)
        return ours.pretrained

    close(run(captured), run(False))
