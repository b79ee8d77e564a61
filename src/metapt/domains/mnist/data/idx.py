"""IDX files, the form of MNIST's raw data (http://yann.lecun.com/exdb/mnist/).

An IDX file is two zero bytes, a byte for the type (8: unsigned bytes), a byte for the number of dimensions, each
dimension as a big-endian 32-bit integer, and then the values, last dimension fastest.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metapt.domains.mnist.data.sources import CLASSES, SIDE
from metapt.errors import DataError
from metapt.files import FETCH_AGAIN, atomic_path, reading

_UNSIGNED_BYTE = 8
_MAX_EXAMPLES = 1_000_000
_CHUNK = 1 << 20


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read images [N, 28, 28] (0 is background, 255 is ink) or labels [N], uint8; `.gz` files are unpacked.

    Raises DataError if the file is missing, cut, overlong, altered, or no IDX file of MNIST's shape.
    """
    with reading(path) as file, _unpacked(file, path) as stream:
        shape = _read_shape(stream, path)
        payload = _read_at_most(stream, math.prod(shape) + 1)
    if len(payload) < math.prod(shape):
        raise DataError(
            f"{path} is cut: its header promises {math.prod(shape)} values, and {len(payload)} are there; "
            f"{FETCH_AGAIN}."
        )
    if len(payload) > math.prod(shape):
        raise DataError(
            f"{path} is overlong: more follows the {math.prod(shape)} values that its header promises; {FETCH_AGAIN}."
        )
    return np.frombuffer(payload, np.uint8).reshape(shape)


def read_split(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the uint8 images [N, 28, 28] of a split and their uint8 labels [N] in 0..9.

    Raises DataError as `read_idx`, and for a file of the wrong kind, a label outside 0..9, or unequal numbers of both.
    """
    pixels, digits = read_idx(images), read_idx(labels)
    if pixels.ndim != 3:
        raise DataError(f"{images} holds labels where images are expected: give the file whose name says images-idx3.")
    if digits.ndim != 1:
        raise DataError(f"{labels} holds images where labels are expected: give the file whose name says labels-idx1.")
    if digits.max() >= CLASSES:
        raise DataError(f"{labels} has the label {int(digits.max())}; labels are 0 to {CLASSES - 1}: {FETCH_AGAIN}.")
    if len(pixels) != len(digits):
        raise DataError(
            f"{images} holds {len(pixels)} images and {labels} holds {len(digits)} labels: their numbers must be equal."
        )
    return pixels, digits


def write_idx(path: Path, values: ArrayLike) -> None:
    """Write uint8 images [N, 28, 28] or labels [N], gzipped for `.gz`; the bytes depend only on the values.

    Raises ValueError for another type or shape.
    """
    array = np.asarray(values)
    if array.dtype != np.uint8 or array.shape[1:] not in {(), (SIDE, SIDE)} or not 0 < len(array) <= _MAX_EXAMPLES:
        raise ValueError(f"uint8 [N, {SIDE}, {SIDE}] or [N] expected, {array.dtype} {list(array.shape)} given")
    header = struct.pack(f">HBB{array.ndim}I", 0, _UNSIGNED_BYTE, array.ndim, *array.shape)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        content = header + array.tobytes()
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
                zipped.write(content)
        else:
            file.write(content)


def _unpacked(file: BinaryIO, path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file)) if path.suffix == ".gz" else file


def _read_shape(stream: BinaryIO, path: Path) -> list[int]:
    """Return the header's dimensions, [N] or [N, 28, 28], with N bounded before anything of that size is read."""
    magic = stream.read(4)
    if len(magic) < 4:
        raise DataError(f"{path} is cut: {len(magic)} bytes are no IDX header; {FETCH_AGAIN}.")
    zero, kind, dimensions = struct.unpack(">HBB", magic)
    if zero != 0 or kind != _UNSIGNED_BYTE:
        raise DataError(
            f"{path} is no IDX file of unsigned bytes: it starts with {magic.hex(' ')}, not 00 00 08; {FETCH_AGAIN}."
        )
    if dimensions not in (1, 3):
        raise DataError(f"{path} has {dimensions} dimensions; labels have 1 and images have 3: {FETCH_AGAIN}.")
    header = stream.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise DataError(f"{path} is cut within its header; {FETCH_AGAIN}.")
    shape = list(struct.unpack(f">{dimensions}I", header))
    if dimensions == 3 and shape[1:] != [SIDE, SIDE]:
        raise DataError(
            f"{path} holds images of {shape[1]} x {shape[2]} pixels; {SIDE} x {SIDE} are expected: {FETCH_AGAIN}."
        )
    if not 0 < shape[0] <= _MAX_EXAMPLES:
        raise DataError(f"{path} claims {shape[0]} examples; 1 to {_MAX_EXAMPLES} are legal: {FETCH_AGAIN}.")
    return shape


def _read_at_most(stream: BinaryIO, size: int) -> bytearray:
    """Read to the end or to `size` bytes, in chunks: memory depends on the content, not on the header's claim."""
    content = bytearray()
    while chunk := stream.read(min(_CHUNK, size - len(content))):
        content += chunk
    return content
