"""Second derivatives, and what PT follows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import weight_norm
from torch.nn.utils.parametrizations import weight_norm as parametrised_weight_norm

import metapt
from metapt import Autocast, OptimizerSpec
from metapt.hypergrad import SGD, Dense, FittedHead, Identity, Neumann, Params, Unroll
from metapt.hypergrad.differences import Gap
from metapt.hypergrad.trial import HESSIAN, MIXED, tried

from . import toys
from .kinds import heard, refused, right, warned
from .problems import DTYPE, draw
from .toys import META, X, Y, gradient, linear, problem


def function(value: Any, slope: Any, saved: Any = lambda z: z) -> Callable[[Tensor], Tensor]:
    """Return an autograd function with a backward by hand; `slope` takes its context."""

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, z: Tensor) -> Tensor:
            context.save_for_backward(saved(z))
            context.kept = 2 * z
            return value(z)

        @staticmethod
        def backward(context: Any, cotangent: Tensor) -> Tensor:
            return cotangent * slope(context)

    return ByHand.apply


keeps = function(torch.square, lambda context: context.kept)
LOSING = {
    "keeps an intermediate": keeps,
    "saves an intermediate": function(
        torch.tanh, lambda context: context.saved_tensors[0], lambda z: 1 - z.tanh() ** 2
    ),
    "detaches": function(torch.square, lambda context: 2 * context.saved_tensors[0].detach()),
    "uses NumPy": function(
        torch.sin, lambda context: torch.from_numpy(np.cos(context.saved_tensors[0].numpy(force=True)))
    ),
}


class Through(nn.Module):
    """A layer, then a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = linear(10), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


FUNCTION = "a `torch.autograd.Function` whose backward uses intermediate"


@pytest.mark.parametrize("name", LOSING)
@refused(FUNCTION, "can't be differentiated twice")
def test_a_function_that_loses_its_second_derivative_is_refused_in_pretraining(name: str) -> None:
    gradient(problem(Through(LOSING[name])))


@pytest.mark.parametrize("solver", [Unroll(1, SGD(0.1)), FittedHead(0.1)])
@refused(FUNCTION, "finetune_loss", "can't be differentiated twice")
def test_a_function_that_loses_its_second_derivative_is_refused_in_the_ft_loss(solver: Any) -> None:
    def loss(head: Any, features: Tensor, batch: Any) -> Tensor:
        return keeps(head(features)).square().mean()

    gradient(problem(finetune_loss=loss), finetuning=solver, inverse=Identity())


@refused(FUNCTION, "can't be differentiated twice")
def test_a_function_that_loses_its_second_derivative_is_refused_in_the_exact_hypergradient() -> None:
    toys.exact(problem(Through(keeps)))


@refused(FUNCTION, "mixed derivative")
def test_a_function_of_the_hyperparameters_that_loses_it_is_refused_without_products_too() -> None:
    def loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        return toys.pretrain_loss(encoder, head, {"w": keeps(encoder(batch[0])[:, :2] * meta["w"].exp())}, batch)

    gradient(problem(pretrain_loss=loss), inverse=Identity())


