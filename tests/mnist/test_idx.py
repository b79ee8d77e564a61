"""IDX files are read exactly, or refused with one sentence."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from metapt.domains.mnist.data.idx import read_idx, read_split, write_idx
from metapt.errors import DataError


def _images(number: int = 5) -> Tensor:
    return torch.randint(256, (number, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _labels(number: int = 5) -> Tensor:
    return torch.arange(number, dtype=torch.uint8) % 10


def _header(*shape: int, magic: bytes = b"\0\0\x08") -> bytes:
    return magic + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


@pytest.mark.parametrize("name", ["file.gz", "file"])
@pytest.mark.parametrize("tensor", [_images(), _labels(), _images()[1:4], _images().transpose(1, 2)])
def test_what_was_written_is_read(tmp_path: Path, name: str, tensor: Tensor) -> None:
    path = tmp_path / name
    write_idx(path, tensor)
    assert np.array_equal(read_idx(path), tensor)


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    write_idx(tmp_path / "labels", torch.tensor([3, 1], dtype=torch.uint8))
    assert (tmp_path / "labels").read_bytes() == b"\0\0\x08\x01" + b"\0\0\0\x02" + b"\x03\x01"


def test_same_tensor_same_bytes(tmp_path: Path) -> None:
    write_idx(tmp_path / "a.gz", _images())
    write_idx(tmp_path / "b.gz", _images())
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, 27, 28, dtype=torch.uint8), torch.zeros(2), torch.zeros(0, dtype=torch.uint8)]
)
def test_other_tensors_are_not_written(tmp_path: Path, tensor: Tensor) -> None:
    with pytest.raises(ValueError, match="uint8"):
        write_idx(tmp_path / "file", tensor)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is cut: 0 bytes are no IDX header"),
        (b"\0\0\x08\x03\0\0", "is cut within its header"),
        (_header(2, magic=b"\0\0\x0d") + bytes(8), "no IDX file of unsigned bytes: it starts with 00 00 0d 01"),
        (b"<!DOCTYPE html>", "no IDX file of unsigned bytes: it starts with 3c 21 44 4f"),
        (_header(2, 28) + bytes(56), "has 2 dimensions; labels have 1 and images have 3"),
        (_header(2, 32, 32) + bytes(2048), "images of 32 x 32 pixels; 28 x 28 are expected"),
        (_header(0), "claims 0 examples"),
        (_header(2**32 - 1), "claims 4294967295 examples; 1 to 1000000 are legal"),
        (_header(2**31, 28, 28), "claims 2147483648 examples"),
        (_header(1_000_000, 28, 28) + bytes(784), "is cut: its header promises 784000000 values, and 784 are there"),
        (_header(3) + bytes(2), "is cut: its header promises 3 values, and 2 are there"),
        (_header(3) + bytes(4), "is overlong: more follows the 3 values"),
    ],
)
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_wrong_content(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=message) as raised:
        read_idx(path)
    assert str(path) in str(raised.value)


def test_missing(tmp_path: Path) -> None:
    for name in ("file", "file.gz"):
        with pytest.raises(DataError, match=f"{name} is missing: download it"):
            read_idx(tmp_path / name)


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be read: Is a directory"):
        read_idx(tmp_path)


def test_not_gzip(tmp_path: Path) -> None:
    (tmp_path / "file.gz").write_bytes(b"<html>no such page</html>")
    with pytest.raises(DataError, match="is not a whole gzip file"):
        read_idx(tmp_path / "file.gz")


def test_cut_gzip(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    write_idx(path, _images())
    whole = path.read_bytes()
    for size in (12, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="is cut: the gzip stream ends too early"):
            read_idx(path)


def test_altered_gzip(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    write_idx(path, _images())
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is not a whole gzip file \(CRC check failed"):
        read_idx(path)


def _split(folder: Path, images: Tensor, labels: Tensor) -> tuple[Path, Path]:
    write_idx(folder / "images.gz", images)
    write_idx(folder / "labels.gz", labels)
    return folder / "images.gz", folder / "labels.gz"


def test_split(tmp_path: Path) -> None:
    images, labels = read_split(*_split(tmp_path, _images(), _labels()))
    assert np.array_equal(images, _images())
    assert np.array_equal(labels, _labels())


def test_label_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"labels.gz has the label 10; labels are 0 to 9"):
        read_split(*_split(tmp_path, _images(), _labels() + 6))


def test_images_and_labels_of_different_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images.gz holds 5 images and .*labels.gz holds 4 labels"):
        read_split(*_split(tmp_path, _images(5), _labels(4)))


def test_images_and_labels_exchanged(tmp_path: Path) -> None:
    images, labels = _split(tmp_path, _images(), _labels())
    with pytest.raises(DataError, match=r"labels.gz holds labels where images are expected"):
        read_split(labels, images)
    with pytest.raises(DataError, match=r"images.gz holds images where labels are expected"):
        read_split(images, images)
