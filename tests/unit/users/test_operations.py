"""Operations without a second derivative.

Each is refused by its name, with what to do instead, and what is advised is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metapt
from metapt import LoaderBatches, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec, Pretrainer
from metapt.hypergrad import FittedHead, Neumann, Unroll, hypergradient

from .kinds import refused, right

DTYPE = torch.float64
X = torch.randn(20, 6, 8, dtype=DTYPE, generator=torch.Generator().manual_seed(0))
WORDS = torch.randint(12, (20, 5), generator=torch.Generator().manual_seed(1))
META = {"w": torch.zeros((), dtype=DTYPE)}


class Layer(nn.Module):
    """A layer, then a function of its output."""

    def __init__(self, layer: nn.Module, after: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.layer, self.after = layer.to(DTYPE), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(x))


def attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]).flatten(1)


def distances(x: Tensor, **how: Any) -> Tensor:
    return torch.cdist(x, X[:1, :4], **how).flatten(1)  # to four points


def problem_of(encoder: nn.Module, x: Tensor) -> ModuleProblem:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        for value in encoder.parameters():
            nn.init.normal_(value)
        return ModuleProblem(
            encoder,
            nn.Identity(),
            nn.Linear(encoder(x[:1]).shape[1], 1).to(DTYPE),
            pretrain_loss=lambda encoder, head, meta, batch: (
                meta["w"].exp() * encoder(batch[0]).tanh().square()
            ).mean(),
            finetune_loss=lambda head, features, batch: (head(features) - 1).square().mean(),
        )


def trained(encoder: nn.Module, x: Tensor, *, check: bool = False, **optimizer: Any) -> MetaPretraining:
    """Run or check meta-PT of an encoder."""
    problem = problem_of(encoder, x)
    batches = LoaderBatches(pretrain=[(x,)], train=[(x[:10],)], validation=[(x[10:],)])
    settings = MetaSettings(
        2, inverse=Neumann(2, 0.01), finetuning=Unroll(1), pretrain_optimizer=OptimizerSpec(**optimizer)
    )
    arguments = problem, batches, problem.pretrained, META, problem.head, settings
    if check:
        metapt.check(*arguments)
    loop = MetaPretraining(*arguments)
    loop.run()
    return loop


def agreeing(encoder: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hypergradient with two Neumann terms, and the same by central differences of plain gradients."""
    problem = problem_of(encoder, x)
    start, head, (train, validation) = problem.pretrained, problem.head, [(x,), (x[10:],)]
    found = hypergradient(
        problem,
        start,
        META,
        head,
        pretrain_batch=train,
        train_batches=[],
        validation_batch=validation,
        inverse=Neumann(2, 0.5),
        finetuning=Unroll(0),
    )

    def gradient(loss: Callable[..., Tensor], weights: list[Tensor]) -> list[Tensor]:
        leaves = [value.detach().requires_grad_() for value in weights]
        found = torch.autograd.grad(loss(dict(zip(start.encoder, leaves, strict=True))), leaves)
        return [value.to_dense() for value in found]

    def pt(weights: list[Tensor], w: float = 0.0) -> list[Tensor]:
        meta = {"w": torch.tensor(w, dtype=DTYPE)}
        return gradient(lambda named: problem.pretrain_loss(start._replace(encoder=named), meta, train), weights)

    def difference(plus: list[Tensor], minus: list[Tensor], step: float) -> list[Tensor]:
        return [(a - b) / (2 * step) for a, b in zip(plus, minus, strict=True)]

    def product(vector: list[Tensor], step: float = 1e-5) -> list[Tensor]:
        ends = ([a + sign * step * b for a, b in zip(weights, vector, strict=True)] for sign in (1, -1))
        return difference(*map(pt, ends), step)

    weights = list(start.encoder.values())
    term = gradient(lambda named: problem.head_loss(head, problem.encode(named, validation), validation), weights)
    total = term
    for _ in range(2):
        term = [a - 0.5 * b for a, b in zip(term, product(term), strict=True)]
        total = [a + b for a, b in zip(total, term, strict=True)]
    mixed = difference(pt(weights, 1e-5), pt(weights, -1e-5), 1e-5)
    return found.gradient["w"], -0.5 * sum((a * b).sum() for a, b in zip(total, mixed, strict=True))


SDPA = "`scaled_dot_product_attention`, `MultiheadAttention`, `TransformerEncoder`"
MATH = "`with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):` around the training"


@pytest.mark.parametrize("check", [False, True])
@refused(SDPA, ("second derivative", "scaled_dot_product", "sdpa_kernel", "SDPBackend.MATH"), MATH)
def test_fused_attention(check: bool) -> None:
    trained(Layer(nn.Linear(8, 8), attention), X, check=check)


@refused(SDPA, ("scaled_dot_product", "SDPBackend.MATH"), MATH)
def test_a_layer_of_a_transformer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    trained(Layer(layer, lambda x: x.flatten(1)), X)


@right("attention in that context", tolerance=1e-6)
def test_attention_of_the_math_backend() -> tuple[Any, Any]:
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return agreeing(Layer(nn.Linear(8, 8), attention), X)


