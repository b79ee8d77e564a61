"""Terms become tasks by the criterion of the config, and annotations determine related terms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import sparse

from metapt.domains.ppi.data.sections import Tasks
from metapt.domains.ppi.data.task_relations import related
from metapt.domains.ppi.data.terms import depth, select
from metapt.errors import ConfigError

TEST = np.arange(10) >= 6  # four proteins of the test species


def matrix(*columns: ArrayLike, proteins: int = 10) -> sparse.csc_array:
    """Return a matrix of terms, each given by the numbers of the proteins that carry it."""
    labels = np.zeros((proteins, len(columns)), np.uint8)
    for term, carriers in enumerate(columns):
        labels[np.asarray(carriers, int), term] = 1
    return sparse.csc_array(labels)


def test_enough_proteins_carry_a_term_in_training_and_in_test() -> None:
    labels = matrix([0, 1, 6, 7], [0, 1, 2, 3, 6], [0, 6, 7, 8], [0, 1, 2, 6, 7], [], range(10))
    chosen = select(labels, TEST, Tasks(fine=1, min_proteins=2))
    assert (chosen.carried, chosen.frequent, chosen.distinct) == (5, 3, 3)
    assert chosen.fine.tolist() == [0]
    assert chosen.coarse.tolist() == [3, 5]
    assert select(labels, TEST, Tasks(fine=1, min_proteins=1)).frequent == 5


def test_equal_terms_count_once() -> None:
    labels = matrix([0, 6], range(10), [0, 6], [0, 7], range(10), [6, 0], [1, 8])
    chosen = select(labels, TEST, Tasks(fine=2, min_proteins=1))
    assert (chosen.frequent, chosen.distinct) == (7, 4)
    assert sorted([*chosen.fine, *chosen.coarse]) == [0, 1, 3, 6]


@pytest.mark.parametrize("by", ["depth", "frequency"])
def test_no_fine_term_equals_a_coarse_one(by: str) -> None:
    random = np.random.default_rng(0)
    labels = sparse.csc_array((random.random((10, 60)) < 0.4)[:, random.integers(0, 60, 200)].astype(np.uint8))
    chosen = select(labels, TEST, Tasks.model_validate({"fine": 10, "min_proteins": 1, "by": by}))
    dense = labels.toarray()
    columns = [dense[:, term].tobytes() for term in [*chosen.fine, *chosen.coarse]]
    assert len(set(columns)) == len(columns) == chosen.distinct
    assert len(chosen.fine) == 10


def test_fine_by_frequency_or_by_depth_and_the_most_frequent_coarse_terms() -> None:
    #        a chain of three                       a rare one without ancestors    another common one
    labels = matrix(range(10), range(8), range(1, 8), [8, 0], [2, 3, 4, 5, 6, 9], [9, 1, 8])
    rare = select(labels, TEST, Tasks(fine=2, min_proteins=1, by="frequency"))
    assert rare.fine.tolist() == [3, 5]
    deep = select(labels, TEST, Tasks(fine=1, min_proteins=1, by="depth"))
    assert deep.fine.tolist() == [2]
    assert deep.depths.tolist() == [2]
    assert deep.coarse.tolist() == [0, 1, 3, 4, 5]
    few = select(labels, TEST, Tasks(fine=1, coarse=2, min_proteins=1, by="depth"))
    assert few.coarse.tolist() == [0, 1]


def test_too_few_terms() -> None:
    with pytest.raises(
        ConfigError, match=r"^1 different Gene Ontology terms .* at least 2 proteins .* too few for 1 fine tasks"
    ):
        select(matrix(range(10), range(10), [0]), TEST, Tasks(fine=1, min_proteins=2))
    with pytest.raises(ConfigError, match=r"^0 different .* lower ppi\.string\.tasks\.fine"):
        select(matrix([0]), TEST, Tasks())


def test_depth_against_a_naive_recursion() -> None:
    random = np.random.default_rng(3)
    dense = np.unique(random.random((12, 80)) < random.random(80) ** 2, axis=1)
    dense = dense[:, dense.any(axis=0)]
    sets = [frozenset(np.flatnonzero(column)) for column in dense.T]

    def naive(term: frozenset[int]) -> int:
        return max((naive(other) + 1 for other in sets if term < other), default=0)

    assert depth(sparse.csc_array(dense.astype(np.uint8))).tolist() == [naive(term) for term in sets]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool])
def test_related_terms(dtype: type) -> None:
    """Use 300 graphs, of which 100 carry the fine term."""
    fine = np.zeros((300, 2), dtype)
    fine[:100, 0] = 1
    coarse = np.zeros((300, 6), dtype)
    coarse[:100, 0] = 1  # the same graphs
    coarse[:149, 1] = 1  # a container, just below half
    coarse[:150, 2] = 1  # half of all graphs
    coarse[1:120, 3] = 1  # 99 %
    coarse[2:120, 4] = 1  # 98 %
    assert related(coarse, fine)[:, 0].tolist() == [True, True, False, True, False, False]
    assert not related(coarse, fine)[:, 1].any()  # no graph carries it
