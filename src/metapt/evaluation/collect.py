"""Collect the experiments of all domains into a table of metrics, a table of claims and the headline table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from metapt.evaluation import metrics
from metapt.evaluation.comparisons import COLUMNS, counts
from metapt.evaluation.statistics import summarise
from metapt.evaluation.tables import NOTHING, beside_paper, markdown, ours_and_papers, paper_numbers, read_texts
from metapt.files import atomic_path
from metapt.machine import Machine
from metapt.sections import CollectSettings

SHOWN = ["experiment", "claim", "measured", "criterion", "paper", "verdict"]
"""Columns of the claims in the headline table."""


def run(settings: CollectSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the tables of all metrics and claims and the headline table. Raises DataError if an input is no such table.

    Args:
        settings: the experiments.
        inputs: `{experiment}/metrics` and `{experiment}/claims` of each experiment.
        outputs: `metrics`, `claims`; `headline`: Markdown with the paper's numbers beside ours, and the verdicts.
        machine: not used.
    """
    experiments = settings.experiments
    table = metrics.read([inputs[f"{experiment}/metrics"] for experiment in experiments])
    metrics.write(table, outputs["metrics"])
    comparable = table[~table["experiment"].isin(settings.stand_ins)]
    numbers = ours_and_papers(beside_paper(summarise(comparable), paper_numbers()))
    parts = [read_texts(inputs[f"{experiment}/claims"], COLUMNS, "claims") for experiment in experiments]
    claims = pd.concat(parts, ignore_index=True)
    with atomic_path(outputs["claims"]) as path:
        claims.to_csv(path, index=False)
    caption = "The paper's numbers beside ours (mean ± standard error)"
    beside = _markdown(numbers[numbers["paper"] != NOTHING], caption, right=("n", "ours", "paper"))
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts(claims["verdict"]).items())
    caption = f"Claims, and what these runs say about them{f' ({found})' if found else ''}"
    with atomic_path(outputs["headline"]) as path:
        path.write_text(f"{beside}\n{_markdown(claims[SHOWN], caption)}", encoding="utf-8")


def _markdown(table: pd.DataFrame, caption: str, right: tuple[str, ...] = ()) -> str:
    if table.empty:
        return f"{caption}: none.\n"
    return markdown(table.map(str), caption, {str(column): column in right for column in table.columns})
