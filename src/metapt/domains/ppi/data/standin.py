"""Random protein graphs as many and as large as a source's, for `metapt estimate` where the source is not there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metapt.domains.ppi.data.graphs import EVIDENCE, Graphs, pack, save
from metapt.domains.ppi.stages import PpiPrepareSettings
from metapt.engine.jobs import RawData
from metapt.machine import Machine

MOST = 8000  # graphs of the stand-in; a source that has more takes as many times longer to read
PROTEINS = {511145: 2700, 224308: 2000}
"""With links and terms, about, of STRING's bacteria; other species are taken to have 14,000."""
_FILE_BYTES = 30e6
_OTHER = 1  # a species that is in no test set


@dataclass(frozen=True)
class _Shape:
    graphs: int
    tested: float  # share of the graphs that are of the test species
    nodes: int  # of a graph, on average
    edges: float  # likewise
    coarse: int  # PT tasks
    fine: int  # FT tasks


def raw_data(settings: PpiPrepareSettings) -> RawData:
    """Return what `run` stands for."""
    graphs = _shape(settings).graphs
    size = 2e9 if settings.string is None else 2 * len(settings.string.species) * _FILE_BYTES
    return RawData(size, seconds=graphs / 1000, share=min(1.0, MOST / graphs))


def run(settings: PpiPrepareSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the prepared files: graphs whose sizes lie within a quarter of the mean, with random edges and labels."""
    shape, random = _shape(settings), np.random.default_rng(0)
    count, mean = min(MOST, shape.graphs), shape.nodes
    nodes = np.maximum(2, random.integers(round(0.75 * mean), round(1.25 * mean) + 1, count))
    graph = np.repeat(np.arange(count), np.maximum(1, np.round(shape.edges * (nodes / mean) ** 2)).astype(np.int64))
    ends = random.integers(0, nodes[graph])
    others = (ends + random.integers(1, nodes[graph])) % nodes[graph]
    tested = np.arange(count) < shape.tested * count
    coarse, fine = random.random((count, shape.coarse)) < 0.1, random.random((count, shape.fine)) < 0.3
    implied = min(coarse.shape[1], fine.shape[1])
    coarse[:, :implied] |= fine[:, :implied]  # an arm uses the PT tasks that FT tasks imply
    graphs = Graphs(
        node_offsets=np.concatenate([[0], np.cumsum(nodes)]),
        edge_offsets=np.concatenate([[0], np.cumsum(np.bincount(graph, minlength=count))]),
        edges=np.stack([np.minimum(ends, others), np.maximum(ends, others)], 1).astype(np.uint16),
        bits=random.integers(1, 2**EVIDENCE, len(graph)).astype(np.uint8),
        centre=random.integers(0, nodes).astype(np.uint16),
        species=np.where(tested, settings.test_species[0], _OTHER).astype(np.int32),
        coarse=pack(coarse),
        fine=pack(fine),
        tasks=np.array([coarse.shape[1], fine.shape[1]]),
    )
    save(graphs, outputs["graphs"])
    kinds = {"coarse": coarse.shape[1], "fine": fine.shape[1]}
    rows = [f"{kind},{task},,,,1\n" for kind, number in kinds.items() for task in range(number)]
    head = "kind,task,term,category,description,positives\n"
    outputs["tasks"].write_text(head + "".join(rows), encoding="utf-8")
    outputs["counts"].write_text("name,value\n", encoding="utf-8")


def _shape(settings: PpiPrepareSettings) -> _Shape:
    """Return numbers and sizes of the real graphs.

    Of STRING's bacteria, ego graphs fill 0.6 of the nodes that are allowed, and 0.4 of all pairs of nodes are linked.
    """
    string = settings.string
    if string is None:
        return _Shape(graphs=88_000, tested=0.125, nodes=40, edges=350, coarse=5000, fine=40)
    graphs = {taxon: PROTEINS.get(taxon, 14_000) for taxon in string.species}
    total, nodes = sum(graphs.values()), max(2, round(0.6 * string.ego.max_nodes))
    tasks = 200 * len(graphs)
    return _Shape(
        graphs=total,
        tested=sum(graphs[taxon] for taxon in settings.test_species) / total,
        nodes=nodes,
        edges=0.2 * nodes * (nodes - 1),
        coarse=min(tasks, string.tasks.coarse or tasks),
        fine=string.tasks.fine,
    )
