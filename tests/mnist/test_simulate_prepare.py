"""Generated digits look like MNIST, and prepared data are the raw data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from metapt.domains.mnist.data import prepare, simulate
from metapt.domains.mnist.data.idx import write_idx
from metapt.domains.mnist.data.prepare import MnistData, convert, load
from metapt.domains.mnist.data.simulate import enlarge, write_digits
from metapt.domains.mnist.data.sources import FILES
from metapt.errors import ConfigError, DataError
from metapt.files import atomic_path, sha256
from metapt.machine import Machine

SHARED_DATA = Path(os.environ.get("METAPT_SHARED_DATA", Path(__file__).parents[2] / "../shared/data"))


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("raw")
    paths = {name: folder / name for name in FILES.values()}
    write_digits(paths)
    return paths


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / name for name in FILES.values()}
    for split in ("train", "test"):
        write_idx(paths[FILES[f"{split}_images"]], torch.full((3, 28, 28), 51, dtype=torch.uint8))
        write_idx(paths[FILES[f"{split}_labels"]], torch.tensor([0, 9, 4], dtype=torch.uint8))
    return paths


def test_digits_are_split_and_nothing_is_lost(raw: dict[str, Path]) -> None:
    data = convert(raw)
    assert {name: list(tensor.shape) for name, tensor in data.items()} == {
        "train_images": [1300, 28, 28],
        "train_labels": [1300],
        "test_images": [497, 28, 28],
        "test_labels": [497],
    }
    digits = load_digits()
    expected = torch.from_numpy(enlarge(digits.images.astype(int))).flatten(1)
    found = torch.cat([data["train_images"], data["test_images"]]).flatten(1)
    assert sorted(map(bytes, expected.numpy())) == sorted(map(bytes, found.numpy()))
    labels = torch.cat([data["train_labels"], data["test_labels"]])
    assert torch.equal(labels.bincount(), torch.from_numpy(digits.target).bincount())


def test_labels_stay_with_their_images(raw: dict[str, Path]) -> None:
    digits = load_digits()
    label_of = dict(zip(map(bytes, enlarge(digits.images.astype(int)).reshape(-1, 784)), digits.target, strict=True))
    data = convert(raw)
    for image, label in zip(data["test_images"].flatten(1).numpy(), data["test_labels"], strict=True):
        assert label_of[bytes(image)] == label


def test_digits_look_like_mnist(raw: dict[str, Path]) -> None:
    """Light on black, centred, with a margin of 4 pixels that is almost empty."""
    images = convert(raw)["train_images"].double()
    assert images.max() == 255
    assert images[:, 4:24, 4:24].sum() > 0.95 * images.sum()
    assert not images[:, :3].any()
    assert not images[:, :, -3:].any()
    ink = images.mean(dim=0)
    position = torch.arange(28.0, dtype=torch.double) - 13.5
    assert abs((ink.sum(1) @ position) / ink.sum()) < 1
    assert abs((ink.sum(0) @ position) / ink.sum()) < 1
    assert 0.1 < images.mean() / 255 < 0.2  # MNIST: 0.13


def test_enlarging_is_bilinear() -> None:
    images = torch.from_numpy(load_digits().images[:50])
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))[:, None]
    expected = torch.nn.functional.interpolate(padded, scale_factor=2.5, mode="bilinear")[:, 0, 1:-1, 1:-1] * 255 / 16
    enlarged = torch.from_numpy(enlarge(images.long().numpy()))
    torch.testing.assert_close(enlarged.double(), expected, rtol=0, atol=0.5 + 1e-9)


def test_digits_are_the_same_bytes_every_time(raw: dict[str, Path], tmp_path: Path) -> None:
    again = {name: tmp_path / name for name in raw}
    simulate.run({"domain": "mnist", "source": "digits"}, {}, again, Machine())
    assert [sha256(path) for path in again.values()] == [sha256(path) for path in raw.values()]


def test_only_digits_can_be_generated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'mnist' can't be generated; legal here: 'digits'"):
        simulate.run({"domain": "mnist", "source": "mnist"}, {}, {}, Machine())


def test_load_gives_fractions(small: dict[str, Path], tmp_path: Path) -> None:
    prepare.run({}, small, {"data": tmp_path / "mnist.pt"}, Machine())
    data = load(tmp_path / "mnist.pt", "cpu")
    assert isinstance(data, MnistData)
    for images, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels)):
        torch.testing.assert_close(images, torch.full((3, 28, 28), 0.2))
        assert labels.tolist() == [0, 9, 4]
        assert labels.dtype == torch.int64


def test_preparing_twice_gives_the_same_bytes(small: dict[str, Path], tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        prepare.run({}, small, {"data": tmp_path / name}, Machine())
    assert sha256(tmp_path / "a.pt") == sha256(tmp_path / "b.pt")


def test_load_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mnist\.pt is missing"):
        load(tmp_path / "mnist.pt", "cpu")


def test_load_refuses_every_cut_and_every_altered_pixel(small: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "mnist.pt"
    prepare.run({}, small, {"data": path}, Machine())
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="is cut or altered"):
            load(path, "cpu")
    pixel = whole.index(bytes([51] * 784))
    path.write_bytes(whole[:pixel] + b"\0" + whole[pixel + 1 :])
    with pytest.raises(DataError, match=r"is altered \(checksum\)"):
        load(path, "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": None}, "is no prepared MNIST"),
        ({"sha256": None}, r"is altered \(checksum\)"),
        ({"train_images": [1, 2, 3]}, "is no prepared MNIST"),
        ({"train_images": torch.zeros(3, 28, 28)}, r"train_images are torch.float32 \[3, 28, 28\], not uint8"),
        ({"test_images": torch.zeros(3, 8, 8, dtype=torch.uint8)}, "test_images are torch.uint8"),
        ({"test_labels": torch.zeros(4, dtype=torch.int64)}, r"test_labels are torch.int64 \[4\], not int64 \[3\]"),
        ({"test_labels": torch.tensor([0, -1, 3])}, "test_labels are not all in 0..9"),
    ],
)
def test_load_refuses_other_content(
    small: dict[str, Path], tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "mnist.pt"
    with atomic_path(path) as temporary:
        torch.save(
            {name: value for name, value in {**convert(small), **change}.items() if value is not None}, temporary
        )
    with pytest.raises(DataError, match=message):
        load(path, "cpu")


@pytest.mark.real_data
def test_real_mnist(tmp_path: Path) -> None:
    folder = SHARED_DATA / "mnist"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there (METAPT_SHARED_DATA names another folder)")
    prepare.run({}, {name: folder / name for name in FILES.values()}, {"data": tmp_path / "mnist.pt"}, Machine())
    data = load(tmp_path / "mnist.pt", "cpu")
    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.shape == (10_000, 28, 28)
    assert data.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert abs(data.train_images.mean().item() - 0.1307) < 1e-4
    assert abs(data.train_images.std().item() - 0.3081) < 1e-4
