"""Data and tensors that are the user's: what changes them in place is refused, and they stay."""

from __future__ import annotations

import copy
from collections.abc import Callable
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
from .problems import DTYPE, draw
from .toys import META, X, Y, problem

CLIPS = {
    name: refused("a loss or an encoder that changes its minibatch in place", name, "in place")
    for name in toys.FUNCTIONS
}


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


BATCHES: dict[str, Callable[[], tuple[Any, Callable[[Any], None]]]] = {
    "tuple": lambda: ((X.clone(), Y.clone()), centre),
    "mapping": lambda: (Named(x=X.clone(), y=Y.clone()), centre),
    "object": lambda: (Example(X.clone(), Y.clone()), centre),
    "array": lambda: ((X.clone(), Y.clone(), X.numpy().copy()), centre_array),
    "data": lambda: ([X.clone(), Y.clone()], centre_data),
}


def tensors(batch: Any) -> list[Any]:
    parts = batch.values() if isinstance(batch, dict) else getattr(batch, "__dict__", {}).values() or batch
    return [torch.as_tensor(np.array(value)) for value in parts]


@pytest.mark.parametrize(
    ("function", "kind", "use"),
    [
        *(("pretrain_loss", kind, "plain") for kind in BATCHES),
        *((function, "tuple", use) for function in toys.FUNCTIONS for use in ("check", "run")),
        *((function, kind, "run") for function in ("encode", "finetune_loss") for kind in ("object", "array", "data")),
    ],
)
def test_a_minibatch_that_is_changed_in_place_is_refused_and_stays(function: str, kind: str, use: str) -> None:
    batch, change = BATCHES[kind]()

    def changing(*given: Any) -> Tensor:
        with torch.no_grad():
            change(given[-1])
        return toys.FUNCTIONS[function](*given)

    toy, before = problem(**{function: changing}), tensors(copy.deepcopy(batch))
    batches = LoaderBatches(pretrain=[batch], train=[copy.deepcopy(batch)], validation=[batch])
    settings = MetaSettings(2, inverse=Identity(), finetuning=Unroll(0))
    arguments = toy, batches, toy.pretrained, META, toy.head, settings
    calls: dict[str, Callable[[], object]] = {
        "plain": lambda: Pretrainer(*arguments[:3], OptimizerSpec()).run(META, 2),
        "check": lambda: metapt.check(*arguments),
        "run": lambda: MetaPretraining(*arguments).run(),
    }
    CLIPS[function](calls[use])()
    assert all(torch.equal(old, new) for old, new in zip(before, tensors(batch), strict=True))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, max_norm=1.0, dtype=DTYPE)
        self.table.weight.data.copy_(4 * draw(50, 5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.table((x[:, 0] > 0).long()))


@pytest.mark.parametrize("use", [toys.gradient, toys.exact, lambda toy: toys.loop(toy).run()])
@refused("`Embedding(max_norm=...)`, in meta-PT and hypergradients", "table.weight", "in place", "max_norm")
def test_an_embedding_that_normalises_its_table_is_refused(use: Callable[..., object]) -> None:
    toy = problem(Words())
    before = toy.pretrained.encoder["table.weight"]
    try:
        use(toy)
    finally:
        assert torch.equal(before, toy.pretrained.encoder["table.weight"])


@right("`Embedding(max_norm=...)`, in plain PT")
def test_plain_pretraining_normalises_as_torch_does() -> Any:
    encoder = Words()
    return toys.pretrained(problem(encoder)).vector(), toys.by_hand(encoder)


@refused("a loss that changes hyperparameters or weights in place", "meta-parameter 'w'", "in place")
def test_hyperparameters_that_are_clamped_in_the_loss_are_refused() -> None:
    def clamped(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        with torch.no_grad():
            meta["w"].clamp_(0.1, 1)
        return toys.pretrain_loss(encoder, head, meta, batch)

    toys.loop(problem(pretrain_loss=clamped)).run()
