"""The number of kernels that the arithmetic of a meta-update launches does not depend on the number of parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import Identity, Neumann, Params, Pretrained
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec

from .problems import Batch, classification, draw

Launches = Callable[..., Counter[str]]
ELSEWHERE = {"_engine_run_backward", "pretrain_loss", "encode", "head_loss"}
"""The functions in which the engine and the problem compute."""


class Deep:
    """A network of several layers, whose ridge has a learned weight for each layer."""

    def __init__(self, layers: int) -> None:
        self.pretrained = Pretrained(
            {str(layer): draw(layer, 4, 4) for layer in range(layers)}, {"a": draw(90, 3, 4), "b": draw(91, 3)}
        )
        self.meta = {str(layer): draw(100 + layer, 1) - 2 for layer in range(layers)}
        self.head = {"weight": draw(92, 3, 4)}

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        logits = self.encode(pretrained.encoder, batch) @ pretrained.head["a"].T + pretrained.head["b"]
        ridges = [meta[name].exp().sum() * value.square().sum() for name, value in pretrained.encoder.items()]
        return torch.nn.functional.cross_entropy(logits, batch.labels) + torch.stack(ridges).sum()

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        values = batch.inputs
        for weight in encoder.values():
            values = torch.tanh(values @ weight.T)
        return values

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return torch.nn.functional.cross_entropy(features @ head["weight"].T, batch.labels)


def loop_of(layers: int, **settings: Any) -> MetaPretraining:
    problem = Deep(layers)
    batch = classification("", 0, torch.Generator().manual_seed(0))
    batches = SimpleNamespace(pretrain=lambda: batch, train=lambda: batch, validation=lambda: batch)
    adam = OptimizerSpec("Adam", {"lr": 1e-3, "weight_decay": 1e-2})
    loop = MetaPretraining(
        problem, batches, problem.pretrained, problem.meta, problem.head,
        MetaSettings(iterations=9, pretrain_steps=1, pretrain_optimizer=adam, meta_optimizer=adam, **settings),
    )  # fmt: skip
    loop.iterate()  # the first checks the problem
    return loop


@pytest.mark.parametrize(
    "settings",
    [
        {"inverse": Identity()},
        {"inverse": Neumann(3, 0.1)},
        {"inverse": Neumann(1, 0.1), "reuse_gradient": True},
        {"inverse": Neumann(1, 0.1), "accumulate": 2, "normalise": True, "clip_norm": 1.0},
    ],
    ids=["identity", "Neumann", "reused", "accumulated"],
)
def test_a_meta_update_launches_as_many_for_any_number_of_parameters(
    settings: dict[str, Any], launches: Launches
) -> None:
    few, many = (launches(loop_of(layers, **settings).iterate, ELSEWHERE) for layers in (2, 9))
    assert few == many
    assert few["_foreach_norm"]
