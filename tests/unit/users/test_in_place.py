"""Data and tensors that are yours."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import metapt
from metapt import LoaderBatches, MetaPretraining, MetaSettings, OptimizerSpec, Pretrainer
from metapt.hypergrad import Identity, Params, Unroll

from . import toys
from .kinds import refused, right
from .toys import META, X, Y, problem

CLIPS = "a loss or an encoder that changes its minibatch in place (`clamp_`, `x -= x.mean()`)"
NEW = "make a new tensor"


@dataclass
class Example:
    x: Tensor
    y: Tensor

    def __getitem__(self, index: int) -> Tensor:
        return (self.x, self.y)[index]


class Named(dict[str, Any]):
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__({0: "x", 1: "y"}.get(key, key))


def centre(batch: Any) -> None:
    batch[0].sub_(batch[0].mean())


def centre_array(batch: Any) -> None:
    batch[2].__isub__(batch[2].mean())


def centre_data(batch: Any) -> None:
    batch[0].data.clamp_(-0.5, 0.5)


BATCHES = {
    "tuple": lambda: ((X.clone(), Y.clone()), centre),
    "list": lambda: ([X.clone(), Y.clone()], centre),
    "mapping": lambda: (Named(x=X.clone(), y=Y.clone()), centre),
    "object": lambda: (Example(X.clone(), Y.clone()), centre),
    "array": lambda: ((X.clone(), Y.clone(), X.numpy().copy()), centre_array),
    "data": lambda: ((X.clone(), Y.clone()), centre_data),
}


def tensors(batch: Any) -> list[Any]:
    values = (
        batch.values() if isinstance(batch, dict) else vars(batch).values() if isinstance(batch, Example) else batch
    )
    return [torch.as_tensor(np.array(value)) for value in values]


@pytest.mark.parametrize("function", ["pretrain_loss", "encode", "finetune_loss"])
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("use", ["check", "run", "plain"])
def test_a_minibatch_that_is_changed_in_place_is_refused_and_stays(function: str, kind: str, use: str) -> None:
    if use == "plain" and function != "pretrain_loss":
        return
    batch, change = BATCHES[kind]()
    whole = {
        "pretrain_loss": toys.pretrain_loss,
        "encode": lambda encoder, batch: encoder(batch[0]),
        "finetune_loss": toys.finetune_loss,
    }[function]

    def changing(*given: Any) -> Tensor:
        with torch.no_grad():
            change(given[-1])
        return whole(*given)

    toy = problem(**{"encode": lambda encoder, batch: encoder(batch[0]), function: changing})
    other = copy.deepcopy(batch)
    batches = LoaderBatches(pretrain=[batch], train=[other], validation=[batch])
    before = tensors(batch)

    @refused(CLIPS, (function, "in place"), NEW)
    def run() -> None:
        start = toy.pretrained
        if use == "plain":
            Pretrainer(toy, batches, start, OptimizerSpec()).run(META, 2)
        settings = MetaSettings(2, inverse=Identity(), finetuning=Unroll(0))
        if use == "check":
            metapt.check(toy, batches, start, META, toy.head, settings)
        else:
            MetaPretraining(toy, batches, start, META, toy.head, settings).run()

    run()
    assert all(torch.equal(old, new) for old, new in zip(before, tensors(batch), strict=True))


@refused(CLIPS, ("pretrain_loss", "in place"), NEW)
def test_noise_that_is_added_in_place_is_refused() -> None:
    def noisy(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        return toys.pretrain_loss(encoder, head, meta, (batch[0].add_(torch.randn_like(batch[0])), batch[1]))

    toys.pretrained(problem(pretrain_loss=noisy))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, max_norm=1.0, dtype=toys.DTYPE)
        self.table.weight.data.copy_(4 * toys.draw(50, 5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.table((x[:, 0] > 0).long()))


NORMED = "`Embedding(max_norm=...)`, in meta-PT and hypergradients"


@pytest.mark.parametrize("use", ["hypergradient", "loop", "exact"])
@refused(NORMED, ("table.weight", "in place", "max_norm"), "normalise what it returns")
def test_an_embedding_that_normalises_its_table_is_refused(use: str) -> None:
    toy = problem(Words())
    start = toy.pretrained
    before = start.encoder["table.weight"].clone()
    try:
        if use == "loop":
            toys.loop(toy).run()
        else:
            (toys.exact if use == "exact" else toys.gradient)(toy)
    finally:
        assert torch.equal(before, start.encoder["table.weight"])


@right("`Embedding(max_norm=...)`, in plain PT")
def test_plain_pretraining_normalises_as_torch_does() -> Any:
    torch.manual_seed(0)
    encoder = Words()
    return toys.pretrained(problem(encoder)).vector(), toys.by_hand(encoder, toys.linear(20, 3, 2))


@refused("a loss that changes hyperparameters or weights in place", ("meta-parameter 'w'", "in place"), NEW)
def test_hyperparameters_that_are_clamped_in_the_loss_are_refused() -> None:
    def clamped(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        with torch.no_grad():
            meta["w"].clamp_(0.1, 1)
        return toys.pretrain_loss(encoder, head, meta, batch)

    toys.loop(problem(pretrain_loss=clamped)).run()
