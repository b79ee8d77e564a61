"""Protein graphs on the device, minibatches by index arithmetic, and the split by species."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metapt.domains.ppi.data.graphs import EVIDENCE, Graphs, load
from metapt.domains.ppi.gin import EDGE_BITS, GinEncoder, GraphBatch
from metapt.domains.ppi.stages import FOLDS
from metapt.errors import DataError
from metapt.hypergrad import Params
from metapt.training.streams import to_device
from metapt.twostage.heads import in_chunks

_SPLIT_SEED = 42
_SELF_LOOP = EVIDENCE
CHUNK = 64  # graphs per forward pass without gradients; a sixth faster than 256, whose activations fit into no cache

Indices = NDArray[np.int64]


class Splits(NamedTuple):
    """Numbers of graphs, ascending."""

    others: Indices  # graphs of the species that are not tested on; PT uses all of them
    train: Indices  # train, validation: FT graphs, parts of `others`
    validation: Indices
    easy: Indices  # easy, test: halves of the graphs of the test species ("easy" and "hard"); PT uses the first
    test: Indices

    @property
    def pretrain(self) -> Indices:
        """Return the graphs that PT uses, with coarse labels."""
        return np.concatenate([self.others, self.easy])


def splits(graphs: Graphs, test_species: list[int]) -> Splits:
    """Split graphs by species as the code of Hu et al. (2020) does; the split is always the same.

    The other species are cut 85/15 after a shuffle by Python's generator, and the test species 50/50 after another
    shuffle. Sizes are rounded down, so that a graph may be left over. Raises DataError if a part would be empty.
    """
    tested = np.isin(graphs.species, test_species)
    others, own = np.flatnonzero(~tested), np.flatnonzero(tested)
    parts = Splits(others, *_cut(others, 0.85, 0.15), *_cut(own, 0.5, 0.5))
    if not all(map(len, parts)):
        tested_on, names = (", ".join(map(str, taxa)) for taxa in (test_species, np.unique(graphs.species)))
        raise DataError(
            f"the split by species leaves a part empty: {len(others)} graphs to learn from, {len(own)} of the test "
            f"species {tested_on}. The graphs are of {names}; name other test_species, or prepare more graphs."
        )
    return parts


def _cut(numbers: Indices, first: float, second: float) -> tuple[Indices, Indices]:
    """Return two disjoint random parts with these shares of the numbers."""
    order = list(range(len(numbers)))
    Random(_SPLIT_SEED).shuffle(order)
    end, size = int(first * len(order)), int(second * len(order))
    return np.sort(numbers[order[:end]]), np.sort(numbers[order[end : end + size]])


@dataclass(frozen=True)
class PpiDataset:
    """Prepared graphs as flat tensors on one device."""

    graphs: Graphs  # the prepared arrays
    nodes: Tensor  # [graphs + 1], where each graph's nodes begin
    neighbour_offsets: Tensor  # [nodes + 1], where each node's neighbours begin
    neighbours: Tensor  # [directed edges] int32, numbers within the graph
    edge_sums: Tensor  # [nodes, 10], see `GraphBatch`
    centre: Tensor  # [graphs], number of the centre node within the graph
    coarse_bits: Tensor  # coarse_bits, fine_bits: labels as bits
    fine_bits: Tensor
    device: str  # the device of all tensors

    @property
    def coarse_tasks(self) -> int:
        return int(self.graphs.tasks[0])

    @property
    def fine_tasks(self) -> int:
        return int(self.graphs.tasks[1])

    def coarse(self, indices: Tensor) -> Tensor:
        """Return PT labels [n, coarse tasks] of 0 and 1, float32."""
        return labels(self.coarse_bits, indices, self.coarse_tasks)

    def fine(self, indices: Tensor) -> Tensor:
        """Return FT labels [n, fine tasks] of 0 and 1, float32."""
        return labels(self.fine_bits, indices, self.fine_tasks)

    def batch(self, indices: Tensor, offset_centres: bool = True) -> GraphBatch:
        """Return a batch of the graphs `indices` [n], int64, on the CPU.

        `offset_centres` numbers centre nodes in the batch, which is correct. False numbers them within their graph as
        the released PT code does, so that all graphs use a node near the start of the batch.
        """
        given = indices.numpy()  # counted on the CPU, so that the device is not waited for
        node_count, edge_count = (
            int((offsets[given + 1] - offsets[given]).sum())
            for offsets in (self.graphs.node_offsets, self.graphs.edge_offsets)
        )
        indices = to_device(indices, self.device)
        sizes = self.nodes[indices + 1] - self.nodes[indices]
        starts = sizes.cumsum(0) - sizes
        graph = torch.repeat_interleave(sizes, output_size=node_count)
        nodes = torch.arange(len(graph), device=graph.device) + (self.nodes[indices] - starts)[graph]
        first = self.neighbour_offsets[nodes]
        degrees = self.neighbour_offsets[nodes + 1] - first
        offsets = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        node = torch.repeat_interleave(degrees, output_size=2 * edge_count)
        places = torch.arange(len(node), device=node.device) + (first - offsets[:-1])[node]
        neighbours = self.neighbours[places] + starts.int()[graph[node]]
        centre = self.centre[indices] + (starts if offset_centres else 0)
        return GraphBatch(neighbours, offsets.int(), self.edge_sums[nodes], sizes, graph, centre)


def labels(bits: Tensor, indices: Tensor, tasks: int) -> Tensor:
    """Return labels [n, tasks] of 0 and 1, float32, from their bits [graphs, ceil(tasks / 8)]."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[to_device(indices, bits.device)].unsqueeze(2) >> places) & 1).flatten(1)[:, :tasks].float()


