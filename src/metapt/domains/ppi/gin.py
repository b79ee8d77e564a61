"""The graph isomorphism network (GIN) of Hu et al. (2020, "Strategies for Pre-training Graph Neural Networks").

In each layer a node i receives messages [x_j ; E b_ij + e] from its neighbours j and from itself (a self loop), where
x_j is a node's state and b_ij the nine bits of an edge. Messages are linear in states and bits, so their sum is

    [ (A + I) x ; E (sum of b_ij) + (degree + 1) e ]

The sums of bits and the degrees are computed once before training, and no tensor has an entry per edge. The update is
Linear(2 width, 2 width), BatchNorm, ReLU, Linear(2 width, width). The second half of the first linear layer is
multiplied by E and e first, which leaves ten numbers per node instead of `width`. There is a ReLU between layers but
not after the last, and dropout after each layer. The features of a graph are [mean over its nodes ; its centre node].
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ppi.config import Network
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.layers.batch_norm import batch_norm
from metapt.hypergrad.layers.precision import computing_in
from metapt.hypergrad.layers.recompute import recomputed_part
from metapt.training import pretrained_file
from metapt.training.pretrained_file import Learned

EDGE_BITS = 9
"""Seven bits of evidence, one that marks a self loop, one that marks a masked edge."""
_MOMENTUM, _EPS = 0.1, 1e-5
_Precision = Literal["float32", "bfloat16"]
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class GraphBatch(NamedTuple):
    """Graphs as one disconnected graph; their nodes are stored one graph after the other."""

    neighbours: Tensor  # [directed edges] int32, the neighbours of each node as numbers in the batch, node by node
    neighbour_offsets: Tensor  # [nodes + 1] int32, where the neighbours of each node begin
    edge_sums: Tensor  # [nodes, 10], sums of the nine bits over a node's edges and its self loop, and their number
    sizes: Tensor  # [graphs] int64, nodes of each graph
    graph: Tensor  # [nodes] int64, the graph of each node
    centre: Tensor  # [graphs] int64, numbers of the centre nodes in the batch


class _NeighbourSum(torch.autograd.Function):
    """Multiply states by the adjacency matrix A; it is symmetric, so that derivatives are products with A, too."""

    @staticmethod
    def forward(context: Any, states: Tensor, neighbours: Tensor, offsets: Tensor) -> Tensor:
        context.save_for_backward(neighbours, offsets)
        context.save_for_forward(neighbours, offsets)
        return _neighbour_sum(states, neighbours, offsets)

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> Any:
        neighbours, offsets = context.saved_tensors
        return _NeighbourSum.apply(cotangents[0], neighbours, offsets), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(context: Any, *tangents: Any) -> Tensor:
        neighbours, offsets = context.saved_tensors
        return _neighbour_sum(tangents[0], neighbours, offsets)


def _neighbour_sum(states: Tensor, neighbours: Tensor, offsets: Tensor) -> Tensor:
    """Sum rows with `embedding_bag`, torch's fastest operation for it on CPU and GPU."""
    if not len(neighbours):
        return torch.zeros_like(states)
    return F.embedding_bag(neighbours, states.contiguous(), offsets, mode="sum", include_last_offset=True)


def neighbour_sum(states: Tensor, batch: GraphBatch) -> Tensor:
    """Return the sum of `states` [nodes, width] over each node's neighbours, [nodes, width]."""
    result: Tensor = _NeighbourSum.apply(states, batch.neighbours, batch.neighbour_offsets)  # type: ignore[no-untyped-call]
    return result


