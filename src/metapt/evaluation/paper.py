"""The numbers of the paper (Raghu et al., "Meta-Learning to Improve Pre-Training", NeurIPS 2021)."""

from __future__ import annotations

from importlib import resources

import pandas as pd

from metapt.evaluation.metrics import CELL


def paper_numbers() -> pd.DataFrame:
    """Return a table with a row for each number of the paper.

    Columns: experiment, arm, setting, evaluation, metric, paper_mean, paper_standard_error, paper_note, source (the
    place in the paper). Means and standard errors are in the unit of the metric; the error is NaN if the paper gives
    none.

    >>> numbers = paper_numbers().set_index("experiment")
    >>> numbers.loc[["mnist_rotation_mean"], ["arm", "paper_mean", "paper_standard_error"]].values.tolist()
    [['meta', 7.2, 1.5]]
    """
    file = resources.files("metapt.evaluation") / "paper_numbers.csv"
    with file.open(encoding="utf-8") as stream:
        numbers = pd.read_csv(stream, dtype=str, keep_default_na=False)
    numbers = numbers.rename(
        columns={"method": "arm", "mean": "paper_mean", "standard_error": "paper_standard_error", "note": "paper_note"}
    )
    for column in ("paper_mean", "paper_standard_error"):
        numbers[column] = [float(text) if text else float("nan") for text in numbers[column]]
    return numbers[[*CELL, "paper_mean", "paper_standard_error", "paper_note", "source"]]


def beside_paper(summary: pd.DataFrame, papers: pd.DataFrame) -> pd.DataFrame:
    """Return `summary` (of `statistics.summarise`) with paper_mean, paper_standard_error and paper_note of `papers`.

    The join is on experiment, arm, setting, evaluation and metric; all rows of `summary` stay, in their order. If the
    paper has no such number, paper_mean and paper_standard_error are NaN and paper_note is "".
    """
    joined = summary.merge(papers.drop(columns="source"), how="left", on=CELL, validate="many_to_one")
    return joined.assign(paper_note=joined["paper_note"].fillna(""))
