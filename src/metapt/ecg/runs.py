"""What PT and FT jobs share: how they read what PT left, and what a checkpoint is bound to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from metapt.ecg.resnet1d import ResNet1d
from metapt.hypergrad import Pretrained
from metapt.stages import Machine
from metapt.training import checkpoint, pretrained_file
from metapt.training.pretrained_file import Learned, save_pretrained

__all__ = ["EXPERIMENT", "Learned", "fingerprint", "load_pretrained", "save_pretrained"]

EXPERIMENT = "ecg"
"""Of these runs in the metrics table: each serves several experiments."""


def load_pretrained(path: Path, width: int, device: str) -> Learned:
    """Read pretrained.pt, whose encoder has this width; see `pretrained_file.load_pretrained`."""
    with torch.device("meta"):
        network = ResNet1d(width)
    like = Pretrained(dict(network.named_parameters()), {}, dict(network.named_buffers()))
    return pretrained_file.load_pretrained(path, like, f"width {width}", device)


def fingerprint(config: dict[str, Any], inputs: dict[str, Path], code: tuple[str, ...], machine: Machine) -> str:
    """See `checkpoint.fingerprint`. The signals are left out: they are large, and the records name them."""
    content = {name: path for name, path in inputs.items() if name != "signals"}
    return checkpoint.fingerprint(config, content, code, machine.device)
