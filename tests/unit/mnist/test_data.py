"""IDX files are read exactly or refused, generated digits look like MNIST, and prepared data are the raw data."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from metapt.domains.mnist.data import FILES, prepare, read_idx, read_split, simulate, write_idx
from metapt.domains.mnist.data.prepare import MnistData, load
from metapt.domains.mnist.data.simulate import enlarge
from metapt.errors import DataError
from metapt.files import sha256
from metapt.machine import Machine
from metapt.sections import JobSettings, SimulateSettings

from ...shared_files import shared

IMAGES = torch.randint(256, (5, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(5, dtype=torch.uint8)


def header(*shape: int, magic: bytes = b"\0\0\x08") -> bytes:
    return magic + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


@pytest.mark.parametrize("name", ["file.gz", "file"])
@pytest.mark.parametrize("tensor", [IMAGES, LABELS, IMAGES[1:4], IMAGES.transpose(1, 2)])
def test_what_was_written_is_read(tmp_path: Path, name: str, tensor: Tensor) -> None:
    write_idx(tmp_path / name, tensor)
    assert np.array_equal(read_idx(tmp_path / name), tensor)
    content = (tmp_path / name).read_bytes()
    content = gzip.decompress(content) if name.endswith(".gz") else content
    assert content == header(*tensor.shape) + tensor.contiguous().numpy().tobytes()


WHOLE = gzip.compress(header(5) + bytes(LABELS), mtime=0)
CUT, NOT_GZIP = "is cut: the gzip stream ends too early", "is not a whole gzip file"
NO_IDX = "no IDX file of unsigned bytes: it starts with "


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            (name, gzip.compress(content, mtime=0) if name == "file.gz" else content, message)
            for name in ("file", "file.gz")
            for content, message in (
                (b"", "no IDX file of unsigned bytes"),
                (b"\0\0\x08\x03\0\0", "is cut within its header"),
                (header(2, magic=b"\0\0\x0d") + bytes(8), f"{NO_IDX}00 00 0d 01"),
                (b"<!DOCTYPE html>", f"{NO_IDX}3c 21 44 4f"),
                (header(2, 28) + bytes(56), r"claims the shape \[2, 28\]"),
                (header(2, 32, 32) + bytes(2048), r"shape \[2, 32, 32\]; legal: \[N\] labels or \[N, 28, 28\] pixels"),
                (header(0), r"claims the shape \[0\]"),
                (header(2**32 - 1), "claims the shape .4294967295.; legal: .* N from 1 to 1000000"),
                (header(10**6, 28, 28) + bytes(784), "is cut: its header promises 784000000 values, and 784 are there"),
                (header(3) + bytes(4), "is overlong: its header promises 3 values, and more are there"),
            )
        ),
        ("file.gz", WHOLE[:12], CUT),
        ("file.gz", WHOLE[:-1], CUT),
        ("file.gz", WHOLE[:-8] + bytes([WHOLE[-8] ^ 1]) + WHOLE[-7:], rf"{NOT_GZIP} \(CRC check failed"),
        ("file.gz", b"<html>no such page</html>", NOT_GZIP),
    ],
)
def test_wrong_content_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"^{tmp_path / name} .*{message}"):
        read_idx(tmp_path / name)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES, LABELS + 6, "labels.gz has the label 10; labels are 0 to 9"),
        (IMAGES, LABELS[:4], "images.gz holds 5 images and .*labels.gz holds 4 labels"),
        (LABELS, LABELS, "images.gz holds labels where images are expected"),
        (IMAGES, IMAGES, "labels.gz holds images where labels are expected"),
    ],
)
def test_images_and_labels_that_do_not_fit(images: Tensor, labels: Tensor, message: str, tmp_path: Path) -> None:
    write_idx(tmp_path / "images.gz", images)
    write_idx(tmp_path / "labels.gz", labels)
    with pytest.raises(DataError, match=message):
        read_split(tmp_path / "images.gz", tmp_path / "labels.gz")


def test_digits_are_split_and_each_keeps_its_label(digits_file: Path) -> None:
    data, digits = torch.load(digits_file), load_digits()
    assert [list(data[f"{split}_images"].shape) for split in ("train", "test")] == [[1300, 28, 28], [497, 28, 28]]

    def labelled(images: Tensor, labels: Tensor) -> list[tuple[bytes, int]]:
        return [(bytes(image), int(label)) for image, label in zip(images.flatten(1).numpy(), labels, strict=True)]

    found = [pair for split in ("train", "test") for pair in labelled(data[f"{split}_images"], data[f"{split}_labels"])]
    expected = labelled(torch.from_numpy(enlarge(digits.images.astype(int))), digits.target)
    assert sorted(found) == sorted(expected)


def test_digits_look_like_mnist(digits: MnistData) -> None:
    """Light on black, centred, with a margin of 4 pixels that is almost empty."""
    images = digits.train_images.double()
    assert images.max() == 1
    assert images[:, 4:24, 4:24].sum() > 0.95 * images.sum()
    ink, position = images.mean(dim=0), torch.arange(28.0, dtype=torch.double) - 13.5
    assert max(abs((ink.sum(side) @ position) / ink.sum()) for side in (0, 1)) < 1
    assert 0.1 < images.mean() < 0.2  # MNIST: 0.13


def test_enlarging_is_bilinear() -> None:
    images = torch.from_numpy(load_digits().images[:50])
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))[:, None]
    expected = torch.nn.functional.interpolate(padded, scale_factor=2.5, mode="bilinear")[:, 0, 1:-1, 1:-1] * 255 / 16
    enlarged = torch.from_numpy(enlarge(images.long().numpy()))
    torch.testing.assert_close(enlarged.double(), expected, rtol=0, atol=0.5 + 1e-9)


def test_the_same_bytes_are_generated_and_prepared_every_time(digits_file: Path, tmp_path: Path) -> None:
    raw = {name: tmp_path / name for name in FILES.values()}
    simulate.run(SimulateSettings(domain="mnist", source="digits"), {}, raw, Machine())
    prepare.run(JobSettings(), raw, {"data": tmp_path / "b.pt"}, Machine())
    assert [sha256(path) for path in raw.values()] == [sha256(digits_file.parent / name) for name in raw]
    assert sha256(tmp_path / "b.pt") == sha256(digits_file)


def test_images_are_loaded_as_fractions_with_their_labels(digits_file: Path, digits: MnistData) -> None:
    tensors = torch.load(digits_file)
    for split in ("train", "test"):
        images, labels = getattr(digits, f"{split}_images"), getattr(digits, f"{split}_labels")
        torch.testing.assert_close(images * 255, tensors[f"{split}_images"].float())
        assert torch.equal(labels, tensors[f"{split}_labels"])


def test_a_missing_prepared_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mnist\.pt is missing: make it with the target"):
        load(tmp_path / "mnist.pt", "cpu")


@pytest.mark.real_data
def test_real_mnist(tmp_path: Path) -> None:
    (folder,) = shared("mnist")
    raw = {name: folder / name for name in FILES.values()}
    prepare.run(JobSettings(), raw, {"data": tmp_path / "mnist.pt"}, Machine())
    data = load(tmp_path / "mnist.pt", "cpu")
    assert data.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert abs(data.train_images.mean().item() - 0.1307) < 1e-4
    assert abs(data.train_images.std().item() - 0.3081) < 1e-4
