"""Reading the encoder that PT has left for FT."""

from __future__ import annotations

from pathlib import Path

import torch

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.gin import initial_pretrained
from metapt.training import pretrained_file
from metapt.training.pretrained_file import Learned


def load_pretrained(path: Path, network: Network, device: str) -> Learned:
    """Read pretrained.pt, whose encoder must have the network's layers and width.

    Raises:
        DataError: as `pretrained_file.load_pretrained`.
    """
    like = initial_pretrained(network.layers, network.width, 1, torch.Generator())
    return pretrained_file.load_pretrained(path, like, f"{network.layers} layers of width {network.width}", device)
