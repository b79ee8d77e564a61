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

from metapt.domains.mnist.data import FILES, prepare, simulate
from metapt.domains.mnist.data.idx import read_idx, read_split, write_idx
from metapt.domains.mnist.data.prepare import convert, load
from metapt.domains.mnist.data.simulate import enlarge, write_digits
from metapt.errors import DataError
from metapt.files import sha256
from metapt.machine import Machine
from metapt.sections import JobSettings

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


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    write_idx(tmp_path / "labels", LABELS[:2])
    assert (tmp_path / "labels").read_bytes() == b"\0\0\x08\x01" + b"\0\0\0\x02" + b"\x00\x01"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no IDX file of unsigned bytes"),
        (b"\0\0\x08\x03\0\0", "is cut within its header"),
        (header(2, magic=b"\0\0\x0d") + bytes(8), "no IDX file of unsigned bytes: it starts with 00 00 0d 01"),
        (b"<!DOCTYPE html>", "no IDX file of unsigned bytes: it starts with 3c 21 44 4f"),
        (header(2, 28) + bytes(56), r"claims the shape \[2, 28\]"),
        (header(2, 32, 32) + bytes(2048), r"the shape \[2, 32, 32\]; legal: \[N\] labels or \[N, 28, 28\] pixels"),
        (header(0), r"claims the shape \[0\]"),
        (header(2**32 - 1), "claims the shape .4294967295.; legal: .* N from 1 to 1000000"),
        (header(1_000_000, 28, 28) + bytes(784), "is cut: its header promises 784000000 values, and 784 are there"),
        (header(3) + bytes(4), "is overlong: its header promises 3 values, and more are there"),
    ],
)
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_wrong_content_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=message) as raised:
        read_idx(path)
    assert str(path) in str(raised.value)


def test_gzipped_files_that_are_cut_altered_or_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    write_idx(path, IMAGES)
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[-8] ^= 1
    for content, message in {
        whole[:12]: "is cut: the gzip stream ends too early",
        whole[:-1]: "is cut: the gzip stream ends too early",
        bytes(altered): r"is not a whole gzip file \(CRC check failed",
        b"<html>no such page</html>": "is not a whole gzip file",
    }.items():
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_idx(path)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES, LABELS + 6, "labels.gz has the label 10; labels are 0 to 9"),
        (IMAGES, LABELS[:4], "images.gz holds 5 images and .*labels.gz holds 4 labels"),
        (LABELS, LABELS, "images.gz holds labels where images are expected"),
        (IMAGES, IMAGES, "labels.gz holds images where labels are expected"),
    ],
    ids=["label", "numbers", "no images", "no labels"],
)
def test_images_and_labels_that_do_not_fit_are_refused(
    images: Tensor, labels: Tensor, message: str, tmp_path: Path
) -> None:
    write_idx(tmp_path / "images.gz", images)
    write_idx(tmp_path / "labels.gz", labels)
    with pytest.raises(DataError, match=message):
        read_split(tmp_path / "images.gz", tmp_path / "labels.gz")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("raw")
    paths = {name: folder / name for name in FILES.values()}
    write_digits(paths)
    return paths


def test_digits_are_split_and_each_keeps_its_label(raw: dict[str, Path]) -> None:
    data, digits = convert(raw), load_digits()
    assert [list(data[f"{split}_images"].shape) for split in ("train", "test")] == [[1300, 28, 28], [497, 28, 28]]
    labelled = zip(enlarge(digits.images.astype(int)).reshape(-1, 784), digits.target, strict=True)
    found = [
        (bytes(image), int(label))
        for split in ("train", "test")
        for image, label in zip(data[f"{split}_images"].flatten(1).numpy(), data[f"{split}_labels"], strict=True)
    ]
    assert sorted(found) == sorted((bytes(image), int(label)) for image, label in labelled)


def test_digits_look_like_mnist(raw: dict[str, Path]) -> None:
    """Light on black, centred, with a margin of 4 pixels that is almost empty."""
    images = convert(raw)["train_images"].double()
    assert images.max() == 255
    assert images[:, 4:24, 4:24].sum() > 0.95 * images.sum()
    ink, position = images.mean(dim=0), torch.arange(28.0, dtype=torch.double) - 13.5
    assert max(abs((ink.sum(side) @ position) / ink.sum()) for side in (0, 1)) < 1
    assert 0.1 < images.mean() / 255 < 0.2  # MNIST: 0.13


def test_enlarging_is_bilinear() -> None:
    images = torch.from_numpy(load_digits().images[:50])
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))[:, None]
    expected = torch.nn.functional.interpolate(padded, scale_factor=2.5, mode="bilinear")[:, 0, 1:-1, 1:-1] * 255 / 16
    enlarged = torch.from_numpy(enlarge(images.long().numpy()))
    torch.testing.assert_close(enlarged.double(), expected, rtol=0, atol=0.5 + 1e-9)


def test_the_same_bytes_are_generated_and_prepared_every_time(raw: dict[str, Path], tmp_path: Path) -> None:
    again = {name: tmp_path / name for name in raw}
    simulate.run(simulate.DigitsSource(domain="mnist", source="digits"), {}, again, Machine())
    assert [sha256(path) for path in again.values()] == [sha256(path) for path in raw.values()]
    for files, name in ((raw, "a.pt"), (again, "b.pt")):
        prepare.run(JobSettings(), files, {"data": tmp_path / name}, Machine())
    assert sha256(tmp_path / "a.pt") == sha256(tmp_path / "b.pt")


def test_images_are_loaded_as_fractions_with_their_labels(digits_file: Path, raw: dict[str, Path]) -> None:
    data, tensors = load(digits_file, "cpu"), convert(raw)
    for split in ("train", "test"):
        torch.testing.assert_close(getattr(data, f"{split}_images") * 255, tensors[f"{split}_images"].float())
        assert torch.equal(getattr(data, f"{split}_labels"), tensors[f"{split}_labels"])


def test_what_is_no_whole_prepared_file_is_refused(digits_file: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "mnist.pt", digits_file.read_bytes()
    with pytest.raises(DataError, match=r"mnist\.pt is missing: make it with the target"):
        load(path, "cpu")
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="is cut or altered"):
            load(path, "cpu")
    torch.save({"train_images": IMAGES}, path)
    with pytest.raises(DataError, match="is no prepared MNIST, which holds train_images, train_labels"):
        load(path, "cpu")


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
