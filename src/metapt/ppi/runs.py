"""What PT and FT jobs share: how they read what PT left, and what a checkpoint is bound to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from metapt.ppi.config import Network
from metapt.ppi.gin import initial_pretrained
from metapt.stages import Machine
from metapt.training import checkpoint, pretrained_file
from metapt.training.pretrained_file import Learned, save_pretrained

__all__ = ["EXPERIMENT", "Learned", "fingerprint", "load_pretrained", "save_pretrained"]

EXPERIMENT = "ppi"
"""Of these runs in the metrics table: each serves several experiments."""


def load_pretrained(path: Path, network: Network, device: str) -> Learned:
    """Read pretrained.pt, whose encoder has these layers and this width; see `pretrained_file.load_pretrained`."""
    like = initial_pretrained(network.layers, network.width, 1, torch.Generator())
    return pretrained_file.load_pretrained(path, like, f"{network.layers} layers of width {network.width}", device)


def fingerprint(config: dict[str, Any], inputs: dict[str, Path], code: tuple[str, ...], machine: Machine) -> str:
    """See `checkpoint.fingerprint`."""
    return checkpoint.fingerprint(config, inputs, code, machine.device)
