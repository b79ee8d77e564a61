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
from metapt import ModuleProblem, OptimizerSpec
from metapt.hypergrad import FittedHead, Neumann, Params, Unroll

from . import toys
from .kinds import refused, right
from .problems import DTYPE, draw

X = draw(0, 20, 6, 8)
WORDS = torch.randint(12, (20, 5), generator=torch.Generator().manual_seed(1))


class Layer(nn.Module):
    """A layer, then a function of its output."""

    def __init__(self, layer: nn.Module, after: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.layer, self.after = layer.to(DTYPE), after
        with torch.random.fork_rng():
            torch.manual_seed(2)
            for value in self.parameters():
                nn.init.normal_(value)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(x))


def pretrain_loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    return (meta["w"].exp().sum() * encoder(batch[0]).tanh().square()).mean()


def finetune_loss(head: Any, features: Tensor, batch: Any) -> Tensor:
    return (head(features) - 1).square().mean()


def problem_of(encoder: nn.Module, x: Tensor) -> ModuleProblem:
    heads = {"head": nn.Identity(), "finetune_head": toys.linear(22, encoder(x[:1]).shape[1], 1)}
    return toys.problem(encoder, **heads, pretrain_loss=pretrain_loss, finetune_loss=finetune_loss)


def trained(encoder: nn.Module, x: Tensor, optimizer: OptimizerSpec | None = None, **settings: Any) -> Any:
    fields = {"inverse": Neumann(2, 0.01), "finetuning": Unroll(1)} | settings
    toy = problem_of(encoder, x)
    loop = toys.loop(toy, data=(x,), pretrain_optimizer=optimizer or OptimizerSpec(), **fields)
    loop.run()
    return [*loop.pretrained.vector(), loop.meta["w"]]


def attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]).flatten(1)


def distances(x: Tensor, **how: Any) -> Tensor:
    return torch.cdist(x, X[:1, :4], **how).flatten(1)  # to four points


def ctc(x: Tensor) -> Tensor:
    count = len(x)
    targets, lengths = torch.ones(count, 2, dtype=torch.long), (torch.full((count,), size) for size in (6, 2))
    return F.ctc_loss(x.log_softmax(-1).transpose(0, 1), targets, *lengths, reduction="none")[:, None]


def shuffled(x: Tensor) -> Tensor:
    return torch.native_channel_shuffle(x[..., None], 2).flatten(1)


def after(function: Callable[[Tensor], Tensor]) -> Layer:
    return Layer(nn.Linear(8, 8), function)


TRANSFORMER = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
ATTENTION, NOT_TWICE = "`scaled_dot_product_attention`, `MultiheadAttention`, `TransformerEncoder`", "second derivative"
BAG = refused("`EmbeddingBag`", NOT_TWICE, "embedding_bag", "torch.nn.Embedding", "mean")
FEW = "`torch.cdist` of few points, `torch.pdist`"
REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], Layer], Tensor]] = {
    "attention": (refused(ATTENTION, NOT_TWICE, "scaled_dot_product", "SDPBackend.MATH"), lambda: after(attention), X),
    "a transformer": (
        refused(ATTENTION, "scaled_dot_product", "SDPBackend.MATH"),
        lambda: Layer(TRANSFORMER, lambda x: x.flatten(1)),
        X,
    ),
    "bag, mean": (BAG, lambda: Layer(nn.EmbeddingBag(12, 4, mode="mean")), WORDS),
    "bag, max": (BAG, lambda: Layer(nn.EmbeddingBag(12, 4, mode="max")), WORDS),
    "cdist": (refused(FEW, NOT_TWICE, "cdist", "differences"), lambda: after(distances), X),
    "pdist": (
        refused(FEW, NOT_TWICE, "pdist", "differences"),
        lambda: after(lambda x: torch.stack([torch.pdist(each) for each in x])),
        X,
    ),
    "ctc": (refused("`ctc_loss`, and any other", NOT_TWICE, "ctc_loss", "differentiates twice"), lambda: after(ctc), X),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_without_a_second_derivative_is_refused(name: str) -> None:
    refuses, make, x = REFUSED[name]
    refuses(trained)(make(), x)


@refused(ATTENTION, "scaled_dot_product", "SDPBackend.MATH")
def test_check_refuses_it_too() -> None:
    metapt.check(*toys.arguments(problem_of(after(attention), X), data=(X,)))


@refused("an operation without any derivative", "no derivative", "native_channel_shuffle", "unflatten")
def test_an_operation_without_a_derivative_in_plain_pre_training() -> None:
    toys.trainer(problem_of(after(shuffled), X), data=(X,)).run(toys.META, 1)


SPARSE, MEAN = "`Embedding(sparse=True)`, PT with", "`Embedding`, and the mean or the sum over the words"
DIFFERENCES = "distances from differences"
RIGHT: dict[str, tuple[Callable[..., Any], Callable[[], Layer], Tensor]] = {
    "an embedding and a mean": (right(MEAN, 1e-6), lambda: Layer(nn.Embedding(12, 4), lambda x: x.mean(1)), WORDS),
    "cdist by products": (
        right(DIFFERENCES, 1e-6),
        lambda: after(lambda x: distances(x, compute_mode="use_mm_for_euclid_dist")),
        0.1 * X,
    ),
    "differences": (
        right(DIFFERENCES, 1e-6),
        lambda: after(lambda x: (x[:, :, None] - x[:, None]).square().sum(-1).flatten(1)),
        0.1 * X,
    ),
    "sparse": (
        right(SPARSE + " SGD", 1e-6),
        lambda: Layer(nn.Embedding(12, 4, sparse=True), lambda x: x.mean(1)),
        WORDS,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_advised_is_right(name: str) -> None:
    agrees, make, x = RIGHT[name]
    agrees(toys.agreeing)(problem_of(make(), x), (x,))


@right(ATTENTION + " in that context", 1e-6)
def test_attention_of_the_math_backend() -> Any:
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return toys.agreeing(problem_of(after(attention), X), (X,))


def embedding(**how: Any) -> Layer:
    return Layer(nn.Embedding(12, 4, **how), lambda x: x.mean(1))


@pytest.mark.parametrize("reuse", [False, True])
@right(SPARSE + " SGD")
def test_a_run_with_a_sparse_embedding(reuse: bool) -> Any:
    how = {"finetuning": FittedHead(), "reuse_gradient": reuse, "iterations": 3}
    return tuple(trained(embedding(sparse=s), WORDS, OptimizerSpec("SGD", {"lr": 0.1}), **how) for s in (True, False))


DECAYING = OptimizerSpec("SGD", {"lr": 0.1, "weight_decay": 0.1})


@pytest.mark.parametrize("optimizer", [OptimizerSpec("Adam"), OptimizerSpec("RMSprop"), DECAYING])
@refused(SPARSE + " another optimiser", "sparse gradients", "sparse=False")
def test_a_sparse_embedding_with_an_optimiser_that_does_not_take_it(optimizer: OptimizerSpec) -> None:
    trained(embedding(sparse=True), WORDS, optimizer)