@right("a `torch.autograd.Function` whose backward torch can", 1e-6)
def test_a_function_with_a_right_second_derivative_is_used() -> Any:
    right_square = function(torch.square, lambda context: 2 * context.saved_tensors[0])
    return toys.agreeing(problem(Through(right_square)))


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The operations of `functions.cpp`, compiled."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler, g++")
    made, root = tmp_path_factory.mktemp("extension") / "functions.so", Path(torch.__file__).parent
    interface = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    options = ["-std=c++17", "-O0", "-shared", "-fPIC", interface, f"-I{root}/include"]
    libraries = [f"-L{root}/lib", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(["g++", *options, Path(__file__).with_name("functions.cpp"), "-o", made, *libraries], check=True)
    torch.ops.load_library(made)
    return torch.ops.metapt_tests


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kept_square", "detached_square"])
@refused("an autograd function in C++ (many extensions)", "differentiated twice", "Square")
def test_a_function_in_cpp_that_loses_its_second_derivative_is_refused(name: str, extension: Any) -> None:
    gradient(problem(Through(getattr(extension, name))))


@pytest.mark.slow
@right("an autograd function in C++ whose", 1e-6)
def test_a_function_in_cpp_with_a_right_second_derivative_is_used(extension: Any) -> Any:
    return toys.agreeing(problem(Through(extension.right_square)))


def old(layer: nn.Linear) -> nn.Module:
    with pytest.warns(FutureWarning):
        normed: nn.Module = weight_norm(layer)
    return normed


@pytest.mark.parametrize("inverse", [Neumann(1, 0.1), Dense(1.0)])
@pytest.mark.parametrize("kind", [parametrised_weight_norm, old])
@refused("torch's `weight_norm`", "weight_norm", "by hand")
def test_weight_norm_is_refused(kind: Any, inverse: Any) -> None:
    gradient(problem(nn.Sequential(kind(linear(10)), nn.Tanh())), inverse=inverse)


class NormByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g, self.v = nn.Parameter(draw(1, 3, 1)), nn.Parameter(draw(2, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ (self.g * self.v / self.v.norm(dim=1, keepdim=True)).t())


@right("the norm of weights, written by hand", 1e-6)
def test_weight_norm_by_hand_is_right() -> Any:
    return toys.agreeing(problem(NormByHand()))


def penalised(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    inputs = batch[0].clone().requires_grad_()
    loss = toys.pretrain_loss(encoder, head, meta, (inputs, batch[1]))
    (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
    return loss + 5 * slope.square().sum(1).mean()


@pytest.mark.parametrize("norm", [nn.LayerNorm(3, dtype=DTYPE), nn.BatchNorm1d(3, dtype=DTYPE)])
@refused("a gradient penalty through LayerNorm, or BatchNorm", "norm", "by hand")
def test_a_gradient_penalty_through_a_norm_is_refused(norm: nn.Module) -> None:
    gradient(problem(nn.Sequential(linear(10), norm, nn.Tanh()), pretrain_loss=penalised))


@pytest.mark.parametrize("layer", [nn.GroupNorm(1, 3, dtype=DTYPE), nn.Softplus(), nn.GELU()])
@right("a gradient penalty through other layers", 1e-4)
def test_a_gradient_penalty_through_another_layer_is_right(layer: nn.Module) -> Any:
    return toys.agreeing(problem(nn.Sequential(linear(10), layer, nn.Tanh()), pretrain_loss=penalised))


class Bare:
    """A problem whose PT loss is squared by a function."""

    def __init__(self, square: Callable[[Tensor], Tensor]) -> None:
        self.square, self.toy = square, problem()
        self.pretrained, self.head = self.toy.pretrained, self.toy.head
        self.encode, self.head_loss = self.toy.encode, self.toy.head_loss

    def pretrain_loss(self, pretrained: Any, meta: Params, batch: Any) -> Tensor:
        return self.square(self.toy.pretrain_loss(pretrained, meta, batch))


def test_a_problem_is_tried_once_and_keeps_no_more_than_it_lives() -> None:
    calls: list[int] = []
    toy = Bare(lambda z: calls.append(1) or z.square())  # type: ignore[func-returns-value]
    gradient(toy)
    first = len(calls)
    gradient(toy)
    assert first > len(calls) - first == 1


class Ours(Bare):
    tested = True


class Theirs(Ours):
    """Changes what it inherits."""


def test_a_problem_of_dictionaries_is_tried_and_that_it_is_tested_is_not_inherited() -> None:
    gradient(Ours(keeps))
    for toy in (Bare(keeps), Theirs(keeps), Autocast(Theirs(keeps), "cpu")):  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="ByHand"):
            gradient(toy)


def test_check_says_where_the_comparison_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    toy = problem()
    tried(toy).found.update(
        {MIXED: Gap(1e-8, agrees=True, differs=False), HESSIAN: Gap(0.3, agrees=False, differs=False)}
    )
    metapt.check(*toys.arguments(toy, inverse=Neumann(1, 0.1), finetuning=Unroll(0)))
    printed = capsys.readouterr().out
    assert "not sure: the product with the Hessian of the PT loss" in printed
    assert "right: the product with the Hessian of the PT loss" not in printed
    assert "right: the product with the mixed derivative of the PT loss" in printed


def stopped(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    features = encoder(batch[0] * meta["w"].exp().mean())
    return ((head(features) - features[:, :2].detach()) ** 2).mean()


def siamese(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    views = [encoder(batch[0] * meta["w"][i].exp()) for i in (0, 1)]
    pairs = [(head(one), two[:, :2].detach()) for one, two in (views, views[::-1])]
    return -torch.stack([nn.functional.cosine_similarity(a, b).mean() for a, b in pairs]).mean()


def without_graph(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    with torch.no_grad():
        scale = encoder(batch[0]).square().mean()
    return toys.pretrain_loss(encoder, head, meta, batch) / scale


def normalised(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    weights = meta["w"].exp()
    return (weights / weights.sum().detach() * (head(encoder(batch[0])) - batch[1]) ** 2).mean()


def straight_through(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    def rounded(x: Tensor) -> Tensor:
        z = encoder(x)
        return z + (z.round(decimals=1) - z).detach()

    return toys.pretrain_loss(rounded, head, meta, batch)


def nearly(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    noise = batch[0] * (1 + 1e-3 * meta["w"].sum().exp().detach())
    return toys.pretrain_loss(encoder, head, meta, (noise, batch[1]))


@pytest.mark.parametrize(
    ("loss", "way"),
    [
        *((loss, "loop") for loss in (stopped, siamese, without_graph, normalised, straight_through, nearly)),
        *((stopped, way) for way in ("hypergradient", "exact")),
    ],
)
@warned("terms under `detach()` or `no_grad`", "detach()", "no_grad", "constants")
def test_terms_under_detach_are_noticed(loss: Any, way: str) -> None:
    toy = problem(pretrain_loss=loss)
    if way == "loop":
        toys.loop(toy).run()
    else:
        (gradient if way == "hypergradient" else toys.exact)(toy)


def teacher(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    with torch.no_grad():
        target = TEACHER(batch[0])
    return toys.pretrain_loss(encoder, head, meta, (batch[0], target))


TEACHER = linear(40, 3, 2)


class Mixed(nn.Module):
    """Computes in float32, whatever it is given."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x.float()).float()
        return result


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).float()


PLAIN: dict[str, dict[str, Any]] = {
    "a teacher": {"pretrain_loss": teacher},
    "kinks": {"encoder": nn.Sequential(linear(10), nn.ReLU(), linear(12), nn.ReLU())},
    "pooling": {
        "encoder": nn.Sequential(linear(10), nn.Unflatten(1, (1, 3)), nn.MaxPool1d(2, 1), nn.Flatten(), linear(12, 2))
    },
    "dropout": {"encoder": nn.Sequential(linear(10), nn.Dropout(0.5), linear(12))},
    "statistics": {"encoder": nn.Sequential(linear(10), nn.BatchNorm1d(3, dtype=DTYPE), nn.ReLU(), linear(12))},
    "float32 only": {"encoder": Mixed(wide()), "head": nn.Linear(3, 2), "finetune_head": nn.Linear(3, 1)},
    "float32": {"encoder": wide(), "head": nn.Linear(3, 2), "finetune_head": nn.Linear(3, 1)},
}


@pytest.mark.parametrize("what", PLAIN)
def test_what_is_right_is_not_warned_of(what: str) -> None:
    torch.manual_seed(0)
    toy = problem(**PLAIN[what])
    batch = (X.float(), Y.float()) if "float32" in what else (X, Y)
    start = {"pretrained": toy.pretrained, "head": toy.head, "meta": {"w": META["w"].to(batch[0])}}
    with heard() as messages:
        for each in [toy, Autocast(toy, "cpu")] if "float32" in what else [toy]:
            gradient(each, batch, inverse=Neumann(1, 0.1), **start)
    assert not messages
    if what != "float32 only":
        assert all(tried(toy).found[name].distance < 1e-4 for name in (MIXED, HESSIAN))  # type: ignore[union-attr]


def decayed(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    """The PT loss with the decay of the test below as a term."""
    parts = [(0.3, encoder[0].weight), *((0.1, p) for p in (*list(encoder.parameters())[1:], *head.parameters()))]
    return toys.pretrain_loss(encoder, head, meta, batch) + sum(0.5 * decay * p.square().sum() for decay, p in parts)


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "NAdam"])
@right("weight decay that the optimiser adds")
def test_the_hessian_has_the_weight_decay(name: str) -> Any:
    found = []
    for loss, settings, groups in (
        (toys.pretrain_loss, {"weight_decay": 0.1}, {"encoder.0.weight": {"weight_decay": 0.3}}),
        (decayed, {}, {}),
    ):
        spec = OptimizerSpec(name, {"lr": 1e-9, **settings}, groups)
        step = OptimizerSpec("SGD", {"lr": 1.0})
        run = toys.loop(problem(pretrain_loss=loss), 1, pretrain_optimizer=spec, meta_optimizer=step)
        run.run()
        found.append(run.meta["w"])
    return tuple(found)


@pytest.mark.parametrize("spec", [("AdamW", {}), ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True})])
@warned("weight decay apart from the gradient (AdamW)", "weight decay", "leaves it out")
def test_a_weight_decay_apart_from_the_gradient_is_warned_of(spec: Any) -> None:
    toys.loop(problem(), 1, pretrain_optimizer=OptimizerSpec(*spec)).run()
