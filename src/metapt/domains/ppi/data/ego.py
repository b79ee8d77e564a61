"""Ego graphs: subgraphs of a network around centre nodes, found by breadth-first search from many centres at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from metapt.domains.ppi.data.sections import Ego

Integers = NDArray[np.int64]

_CHUNK = 32  # centres per search; more exceed the processor's cache


@dataclass(frozen=True, eq=False)
class EgoGraphs:
    """Graphs in the order of their centres, with ascending nodes.

    Other attributes are those of `metapt.domains.ppi.data.graphs.Graphs`.
    """

    node_offsets: Integers
    nodes: Integers  # [nodes] their numbers in the network
    edge_offsets: Integers
    edges: NDArray[np.uint16]
    bits: NDArray[np.uint8]
    centre: NDArray[np.uint16]


def network(nodes: int, edges: Integers, bits: NDArray[np.uint8]) -> sparse.csr_array:
    """Return the adjacency matrix of undirected edges [E, 2] with evidence [E], without duplicates or self loops."""
    first, second = np.concatenate([edges, edges[:, ::-1]]).T
    return sparse.csr_array((np.concatenate([bits, bits]), (first, second)), shape=(nodes, nodes))


def ego_graphs(net: sparse.csr_array, centres: Integers, ego: Ego, chunk: int = _CHUNK) -> EgoGraphs:
    """Return the graphs around `centres` [G], each induced by the nodes that a breadth-first search finds.

    In each of `ego.hops` rounds, each node found in the last round adds its neighbours that no earlier round has found:
    all of them, or `ego.fan_out` drawn at random. If a graph then has more than `ego.max_nodes` nodes, those of the
    last round are drawn at random. All draws use a hash of the seed, the centre and the nodes, so that a graph does not
    depend on the other centres, their order, or the `chunk` of centres that are searched from at once. `net` is a
    `network`.
    """
    upper, starts = sparse.triu(net, 1, format="csr"), range(0, max(len(centres), 1), chunk)
    return joined([_chunk(net, upper, centres[start : start + chunk], ego) for start in starts])


def joined(parts: Sequence[EgoGraphs]) -> EgoGraphs:
    """Return the graphs of all parts, one part after the other."""
    names = ("nodes", "edges", "bits", "centre")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    for name in ("node_offsets", "edge_offsets"):
        arrays[name] = _running(np.concatenate([np.diff(getattr(part, name)) for part in parts]))
    return EgoGraphs(**arrays)


def _chunk(net: sparse.csr_array, upper: sparse.csr_array, centres: Integers, ego: Ego) -> EgoGraphs:
    """Return the graphs around `centres`, given the network and the half of it that leads to higher nodes."""
    count, size = len(centres), net.shape[0]
    cells = _search(net, centres, ego)
    graph, node = np.divmod(cells, size)
    node_offsets = _offsets(graph, count)
    number = np.full(count * size, -1, np.int32)  # numbers within the graph
    number[cells] = np.arange(len(cells)) - node_offsets[graph]
    origin, link = _expand(upper.indptr, node)
    other = number[graph[origin] * size + upper.indices[link]]
    inside = np.flatnonzero(other >= 0)
    origin, link, other = origin[inside], link[inside], other[inside]
    edges = np.stack([number[cells[origin]], other], axis=1).astype(np.uint16)
    centre = number[np.arange(count) * size + centres].astype(np.uint16)
    return EgoGraphs(node_offsets, node, _offsets(graph[origin], count), edges, upper.data[link], centre)


def _search(net: sparse.csr_array, centres: Integers, ego: Ego) -> Integers:
    """Return the found nodes, ascending, as graph * N + node."""
    count, size = len(centres), net.shape[0]
    found = np.zeros(count * size, bool)
    frontier = np.arange(count) * size + centres
    found[frontier] = True
    room = np.full(count, ego.max_nodes - 1)
    seeds = _mix(_mix(np.full(count, ego.seed, np.uint64)) + centres.astype(np.uint64))
    for _ in range(ego.hops):
        graph, node = np.divmod(frontier, size)
        origin, place = _expand(net.indptr, node)
        cells = graph[origin] * size + net.indices[place]
        fresh = np.flatnonzero(~found[cells])
        origin, cells = origin[fresh], cells[fresh]
        if ego.fan_out is not None:
            draws = _mix(seeds[graph] + node.astype(np.uint64))[origin] + (cells % size).astype(np.uint64)
            cells = cells[_draw(origin, draws, np.full(len(frontier), ego.fan_out))]
        new = np.zeros_like(found)
        new[cells] = True
        frontier = np.flatnonzero(new)
        graph, node = np.divmod(frontier, size)
        frontier = frontier[np.sort(_draw(graph, seeds[graph] ^ node.astype(np.uint64), room))]
        room -= np.bincount(frontier // size, minlength=count)
        found[frontier] = True
    return np.flatnonzero(found)


def _draw(groups: Integers, draws: NDArray[np.uint64], limits: Integers) -> Integers:
    """Return indices of the kept members of ascending `groups`: in group i, the `limits[i]` with the lowest `draws`."""
    counts = np.bincount(groups, minlength=len(limits))
    crowded = np.flatnonzero((counts > limits)[groups])
    if not len(crowded):
        return np.arange(len(groups))
    hashes = _mix(draws[crowded])
    low = hashes < (2 * (limits + 8) / np.maximum(counts, 1))[groups[crowded]] * 2.0**64
    if (np.bincount(groups[crowded[low]], minlength=len(limits)) >= np.where(counts > limits, limits, 0)).all():
        # Only these can be among the lowest. Sorting fewer of them saves most of the time.
        crowded, hashes = crowded[low], hashes[low]
    order = crowded[np.lexsort((hashes, groups[crowded]))]
    ordered = groups[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return np.concatenate([np.flatnonzero((counts <= limits)[groups]), order[rank < limits[ordered]]])


def _expand(offsets: Integers, rows: Integers) -> tuple[Integers, Integers]:
    """Return, for each entry of each of `rows`, the index of its row and its index in the array that `offsets` cuts."""
    counts = offsets[rows + 1] - offsets[rows]
    ends = np.cumsum(counts)
    origin = np.repeat(np.arange(len(rows)), counts)
    return origin, np.arange(len(origin)) + (offsets[rows] - ends + counts)[origin]


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64-bit hashes of the values by SplitMix64 (Steele, Lea and Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _offsets(rows: Integers, count: int) -> Integers:
    return _running(np.bincount(rows, minlength=count))


def _running(counts: Integers) -> Integers:
    """Return [0, counts[0], counts[0] + counts[1], ...]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
