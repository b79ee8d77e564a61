"""What PT and FT jobs share: how they read what PT left."""

from __future__ import annotations

from pathlib import Path

import torch

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.gin import initial_pretrained
from metapt.training import pretrained_file
from metapt.training.pretrained_file import Learned, save_pretrained

__all__ = ["EXPERIMENT", "Learned", "load_pretrained", "save_pretrained"]

EXPERIMENT = "ppi"
"""Of these runs in the metrics table: each serves several experiments."""


def load_pretrained(path: Path, network: Network, device: str) -> Learned:
    """Read pretrained.pt, whose encoder has these layers and this width; see `pretrained_file.load_pretrained`."""
    like = initial_pretrained(network.layers, network.width, 1, torch.Generator())
    return pretrained_file.load_pretrained(path, like, f"{network.layers} layers of width {network.width}", device)
