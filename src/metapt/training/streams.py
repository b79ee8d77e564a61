"""Endless shuffled passes over a data set, for many replicates at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metapt.errors import ConfigError


class ShuffledStream:
    """Minibatches of indices, one row per replicate; each pass is a new order, and a last part that is too short is dropped.

    Each replicate draws from its own generator, so that what it sees does not depend on how many others there are.

    Args:
        size: number of examples.
        batch_size: indices per minibatch; all examples where there are fewer.
        generators: one per replicate, on the CPU.

    Raises:
        ConfigError: there is no example, or none in a minibatch.
    """

    def __init__(self, size: int, batch_size: int, generators: list[torch.Generator]) -> None:
        if size < 1 or batch_size < 1:
            raise ConfigError(f"minibatches of {batch_size} of {size} examples can't be drawn; legal: 1 or more of each")
        self.size = size
        self.batch_size = min(batch_size, size)
        self.generators = generators
        self._order = torch.empty(len(generators), 0, dtype=torch.int64)
        self._position = 0

    def next(self) -> Tensor:
        """Indices, shape [replicates, batch]."""
        if self._position + self.batch_size > self._order.shape[1]:
            self._order = torch.stack([torch.randperm(self.size, generator=generator) for generator in self.generators])
            self._position = 0
        batch = self._order[:, self._position : self._position + self.batch_size]
        self._position += self.batch_size
        return batch

    def normal(self) -> Tensor:
        """Standard normal draws for a minibatch, shape [replicates, batch]."""
        return torch.stack([torch.randn(self.batch_size, generator=generator) for generator in self.generators])

    def state_dict(self) -> dict[str, Any]:
        # Not stacked: torch reads past the end of a state that is a row of a larger tensor, and the process dies.
        generators = [generator.get_state() for generator in self.generators]
        return {"generators": generators, "order": self._order, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.set_state(saved)
        self._order, self._position = state["order"], state["position"]
