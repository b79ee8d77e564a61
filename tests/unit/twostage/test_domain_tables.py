"""Cells, paired differences and costs in the tables of ECGs and protein graphs, from runs with given numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from metapt.twostage.quantities import PEAK_MEMORY, TIME_PER_STEP

from ..ecg import synthetic_results as ecg
from ..ppi import synthetic_results as ppi
from .synthetic_runs import SEED_SPREAD


class Case(NamedTuple):
    """Full access in a domain."""

    runs: Any  # the module with its runs
    section: dict[str, Any]
    columns: list[str]  # of a cell's words, arm first
    cell: tuple[Any, ...]  # an arm with mean 79 (ECGs) or 73 (graphs), and the other words
    mean: float
    paper: tuple[float, float] | None
    pairs: set[tuple[str, str]]  # that are compared
    difference: tuple[Any, ...]  # of which the offsets of the first arm are those of `gap`
    gap: float  # their variance over PT seeds
    words: tuple[str, ...]


CASES = [
    Case(
        ecg,
        {
            "arms": ["no_pt", "simclr", "optsla", "meta", "meta-stable-start", "meta-stable"],
            "finetune_sizes": [250, 500],
        },
        ["arm", "size", "evaluation"],
        ("meta-stable", 250, "full_transfer"),
        79.0,
        None,
        {("meta", "simclr"), ("optsla", "simclr"), ("meta-stable", "meta-stable-start")}
        | {("simclr", "no_pt"), ("meta", "optsla")},
        ("meta", "simclr", 500, "full_transfer", 0.1),
        0.065,
        ("SimCLR + OptSLA", "79.00 ± 0.11 [0.2]", "meta minus SimCLR"),
    ),
    Case(
        ppi,
        ppi.FEW,
        ["arm", "evaluation"],
        ("graph_supervised", "linear_evaluation"),
        73.0,
        (74.7, 0.1),
        {("graph_supervised", "no_pt"), ("meta", "graph_supervised"), ("meta", "no_pt")}
        | {("meta-stable", "graph_supervised")},
        ("meta", "graph_supervised", "full_transfer", 0.4),
        0.53,
        ("73.00 ± 0.11 [0.2]", "74.7 ± 0.1"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.runs.Runs.domain)
def test_cells_have_errors_of_runs_and_of_seeds_and_differences_are_paired(case: Case, tmp_path: Path) -> None:
    runs = case.runs.runs_of("full_access", tmp_path, full_access=case.section, finetune_seeds=5)
    numbers, markdown = runs.write().tabled()
    cell = numbers[numbers["minus"].isna()].set_index(case.columns).sort_index().loc[case.cell]
    values = np.add.outer(SEED_SPREAD, 0.3 * np.arange(-2, 3)) + case.mean
    assert cell["mean"] == pytest.approx(case.mean)
    assert cell["standard_error"] == pytest.approx(values.std(ddof=1) / math.sqrt(25))
    assert cell["seed_standard_error"] == pytest.approx(np.std(SEED_SPREAD, ddof=1) / math.sqrt(5))
    assert (cell["n"], cell["seeds"]) == (25, 5)
    papers = cell["paper_mean"], cell["paper_standard_error"]
    assert papers == case.paper if case.paper else math.isnan(papers[0])
    differences = numbers[numbers["minus"].notna()].set_index([case.columns[0], "minus", *case.columns[1:]])
    assert {(index[0], index[1]) for index in differences.index} == case.pairs
    *where, mean = case.difference
    d, half = differences.loc[tuple(where)], 2.776445 * math.sqrt(case.gap / 5)
    assert (d["mean"], d["low"], d["high"]) == pytest.approx((mean, mean - half, mean + half))
    assert all(word in markdown for word in case.words)


PPI_COST = {"arms": ["meta", "meta-stable", "meta-frozen", "graph_supervised"]}


@pytest.mark.parametrize(
    ("domain", "section", "time", "memory", "words"),
    [
        (ecg, {}, 1.5, 1.75, ("Cost of PT on a machine:", "3 h, 8-9 GB")),
        (ppi, PPI_COST, 1.6, 1.4, ("5 h, 8-9 GB", "Cost of FT from meta", "FT of the whole network")),
    ],
)
def test_cost_is_a_multiple_of_plain_pt_on_all_tasks_alike(
    domain: Any, section: dict[str, Any], time: float, memory: float, words: tuple[str, ...], tmp_path: Path
) -> None:
    runs = domain.runs_of("cost", tmp_path, cost=section, finetune_seeds=2).write()
    verdicts, (numbers, markdown) = runs.judged()["verdict"], runs.tabled()
    found = numbers.set_index("arm").loc["meta"]
    assert (found[f"{TIME_PER_STEP}, ratio"], found[f"{PEAK_MEMORY}, ratio"]) == pytest.approx((time, memory))
    assert all(word in markdown for word in words)
    assert verdicts.filter(like="meta takes").tolist() == ["reproduced"] * 2
    assert sorted(verdicts.filter(like="meta-stable takes")) == ["not reproduced", "reproduced"]