def open_dataset(path: Path, device: str) -> PpiDataset:
    """Return the prepared graphs.npz on the device. Raises DataError as `load`."""
    return on_device(load(path), device)


def on_device(graphs: Graphs, device: str) -> PpiDataset:
    """Move graphs to the device, and compute the neighbours of each node and the sums of edge bits."""
    starts = np.repeat(graphs.node_offsets[:-1], np.diff(graphs.edge_offsets))
    ends = graphs.edges.astype(np.int64) + starts[:, None]
    source, target = np.concatenate([ends[:, 0], ends[:, 1]]), np.concatenate([ends[:, 1], ends[:, 0]])
    count = int(graphs.node_offsets[-1])
    order = np.argsort(source, kind="stable")
    degrees = np.bincount(source, minlength=count)
    neighbours = (target - np.concatenate([starts, starts]))[order].astype(np.int32)
    sums = np.zeros((count, EDGE_BITS + 1), np.float32)
    for bit in range(EVIDENCE):
        has = np.tile((graphs.bits >> bit) & 1, 2).astype(np.float64)
        sums[:, bit] = np.bincount(source, weights=has, minlength=count)
    sums[:, _SELF_LOOP] = 1
    sums[:, EDGE_BITS] = degrees + 1

    def tensor(values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    return PpiDataset(
        graphs=graphs,
        nodes=tensor(graphs.node_offsets),
        neighbour_offsets=tensor(np.concatenate([[0], np.cumsum(degrees)])),
        neighbours=tensor(neighbours),
        edge_sums=tensor(sums),
        centre=tensor(graphs.centre.astype(np.int64)),
        coarse_bits=tensor(graphs.coarse),
        fine_bits=tensor(graphs.fine),
        device=device,
    )


def held_out_tasks(count: int, part: int) -> range:
    """Return the FT tasks, of `count`, in one of the `FOLDS` parts; the sizes of parts differ by at most one.

    Raises DataError if there are fewer tasks than parts.

    >>> [len(held_out_tasks(10, part)) for part in range(4)]
    [2, 3, 2, 3]
    """
    if count < FOLDS:
        parts = f"the {FOLDS} parts that are held out in turn"
        raise DataError(f"{count} FT tasks don't make {parts}; prepare more FT tasks.")
    return range(count * part // FOLDS, count * (part + 1) // FOLDS)


@torch.no_grad()
def features_of(encoder: GinEncoder, network: Params, dataset: PpiDataset, indices: Tensor) -> Tensor:
    """Return features [n, 2 width] with BatchNorm in eval mode and without dropout.

    The graphs are encoded in chunks, so that memory for activations does not grow with n.
    """
    return in_chunks(lambda chunk: encoder(network, dataset.batch(chunk), training=False), indices, CHUNK)
