"""Independent streams of random numbers, each named by what it is for."""

from __future__ import annotations

import hashlib

import torch


def generator(*name: str | int, device: str = "cpu") -> torch.Generator:
    """A generator seeded by its name, e.g. ("mnist_bptt", "weights", 3): equal names, equal streams; others, independent ones."""
    digest = hashlib.sha256(repr(name).encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
