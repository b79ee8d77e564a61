"""Ego graphs agree with a simple breadth-first search, and do not depend on the other centres."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from metapt.domains.ppi.data.ego import EgoGraphs, ego_graphs, joined, network
from metapt.domains.ppi.data.sections import Ego


def net_of(edges: Iterable[tuple[int, int]], nodes: int) -> sparse.csr_array:
    listed = list(edges)
    return network(nodes, np.array(listed, np.int64).reshape(-1, 2), np.arange(1, len(listed) + 1).astype(np.uint8))


def random_edges(nodes: int, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return random edges with a few hubs."""
    random = np.random.default_rng(seed)
    ends = (nodes * random.random((count, 2)) ** 2).astype(int)
    return sorted({(int(min(pair)), int(max(pair))) for pair in ends if pair[0] != pair[1]})


def nodes_of(graphs: EgoGraphs, graph: int) -> list[int]:
    return graphs.nodes[graphs.node_offsets[graph] : graphs.node_offsets[graph + 1]].tolist()


def edges_of(graphs: EgoGraphs, graph: int) -> dict[tuple[int, int], int]:
    """Return edges by the network's numbers -> bits."""
    nodes = nodes_of(graphs, graph)
    part = slice(graphs.edge_offsets[graph], graphs.edge_offsets[graph + 1])
    pairs = graphs.edges[part].tolist()
    assert len({tuple(pair) for pair in pairs}) == len(pairs)
    assert all(first < second for first, second in pairs)
    return {(nodes[i], nodes[j]): bits for (i, j), bits in zip(pairs, graphs.bits[part].tolist(), strict=True)}


def distances(edges: Iterable[tuple[int, int]], nodes: int, centre: int) -> NDArray[np.float64]:
    """Return the distance [nodes] from the centre, computed by a loop."""
    steps = np.full(nodes, np.inf)
    steps[centre] = 0
    listed = list(edges)
    for step in range(nodes):
        if not (steps == step).any():
            break
        for i, j in listed:
            for a, b in ((i, j), (j, i)):
                if steps[a] == step:
                    steps[b] = min(steps[b], step + 1)
    return steps


def assert_equal(first: EgoGraphs, second: EgoGraphs) -> None:
    for name in ("node_offsets", "nodes", "edge_offsets", "edges", "bits", "centre"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
        assert getattr(first, name).dtype == getattr(second, name).dtype


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_without_limits_all_nodes_within_the_hops_are_found(hops: int) -> None:
    edges = random_edges(40, 60)
    graphs = ego_graphs(net_of(edges, 40), np.arange(40), Ego(hops=hops, fan_out=None, max_nodes=40))
    for centre in range(40):
        nodes = nodes_of(graphs, centre)
        assert nodes == np.flatnonzero(distances(edges, 40, centre) <= hops).tolist()
        assert nodes[graphs.centre[centre]] == centre
        assert edges_of(graphs, centre) == {edge: i for i, edge in enumerate(edges, 1) if set(edge) <= set(nodes)}


@pytest.mark.parametrize("fan_out", [1, 2, 5])
def test_a_node_brings_in_at_most_fan_out_neighbours(fan_out: int) -> None:
    star = [(0, leaf) for leaf in range(1, 30)]
    graphs = ego_graphs(net_of(star, 30), np.array([0, 7]), Ego(hops=2, fan_out=fan_out))
    assert len(nodes_of(graphs, 0)) == 1 + fan_out
    assert {0, 7} < set(nodes_of(graphs, 1))
    assert len(nodes_of(graphs, 1)) == 2 + fan_out  # the centre, the hub, and what the hub brings in

    edges = random_edges(60, 400)
    neighbours = [{a + b - node for a, b in edges if node in (a, b)} for node in range(60)]
    one, two = (ego_graphs(net_of(edges, 60), np.arange(60), Ego(hops=hops, fan_out=fan_out)) for hops in (1, 2))
    for centre in range(60):
        first, both = set(nodes_of(one, centre)), set(nodes_of(two, centre))
        assert len(first) == 1 + min(fan_out, int((distances(edges, 60, centre) == 1).sum()))
        assert first <= both
        later = both - first
        assert len(later) <= fan_out * (len(first) - 1)
        assert all(neighbours[node] & (first - {centre}) for node in later)


def test_max_nodes_keeps_the_nearest() -> None:
    edges = random_edges(60, 300)
    full = ego_graphs(net_of(edges, 60), np.arange(60), Ego(hops=3, fan_out=None, max_nodes=60))
    steps = [distances(edges, 60, centre) for centre in range(60)]
    for most in (1, 2, 9, 25):
        graphs = ego_graphs(net_of(edges, 60), np.arange(60), Ego(hops=3, fan_out=None, max_nodes=most))
        for centre, away in enumerate(steps):
            nodes = nodes_of(graphs, centre)
            assert centre in nodes
            assert len(nodes) == min(most, len(nodes_of(full, centre)))
            left_out = set(nodes_of(full, centre)).difference(nodes)
            assert not left_out or away[nodes].max() <= min(away[node] for node in left_out)


@pytest.mark.parametrize(
    "ego", [Ego(), Ego(fan_out=3, max_nodes=9), Ego(hops=3, fan_out=2), Ego(fan_out=None, max_nodes=12)]
)
def test_a_graph_is_the_same_whatever_the_chunks_and_the_order(ego: Ego) -> None:
    net = net_of(random_edges(40, 200), 40)
    whole = ego_graphs(net, np.arange(40), ego)
    for chunk in (1, 7, 1000):
        assert_equal(ego_graphs(net, np.arange(40), ego, chunk), whole)
    order = np.random.default_rng(1).permutation(40)[:20]
    some = ego_graphs(net, order, ego, 8)
    assert_equal(some, joined([ego_graphs(net, np.array([each]), ego) for each in order]))
    for graph, centre in enumerate(order):
        assert nodes_of(some, graph) == nodes_of(whole, int(centre))


def test_the_draws_are_uniform() -> None:
    """Check that each of 50 leaves is drawn for a fifth of the seeds, to five standard errors, at each of two hubs."""
    net = net_of([(hub, leaf) for hub in (0, 1) for leaf in range(2, 52)], 52)
    drawn, differ, seeds = np.zeros(52), 0, 250
    for seed in range(seeds):
        first, other = (ego_graphs(net, np.array([hub]), Ego(hops=1, fan_out=10, seed=seed)).nodes for hub in (0, 1))
        drawn[first] += 1
        differ += not np.array_equal(first[first > 1], other[other > 1])
    assert np.abs(drawn[2:] / seeds - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / seeds)
    assert differ > 0.99 * seeds


def test_no_centre_and_no_link() -> None:
    graphs = ego_graphs(net_of(random_edges(9, 9), 9), np.zeros(0, np.int64), Ego())
    assert graphs.node_offsets.tolist() == graphs.edge_offsets.tolist() == [0]
    assert graphs.edges.shape == (0, 2)
    alone = ego_graphs(net_of([], 3), np.array([1]), Ego())
    assert nodes_of(alone, 0) == [1]
    assert edges_of(alone, 0) == {}
