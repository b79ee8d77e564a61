"""Small random protein graphs whose edges determine their FT labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metapt.domains.ppi.data.graphs import Graphs, check, pack

TEST_SPECIES = 30
COARSE, FINE = 10, 5


def small_graphs(count: int = 120, seed: int = 0, fine: int = FINE, without_positives: tuple[int, ...] = ()) -> Graphs:
    """Return graphs of 3 to 7 nodes, a third of each of the species 10, 20 and 30.

    Evidence bit t of an edge is frequent if the graph has the FT label t (t < 7) and rare otherwise. Coarse labels are
    random.

    Args:
        count: number of graphs.
        seed: seed of all draws.
        fine: number of FT tasks.
        without_positives: FT tasks that no graph of species 10 and 20 carries.
    """
    random = np.random.default_rng(seed)
    species = np.repeat([10, 20, TEST_SPECIES], -(-count // 3))[:count].astype(np.int32)
    labels = random.random((count, fine)) < 0.5
    labels[np.ix_(species != TEST_SPECIES, list(without_positives))] = False
    sizes = random.integers(3, 8, count)
    edges = [_edges(int(size), random) for size in sizes]
    return _checked(random, species, sizes, edges, labels)


def _edges(size: int, random: np.random.Generator) -> NDArray[np.uint16]:
    """Return a path through all nodes and some more edges."""
    pairs = np.argwhere(np.triu(random.random((size, size)) < 0.3, 2))
    path = np.stack([np.arange(size - 1), np.arange(1, size)], 1)
    return np.concatenate([path, pairs]).astype(np.uint16)


def _checked(
    random: np.random.Generator,
    species: NDArray[np.int32],
    sizes: NDArray[np.int64],
    edges: list[NDArray[np.uint16]],
    labels: NDArray[np.bool_],
) -> Graphs:
    counts = [len(each) for each in edges]
    shown = np.zeros((len(species), 8), bool)
    shown[:, : min(7, labels.shape[1])] = labels[:, :7]
    chances = np.repeat(np.where(shown, 0.9, 0.1), counts, axis=0) * (np.arange(8) < 7)
    graphs = Graphs(
        node_offsets=np.concatenate([[0], np.cumsum(sizes)]),
        edge_offsets=np.concatenate([[0], np.cumsum(counts)]),
        edges=np.concatenate(edges),
        bits=np.packbits(random.random(chances.shape) < chances, axis=1, bitorder="little")[:, 0],
        centre=(random.random(len(sizes)) * sizes).astype(np.uint16),
        species=species,
        coarse=pack(random.random((len(species), COARSE)) < 0.4),
        fine=pack(labels),
        tasks=np.array([COARSE, labels.shape[1]]),
    )
    check(graphs)
    return graphs
