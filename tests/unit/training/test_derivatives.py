"""Second derivatives: what loses them is refused by its name, and what is advised is right; and what PT follows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import weight_norm
from torch.nn.utils.parametrizations import weight_norm as parametrised_weight_norm
from torch.optim.lr_scheduler import LRScheduler

import metapt
from metapt import Autocast, ModuleProblem, OptimizerSpec
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


class Layer(nn.Module):
    """A layer with weights of its own draws, then a function of its output."""

    def __init__(self, layer: nn.Module, after: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.layer, self.after = layer.to(DTYPE), after
        with torch.random.fork_rng():
            torch.manual_seed(2)
            for value in self.parameters():
                nn.init.normal_(value)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(x))


def through(function: Callable[[Tensor], Tensor]) -> Layer:
    return Layer(nn.Linear(3, 3), function)


def kept_in_ft(head: Any, features: Tensor, batch: Any) -> Tensor:
    return keeps(head(features)).square().mean()


def kept_in_meta(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    return toys.pretrain_loss(encoder, head, {"w": keeps(encoder(batch[0])[:, :2] * meta["w"].exp())}, batch)


LOST = "a `torch.autograd.Function` whose backward uses intermediate", "can't be differentiated twice"


def in_ft(solver: Any) -> None:
    gradient(problem(finetune_loss=kept_in_ft), finetuning=solver, inverse=Identity())


REFUSED, IN_FT, MIXED_ONLY = refused(*LOST), refused(*LOST, "finetune_loss"), refused(LOST[0], "mixed derivative")
WHERE: dict[str, tuple[Any, Callable[[], object]]] = {
    **{name: (REFUSED, lambda f=f: gradient(problem(through(f)))) for name, f in LOSING.items()},
    "an unrolled FT loss": (IN_FT, lambda: in_ft(Unroll(1, SGD(0.1)))),
    "the FT loss of a fitted head": (IN_FT, lambda: in_ft(FittedHead(0.1))),
    "exact": (REFUSED, lambda: toys.exact(problem(through(keeps)))),
    "hyperparameters": (MIXED_ONLY, lambda: gradient(problem(pretrain_loss=kept_in_meta), inverse=Identity())),
}


@pytest.mark.parametrize("name", WHERE)
def test_a_function_that_loses_its_second_derivative_is_refused(name: str) -> None:
    refuses, call = WHERE[name]
    refuses(call)()


@pytest.mark.parametrize("call", [gradient, toys.exact])
@pytest.mark.parametrize("data", [(torch.nan * X, Y), (X, torch.nan * Y)])
def test_it_is_refused_after_a_minibatch_without_a_finite_loss_too(call: Any, data: Any) -> None:
    toy = problem(through(keeps))
    call(toy, data)
    with pytest.raises(RuntimeError, match=LOST[1]):
        call(toy)


@right("a `torch.autograd.Function` whose backward torch can", 1e-6)
def test_a_function_with_a_right_second_derivative_is_used() -> Any:
    right_square = function(torch.square, lambda context: 2 * context.saved_tensors[0])
    return toys.agreeing(problem(through(right_square)))


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
    gradient(problem(through(getattr(extension, name))))


@pytest.mark.slow
@right("an autograd function in C++ whose", 1e-6)
def test_a_function_in_cpp_with_a_right_second_derivative_is_used(extension: Any) -> Any:
    return toys.agreeing(problem(through(extension.right_square)))


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


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_a_loss_may_be_of_another_type_than_single_precision_parameters(kind: torch.dtype) -> None:
    modules = {name: module.float() for name, module in toys.modules().items()}

    def loss(encoder: Any, head: Any, meta: Params, batch: Any, kind: torch.dtype = kind) -> Tensor:
        single = {"w": meta["w"].float()}, (batch[0].float(), batch[1].float())
        return toys.pretrain_loss(encoder, head, *single).to(kind)

    data = toys.X.float(), toys.Y.float()
    found = (gradient(toys.problem(**modules, pretrain_loss=partial(loss, kind=each)), data) for each in (kind, None))
    torch.testing.assert_close(*found, rtol=1e-5 if kind is torch.float64 else 0.05, atol=0)


class Bare:
    """A problem whose PT loss is squared by a function."""

    def __init__(self, square: Callable[[Tensor], Tensor]) -> None:
        self.square, self.toy = square, problem()
        self.pretrained, self.head = self.toy.pretrained, self.toy.head
        self.encode, self.head_loss = self.toy.encode, self.toy.head_loss

    def pretrain_loss(self, pretrained: Any, meta: Params, batch: Any) -> Tensor:
        return self.square(self.toy.pretrain_loss(pretrained, meta, batch))


class Ours(Bare):
    tested = True


class Theirs(Ours):
    """Changes what it inherits."""


def test_a_problem_of_dictionaries_is_tried_once_and_that_it_is_tested_is_not_inherited() -> None:
    gradient(Ours(keeps))
    for toy in (Bare(keeps), Theirs(keeps), Autocast(Theirs(keeps), "cpu")):  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="ByHand"):
            gradient(toy)
    calls: list[int] = []
    toy = Bare(lambda z: calls.append(1) or z.square())  # type: ignore[func-returns-value]
    gradient(toy)
    first = len(calls)
    gradient(toy)
    assert first > len(calls) - first == 1


def test_the_check_prints_what_it_finds_right_and_raises_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = toys.arguments(problem(), finetuning=FittedHead(l2=0.1))
    before = arguments[1].state_dict()
    metapt.check(*arguments)
    printed = capsys.readouterr().out
    assert "encoder: 0.weight, 0.bias, 2.weight, 2.bias: 24 numbers, float64 on cpu" in printed
    assert printed.count("right: ") == 15
    assert "hypergradient of w: norm" in printed
    assert arguments[1].state_dict() == before
    with pytest.raises(ValueError, match="encode returned a tensor that depends on none of its parameters"):
        metapt.check(*toys.arguments(problem(encode=lambda encoder, batch: encoder(batch[0]).detach())))
    assert capsys.readouterr().out.count("right: ") == 3


def test_check_says_where_the_comparison_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    toy = problem()
    gaps = Gap(1e-8, agrees=True, differs=False), Gap(0.3, agrees=False, differs=False)
    tried(toy).update(zip((MIXED, HESSIAN), gaps, strict=True))
    metapt.check(*toys.arguments(toy, inverse=Neumann(1, 0.1), finetuning=Unroll(0)))
    printed = capsys.readouterr().out
    assert "not sure: the product with the Hessian of the PT loss" in printed
    assert "right: the product with the Hessian of the PT loss" not in printed
    assert "right: the product with the mixed derivative of the PT loss" in printed


def stopped(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    features = encoder(batch[0] * meta["w"].exp().mean())
    return ((head(features) - features[:, :2].detach()) ** 2).mean()


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
        *((loss, "loop") for loss in (stopped, without_graph, normalised, straight_through, nearly)),
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


TEACHER = linear(40, 3, 2)


def teacher(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    with torch.no_grad():
        target = TEACHER(batch[0])
    return toys.pretrain_loss(encoder, head, meta, (batch[0], target))


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


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


ZEROS = linear(30, 3, 1)
nn.init.zeros_(ZEROS.weight)
nn.init.zeros_(ZEROS.bias)


def ratings(head: Any, features: Tensor, batch: Any) -> Tensor:
    return F.smooth_l1_loss(head(features), batch[1][:, :1].sign())


HEADS = {"head": nn.Linear(3, 2), "finetune_head": nn.Linear(3, 1)}
POOL = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.MaxPool1d(2, 1))
PLAIN: dict[str, dict[str, Any]] = {
    "a teacher": {"pretrain_loss": teacher},
    "kinks": {"encoder": nn.Sequential(linear(10), nn.ReLU(), linear(12), nn.ReLU())},
    "a kink of the gradient at the start": {"finetune_head": ZEROS, "finetune_loss": ratings},
    "pooling": {"encoder": nn.Sequential(linear(10), POOL, nn.Flatten(), linear(12, 2))},
    "dropout": {"encoder": nn.Sequential(linear(10), nn.Dropout(0.5), linear(12))},
    "statistics": {"encoder": nn.Sequential(linear(10), nn.BatchNorm1d(3, dtype=DTYPE), nn.ReLU(), linear(12))},
    "float32 only": {"encoder": Mixed(wide()), **HEADS},
    "float64 within float32": {
        "encoder": Mixed(nn.Sequential(Cast(torch.float64), linear(10), Cast(torch.float32), wide())),
        **HEADS,
    },
    "float32": {"encoder": wide(), **HEADS},
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
    if "only" not in what and "within" not in what:
        assert all(tried(toy)[name].distance < 1e-4 for name in (MIXED, HESSIAN))  # type: ignore[union-attr]


def decayed(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    """The PT loss with the decay of the test below as a term."""
    parts = [(0.3, encoder[0].weight), *((0.1, p) for p in (*list(encoder.parameters())[1:], *head.parameters()))]
    return toys.pretrain_loss(encoder, head, meta, batch) + sum(0.5 * decay * p.square().sum() for decay, p in parts)


class Late(LRScheduler):
    """Sets the decay of the test below after the first step."""

    def get_lr(self) -> list[float]:
        for group, decay in zip(self.optimizer.param_groups, (0.3, 0.1), strict=True):
            group["weight_decay"] = decay if self.last_epoch else 0.0
        return [group["lr"] for group in self.optimizer.param_groups]


@pytest.mark.parametrize("schedule", [None, Late])
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "NAdam"])
@right("weight decay that the optimiser adds", 1e-7)
def test_the_hessian_has_the_weight_decay(name: str, schedule: Any) -> Any:
    groups = {"encoder.0.weight": {"weight_decay": 0.3}}
    optimizer = OptimizerSpec(name, {"lr": 1e-9, "weight_decay": 0.1}, groups, schedule)
    found = []
    for loss, spec in ((toys.pretrain_loss, optimizer), (decayed, OptimizerSpec(name, {"lr": 1e-9}))):
        step = OptimizerSpec("SGD", {"lr": 1.0})
        run = toys.loop(problem(pretrain_loss=loss), 1, pretrain_optimizer=spec, meta_optimizer=step)
        run.run()
        found.append(run.meta["w"])
    return tuple(found)


DECOUPLED = pytest.param(
    ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    marks=pytest.mark.skipif(torch.__version__ < (2, 7), reason="torch 2.6 has no such setting"),
)


@pytest.mark.parametrize("spec", [("AdamW", {}), DECOUPLED])
@warned("weight decay apart from the gradient (AdamW)", "weight decay", "leaves it out")
def test_a_weight_decay_apart_from_the_gradient_is_warned_of(spec: Any) -> None:
    with heard() as messages:
        toys.loop(problem(), 2, pretrain_optimizer=OptimizerSpec(*spec, {"head.*": {"weight_decay": 0.2}})).run()
    assert len(messages) == 1


# Operations without a second derivative


IMAGES = draw(0, 20, 6, 8)
WORDS = torch.randint(12, (20, 5), generator=torch.Generator().manual_seed(1))


def pretrain_loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    return (meta["w"].exp().sum() * encoder(batch[0]).tanh().square()).mean()


def finetune_loss(head: Any, features: Tensor, batch: Any) -> Tensor:
    return (head(features) - 1).square().mean()


def data_of(encoder: Layer) -> tuple[Tensor]:
    return (WORDS if isinstance(encoder.layer, nn.Embedding | nn.EmbeddingBag) else IMAGES,)


def problem_of(encoder: Layer) -> ModuleProblem:
    heads = {"head": nn.Identity(), "finetune_head": linear(22, encoder(data_of(encoder)[0][:1]).shape[1], 1)}
    return problem(encoder, **heads, pretrain_loss=pretrain_loss, finetune_loss=finetune_loss)


def trained(encoder: Layer, optimizer: OptimizerSpec | None = None, **settings: Any) -> Any:
    fields = {"inverse": Neumann(2, 0.01), "finetuning": Unroll(1)} | settings
    optimizers = {"pretrain_optimizer": optimizer or OptimizerSpec()}
    loop = toys.loop(problem_of(encoder), data=data_of(encoder), **optimizers, **fields)
    loop.run()
    return [*loop.pretrained.vector(), loop.meta["w"]]


def agreeing(encoder: Layer) -> Any:
    return toys.agreeing(problem_of(encoder), data_of(encoder))


def attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]).flatten(1)


def distances(x: Tensor, **how: Any) -> Tensor:
    return torch.cdist(x, IMAGES[:1, :4], **how).flatten(1)  # to four points


def by_products(x: Tensor) -> Tensor:
    return distances(0.1 * x, compute_mode="use_mm_for_euclid_dist")


def by_differences(x: Tensor) -> Tensor:
    return (0.1 * (x[:, :, None] - x[:, None])).square().sum(-1).flatten(1)


def pairs(x: Tensor) -> Tensor:
    return torch.stack([torch.pdist(each) for each in x])


def ctc(x: Tensor) -> Tensor:
    count = len(x)
    targets, lengths = torch.ones(count, 2, dtype=torch.long), (torch.full((count,), size) for size in (6, 2))
    return F.ctc_loss(x.log_softmax(-1).transpose(0, 1), targets, *lengths, reduction="none")[:, None]


def shuffled(x: Tensor) -> Tensor:
    return torch.native_channel_shuffle(x[..., None], 2).flatten(1)


def after(function: Callable[[Tensor], Tensor]) -> Layer:
    return Layer(nn.Linear(8, 8), function)


def embedding(**how: Any) -> Layer:
    return Layer(nn.Embedding(12, 4, **how), lambda x: x.mean(1))


TRANSFORMER = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
ATTENTION, NOT_TWICE = "`scaled_dot_product_attention`, `MultiheadAttention`, `TransformerEncoder`", "second derivative"
DOT = refused(ATTENTION, NOT_TWICE, "scaled_dot_product", "SDPBackend.MATH")
BAG = refused("`EmbeddingBag`", NOT_TWICE, "embedding_bag", "torch.nn.Embedding", "mean")
FEW, APART = "`torch.cdist` of few points, `torch.pdist`", "distances from differences"
CTC = refused("`ctc_loss`, and any other", NOT_TWICE, "ctc_loss", "differentiates twice")
SPARSE, MEAN = "`Embedding(sparse=True)`, PT with", "`Embedding`, and the mean or the sum over the words"
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], Layer]]] = {
    "attention": (DOT, trained, lambda: after(attention)),
    "a transformer": (DOT, trained, lambda: Layer(TRANSFORMER, lambda x: x.flatten(1))),
    "bag, mean": (BAG, trained, lambda: Layer(nn.EmbeddingBag(12, 4, mode="mean"))),
    "bag, max": (BAG, trained, lambda: Layer(nn.EmbeddingBag(12, 4, mode="max"))),
    "cdist": (refused(FEW, NOT_TWICE, "cdist", "differences"), trained, lambda: after(distances)),
    "pdist": (refused(FEW, NOT_TWICE, "pdist", "differences"), trained, lambda: after(pairs)),
    "ctc": (CTC, trained, lambda: after(ctc)),
    "an embedding and a mean": (right(MEAN, 1e-6), agreeing, embedding),
    "a sparse embedding": (right(SPARSE + " SGD", 1e-6), agreeing, lambda: embedding(sparse=True)),
    "cdist by products": (right(APART, 1e-6), agreeing, lambda: after(by_products)),
    "differences": (right(APART, 1e-6), agreeing, lambda: after(by_differences)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_without_a_second_derivative_is_refused_and_what_is_advised_is_right(name: str) -> None:
    says, use, make = OPERATIONS[name]
    says(use)(make())


@refused("an operation without any derivative", "no derivative", "native_channel_shuffle", "unflatten")
def test_an_operation_without_a_derivative_in_plain_pre_training() -> None:
    toys.trainer(problem_of(after(shuffled)), data=(IMAGES,)).run(META, 1)


@right(ATTENTION + " in that context", 1e-6)
def test_attention_of_the_math_backend() -> Any:
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return agreeing(after(attention))


@pytest.mark.parametrize("reuse", [False, True])
@right(SPARSE + " SGD")
def test_a_run_with_a_sparse_embedding(reuse: bool) -> Any:
    how = {"finetuning": FittedHead(), "reuse_gradient": reuse, "iterations": 3}
    return tuple(trained(embedding(sparse=s), OptimizerSpec("SGD", {"lr": 0.1}), **how) for s in (True, False))


DECAYING = OptimizerSpec("SGD", {"lr": 0.1, "weight_decay": 0.1})


@pytest.mark.parametrize("optimizer", [OptimizerSpec("Adam"), OptimizerSpec("RMSprop"), DECAYING])
@refused(SPARSE + " another optimiser", "sparse gradients", "sparse=False")
def test_a_sparse_embedding_with_an_optimiser_that_does_not_take_it(optimizer: OptimizerSpec) -> None:
    trained(embedding(sparse=True), optimizer)
