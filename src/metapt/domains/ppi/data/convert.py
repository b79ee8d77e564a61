"""Convert the protein graphs of Hu et al. to a dataset that current torch-geometric opens.

python -m metapt.domains.ppi.data.convert IN OUT
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from metapt.domains.ppi.data.archive import MEMBER, read_archive
from metapt.domains.ppi.data.graphs import EVIDENCE, Graphs, save, unpack
from metapt.errors import MetaptError
from metapt.files import atomic_path

_EDGE_COLUMNS = EVIDENCE + 2  # the others are self loop and mask
_LABELS = 512  # graphs whose labels are unpacked at once

_HELP = f"""\
Convert the archive of Hu et al. (2020), written by torch 1.0 and torch-geometric 1.0, for today's versions.

IN is bio_dataset.zip (http://snap.stanford.edu/gnn-pretrain/data/bio_dataset.zip), or its member
{MEMBER} alone. No code in it is run.

OUT becomes a folder with
  processed/data.pt   what torch_geometric.data.InMemoryDataset.save writes: per graph x [nodes, 1],
                      edge_index [2, edges] and edge_attr [edges, 9] (each edge twice in a row, (i, j) and (j, i)),
                      species_id [1], center_node_idx [1], go_target_pretrain [coarse tasks],
                      go_target_downstream [fine tasks]
  graphs.npz          the same in a few flat arrays, for NumPy: see metapt.domains.ppi.data.graphs
"""
_EXAMPLE = """\
To open the dataset:

    from metapt.domains.ppi.data.convert import BioDataset
    from torch_geometric.loader import DataLoader
    loader = DataLoader(BioDataset("OUT"), batch_size=32, shuffle=True)

or without metapt, with a copy of the two short classes ProteinGraph and BioDataset of
src/metapt/domains/ppi/data/convert.py. A plain Data in the place of ProteinGraph gives wrong batches: torch-geometric
does not know that center_node_idx counts nodes.
"""


class ProteinGraph(Data):  # type: ignore[misc]
    """A graph around a centre node. Batching offsets `center_node_idx` like `edge_index`."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return self.num_nodes if key == "center_node_idx" else super().__inc__(key, value, *args, **kwargs)


class BioDataset(InMemoryDataset):  # type: ignore[misc]
    """The labelled graphs of Hu et al. (2020), from `root`/processed/data.pt as this module writes it.

    As in their dataset, a batch of B graphs has labels [B * tasks]; reshape them with
    `batch.go_target_downstream.view(batch.num_graphs, -1)`.
    """

    def __init__(self, root: str | Path, transform: Callable[[Data], Data] | None = None) -> None:
        super().__init__(str(root), transform)
        self.load(self.processed_paths[0])
        self.data = ProteinGraph.from_dict(self._data.to_dict())

    @property
    def processed_file_names(self) -> str:
        return "data.pt"


def tensors(graphs: Graphs) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the graphs as torch-geometric's `InMemoryDataset` stores them: tensors, and where graphs begin in them."""
    edge_index = np.empty((2, len(graphs.edges), 2), np.int64)  # pairs (i, j), (j, i)
    edge_index[0], edge_index[1] = graphs.edges, graphs.edges[:, ::-1]
    edge_attr = np.zeros((len(graphs.bits), 2, _EDGE_COLUMNS), np.float32)
    for channel in range(EVIDENCE):
        edge_attr[:, :, channel] = (graphs.bits >> channel & 1)[:, None]
    coarse, fine = (int(tasks) for tasks in graphs.tasks)
    data = {
        "x": torch.ones(int(graphs.node_offsets[-1]), 1),
        "edge_index": torch.from_numpy(edge_index.reshape(2, -1)),
        "edge_attr": torch.from_numpy(edge_attr.reshape(-1, _EDGE_COLUMNS)),
        "species_id": torch.from_numpy(graphs.species.astype(np.int64)),
        "center_node_idx": torch.from_numpy(graphs.centre.astype(np.int64)),
        "go_target_pretrain": _flat_labels(graphs.coarse, coarse),
        "go_target_downstream": _flat_labels(graphs.fine, fine),
    }
    each, edges = torch.arange(len(graphs) + 1), torch.from_numpy(2 * graphs.edge_offsets)
    slices = {
        "x": torch.from_numpy(graphs.node_offsets),
        "edge_index": edges,
        "edge_attr": edges,
        "species_id": each,
        "center_node_idx": each,
        "go_target_pretrain": coarse * each,
        "go_target_downstream": fine * each,
    }
    return data, slices


def _flat_labels(bits: np.ndarray[Any, np.dtype[np.uint8]], tasks: int) -> Tensor:
    labels = np.empty((len(bits), tasks), np.int64)
    for start in range(0, len(bits), _LABELS):
        labels[start : start + _LABELS] = unpack(bits[start : start + _LABELS], tasks)
    return torch.from_numpy(labels.reshape(-1))


def convert(source: Path, target: Path) -> Graphs:
    """Read the archive `source`, and write `target`/graphs.npz and `target`/processed/data.pt.

    The same archive gives the same bytes. Raises DataError as `read_archive`.
    """
    graphs = read_archive(source)
    print(f"{len(graphs):,} graphs are read and checked; writing {target}", file=sys.stderr, flush=True)
    save(graphs, target / "graphs.npz")
    data, slices = tensors(graphs)
    needs = sum(tensor.nbytes for tensor in (*data.values(), *slices.values()))
    # Through an open file, since torch writes a path's own name into the archive.
    with atomic_path(target / "processed" / "data.pt", needs) as temporary, temporary.open("wb") as file:
        torch.save((data, slices, Data), file)
    return graphs


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status; print an error as one sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m metapt.domains.ppi.data.convert",
        description=_HELP,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="IN", help="bio_dataset.zip, or the .pt file in it")
    replaced = "folder to write; what it has of the same names is replaced"
    parser.add_argument("target", type=Path, metavar="OUT", help=replaced)
    options = parser.parse_args(arguments)
    target: Path = options.target
    print(f"reading {options.source}", file=sys.stderr, flush=True)
    try:
        graphs = convert(options.source, target)
    except MetaptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    coarse, fine = (int(tasks) for tasks in graphs.tasks)
    print(
        f"Wrote {target / 'processed' / 'data.pt'} and {target / 'graphs.npz'}: {len(graphs):,} graphs of "
        f"{len(np.unique(graphs.species))} species with {int(graphs.node_offsets[-1]):,} nodes, {len(graphs.edges):,} "
        f"undirected edges, {coarse} coarse and {fine} fine tasks; "
        f'metapt.domains.ppi.data.convert.BioDataset("{target}") opens them.'
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
