"""Prepared graphs are read as they were saved, and inconsistent arrays are refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from metapt.domains.ppi.data.graphs import Graphs, check, load, pack, save, unpack
from metapt.errors import DataError
from metapt.files import sha256


def two_graphs() -> Graphs:
    """Return a triangle and a single node with 10 coarse and 3 fine tasks."""
    labels = np.random.default_rng(0).random((2, 13)) < 0.5
    return Graphs(
        node_offsets=np.array([0, 3, 4]),
        edge_offsets=np.array([0, 3, 3]),
        edges=np.array([[0, 1], [0, 2], [1, 2]], np.uint16),
        bits=np.array([1, 127, 0], np.uint8),
        centre=np.array([2, 0], np.uint16),
        species=np.array([11, 13], np.int32),
        coarse=pack(labels[:, :10]),
        fine=pack(labels[:, 10:]),
        tasks=np.array([10, 3]),
    )


def test_round_trip(tmp_path: Path) -> None:
    graphs = two_graphs()
    save(graphs, tmp_path / "graphs.npz")
    loaded = load(tmp_path / "graphs.npz")
    for field in fields(Graphs):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(graphs, field.name))
        assert getattr(loaded, field.name).dtype == getattr(graphs, field.name).dtype
    assert len(loaded) == 2
    save(graphs, tmp_path / "again.npz")
    assert sha256(tmp_path / "again.npz") == sha256(tmp_path / "graphs.npz")


@pytest.mark.parametrize("tasks", [1, 7, 8, 9, 40])
def test_labels_as_bits(tasks: int) -> None:
    labels = np.random.default_rng(tasks).random((6, tasks)) < 0.5
    bits = pack(labels)
    assert bits.shape == (6, -(-tasks // 8))
    np.testing.assert_array_equal(unpack(bits, tasks), labels)
    for task in range(tasks):  # the first task is in the lowest bit
        np.testing.assert_array_equal(bits[:, task // 8] >> task % 8 & 1, labels[:, task])


NONE: dict[str, NDArray[Any]] = {
    **{name: getattr(two_graphs(), name)[:0] for name in ("edges", "bits", "centre", "species", "coarse", "fine")},
    **dict.fromkeys(("node_offsets", "edge_offsets"), np.zeros(1, int)),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (NONE, "there are no graphs"),
        ({"node_offsets": np.array([0, 4])}, r"node_offsets has the shape \(2,\) instead of \(3,\)"),
        ({"edges": np.zeros((2, 2), np.uint16)}, r"edges has the shape \(2, 2\) instead of \(3, 2\)"),
        ({"tasks": np.array([17, 3])}, r"coarse has the shape \(2, 2\) instead of \(2, 3\)"),
        ({"fine": np.zeros((2, 2), np.uint8)}, r"fine has the shape \(2, 2\) instead of \(2, 1\)"),
        ({"edge_offsets": np.array([0, 2, 2])}, "edge_offsets does not rise from 0 to the number of what it counts"),
        ({"edge_offsets": np.array([0, 4, 3])}, "edge_offsets does not rise"),
        ({"node_offsets": np.array([0, 3, 2])}, "node_offsets does not rise"),
        ({"centre": np.array([3, 0], np.uint16)}, "graph 0 has no node where its centre should be"),
        ({"edges": np.array([[0, 1], [2, 0], [1, 2]], np.uint16)}, "edge 1 does not join a lower to a higher node"),
        ({"edges": np.array([[0, 1], [0, 2], [1, 3]], np.uint16)}, "edge 2 does not join"),
    ],
)
def test_arrays_that_do_not_fit_together(tmp_path: Path, changes: dict[str, NDArray[Any]], message: str) -> None:
    graphs = replace(two_graphs(), **changes)
    with pytest.raises(DataError, match=message):
        check(graphs)
    save(graphs, tmp_path / "graphs.npz")
    with pytest.raises(
        DataError, match=rf"graphs\.npz does not hold prepared graphs \({message}.*: remove it, so that"
    ):
        load(tmp_path / "graphs.npz")


_FILE = io.BytesIO()
np.savez(_FILE, edges=np.zeros(3))
OTHER = _FILE.getvalue()


@pytest.mark.parametrize(
    "change",
    [lambda content: b"", lambda content: content[:-30], lambda content: b"x" * 50, lambda content: OTHER],
    ids=["empty", "cut", "altered", "another archive"],
)
def test_files_that_are_cut_or_altered(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "graphs.npz"
    with pytest.raises(DataError, match=r"graphs\.npz is missing: prepare the graphs"):
        load(path)
    save(two_graphs(), path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="does not hold prepared graphs"):
        load(path)
