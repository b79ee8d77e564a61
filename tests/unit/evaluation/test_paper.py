"""The paper's numbers, and the join with ours."""

import numpy as np

from metapt.evaluation import metrics
from metapt.evaluation.metrics import CELL, row
from metapt.evaluation.paper import beside_paper, paper_numbers
from metapt.evaluation.statistics import summarise
from metapt.evaluation.tables import NOTHING, ours_and_papers

TEN = "10 initialisations in [45,135], target 90"


def test_a_number_stands_once_and_every_one_is_a_number():
    numbers = paper_numbers()
    assert len(numbers) > 100
    assert not numbers.duplicated(CELL).any()
    assert np.isfinite(numbers["paper_mean"]).all()
    assert {"mnist_rotation_mean", "mnist_rotation_mean_std", "mnist_example_weighting", "mnist_bptt"} <= set(
        numbers["experiment"]
    )


def test_ours_stand_beside_the_papers_numbers_of_the_same_names():
    rows = [
        row("mnist_rotation_mean", "meta", "absolute error of learned mean (degrees)", v, replicate=v, setting=TEN)
        for v in (3, 5)
    ]
    rows += [row("mnist_bptt", arm, "FT test accuracy (%)", 87.0) for arm in ("bptt", "meta", "meta-k5")]
    ratio, auroc = "ratio of mean weight clean/noisy", "mean test AUROC over 5 classes (%)"
    rows += [row("mnist_example_weighting", "meta", ratio, 240.0, setting="10 initialisations")]
    rows += [row("ecg_full_access", "simclr", auroc, 80.0, setting="ft_size=500", evaluation="full_transfer")]
    summary = summarise(metrics.validate(rows))
    joined = beside_paper(summary, paper_numbers())
    assert joined[summary.columns.tolist()].equals(summary)
    np.testing.assert_equal(joined["paper_mean"].tolist(), [7.2, 88.0, 87.6, np.nan, 100.0, 79.8])
    np.testing.assert_equal(joined["paper_standard_error"].tolist(), [1.5, np.nan, np.nan, np.nan, np.nan, 0.3])
    assert joined["paper_note"].tolist()[3:5] == ["", "lower bound: greater than 1e2"]
    shown = ours_and_papers(joined)
    assert shown["ours"].tolist()[:2] == ["4.0 ± 1.0", "87.00"]
    assert shown["paper"].tolist() == ["7.2 ± 1.5", "88", "87.6", NOTHING, "100", "79.8 ± 0.3"]
    one = ours_and_papers(joined[joined["experiment"] == "mnist_bptt"])
    assert one.columns.tolist() == ["arm", "metric", "n", "ours", "paper", "note"], "what is empty is left out"
