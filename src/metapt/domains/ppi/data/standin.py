"""Random protein graphs as many and as large as a source's, for `metapt estimate` where the source is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metapt.domains.ppi.data.graphs import EVIDENCE, Graphs, pack, save
from metapt.machine import Machine

MOST = 8000  # graphs of the stand-in; a source that has more takes as many times longer to read
PROTEINS = {511145: 2700, 224308: 2000}
"""With links and terms, about, of STRING's bacteria; other species are taken to have 14,000."""
_FILE_BYTES = 30e6
_OTHER = 1  # a species that is in no test set


def size(config: dict[str, Any]) -> dict[str, float]:
    """Return bytes of the raw files, CPU seconds of their preparation, and the share of them that is made here."""
    shape = _shape(config)
    species = len(config["string"]["species"]) if config["string"] else 0
    share = min(1.0, MOST / shape["graphs"])
    return {"raw_bytes": 2 * species * _FILE_BYTES or 2e9, "prepare_seconds": shape["graphs"] / 1000, "share": share}


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the prepared files: graphs whose sizes lie within a quarter of the mean, with random edges and labels."""
    shape, random = _shape(config), np.random.default_rng(0)
    count, mean = int(min(MOST, shape["graphs"])), shape["nodes"]
    nodes = np.maximum(2, random.integers(round(0.75 * mean), round(1.25 * mean) + 1, count))
    graph = np.repeat(np.arange(count), np.maximum(1, np.round(shape["edges"] * (nodes / mean) ** 2)).astype(np.int64))
    ends = random.integers(0, nodes[graph])
    others = (ends + random.integers(1, nodes[graph])) % nodes[graph]
    tested = np.arange(count) < shape["tested"] * count
    coarse, fine = (random.random((count, int(shape[kind]))) < p for kind, p in (("coarse", 0.1), ("fine", 0.3)))
    implied = min(coarse.shape[1], fine.shape[1])
    coarse[:, :implied] |= fine[:, :implied]  # an arm uses the PT tasks that FT tasks imply
    graphs = Graphs(
        node_offsets=np.concatenate([[0], np.cumsum(nodes)]),
        edge_offsets=np.concatenate([[0], np.cumsum(np.bincount(graph, minlength=count))]),
        edges=np.stack([np.minimum(ends, others), np.maximum(ends, others)], 1).astype(np.uint16),
        bits=random.integers(1, 2**EVIDENCE, len(graph)).astype(np.uint8),
        centre=random.integers(0, nodes).astype(np.uint16),
        species=np.where(tested, config["test_species"][0], _OTHER).astype(np.int32),
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


def _shape(config: dict[str, Any]) -> dict[str, float]:
    """Return numbers of graphs, their nodes and edges, PT and FT tasks, and the share of graphs of the test species.

    Of STRING's bacteria, ego graphs fill 0.6 of the nodes that are allowed, and 0.4 of all pairs of nodes are linked.
    """
    if config["source"] == "hu2020":
        return {"graphs": 88e3, "tested": 0.125, "nodes": 40, "edges": 350, "coarse": 5000, "fine": 40}
    string = config["string"]
    graphs = {taxon: PROTEINS.get(taxon, 14_000) for taxon in string["species"]}
    total, nodes = sum(graphs.values()), max(2, round(0.6 * string["ego"]["max_nodes"]))
    tasks = 200 * len(graphs)
    return {
        "graphs": total,
        "tested": sum(graphs[taxon] for taxon in config["test_species"]) / total,
        "nodes": nodes,
        "edges": 0.2 * nodes * (nodes - 1),
        "coarse": min(tasks, string["tasks"]["coarse"] or tasks),
        "fine": string["tasks"]["fine"],
    }
