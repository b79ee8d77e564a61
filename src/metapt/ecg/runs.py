"""What PT and FT jobs share: the file that PT leaves for FT, and what a checkpoint is bound to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metapt.digest import code_digest
from metapt.ecg.resnet1d import ResNet1d
from metapt.errors import DataError
from metapt.files import atomic_path, sha256
from metapt.hypergrad import Params, Pretrained
from metapt.stages import Machine

EXPERIMENT = "ecg"
"""Of these runs in the metrics table: each serves several experiments."""

_PARTS = ("encoder", "head", "buffers", "meta")


class Learned(NamedTuple):
    """What PT has learned: the network, and the meta-parameters of the warp (none where there was no PT)."""

    pretrained: Pretrained
    meta: Params


def save_pretrained(learned: Learned, path: Path) -> None:
    """Write pretrained.pt, dictionaries of CPU tensors `encoder`, `head`, `buffers` and `meta`; the same tensors, the same bytes.

    Raises:
        MachineError: the disk is full, or the folder can't be written.
    """
    parts = zip(_PARTS, (*learned.pretrained, learned.meta), strict=True)
    content = {name: {key: value.detach().cpu() for key, value in part.items()} for name, part in parts}
    # Through an open file, since torch writes a path's own name into the archive.
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save(content, file)


def load_pretrained(path: Path, width: int, device: str) -> Learned:
    """Read what `save_pretrained` has written.

    Args:
        path: pretrained.pt.
        width: of its encoder.
        device: where the tensors go.

    Raises:
        DataError: the file is missing, cut, altered, or has no encoder of this width.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: the PT run that writes it has not been made.") from error
    except Exception as error:  # what torch raises on altered bytes is not a closed list
        raise DataError(f"{path} is cut or altered ({type(error).__name__}): remove it, so that PT is run again.") from error
    if not isinstance(content, dict) or not all(_is_params(content.get(name)) for name in _PARTS):
        raise DataError(f"{path} is not what PT leaves, which is {', '.join(_PARTS)}: remove it, so that PT is run again.")
    with torch.device("meta"):
        network = ResNet1d(width)
    for name, expected in (("encoder", dict(network.named_parameters())), ("buffers", dict(network.named_buffers()))):
        if {key: value.shape for key, value in content[name].items()} != {key: value.shape for key, value in expected.items()}:
            raise DataError(f"{path} has no encoder of width {width}: remove it, so that PT is run again.")
    return Learned(Pretrained(content["encoder"], content["head"], content["buffers"]), content["meta"])


def _is_params(part: object) -> bool:
    return isinstance(part, dict) and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in part.items())


def fingerprint(config: dict[str, Any], inputs: dict[str, Path], code: tuple[str, ...], machine: Machine) -> str:
    """What must be equal for a checkpoint to be taken up: settings, inputs, code, torch and kind of device.

    The signals are left out: they are large, and the records name them. `code`: patterns, see `code_digest`.
    """
    content = {name: sha256(path) for name, path in inputs.items() if name != "signals"}
    return json.dumps([config, content, code_digest(*code), torch.__version__, machine.device], sort_keys=True)