BAG = "`Embedding`, and the mean or the sum over the words"


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@refused("`EmbeddingBag`", ("second derivative", "embedding_bag", "torch.nn.Embedding", "mean"), BAG)
def test_an_embedding_bag(mode: str) -> None:
    trained(Layer(nn.EmbeddingBag(12, 4, mode=mode)), WORDS)


@right(BAG, tolerance=1e-6)
def test_an_embedding_and_a_mean() -> tuple[Any, Any]:
    return agreeing(Layer(nn.Embedding(12, 4), lambda x: x.mean(1)), WORDS)


DIFFERENCES = "distances from differences: `(x[:, None] - y).square().sum(-1)`"


@refused("`torch.cdist` of few points, `torch.pdist`", ("second derivative", "cdist", "differences"), DIFFERENCES)
def test_cdist() -> None:
    trained(Layer(nn.Linear(8, 8), distances), X)


@refused("`torch.cdist` of few points, `torch.pdist`", ("second derivative", "pdist", "differences"), DIFFERENCES)
def test_pdist() -> None:
    trained(Layer(nn.Linear(8, 8), lambda x: torch.stack([torch.pdist(each) for each in x])), X)


@pytest.mark.parametrize(
    "after",
    [
        lambda x: distances(x, compute_mode="use_mm_for_euclid_dist"),
        lambda x: (x[:, :, None] - x[:, None]).square().sum(-1).flatten(1),
    ],
)
@right('distances from differences; `cdist(..., compute_mode="use_mm_for_euclid_dist")`', tolerance=1e-6)
def test_distances(after: Callable[[Tensor], Tensor]) -> tuple[Any, Any]:
    return agreeing(Layer(nn.Linear(8, 8), after), 0.1 * X)


def ctc(x: Tensor) -> Tensor:
    count = len(x)
    targets, lengths = torch.ones(count, 2, dtype=torch.long), (torch.full((count,), size) for size in (6, 2))
    return F.ctc_loss(x.log_softmax(-1).transpose(0, 1), targets, *lengths, reduction="none")[:, None]


@refused(
    "`ctc_loss`, and any other operation without a second derivative",
    ("second derivative", "ctc_loss", "differentiates twice"),
    "operations that torch differentiates twice",
)
def test_ctc_loss() -> None:
    trained(Layer(nn.Linear(8, 8), ctc), X)


@refused(
    "an operation without any derivative",
    ("no derivative", "native_channel_shuffle", "unflatten"),
    "another, such as `x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)`",
)
def test_an_operation_without_a_derivative_in_plain_pre_training() -> None:
    encoder = Layer(nn.Linear(8, 8), lambda x: torch.native_channel_shuffle(x[..., None], 2).flatten(1))
    problem = problem_of(encoder, X)
    batches = LoaderBatches(pretrain=[(X,)], train=[0], validation=[1])
    Pretrainer(problem, batches, problem.pretrained, OptimizerSpec()).run(META, 1)


SPARSE = "`Embedding(sparse=True)`"


def sparse(x: Tensor) -> Tensor:
    return x.mean(1)


@right(f"{SPARSE}, PT with SGD", tolerance=1e-6)
def test_a_hypergradient_of_a_sparse_embedding() -> tuple[Any, Any]:
    return agreeing(Layer(nn.Embedding(12, 4, sparse=True), sparse), WORDS)


@pytest.mark.parametrize("reuse", [False, True])
@right(f"{SPARSE}, PT with SGD")
def test_a_run_with_a_sparse_embedding(reuse: bool) -> tuple[Any, Any]:
    def run(**how: Any) -> Tensor:
        problem = problem_of(Layer(nn.Embedding(12, 4, **how), sparse), WORDS)
        batches = LoaderBatches(pretrain=[(WORDS,)], train=[(WORDS[:10],)], validation=[(WORDS[10:],)])
        settings = MetaSettings(
            3,
            inverse=Neumann(2, 0.01),
            finetuning=FittedHead(),
            pretrain_optimizer=OptimizerSpec("SGD", {"lr": 0.1}),
            reuse_gradient=reuse,
        )
        loop = MetaPretraining(problem, batches, problem.pretrained, META, problem.head, settings)
        loop.run()
        return torch.cat([loop.pretrained.encoder["layer.weight"].detach().flatten(), loop.meta["w"].detach()[None]])

    return run(sparse=True), run()


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop"])
@refused(f"{SPARSE}, PT with another optimiser", ("sparse gradients", "sparse=False"), "`Embedding(sparse=False)`")
def test_a_sparse_embedding_with_an_optimiser_that_does_not_take_it(name: str) -> None:
    trained(Layer(nn.Embedding(12, 4, sparse=True), sparse), WORDS, name=name)


@refused(f"{SPARSE}, PT with another optimiser", ("sparse gradients", "sparse=False"), "`Embedding(sparse=False)`")
def test_a_sparse_embedding_with_weight_decay() -> None:
    options = {"lr": 0.1, "weight_decay": 0.1}
    trained(Layer(nn.Embedding(12, 4, sparse=True), sparse), WORDS, name="SGD", settings=options)
