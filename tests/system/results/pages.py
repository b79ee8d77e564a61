"""The pages of docs/results, and what several tests of them read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import wilcoxon

from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
FT, LINEAR = "full_transfer", "linear_evaluation"


def text_of(page: str) -> str:
    """Return the text of a page in one line, with single spaces."""
    return " ".join((RESULTS / page).read_text(encoding="utf-8").split())


def answers_of_the_summary(question: str) -> list[str]:
    """Return the answers on the summary page for MNIST, ECGs and protein graphs; an empty text where there is none."""
    _, section = (RESULTS / "README.md").read_text().split(f"### {question}\n")
    text = " ".join(section.partition("\n#")[0].split())
    found = dict(re.findall(r"- \*\*(.*?)\.\*\* (.*?)(?= - \*\*|$)", text))
    return [found.get(domain, "") for domain in ("MNIST", "ECGs", "Protein graphs")]


def words_of(values: pd.Series[float], interval: bool = False) -> str:
    """Return mean ± standard error, with `interval` also the 95 % interval, as the summary page has them."""
    found = estimate_mean(values.tolist())
    mean = round(found.mean, 1) + 0.0  # not -0.0
    return f"{mean:.1f} ± {found.standard_error:.1f}" + (f" ({found.low:.1f} to {found.high:.1f})" * interval)


def by_seed(tables: str, column: str = "test") -> pd.Series[float]:
    """Return the mean result by evaluation, arm and PT seed of tables in `docs/results`.

    "a+b" joins two tables; "a:problem" has the rows of a problem.
    """
    found = []
    for each in tables.split("+"):
        name, _, problem = each.partition(":")
        runs = pd.read_csv(RESULTS / f"{name}.csv")
        found.append(runs[runs["problem"].str.endswith(problem)] if problem else runs)
    return pd.concat(found).groupby(["evaluation", "arm", "pretrain_seed"])[column].mean()


def gain(
    tables: str, arm: str, control: str, evaluation: str, seeds: Sequence[int] = (), column: str = "test"
) -> pd.Series[float]:
    """Return the difference between two arms by PT seed, for some PT seeds or all."""
    means = by_seed(tables, column)
    found = means[evaluation, arm] - means[evaluation, control]
    return found.loc[list(seeds)] if seeds else found


def said(values: pd.Series[float]) -> dict[str, object]:
    """Return what the pages say of differences by PT seed, by the name that it has in a sentence."""
    found = estimate_mean(values.tolist())
    return {
        "mean": words_of(values),
        "interval": words_of(values, interval=True),
        "error": mean_and_error(found.mean, found.standard_error),
        "value": f"{found.mean:.1f}",
        "low": f"{found.low:.1f}",
        "high": f"{found.high:.1f}",
        "n": found.n,
        "positive": int((values > 0).sum()),
        "p": f"{wilcoxon(values).pvalue:.2g}",
    }


def last_displacements(table: str) -> pd.Series[float]:
    """Return the last displacement of each learned warp, samples, by arm and PT seed, for a table of FT runs."""
    warps = pd.read_csv(RESULTS / "ecg" / "warp.csv").set_index(["table", "arm", "pretrain_seed"])
    return warps["displacement_end"][table]
