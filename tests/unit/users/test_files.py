"""Files and configs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metapt.hypergrad import Params, Pretrained
from metapt.training.pretrained_file import Learned, load_pretrained, save_pretrained

from .kinds import refused

NETWORK = Pretrained({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, {}, {"count": torch.tensor(1)})


def load(tmp_path: Path, encoder: Params, buffers: Params) -> Learned:
    """Return what is read of a file with these parts where `NETWORK` is expected."""
    save_pretrained(Learned(Pretrained(encoder, {}, buffers), {}), tmp_path / "pretrained.pt")
    return load_pretrained(tmp_path / "pretrained.pt", NETWORK, "width 2", "cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight", torch.ones(2, 3, dtype=torch.float64)),
        ("weight", torch.ones(2, 3, dtype=torch.bfloat16)),
        ("bias", torch.ones(2, dtype=torch.int64)),
        ("bias", torch.ones(1)),
        ("weight", torch.ones(3, 2)),
        ("added", torch.ones(2)),
    ],
)
@refused(
    "pre-trained tensors of another name, type or shape than the network's",
    ("has no encoder of width 2", "in encoder is", "in the file it is", "Remove it"),
    "remove the file, or take its network",
)
def test_an_encoder_of_another_kind(name: str, value: torch.Tensor, tmp_path: Path) -> None:
    load(tmp_path, NETWORK.encoder | {name: value}, NETWORK.buffers)


@pytest.mark.parametrize("buffers", [{}, {"count": torch.tensor(1.0)}, {"count": torch.tensor([1])}])
@refused(
    "pre-trained tensors of another name, type or shape than the network's",
    ("has no encoder of width 2", "count in buffers is int64 of shape ()", "in the file it is", "Remove it"),
    "remove the file, or take its network",
)
def test_buffers_of_another_kind(buffers: Params, tmp_path: Path) -> None:
    load(tmp_path, NETWORK.encoder, buffers)


def test_the_tensors_that_differ_are_named_with_both_types(tmp_path: Path) -> None:
    words = r"weight in encoder is float32 of shape \(2, 3\); in the file it is float64 of shape \(2, 3\)"
    with pytest.raises(Exception, match=words):
        load(tmp_path, NETWORK.encoder | {"weight": torch.ones(2, 3).double()}, NETWORK.buffers)


def test_a_file_of_the_same_kind_is_read(tmp_path: Path) -> None:
    found = load(tmp_path, {"bias": torch.zeros(2), "weight": torch.zeros(2, 3)}, NETWORK.buffers)
    assert torch.equal(found.pretrained.encoder["weight"], torch.zeros(2, 3))
