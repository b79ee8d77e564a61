"""Prepared graphs are saved and read, minibatches equal torch_geometric's, and the split is that of Hu et al."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metapt.domains.ppi.data.archive import read_archive
from metapt.domains.ppi.data.dataset import on_device, splits
from metapt.domains.ppi.data.graphs import Graphs, load, pack, save, unpack
from metapt.domains.ppi.gin import EDGE_BITS
from metapt.errors import DataError

from ...shared_files import SAMPLE, shared
from .graphs_helper import odd_graphs, pyg_batch
from .small_graphs import TEST_SPECIES, small_graphs

GRAPHS = odd_graphs()
DATASET = on_device(GRAPHS, "cpu")
SHARES = {"coarse": 0.3, "fine": 0.6}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(GRAPHS) - 1), min_size=1, max_size=15))
@example([1])
@example([2])
@example([1, 3, 5, 9])
@example([7, 7, 7])
@example([*range(12)])
def test_a_minibatch_is_torch_geometrics(numbers: list[int]) -> None:
    ours, theirs = DATASET.batch(torch.tensor(numbers)), pyg_batch(GRAPHS, numbers)
    assert torch.equal(ours.graph, theirs.batch)
    assert torch.equal(ours.sizes, theirs.ptr.diff())
    assert torch.equal(ours.centre, theirs.center_node_idx)
    assert ours.neighbours.dtype == ours.neighbour_offsets.dtype == torch.int32
    assert ours.edge_sums.dtype == torch.float32

    degrees = ours.neighbour_offsets.diff()
    assert ours.neighbour_offsets[0] == 0
    assert int(ours.neighbour_offsets[-1]) == len(ours.neighbours) == theirs.edge_index.shape[1]
    nodes = torch.arange(len(ours.graph)).repeat_interleave(degrees)
    pairs = torch.stack([nodes, ours.neighbours.long()])
    assert sorted(pairs.T.tolist()) == sorted(theirs.edge_index.T.tolist())

    sums = torch.zeros(len(ours.graph), EDGE_BITS, dtype=torch.float64).index_add(
        0, theirs.edge_index[0], theirs.edge_attr
    )
    sums[:, 7] += 1  # the self loop
    torch.testing.assert_close(ours.edge_sums[:, :EDGE_BITS].double(), sums, rtol=0, atol=0)
    assert torch.equal(ours.edge_sums[:, EDGE_BITS], degrees + 1.0)


def test_the_released_batching_reads_the_centres_near_the_start() -> None:
    numbers = torch.tensor([7, 4, 0, 7])
    right, released = DATASET.batch(numbers), DATASET.batch(numbers, offset_centres=False)
    assert released.centre.tolist() == GRAPHS.centre[numbers.numpy()].tolist()
    assert (right.centre - released.centre).tolist() == [0, 7, 12, 16]
    for name, value in right._asdict().items():
        assert name == "centre" or torch.equal(value, released._asdict()[name])


@pytest.mark.parametrize("tasks", [1, 7, 8, 9, 16, 17])
def test_labels_are_the_bits(tasks: int) -> None:
    given = {kind: np.random.default_rng(tasks).random((12, tasks)) < share for kind, share in SHARES.items()}
    bits = {kind: pack(each) for kind, each in given.items()}
    dataset = on_device(dataclasses.replace(GRAPHS, **bits, tasks=np.array([tasks, tasks])), "cpu")
    for kind, read in (("coarse", dataset.coarse), ("fine", dataset.fine)):
        found = read(torch.tensor([7, 0, 7, 11]))
        assert found.dtype == torch.float32
        assert np.array_equal(found.numpy(), given[kind][[7, 0, 7, 11]])
        assert bits[kind].shape == (12, -(-tasks // 8))
        assert np.array_equal(unpack(bits[kind], tasks), given[kind])
        assert np.array_equal(bits[kind][:, 0] & 1, given[kind][:, 0]), "the first task is in the lowest bit"


def creators_split(species: list[int], test_species: list[int]) -> dict[str, list[int]]:
    """Return the split by species of `finetune.py` and `pretrain_supervised.py` of Hu et al. (2020) in plain Python."""

    def cut(numbers: list[int], first: float, second: float) -> tuple[list[int], list[int]]:
        random.seed(42)
        order = list(range(len(numbers)))
        random.shuffle(order)
        end = int(first * len(numbers))
        chosen = [numbers[place] for place in order]
        return chosen[:end], chosen[end : end + int(second * len(numbers))]

    own = [number for number, taxon in enumerate(species) if taxon in test_species]
    others = [number for number, taxon in enumerate(species) if taxon not in test_species]
    train, validation = cut(others, 0.85, 0.15)
    easy, test = cut(own, 0.5, 0.5)
    return {"train": train, "validation": validation, "easy": easy, "test": test, "pretrain": others + easy}


def assert_is_the_creators(graphs: Graphs, test_species: list[int]) -> None:
    state = random.getstate()
    parts = splits(graphs, test_species)
    assert random.getstate() == state, "global random numbers are left alone"
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    for name, numbers in creators_split(graphs.species.tolist(), test_species).items():
        assert sorted(getattr(parts, name)) == sorted(numbers), name


@pytest.mark.parametrize("count", [20, 121, 122, 333])
def test_the_split_is_the_creators_to_the_graph(count: int) -> None:
    assert_is_the_creators(small_graphs(count), [TEST_SPECIES])
    shuffled = np.random.default_rng(count).permutation(small_graphs(count).species)
    assert_is_the_creators(dataclasses.replace(small_graphs(count), species=shuffled), [TEST_SPECIES, 10])


@pytest.mark.real_data
def test_the_split_of_an_archive_is_the_creators() -> None:
    graphs = read_archive(*shared(SAMPLE))
    for taxon in np.unique(graphs.species).tolist():
        assert_is_the_creators(graphs, [taxon])


@pytest.mark.parametrize(
    ("test_species", "words"),
    [
        ([99], "120 graphs to learn from, 0 of the test species 99"),
        ([10, 20, 30], "0 graphs to learn from, 120 of the test"),
    ],
)
def test_an_empty_part_is_an_error_that_names_the_species(test_species: list[int], words: str) -> None:
    with pytest.raises(
        DataError, match=f"{words}.*The graphs are of 10, 20, 30; name other test_species, or prepare more"
    ):
        splits(small_graphs(), test_species)


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
    for field in dataclasses.fields(Graphs):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(graphs, field.name))
        assert getattr(loaded, field.name).dtype == getattr(graphs, field.name).dtype
    save(graphs, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "graphs.npz").read_bytes()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"graphs\.npz is missing: prepare the graphs"):
        load(tmp_path / "graphs.npz")
