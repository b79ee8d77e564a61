"""Independent random generators, each named by its purpose."""

from __future__ import annotations

import hashlib

import torch


def generator(*name: str | int, device: str = "cpu") -> torch.Generator:
    """Return a random generator seeded by its name, such as ("mnist_bptt", "weights", 3).

    Equal names give equal random numbers, different names independent ones.
    """
    digest = hashlib.sha256(repr(name).encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
