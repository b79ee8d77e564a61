"""MNIST's raw data: names of the files, sizes, and the IDX format (http://yann.lecun.com/exdb/mnist/).

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

from metapt.errors import DataError
from metapt.files import FETCH_AGAIN, atomic_path, reading

FILES = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_images": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}
SIDE = 28  # height and width of an image in pixels
CLASSES = 10
TRAIN_IMAGES = {"digits": 1300, "mnist": 60_000}  # number of training images of each source

_MAX_EXAMPLES = 1_000_000
_CHUNK = 1 << 20


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read images [N, 28, 28] (0 is background, 255 is ink) or labels [N], uint8; `.gz` files are unpacked.

    Raises DataError if the file is missing, cut, overlong, altered, or no IDX file of MNIST's shape.
    """
    with reading(path) as file, cast(BinaryIO, gzip.open(file)) if path.suffix == ".gz" else file as stream:
        shape = _read_shape(stream, path)
        size = math.prod(shape)
        content = bytearray()
        # Chunks, so that memory depends on the content, and not on what the header claims.
        while chunk := stream.read(min(_CHUNK, size + 1 - len(content))):
            content += chunk
    if len(content) != size:
        fault = "cut" if len(content) < size else "overlong"
        there = f"{len(content)} are there" if len(content) < size else "more are there"
        raise DataError(f"{path} is {fault}: its header promises {size} values, and {there}; {FETCH_AGAIN}.")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _read_shape(stream: BinaryIO, path: Path) -> tuple[int, ...]:
    """Return the header's dimensions, [N] or [N, 28, 28], with N bounded before anything of that size is read."""
    magic = stream.read(4)
    header = stream.read(4 * magic[3]) if magic[:3] == b"\0\0\x08" and len(magic) == 4 else b""
    if not header:
        begin = f"starts with {magic.hex(' ')}, not 00 00 08 and a number of dimensions"
        raise DataError(f"{path} is no IDX file of unsigned bytes: it {begin}; {FETCH_AGAIN}.")
    if len(header) < 4 * magic[3]:
        raise DataError(f"{path} is cut within its header; {FETCH_AGAIN}.")
    shape = struct.unpack(f">{magic[3]}I", header)
    if shape[1:] not in ((), (SIDE, SIDE)) or not 0 < shape[0] <= _MAX_EXAMPLES:
        legal = f"[N] labels or [N, {SIDE}, {SIDE}] pixels, with N from 1 to {_MAX_EXAMPLES}"
        raise DataError(f"{path} claims the shape {list(shape)}; legal: {legal}; {FETCH_AGAIN}.")
    return shape


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
        counts = f"{len(pixels)} images and {labels} holds {len(digits)} labels"
        raise DataError(f"{images} holds {counts}: their numbers must be equal.")
    return pixels, digits


def write_idx(path: Path, values: ArrayLike) -> None:
    """Write uint8 images [N, 28, 28] or labels [N], gzipped for `.gz`; the bytes depend only on the values."""
    array = np.asarray(values, np.uint8)
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
                zipped.write(content)
        else:
            file.write(content)
