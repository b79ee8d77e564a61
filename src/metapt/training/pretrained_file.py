"""The file that PT writes for FT: dictionaries of CPU tensors `encoder`, `head`, `buffers` and `meta`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from metapt.errors import DataError
from metapt.files import atomic_path, reading
from metapt.hypergrad import Params, Pretrained

_PARTS = ("encoder", "head", "buffers", "meta")


class Learned(NamedTuple):
    """The result of PT: the network, and the meta-parameters (empty if PT had none)."""

    pretrained: Pretrained
    meta: Params


def save_pretrained(learned: Learned, path: Path) -> None:
    """Write pretrained.pt; equal tensors give equal bytes.

    Raises:
        MachineError: the disk is full, or the folder is not writable.
    """
    parts = zip(_PARTS, (*learned.pretrained, learned.meta), strict=True)
    # Cloned, since torch writes the whole storage of a view.
    content = {name: {key: value.detach().cpu().clone() for key, value in part.items()} for name, part in parts}
    # Through an open file, since torch writes a path's own name into the archive.
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save(content, file)


def load_pretrained(path: Path, like: Pretrained, network: str, device: str) -> Learned:
    """Return the content of a file that `save_pretrained` has written.

    Args:
        path: pretrained.pt.
        like: a network whose encoder and buffers have the expected names, types and shapes.
        network: a description of it for error messages, such as "width 3".
        device: the device of the tensors.

    Raises:
        DataError: the file is missing, cut or altered, or its encoder has other names, types or shapes.
    """
    with reading(path, "the PT run that writes it has not been made") as file:
        raw = io.BytesIO(file.read())
    try:
        content = torch.load(raw, map_location=device, weights_only=True)
    except Exception as error:  # torch documents no closed list of errors for altered bytes
        kind = type(error).__name__
        raise DataError(f"{path} is cut or altered ({kind}): remove it, so that PT is run again.") from error
    if not isinstance(content, dict) or not all(_is_params(content.get(name)) for name in _PARTS):
        parts = ", ".join(_PARTS)
        raise DataError(f"{path} is not what PT leaves, which is {parts}: remove it, so that PT is run again.")
    for part, expected in (("encoder", like.encoder), ("buffers", like.buffers)):
        for name in expected | content[part]:
            found, right = _kind(content[part].get(name)), _kind(expected.get(name))
            if found != right:
                raise DataError(
                    f"{path} has no encoder of {network}, of which {name} in {part} is {right}; in the file it is "
                    f"{found}. Remove it, so that PT is run again."
                )
    return Learned(Pretrained(content["encoder"], content["head"], content["buffers"]), content["meta"])


def _is_params(part: object) -> bool:
    return isinstance(part, dict) and all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in part.items()
    )


def _kind(value: Tensor | None) -> str:
    """Return the type and the shape of a tensor in words.

    >>> _kind(torch.zeros(3, 2)), _kind(None)
    ('float32 of shape (3, 2)', 'missing')
    """
    return "missing" if value is None else f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
