"""Prepare protein graphs from any source: graphs with labels, names of tasks, and counts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from metapt.domains.ppi.data.archive import read_archive
from metapt.domains.ppi.data.ego import ego_graphs, joined, network
from metapt.domains.ppi.data.graphs import Graphs, pack, save, unpack
from metapt.domains.ppi.data.sections import ARCHIVE, String, Tasks, links_name, terms_name
from metapt.domains.ppi.data.string_files import Annotations, Links, read_links, read_terms
from metapt.domains.ppi.stages import PpiPrepareSettings
from metapt.errors import ConfigError
from metapt.files import write_csv
from metapt.machine import Machine

log = logging.getLogger(__name__)

TASKS = ("kind", "task", "term", "category", "description", "positives")

_CHUNK = 4096  # graphs whose labels are unpacked at once
_Counts = dict[str, int | float]
_Species = tuple[Links, Annotations]


def run(settings: PpiPrepareSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Convert the raw files to the prepared form; the same raw files give the same bytes.

    The inputs are named by `metapt.domains.ppi.jobs.raw_names`. The outputs are `graphs`, see
    `metapt.domains.ppi.data.graphs`; `tasks`, a CSV file of `TASKS`, where `task` numbers the tasks of a kind
    (coarse, fine) and `positives` counts the graphs with a label of 1; and `counts`, a CSV file of name and value.
    Raises DataError if a file is missing, cut, altered or malformed, and ConfigError if the archive lacks a test
    species or has no other species, or too few terms are left.
    """
    test_species = settings.test_species
    terms: pd.DataFrame | None = None
    counts = _Counts()
    if settings.string is None:
        graphs = read_archive(inputs[ARCHIVE])
        _check_species(np.unique(graphs.species).tolist(), test_species)
    else:
        graphs, terms, counts = _from_string(inputs, settings.string, test_species)
    counts |= _count(graphs)
    for name, value in counts.items():
        log.info("%s: %s", name, f"{value:,}" if isinstance(value, int) else f"{value:,.1f}")
    tasks = dict(zip(TASKS, zip(*_tasks(graphs, terms), strict=True), strict=True))
    save(graphs, outputs["graphs"])
    write_csv(tasks, outputs["tasks"])
    write_csv({"name": counts, "value": counts.values()}, outputs["counts"])


def _check_species(species: Sequence[int], test_species: Sequence[int]) -> None:
    if unknown := sorted(set(test_species).difference(species)):
        raise ConfigError(
            f"ppi.test_species is {', '.join(map(str, test_species))}, and the data have no species {unknown[0]}; "
            f"legal: {', '.join(map(str, species))}."
        )
    if set(species) <= set(test_species):
        raise ConfigError("ppi.test_species names all species that the data have: leave one to train on.")


