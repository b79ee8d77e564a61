"""Shuffled minibatches of a data set without end, for many replicates at once, and their way to the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metapt.errors import ConfigError


class ShuffledStream:
    """Minibatches of indices, one row per replicate.

    Each pass over the data has a new order, and drops a last minibatch that would be too small. Each replicate draws
    from its own generator, so that its minibatches do not depend on the number of replicates.

    Args:
        size: number of examples.
        batch_size: indices per minibatch; at most `size` are taken.
        generators: one per replicate, on the CPU.

    Raises:
        ConfigError: `size` or `batch_size` is below 1.
    """

    def __init__(self, size: int, batch_size: int, generators: list[torch.Generator]) -> None:
        if size < 1 or batch_size < 1:
            raise ConfigError(
                f"minibatches of {batch_size} of {size} examples can't be drawn; legal: 1 or more of each"
            )
        self.size = size
        self.batch_size = min(batch_size, size)
        self.generators = generators
        self._order = torch.empty(len(generators), 0, dtype=torch.int64)
        self._position = 0

    def next(self) -> Tensor:
        """Return the indices of the next minibatch, shape [replicates, batch]."""
        if self._position + self.batch_size > self._order.shape[1]:
            self._order = torch.stack([torch.randperm(self.size, generator=generator) for generator in self.generators])
            self._position = 0
        batch = self._order[:, self._position : self._position + self.batch_size]
        self._position += self.batch_size
        return batch

    def normal(self) -> Tensor:
        """Return standard normal draws for a minibatch, shape [replicates, batch]."""
        return torch.stack([torch.randn(self.batch_size, generator=generator) for generator in self.generators])

    def state_dict(self) -> dict[str, Any]:
        """Return all that determines the following draws, as tensors and plain values."""
        # Not stacked: torch reads beyond a generator state that is a row of a larger tensor, and the process crashes.
        generators = [generator.get_state() for generator in self.generators]
        return {"generators": generators, "order": self._order, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.set_state(saved)
        self._order, self._position = state["order"], state["position"]


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Return values on a device, where they may be already.

    A copy from the CPU to a GPU is queued like a kernel, so that no step waits for it.
    """
    if values.device.type != "cpu" or torch.device(device).type == "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
