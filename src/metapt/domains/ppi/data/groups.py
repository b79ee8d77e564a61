"""Groups of PT tasks with alike labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metapt.errors import DataError

_CHUNK = 4096  # graphs whose labels are floats at a time


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
    both = np.zeros((labels.shape[1], labels.shape[1]))
    for start in range(0, len(labels), _CHUNK):
        chunk = labels[start : start + _CHUNK].astype(np.float32)
        both += chunk.T @ chunk
    mean = labels.mean(0, dtype=np.float64)
    covariances = both / len(labels) - np.outer(mean, mean)
    deviations = np.sqrt(np.diag(covariances).clip(min=0))
    scale = np.outer(deviations, deviations)
    return np.divide(covariances, scale, out=np.zeros_like(covariances), where=scale > 1e-12)