def _from_string(
    inputs: dict[str, Path], string: String, test_species: Sequence[int]
) -> tuple[Graphs, pd.DataFrame, _Counts]:
    """Return the graphs, the terms (those of coarse tasks, then of fine tasks), and counts."""
    species, counts = list[_Species](), _Counts()
    for taxon in string.species:
        links = read_links(inputs[links_name(string, taxon)], taxon, string.min_score)
        annotations = read_terms(inputs[terms_name(string, taxon)], taxon, links.proteins)
        species.append((links, annotations))
        counts |= {
            f"links read, {taxon}": links.read,
            f"links that reach the score, {taxon}": links.kept,
            f"undirected edges, {taxon}": len(links.edges),
            f"proteins with links, {taxon}": len(links.proteins),
            f"proteins with terms, {taxon}": annotations.proteins,
            f"proteins with links and terms, {taxon}": len(np.unique(annotations.pairs[:, 0])),
        }
    terms, labels = _labels(species)
    taxa = np.repeat(string.species, [len(links.proteins) for links, _ in species])
    chosen = select(labels, np.isin(taxa, test_species), string.tasks)
    counts |= {
        "terms that a protein with links carries": chosen.carried,
        "terms that enough proteins carry": chosen.frequent,
        "of these, carried by different proteins": chosen.distinct,
        "least depth of a fine term": int(chosen.depths.min()),
        "greatest depth of a fine term": int(chosen.depths.max()),
    }
    both = np.concatenate([chosen.coarse, chosen.fine])
    carriers = np.flatnonzero(np.diff(sparse.csr_array(labels[:, both]).indptr))  # proteins that get a graph
    egos, start = [], 0
    for links, _ in species:
        size = len(links.proteins)
        centres = carriers[(carriers >= start) & (carriers < start + size)] - start
        egos.append(ego_graphs(network(size, links.edges, links.bits), centres, string.ego))
        start += size
    whole = joined(egos)
    graphs = Graphs(
        **{field.name: getattr(whole, field.name) for field in fields(whole) if field.name != "nodes"},
        species=taxa[carriers].astype(np.int32),
        coarse=_packed(labels[:, chosen.coarse], carriers),
        fine=_packed(labels[:, chosen.fine], carriers),
        tasks=np.array([len(chosen.coarse), len(chosen.fine)]),
    )
    return graphs, terms.iloc[both], counts


def _labels(species: Sequence[_Species]) -> tuple[pd.DataFrame, sparse.csc_array]:
    """Return all terms, sorted, and the matrix of their proteins: [proteins, terms], one species after the other."""
    terms = pd.concat([carried.terms for _, carried in species])
    # Descriptions may be empty in one species' file and not in another's.
    terms = terms.sort_values("description", ascending=False, kind="stable")
    terms = terms[~terms.index.duplicated()].sort_index()
    rows, columns, start = [], [], 0
    for links, carried in species:
        rows.append(carried.pairs[:, 0] + start)
        columns.append(terms.index.get_indexer(carried.terms.index)[carried.pairs[:, 1]])
        start += len(links.proteins)
    ones = np.ones(sum(map(len, rows)), np.uint8)
    return terms, sparse.csc_array((ones, (np.concatenate(rows), np.concatenate(columns))), shape=(start, len(terms)))


