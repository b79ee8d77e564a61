"""Collect the experiments of all domains into a table of metrics, a table of claims, and one page of all tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from metapt.evaluation import metrics
from metapt.evaluation.comparisons import COLUMNS, counts
from metapt.evaluation.tables import markdown, read_texts
from metapt.files import atomic_path, reading

SHOWN = ["experiment", "claim", "measured", "criterion", "paper", "verdict"]
"""Columns of the claims in the headline."""


def write(experiments: Sequence[str], inputs: Mapping[str, Path], outputs: Mapping[str, Path]) -> None:
    """Write the tables of all metrics and claims, and the headline. Raises DataError if an input is no such table.

    Args:
        experiments: their names, such as `mnist_bptt`, in the order of the tables.
        inputs: `{experiment}/metrics`, `{experiment}/claims` and `{experiment}/table_md` of each experiment.
        outputs: `metrics`, `claims`; `headline`: Markdown with all claims, then the tables of each experiment.
    """
    metrics.write(metrics.read([inputs[f"{experiment}/metrics"] for experiment in experiments]), outputs["metrics"])
    parts = [read_texts(inputs[f"{experiment}/claims"], COLUMNS, "claims") for experiment in experiments]
    claims = pd.concat(parts, ignore_index=True)
    with atomic_path(outputs["claims"]) as path:
        claims.to_csv(path, index=False)
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts(claims["verdict"]).items()) or "none"
    caption = f"Claims, and what these runs say about them ({found})"
    blocks = [markdown(claims[SHOWN].map(str), caption, dict.fromkeys(SHOWN, False))]
    blocks += [f"## {name}\n\n{content(inputs[f'{name}/table_md']).decode()}" for name in experiments]
    with atomic_path(outputs["headline"]) as path:
        path.write_text("\n".join(blocks), encoding="utf-8")


def content(path: Path) -> bytes:
    """Return what a file of an experiment holds. Raises DataError if it can't be read."""
    with reading(path, "run snakemake again") as file:
        return file.read()
