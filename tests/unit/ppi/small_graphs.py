"""Small random protein graphs whose edges determine their FT labels, and files in STRING's form."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metapt.domains.ppi.data.graphs import Graphs, pack

TEST_SPECIES = 30
COARSE, FINE = 10, 5
DETAILED = (
    "protein1 protein2 neighborhood fusion cooccurence coexpression experimental database textmining combined_score"
)


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Write a gzipped file, and return its path."""
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    return path


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
    shown = np.zeros((count, 8), bool)
    shown[:, : min(7, fine)] = labels[:, :7]
    chances = np.repeat(np.where(shown, 0.9, 0.1), list(map(len, edges)), axis=0) * (np.arange(8) < 7)
    bits = np.packbits(random.random(chances.shape) < chances, axis=1, bitorder="little")[:, 0]
    centre = (random.random(count) * sizes).astype(np.uint16)
    return assembled(edges, bits, sizes, centre, species, random.random((count, COARSE)) < 0.4, labels)


def assembled(
    edges: Sequence[NDArray[Any]],
    bits: NDArray[np.uint8],
    sizes: ArrayLike,
    centre: ArrayLike,
    species: ArrayLike,
    coarse: NDArray[np.bool_],
    fine: NDArray[np.bool_],
) -> Graphs:
    """Return graphs with these edges [edges of a graph, 2], their bits, numbers of nodes, centres and labels."""
    return Graphs(
        node_offsets=np.concatenate([[0], np.cumsum(sizes)]),
        edge_offsets=np.concatenate([[0], np.cumsum([len(each) for each in edges])]),
        edges=np.concatenate(edges).astype(np.uint16),
        bits=bits,
        centre=np.asarray(centre, np.uint16),
        species=np.asarray(species, np.int32),
        coarse=pack(coarse),
        fine=pack(fine),
        tasks=np.array([coarse.shape[1], fine.shape[1]]),
    )


def _edges(size: int, random: np.random.Generator) -> NDArray[np.uint16]:
    """Return a path through all nodes and some more edges."""
    pairs = np.argwhere(np.triu(random.random((size, size)) < 0.3, 2))
    path = np.stack([np.arange(size - 1), np.arange(1, size)], 1)
    return np.concatenate([path, pairs]).astype(np.uint16)
