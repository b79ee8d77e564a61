"""The choice of Gene Ontology terms as tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from metapt.domains.ppi.data.sections import Tasks
from metapt.errors import ConfigError


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
