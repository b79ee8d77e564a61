"""The AUROC is that of scikit-learn, for any scores, with ties, and over classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from metapt.errors import DataError
from metapt.twostage.auroc import auroc, defined_classes, mean_auroc, undefined_classes


def tensor(*values: float) -> Tensor:
    return torch.tensor(values)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=40))
def test_is_that_of_scikit_learn_also_with_ties(examples: list[tuple[int, bool]]) -> None:
    scores = torch.tensor([float(score) for score, _ in examples])
    labels = torch.tensor([label for _, label in examples])
    if labels.all() or not labels.any():
        assert auroc(scores, labels).isnan()
    else:
        assert float(auroc(scores, labels)) == pytest.approx(roc_auc_score(labels, scores), abs=1e-14)


def test_each_row_of_leading_dimensions_is_on_its_own_and_labels_are_broadcast() -> None:
    scores = torch.randn(3, 2, 500, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    labels = (torch.rand(2, 500, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    result = auroc(scores, labels)
    assert result.shape == (3, 2)
    assert result.dtype == torch.float64
    expected = [[roc_auc_score(*pair) for pair in zip(labels, part, strict=True)] for part in scores]
    assert result.numpy() == pytest.approx(np.array(expected), abs=1e-14)
    torch.testing.assert_close(auroc(scores[0, 0], labels), torch.stack([auroc(scores[0, 0], row) for row in labels]))


def test_the_mean_leaves_out_classes_with_one_label_only() -> None:
    scores = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(0))
    labels = (torch.rand(30, 4, generator=torch.Generator().manual_seed(1)) < 0.5).float()
    labels[:, 1], labels[:, 3] = 0.0, 1.0
    assert undefined_classes(labels) == (1, 3)
    assert defined_classes(labels).tolist() == [0, 2]
    value = mean_auroc(scores, labels)
    expected = [(roc_auc_score(labels[:, 0], one[:, 0]) + roc_auc_score(labels[:, 2], one[:, 2])) / 2 for one in scores]
    torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64))
    with pytest.raises(DataError, match="no AUROC is defined on these 30 examples"):
        mean_auroc(scores, torch.ones(30, 4))
    assert torch.equal(mean_auroc(scores, labels, defined_classes(labels)), value)


def test_infinite_scores_have_ranks_and_nan_is_not_taken_for_a_class_without_both_labels() -> None:
    assert float(auroc(tensor(-torch.inf, 0, torch.inf, torch.inf), tensor(0, 0, 1, 1))) == 1.0
    labels = tensor(0, 0, 1, 1).unsqueeze(1).expand(4, 2)
    for diverged in (torch.full((4, 2), torch.nan), torch.stack([tensor(1, 2, 3, 4), tensor(1, torch.nan, 3, 4)], 1)):
        assert undefined_classes(labels) == ()
        assert mean_auroc(diverged, labels).isnan()