class GinEncoder:
    """The network as a pure function of its parameters and buffers; features have the type of the parameters.

    `precision` is that of the matrix products. With `recompute` the first half of the layers is computed anew for each
    derivative in training, which saves memory.
    """

    def __init__(self, layers: int, width: int, precision: _Precision = "float32", recompute: bool = False) -> None:
        self.layers, self.width = layers, width
        self._precision: _Precision = precision
        self._recompute = recompute

    def __call__(self, parameters: Params, batch: GraphBatch, *, training: bool, keep: Tensor | None = None) -> Tensor:
        """Return features [graphs, 2 width]; `parameters` include the buffers.

        In training, BatchNorm uses the statistics of the minibatch and updates the running ones in place; otherwise it
        uses these. `keep`: dropout masks (see `dropout_masks`); None: no dropout.
        """
        with computing_in(self._precision, parameters["node"].device):
            return self._features(parameters, batch, training, keep).to(parameters["node"].dtype)

    def _features(self, parameters: Params, batch: GraphBatch, training: bool, keep: Tensor | None) -> Tensor:
        states = parameters["node"].new_empty(0)
        for layer in range(self.layers - 1):
            mask = None if keep is None else keep[layer]
            states = self._layer(parameters, layer, states, batch, training, mask)
        hidden = self._hidden(parameters, self.layers - 1, states, batch, training)
        linear = _linear2(parameters, self.layers - 1)
        exact = parameters["node"].dtype  # of sums over the nodes of a graph
        if keep is None:  # the linear map commutes with the mean, and there are fewer graphs than nodes
            return F.linear(_readout(hidden.to(exact), batch), *linear).flatten(1)
        return _readout(F.linear(hidden, *linear).to(exact) * keep[-1], batch).flatten(1)

    def _layer(
        self, parameters: Params, layer: int, states: Tensor, batch: GraphBatch, training: bool, keep: Tensor | None
    ) -> Tensor:
        """Return the states [nodes, width] after a layer that is not the last."""

        def part(parameters: Params, states: Tensor) -> Tensor:
            hidden = self._hidden(parameters, layer, states, batch, training)
            after = F.relu(F.linear(hidden, *_linear2(parameters, layer)))
            return after if keep is None else after * keep.to(after.dtype)

        if not (training and self._recompute and layer < self.layers // 2):
            return part(parameters, states)
        own = {name: value for name, value in parameters.items() if name.startswith(f"layers.{layer}.")}
        if not layer:
            own["node"] = parameters["node"]
        buffers = {name: own.pop(name) for name in list(own) if name.split(".")[-1] in _BUFFERS}
        return recomputed_part(part, own, buffers, states)

    def _hidden(self, parameters: Params, layer: int, states: Tensor, batch: GraphBatch, training: bool) -> Tensor:
        """Return the input of a layer's second linear map, [nodes, 2 width]; the first layer does not read `states`."""
        part = f"layers.{layer}"
        of_states, of_edges = torch.split(parameters[f"{part}.linear1.weight"], self.width, 1)
        per_edge = of_edges @ parameters[f"{part}.edge.bias"]
        if not layer:  # all nodes have the same state, so that its sum is known, too
            per_edge = per_edge + of_states @ parameters["node"]
        maps = torch.cat([of_edges @ parameters[f"{part}.edge.weight"], per_edge.unsqueeze(1)], 1)
        hidden = torch.addmm(parameters[f"{part}.linear1.bias"], batch.edge_sums, maps.t())
        if layer:
            hidden = torch.addmm(hidden, states + neighbour_sum(states, batch), of_states.t())
        return F.relu(_normalised(parameters, f"{part}.norm", hidden, training))


def _linear2(parameters: Params, layer: int) -> tuple[Tensor, Tensor]:
    return parameters[f"layers.{layer}.linear2.weight"], parameters[f"layers.{layer}.linear2.bias"]


def _readout(values: Tensor, batch: GraphBatch) -> Tensor:
    """Return the mean over each graph's nodes and the value of its centre node: [graphs, 2, ...] of [nodes, ...]."""
    sums = values.new_zeros(len(batch.sizes), values.shape[1]).index_add(0, batch.graph, values)
    return torch.stack([sums / batch.sizes.unsqueeze(1), values.index_select(0, batch.centre)], 1)


def _normalised(parameters: Params, part: str, values: Tensor, training: bool) -> Tensor:
    weight, bias = parameters[f"{part}.weight"], parameters[f"{part}.bias"]
    mean, variance = parameters[f"{part}.running_mean"], parameters[f"{part}.running_var"]
    if training:
        parameters[f"{part}.num_batches_tracked"].add_(1)
        return batch_norm(values, weight, bias, mean, variance, _MOMENTUM, _EPS)
    return F.batch_norm(values, mean, variance, weight, bias, eps=_EPS)


def dropout_masks(layers: int, nodes: int, width: int, rate: float, generator: torch.Generator) -> Tensor:
    """Return factors [layers, nodes, width] on the generator's device: 0 with probability `rate`, else 1 / (1 - rate).

    Each factor takes sixteen random bits, so that the rate is exact to 1 / 65536. Four factors share a random number,
    which is several times faster than one number each.
    """
    count = layers * nodes * width
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    dropped = min(round(rate * 65536), 65535)
    kept = words.view(torch.int16)[:count] >= dropped - 32768
    return kept.view(layers, nodes, width).float().mul_(65536 / (65536 - dropped))


def initial_pretrained(layers: int, width: int, tasks: int, generator: torch.Generator) -> Pretrained:
    """Return an encoder and a PT head with random weights as in Hu et al. (2020).

    Linear layers have torch's initialisation, node embeddings Glorot's. Their node embedding has rows for two kinds of
    node, of which the data contain one.
    """
    bound = math.sqrt(6 / (2 + width))
    encoder: Params = {"node": ((2 * torch.rand(2, width, generator=generator) - 1) * bound)[1]}
    buffers: Params = {}
    for layer in range(layers):
        part = f"layers.{layer}"
        sizes = {"edge": (EDGE_BITS, width), "linear1": (2 * width, 2 * width), "linear2": (2 * width, width)}
        for name, (inputs, outputs) in sizes.items():
            encoder |= {f"{part}.{name}.{key}": value for key, value in _linear(inputs, outputs, generator).items()}
        encoder |= {f"{part}.norm.weight": torch.ones(2 * width), f"{part}.norm.bias": torch.zeros(2 * width)}
        buffers |= {
            f"{part}.norm.running_mean": torch.zeros(2 * width),
            f"{part}.norm.running_var": torch.ones(2 * width),
            f"{part}.norm.num_batches_tracked": torch.tensor(0),
        }
    return Pretrained(encoder, initial_head(width, tasks, generator), buffers)


def load_pretrained(path: Path, network: Network, device: str) -> Learned:
    """Read pretrained.pt, whose encoder must have the network's layers and width. Raises DataError if it has others."""
    like = initial_pretrained(network.layers, network.width, 1, torch.Generator())
    return pretrained_file.load_pretrained(path, like, f"{network.layers} layers of width {network.width}", device)


def initial_head(width: int, tasks: int, generator: torch.Generator) -> Params:
    """Return a head with torch's random initialisation of a linear layer."""
    return _linear(2 * width, tasks, generator)


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> Params:
    bound = 1 / math.sqrt(inputs)
    values = (2 * torch.rand(outputs, inputs + 1, generator=generator) - 1) * bound
    return {"weight": values[:, 1:].contiguous(), "bias": values[:, 0].contiguous()}