def _packed(labels: sparse.csc_array, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    by_row, starts = sparse.csr_array(labels), range(0, len(rows), _CHUNK)
    return np.concatenate([pack(by_row[rows[start : start + _CHUNK]].toarray().astype(bool)) for start in starts])


def _count(graphs: Graphs) -> _Counts:
    counts: _Counts = {"graphs": len(graphs)}
    for taxon, number in zip(*np.unique(graphs.species, return_counts=True), strict=True):
        counts[f"graphs, {taxon}"] = int(number)
    for what, offsets in (("nodes", graphs.node_offsets), ("undirected edges", graphs.edge_offsets)):
        counts[f"{what} per graph, mean"] = float(np.diff(offsets).mean())
        counts[f"{what} per graph, most"] = int(np.diff(offsets).max())
    return counts | dict(zip(("coarse tasks", "fine tasks"), map(int, graphs.tasks), strict=True))


def _tasks(graphs: Graphs, terms: pd.DataFrame | None) -> Iterator[tuple[object, ...]]:
    """Yield the rows of tasks.csv; an archive has no names of terms."""
    names = iter(terms.reset_index().to_numpy().tolist() if terms is not None else [])
    for kind, number in zip(("coarse", "fine"), map(int, graphs.tasks), strict=True):
        bits, positives = getattr(graphs, kind), np.zeros(number, np.int64)
        for start in range(0, len(graphs), _CHUNK):
            positives += unpack(bits[start : start + _CHUNK], number).sum(axis=0, dtype=np.int64)
        for task, count in enumerate(positives.tolist()):
            yield kind, task, *next(names, ("", "", "")), count


@dataclass(frozen=True, eq=False)
class Selection:
    """Terms that become tasks, both kinds in the terms' order."""

    coarse: NDArray[np.int64]  # [coarse tasks] numbers of terms
    fine: NDArray[np.int64]  # [fine tasks] numbers of terms
    carried: int  # number of terms that a protein carries
    frequent: int  # number of those that enough proteins of the training and of the test species carry
    distinct: int  # number of those that differ from each earlier one in a protein
    depths: NDArray[np.int64]  # [fine tasks] depths of the fine terms


def select(labels: sparse.csc_array, test: NDArray[np.bool_], tasks: Tasks) -> Selection:
    """Choose the terms that become fine and coarse tasks, from `labels` [proteins, terms] of 0 and 1 of all species.

    Terms with the same proteins count once, under the first one's name, so that no fine task equals a coarse one. Fine
    terms are the deepest, or the rarest. Of equally deep terms the rarest are chosen, of equally rare ones the first.
    `test` [proteins] says whether a protein belongs to a test species. Raises ConfigError if too few terms are left for
    `tasks.fine` and one coarse task.
    """
    counts = _sums(labels)
    in_test = _sums(labels[np.flatnonzero(test)])
    enough = (in_test >= tasks.min_proteins) & (counts - in_test >= tasks.min_proteins)
    frequent = np.flatnonzero(enough)
    distinct = frequent[_first_of_equals(labels[:, frequent])]
    if len(distinct) <= tasks.fine:
        raise ConfigError(
            f"{len(distinct)} different Gene Ontology terms are carried by at least {tasks.min_proteins} proteins of "
            f"the training and of the test species, too few for {tasks.fine} fine tasks and a coarse one: lower "
            "ppi.string.tasks.fine, ppi.string.tasks.min_proteins or ppi.string.min_score."
        )
    depths = depth(labels[:, distinct])
    rarity = counts[distinct]
    order = np.lexsort((rarity, -depths)) if tasks.by == "depth" else np.argsort(rarity, kind="stable")
    fine, others = np.sort(order[: tasks.fine]), order[tasks.fine :]
    coarse = np.sort(others[np.argsort(-rarity[others], kind="stable")][: tasks.coarse])
    return Selection(
        distinct[coarse], distinct[fine], int((counts > 0).sum()), len(frequent), len(distinct), depths[fine]
    )


def depth(labels: sparse.csc_array) -> NDArray[np.int64]:
    """Return the depth [terms] of each term: the length of the longest chain of terms that contain its proteins.

    In a chain, each term's set of proteins is strictly larger than that of the one before. Annotations are propagated
    to a term's ancestors in the ontology, whose sets of proteins therefore contain the term's. Each term in `labels`
    [proteins, terms] has a protein, and no two have the same proteins.
    """
    counts = _sums(labels)
    shared = sparse.csr_array(labels.T.astype(np.float64) @ labels.astype(np.float64))
    rows = np.repeat(np.arange(len(counts)), np.diff(shared.indptr))
    inside = (shared.data == counts[rows]) & (shared.indices != rows)
    containers = np.split(shared.indices[inside], np.cumsum(np.bincount(rows[inside], minlength=len(counts)))[:-1])
    depths = np.zeros(len(counts), np.int64)
    for term in np.argsort(-counts, kind="stable"):
        if len(containers[term]):
            depths[term] = depths[containers[term]].max() + 1
    return depths


def _first_of_equals(labels: sparse.csc_array) -> NDArray[np.int64]:
    """Return the numbers of the columns that equal no earlier one."""
    columns = labels.sorted_indices()
    first: dict[bytes, int] = {}
    for number, (start, end) in enumerate(zip(columns.indptr[:-1], columns.indptr[1:], strict=True)):
        first.setdefault(columns.indices[start:end].tobytes(), number)
    return np.array(list(first.values()), np.int64)


def _sums(labels: sparse.csc_array) -> NDArray[np.int64]:
    return np.asarray(labels.sum(axis=0, dtype=np.int64)).ravel()
