"""The pages of docs/results, and what several tests of them read."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from metapt.evaluation.statistics import estimate_mean

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
FT, LINEAR = "full_transfer", "linear_evaluation"
SEARCHES, FIXED = ("temperature_search", "temperature_search-random"), "simclr-low_temperature"
STRENGTH_SEARCHES = "run_search", "run_search-random"
HEADROOM, ESTIMATORS = ((RESULTS / name).read_text(encoding="utf-8") for name in ("headroom.md", "estimators.md"))


def last_displacements(table: str) -> pd.Series:
    """Return the last displacement of each learned warp, samples, by arm and PT seed, for a table of FT runs."""
    warps = pd.read_csv(RESULTS / "ecg" / "warp.csv").set_index(["table", "arm", "pretrain_seed"])
    return warps["displacement_end"][table]


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
    """Return mean ± standard error, and with `interval` n and the 95 % interval, as the summary page has them."""
    found = estimate_mean(values.tolist())
    mean = round(found.mean, 1) + 0.0  # not -0.0
    return f"{mean:.1f} ± {found.standard_error:.1f}" + (f" ({found.low:.1f} to {found.high:.1f})" * interval)


def by_seed(*names: str) -> pd.Series[float]:
    """Return the mean test result by evaluation, arm and PT seed of tables in `docs/results`."""
    runs = pd.concat([pd.read_csv(RESULTS / f"{name}.csv") for name in names])
    return runs.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()
