"""The science of the toy domain: how much noise each feature of an example should get in pre-training.

The class depends on the first four of eight features, and the PT targets depend on all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad import Params, Pretrained
from metapt.training.seeds import generator

USEFUL, FEATURES, CODE = 4, 8, 4
BATCH = 200


class Batch(NamedTuple):
    """Features [n, 8]; PT targets [n, 4] or classes [n]; random numbers [n, 8] of a PT minibatch."""

    x: Tensor
    y: Tensor
    noise: Tensor = torch.empty(0)


class NoisyInputs:
    """Regression on noisy features in PT, classification in FT. The meta-parameters are logits of noise shares [8]."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        share = torch.sigmoid(meta["noise"])
        noisy = batch._replace(x=(1 - share).sqrt() * batch.x + share.sqrt() * batch.noise)
        return F.mse_loss(self.encode(pretrained.encoder, noisy) @ pretrained.head["weight"], batch.y)

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        return torch.tanh(batch.x @ encoder["weight"])

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return F.binary_cross_entropy_with_logits(features @ head["weight"], batch.y)


class Minibatches:
    """Minibatches of a PT seed; hypergradients use a stream of their own."""

    def __init__(self, examples: dict[str, Tensor], seed: int) -> None:
        self.examples = examples
        self.streams = {name: generator("noise", name, seed) for name in ("pretrain", "hypergradient")}

    def _noisy(self, name: str) -> Batch:
        random = self.streams[name]
        some = torch.randint(len(self.examples["x"]), [BATCH], generator=random)
        return Batch(self.examples["x"][some], self.examples["y"][some], torch.randn(BATCH, FEATURES, generator=random))

    def pretrain(self) -> Batch:
        return self._noisy("pretrain")

    def hypergradient(self) -> Batch:
        return self._noisy("hypergradient")

    def train(self) -> Batch:
        return Batch(self.examples["train_x"], self.examples["train_y"])

    def validation(self) -> Batch:
        return Batch(self.examples["validation_x"], self.examples["validation_y"])

    def state_dict(self) -> dict[str, Tensor]:
        return {name: stream.get_state() for name, stream in self.streams.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, stream in self.streams.items():
            stream.set_state(state[name])


def initial(seed: int) -> Pretrained:
    """Return the random weights of a PT seed, the same for all arms."""
    random = generator("noise weights", seed)
    encoder, head = torch.randn(FEATURES, CODE, generator=random), torch.randn(CODE, USEFUL, generator=random)
    return Pretrained({"weight": 0.3 * encoder}, {"weight": 0.3 * head})
