"""Protein graphs with all legal special cases, an exact network, and the same network of torch_geometric's layers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import MessagePassing, global_mean_pool

from metapt.domains.ppi.data.convert import ProteinGraph, tensors
from metapt.domains.ppi.data.graphs import Graphs, pack, unpack
from metapt.domains.ppi.gin import EDGE_BITS, GraphBatch, initial_pretrained
from metapt.hypergrad import Params, Pretrained

from ..hypergrad.problems import DTYPE, draw
from .small_graphs import COARSE, FINE, TEST_SPECIES, assembled, small_graphs

LAYERS, WIDTH = 3, 4


def odd_graphs(coarse: int = 11, fine: int = 9) -> Graphs:
    """Return twelve graphs, some of one node, some without edges, and some with isolated nodes."""
    random = np.random.default_rng(5)
    sizes = [4, 1, 6, 3, 5, 1, 2, 7, 4, 2, 5, 3]
    without = (1, 3, 5, 9)
    edges = [
        np.argwhere(np.triu(random.random((n, n)) < 0.4, 1)) if g not in without else np.zeros((0, 2))
        for g, n in enumerate(sizes)
    ]
    bits = random.integers(0, 128, sum(map(len, edges))).astype(np.uint8)
    centre = [random.integers(n) for n in sizes]
    labels = (random.random((12, tasks)) < 0.5 for tasks in (coarse, fine))
    return assembled(edges, bits, sizes, centre, [10, 20, TEST_SPECIES] * 4, *labels)


def related_graphs(count: int = 120, pairs: tuple[tuple[int, int], ...] = ((3, 0),)) -> Graphs:
    """Return `small_graphs` where, for each of `pairs`, graphs with the FT task and few others carry the PT task."""
    graphs, random = small_graphs(count), np.random.default_rng(1)
    fine, coarse = unpack(graphs.fine, FINE) > 0, unpack(graphs.coarse, COARSE) > 0
    for pretrained, tuned in pairs:
        fine[:, tuned] &= random.random(count) < 0.5
        coarse[:, pretrained] = fine[:, tuned] | (random.random(count) < 0.05)
    return dataclasses.replace(graphs, fine=pack(fine), coarse=pack(coarse))


def exact(batch: GraphBatch) -> GraphBatch:
    """Return the batch in float64."""
    return batch._replace(edge_sums=batch.edge_sums.to(DTYPE))


def double(params: Params) -> Params:
    return {name: value.to(DTYPE) if value.is_floating_point() else value.clone() for name, value in params.items()}


def exact_pretrained(layers: int = LAYERS, width: int = WIDTH, tasks: int = COARSE) -> Pretrained:
    """Return float64 parameters with weights of all signs, and non-trivial statistics of BatchNorm."""
    encoder, head, buffers = (
        double(part) for part in initial_pretrained(layers, width, tasks, torch.Generator().manual_seed(0))
    )
    encoder = {name: value + draw(i, *value.shape, scale=0.2) for i, (name, value) in enumerate(encoder.items())}
    for i, name in enumerate(buffers):
        if "running" in name:
            seen = draw(100 + i, *buffers[name].shape, scale=0.3)
            buffers[name] = seen.exp() if "var" in name else seen
    return Pretrained(encoder, head, buffers)


def one_graph(graphs: Graphs, number: int) -> ProteinGraph:
    """Return one of the graphs as torch_geometric has it, each edge in both directions, with its nine bits."""
    data, slices = tensors(graphs)
    places = {name: slices[name][number : number + 2].tolist() for name in data}
    parts = {name: data[name].narrow(int(name == "edge_index"), a, b - a) for name, (a, b) in places.items()}
    return ProteinGraph.from_dict(parts)


def pyg_batch(graphs: Graphs, numbers: list[int]) -> Any:
    """Return a batch of torch_geometric's, in float64."""
    batch = Batch.from_data_list([one_graph(graphs, number) for number in numbers])
    batch.edge_attr = batch.edge_attr.to(DTYPE)
    return batch


class _PlainLayer(MessagePassing):  # type: ignore[misc]
    """A layer with a message per edge: the neighbour's state and the embedded bits; self loops have their own bit."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="add")
        self.edge = nn.Linear(EDGE_BITS, width)
        self.linear1, self.linear2 = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.BatchNorm1d(2 * width)

    def forward(self, states: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        loops = torch.arange(len(states)).repeat(2, 1)
        loop_bits = torch.zeros(len(states), EDGE_BITS, dtype=edge_attr.dtype)
        loop_bits[:, 7] = 1
        edge_index, bits = torch.cat([edge_index, loops], 1), torch.cat([edge_attr, loop_bits])
        gathered = self.propagate(edge_index, x=states, bits=self.edge(bits))
        result: Tensor = self.linear2(torch.relu(self.norm(self.linear1(gathered))))
        return result

    def message(self, x_j: Tensor, bits: Tensor) -> Tensor:
        return torch.cat([x_j, bits], 1)


class PlainGin(nn.Module):
    """`metapt.domains.ppi.gin.GinEncoder` made of torch's and torch_geometric's layers, with equal parameter names."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.node = nn.Parameter(torch.zeros(width))
        self.layers = nn.ModuleList(_PlainLayer(width) for _ in range(layers))

    def forward(self, batch: Any, keep: Tensor | None = None) -> Tensor:
        states = self.node.expand(batch.num_nodes, -1)
        for number, layer in enumerate(self.layers):
            states = layer(states, batch.edge_index, batch.edge_attr)
            if number + 1 < len(self.layers):
                states = torch.relu(states)
            if keep is not None:
                states = states * keep[number]
        return torch.cat([global_mean_pool(states, batch.batch), states[batch.center_node_idx]], 1)


def plain(parameters: Params, batch: Any, *, training: bool, keep: Tensor | None = None) -> Tensor:
    """Return features by `PlainGin` with the parameters and buffers of a `GinEncoder`."""
    layers = 1 + max(int(name.split(".")[1]) for name in parameters if name.startswith("layers."))
    network = PlainGin(layers, len(parameters["node"])).train(training)
    result: Tensor = torch.func.functional_call(network, parameters, (batch, keep))
    return result
