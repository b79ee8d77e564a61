"""How tasks relate by their labels: PT tasks that FT tasks imply, and groups of PT tasks with alike labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metapt.errors import DataError

IMPLIED = 99  # least percentage of the graphs with a fine term that carry a related coarse term
COMMON = 50  # percentage of all graphs from which on a coarse term is not informative
_CHUNK = 4096  # graphs whose labels are floats at a time; all of them would not fit in memory


def related(coarse_labels: NDArray[Any], fine_labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which coarse terms may be informative ancestors of fine terms: [coarse tasks, fine tasks].

    A coarse term is related to a fine one if at least 99 % of the graphs with the fine term carry it, and less than
    half of all graphs do. Labels are [graphs, tasks] of 0 and 1. A fine term that no graph carries has no related term.
    """
    both = _together(coarse_labels, fine_labels)
    with_fine, with_coarse = (np.asarray(labels).sum(axis=0, dtype=np.int64) for labels in (fine_labels, coarse_labels))
    says_something = 100 * with_coarse < COMMON * len(coarse_labels)
    result: NDArray[np.bool_] = (100 * both >= IMPLIED * with_fine) & (with_fine > 0) & says_something[:, None]
    return result


def task_groups(labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the group, from 0 to count - 1, of each task, given labels [graphs, tasks] of 0 and 1.

    Tasks are joined bottom up by Ward's criterion (Ward, JASA 1963) on the labels of each task, scaled to mean 0 and
    norm 1: their squared distance is 2 (1 - correlation). A task whose labels are all equal correlates with none.
    Groups are numbered by their first task. Raises DataError if there are fewer tasks than groups.
    """
    if labels.shape[1] < count:
        raise DataError(
            f"{labels.shape[1]} PT tasks don't make {count} groups; give fewer groups (or `group_weights`), or prepare "
            "more PT tasks."
        )
    from scipy.cluster.hierarchy import cut_tree, ward  # here, since few PT jobs need it

    distances = np.sqrt(2 * (1 - _correlations(labels)).clip(min=0))
    above = np.triu_indices(len(distances), 1)
    found = cut_tree(ward(distances[above]), count)[:, 0]
    _, first = np.unique(found, return_index=True)
    numbers: NDArray[np.int64] = np.argsort(np.argsort(first))[found]
    return numbers


def _correlations(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return the correlations [tasks, tasks] of labels [graphs, tasks]; 0 with a task that has no variance."""
    mean = labels.mean(0, dtype=np.float64)
    covariances = _together(labels, labels) / len(labels) - np.outer(mean, mean)
    deviations = np.sqrt(np.diag(covariances).clip(min=0))
    scale = np.outer(deviations, deviations)
    return np.divide(covariances, scale, out=np.zeros_like(covariances), where=scale > 1e-12)


def _together(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """Return the number of graphs that carry both, [first tasks, second tasks], of labels [graphs, tasks]."""
    both = np.zeros((first.shape[1], second.shape[1]))
    for start in range(0, len(first), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        both += first[chunk].T.astype(np.float32) @ second[chunk].astype(np.float32)
    return both
