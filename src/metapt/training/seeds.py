"""Independent random generators, each named by its purpose, and torch's global ones for a while."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


def generator(*name: str | int, device: str = "cpu") -> torch.Generator:
    """Return a random generator seeded by its name, such as ("mnist_bptt", "weights", 3).

    Equal names give equal random numbers, different names independent ones.
    """
    return torch.Generator(device=device).manual_seed(seed_of(*name))


def seed_of(*name: str | int) -> int:
    """Return the seed that a name stands for, 63 bits."""
    plain = tuple(each if isinstance(each, str) else int(each) for each in name)  # NumPy's integers have another repr
    digest = hashlib.sha256(repr(plain).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Seeded(NamedTuple):
    """A minibatch with a seed for the random draws of its loss, since a minibatch determines the loss."""

    batch: Any
    seed: int


@contextmanager
def seeded(seed: int, devices: Sequence[int] = ()) -> Iterator[None]:
    """Seed torch's global generators, of the CPU and of the GPUs `devices`, and restore their states at the end."""
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
