"""The prepared form of protein graphs from any source: a few flat arrays in one file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metapt.files import atomic_path, reading

EVIDENCE = 7  # number of evidence bits of an edge: STRING's evidence channels


@dataclass(frozen=True)
class Graphs:
    """Graphs, each around a centre node, with two sets of binary labels."""

    node_offsets: NDArray[np.int64]  # [graphs + 1] int64; graph g has the nodes node_offsets[g] to node_offsets[g + 1]
    edge_offsets: NDArray[np.int64]  # [graphs + 1] int64, likewise for undirected edges
    # [edges, 2] uint16, numbers of nodes within their graph, the lower one first, without duplicates
    edges: NDArray[np.uint16]
    bits: NDArray[np.uint8]  # [edges] uint8; bit i says whether evidence channel i supports the edge
    centre: NDArray[np.uint16]  # [graphs] uint16, number of the centre node within its graph
    species: NDArray[np.int32]  # [graphs] int32, NCBI taxon
    # [graphs, ceil(coarse tasks / 8)] uint8, PT labels as bits, the first task in the lowest bit
    coarse: NDArray[np.uint8]
    fine: NDArray[np.uint8]  # [graphs, ceil(fine tasks / 8)] uint8, FT labels likewise
    tasks: NDArray[np.int64]  # [2] int64, numbers of coarse and of fine tasks

    def __len__(self) -> int:
        return len(self.species)


def pack(labels: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return labels [graphs, tasks] as bits [graphs, ceil(tasks / 8)]."""
    return np.packbits(labels, axis=1, bitorder="little")


def unpack(bits: NDArray[np.uint8], tasks: int) -> NDArray[np.uint8]:
    """Return labels [graphs, tasks] of 0 and 1 from their bits."""
    return np.unpackbits(bits, axis=1, count=tasks, bitorder="little")


def save(graphs: Graphs, path: Path) -> None:
    """Write graphs.npz atomically; the same graphs give the same bytes.

    Raises MachineError if the disk is full, or the folder can't be written.
    """
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **{field.name: getattr(graphs, field.name) for field in fields(Graphs)})


def load(path: Path) -> Graphs:
    """Read a file that `save` has written. Raises DataError if the file is missing or can't be read.

    Whether it is what its job left is checked by `execute`.
    """
    with reading(path, "prepare the graphs") as raw, np.load(raw, allow_pickle=False) as file:
        return Graphs(**{field.name: file[field.name] for field in fields(Graphs)})
