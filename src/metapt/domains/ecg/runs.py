"""What PT and FT jobs share: how they read what PT left."""

from __future__ import annotations

from pathlib import Path

import torch

from metapt.domains.ecg.resnet1d import ResNet1d
from metapt.hypergrad import Pretrained
from metapt.training import pretrained_file
from metapt.training.pretrained_file import Learned, save_pretrained

__all__ = ["EXPERIMENT", "Learned", "load_pretrained", "save_pretrained"]

EXPERIMENT = "ecg"
"""Of these runs in the metrics table: each serves several experiments."""


def load_pretrained(path: Path, width: int, device: str) -> Learned:
    """Read pretrained.pt, whose encoder has this width; see `pretrained_file.load_pretrained`."""
    with torch.device("meta"):
        network = ResNet1d(width)
    like = Pretrained(dict(network.named_parameters()), {}, dict(network.named_buffers()))
    return pretrained_file.load_pretrained(path, like, f"width {width}", device)
