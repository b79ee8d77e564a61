"""The tables of AUROC, representations and cost: each is blocks for people (caption -> table), and all numbers for the CSV.

Those of gains and losses are in `metapt.domains.ppi.gain_tables`, those of the task weights in `metapt.domains.ppi.weight_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from metapt.domains.ppi.config import Arm, Supervised
from metapt.domains.ppi.labels import SETTINGS, label, looks
from metapt.domains.ppi.results import (
    AUROC,
    BEST,
    HELD_OUT_TASKS,
    ONLINE,
    REPRESENTATIONS,
    Results,
    auroc_cells,
    papers_cells,
    papers_number,
)
from metapt.domains.ppi.settings import FULL_ACCESS, HALF_DATA
from metapt.evaluation.looks import EVALUATIONS
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.evaluation.tables import Tables, mean_and_error, published
from metapt.twostage.cost import PEAK_MEMORY, TIME_PER_STEP, Cost
from metapt.twostage.seeded import difference_columns

BASELINE, LEARNED = "graph_supervised", "meta"
CONTROLS = (("meta-stable", "meta"), ("meta-frozen", "meta-permuted"), ("meta-stable", "no_pt"))
"""Pairs of arms that are compared beside those with `BASELINE` and `LEARNED`."""

PAPERS_COST = {"plain": "2.5 h, 4-5 GB", "meta": "5 h, 8-9 GB"}
PAPERS_RATIOS = {TIME_PER_STEP: 5.0 / 2.5, PEAK_MEMORY: 8.5 / 4.5}
"""Of meta-parameterised over plain PT (appendix "Implementation details"); memory from the middles of the ranges."""

DIFFERENCES = (
    "(percentage points): mean ± standard error over PT seeds, paired; in brackets the 95% t interval, and the p-value of the "
    "paired t test. The CSV has the interval of a bootstrap over PT seeds"
)

Cell = tuple[str, str]
"""An arm and a setting."""


def auroc_tables(results: Results) -> Tables:
    """AUROC beside the paper's, and below it the differences between arms, paired by PT seed."""
    cells = auroc_cells(results, [results.key])
    joined = beside_papers(cells, papers_cells(results.key, results.arms))
    found = differences(results, arm_pairs(results))
    over = "the folds" if results.key == HELD_OUT_TASKS else "all FT runs"
    blocks = {
        f"{AUROC}, {SETTINGS[results.key]}. Ours: mean ± standard error over {over}, as the paper's; in brackets the standard "
        "error over the means of the PT seeds, which knows that FT runs share an encoder (without PT each has its own)": _wide(
            results, joined
        )
    }
    if len(found):
        blocks[f"Differences between arms {DIFFERENCES}"] = wide_differences(found)
    return Tables(blocks, numbers_of(results, [joined, found]))


def arm_pairs(results: Results) -> list[tuple[Cell, Cell]]:
    """Each arm minus plain PT, the paper's meta arm minus each other one, and the `CONTROLS`, all in the experiment's setting."""
    arms = results.arms
    pairs = [(arm, BASELINE) for arm in arms if arm != BASELINE]
    pairs += [(LEARNED, arm) for arm in arms if arm not in (LEARNED, BASELINE) and (arm, LEARNED) not in CONTROLS]
    pairs += list(CONTROLS)
    found = [pair for pair in dict.fromkeys(pairs) if set(pair) <= set(arms)]
    return [((a, results.key), (b, results.key)) for a, b in found]


def differences(results: Results, pairs: Iterable[tuple[Cell, Cell]]) -> pd.DataFrame:
    """The differences of pairs of cells that were run, under each evaluation.

    Columns: evaluation, arm, setting, minus, minus_setting, and those of `metapt.twostage.seeded.difference_columns`.
    """
    rows = []
    pairs = list(pairs)
    for evaluation in results.config.evaluations:
        for a, b in pairs:
            try:
                values = results.runs(*a, evaluation), results.runs(*b, evaluation)
            except NotMeasuredError:
                continue
            words = {"evaluation": evaluation, "arm": a[0], "setting": a[1], "minus": b[0], "minus_setting": b[1]}
            rows.append(words | difference_columns(*values))
    return pd.DataFrame(rows)


def summary_tables(results: Results) -> Tables:
    """For each setting that was run the better of the two evaluations, beside the paper's."""
    joined = beside_papers(best_cells(results), papers_cells(results.key, results.arms))
    rows = []
    for arm, part in joined.groupby("arm", sort=False):
        row: dict[str, object] = {"arm": label(str(arm))}
        for cell in part.to_dict("records"):
            row["PT seeds"] = cell["seeds"]
            row[SETTINGS[cell["setting"]]] = f"{ours(cell)} {_INITIALS.get(cell['best'], '')}".strip()
            row[f"paper, {SETTINGS[cell['setting']]}"] = published(cell["paper_mean"], cell["paper_standard_error"])
        rows.append(row)
    caption = (
        f"{AUROC}, the better of full transfer (F) and linear evaluation (L) by the mean on the test set, as in the paper; "
        "that flatters arms that were run both ways. Mean ± standard error over FT runs (held-out tasks: over folds); in "
        "brackets over PT seeds"
    )
    return Tables({caption: pd.DataFrame(rows)}, numbers_of(results, [joined]))


_INITIALS = {"full_transfer": "F", "linear_evaluation": "L"}


def best_cells(results: Results) -> pd.DataFrame:
    """The rows of `auroc_cells` with the highest mean of an arm and setting; `best` names the evaluation, `evaluation` is `BEST`.

    Where an evaluation gave no finite number none is known to be the best: `best` is "" and the numbers are NaN.
    """
    ran = set(results.metrics["setting"])
    half = [HALF_DATA] if HALF_DATA in ran or results.config.half_data is not None else []
    cells = auroc_cells(results, [FULL_ACCESS, *half, HELD_OUT_TASKS])
    rows = []
    for _, part in cells.groupby(["setting", "arm"], sort=False):
        row = part.sort_values("mean", ascending=False, kind="stable").iloc[0].to_dict()
        if part["mean"].isna().any():
            row |= {"evaluation": "", "mean": math.nan, "standard_error": math.nan, "seed_standard_error": math.nan}
        rows.append(row | {"best": row["evaluation"], "evaluation": BEST})
    return pd.DataFrame(rows)


def online_tables(results: Results) -> Tables:
    """AUROC of the FT head that PT trains along, when PT ends, and the paper's meta arm minus each other one."""
    rows: list[dict[str, object]] = []
    shown, gaps = [], []
    for arm in results.arms:
        texts: dict[str, object] = {"arm": label(arm)}
        for which, metric in ONLINE.items():
            papers = papers_number(results.key, arm, f"{which} AUROC (%)")
            try:
                values = results.pretraining(arm, metric)
            except NotMeasuredError:
                continue
            e = estimate_mean(values.to_numpy(dtype=float))
            texts |= {"PT seeds": e.n, which: mean_and_error(e.mean, e.standard_error), f"paper, {which}": published(papers)}
            row = {"evaluation": which, "arm": arm, "mean": e.mean, "seed_standard_error": e.standard_error, "seeds": e.n}
            rows.append(row | {"paper_mean": papers})
            if arm != LEARNED and LEARNED in results.arms:
                d = paired_difference(results.pretraining(LEARNED, metric), values)
                gaps.append({"evaluation": which, "arm": LEARNED, "minus": arm, **_of(d), "p_value": d.p_value})
        shown.append(texts)
    blocks = {"AUROC (%) of the FT head that PT trains, when PT ends: mean ± standard error over PT seeds": pd.DataFrame(shown)}
    if gaps:
        blocks[f"Differences {DIFFERENCES.partition('. The CSV')[0]}"] = wide_differences(pd.DataFrame(gaps))
    return Tables(blocks, numbers_of(results, [pd.DataFrame(rows), pd.DataFrame(gaps)]))


def cka(results: Results) -> pd.DataFrame:
    """Centred kernel alignment, a row per ordered pair of arms: arm, other, mean, seed_standard_error, seeds, low, high."""
    rows = []
    for arm in results.arms:
        for other in results.arms:
            found = results.metrics[results.metrics["evaluation"] == REPRESENTATIONS]
            one = found[(found["arm"] == arm) & (found["metric"] == f"CKA with {other}")]
            if one.empty:  # it is symmetric
                one = found[(found["arm"] == other) & (found["metric"] == f"CKA with {arm}")]
            values = one["value"].to_numpy(dtype=float) if len(one) else np.array([1.0 if arm == other else math.nan])
            rows.append({"arm": arm, "other": other, **_of(estimate_mean(values))})
    return pd.DataFrame(rows)


def cka_tables(results: Results) -> Tables:
    """A row and a column per arm."""
    table = cka(results)
    shown = pd.DataFrame({"arm": [label(arm) for arm in results.arms]})
    for other in results.arms:
        column = table[table["other"] == other]
        shown[label(other)] = ["" if math.isnan(value) else f"{value:.2f}" for value in column["mean"]]
    caption = "Centred kernel alignment (linear CKA) of the arms' features of FT graphs, mean over PT seeds; 1: the same"
    return Tables({caption: shown}, numbers_of(results, [table]))


def costs(results: Results) -> Cost:
    """Time and memory of each arm."""
    plain = plain_arm(results)
    papers = {LEARNED: PAPERS_COST["meta"]} | ({} if plain is None else {plain: PAPERS_COST["plain"]})
    look = looks(results.arms)
    return Cost(results.experiment, look, results.pretraining, results.machines, plain, papers, PAPERS_RATIOS)


def plain_arm(results: Results) -> str | None:
    """The first arm that is supervised PT on all tasks alike; None where there is none."""

    def plain(arm: Arm) -> bool:
        return isinstance(arm, Supervised) and arm.tasks == "all" and arm.weights is None

    return next((arm for arm in results.arms if plain(results.config.arms[arm])), None)


def beside_papers(cells: pd.DataFrame, papers: pd.DataFrame) -> pd.DataFrame:
    """`cells` with the columns paper_mean and paper_standard_error."""
    papers = papers.rename(columns={"mean": "paper_mean", "standard_error": "paper_standard_error"})
    return cells.merge(papers, how="left", on=["setting", "evaluation", "arm"])


def wide_differences(found: pd.DataFrame) -> pd.DataFrame:
    """A row per difference, a column per evaluation."""
    rows: dict[tuple[str, ...], dict[str, object]] = {}
    for row in found.to_dict("records"):
        key = tuple(str(row.get(word, "")) for word in ("arm", "setting", "minus", "minus_setting"))
        words = {"difference": f"{label(row['arm'])} minus {label(row['minus'])}", "PT seeds": row["seeds"]}
        rows.setdefault(key, words)[EVALUATIONS.get(row["evaluation"], row["evaluation"])] = difference_text(row)
    return pd.DataFrame(list(rows.values())).fillna("")


def difference_text(row: Mapping[Any, Any]) -> str:
    """Mean ± standard error [interval], p-value of a row of differences."""
    text = mean_and_error(row["mean"], row["seed_standard_error"])
    if math.isnan(row["low"]):
        return text
    p = row["p_value"]
    return f"{text} [{row['low']:.1f}, {row['high']:.1f}], " + ("p < 0.001" if p < 0.001 else f"p = {p:.2g}")


def ours(cell: Mapping[Any, Any]) -> str:
    """Mean ± standard error [standard error over PT seeds] of a row of `auroc_cells`."""
    error = cell["seed_standard_error"]
    return mean_and_error(cell["mean"], cell["standard_error"]) + ("" if math.isnan(error) else f" [{error:.1f}]")


def _of(e: Estimate) -> dict[str, float]:
    return {"mean": e.mean, "seed_standard_error": e.standard_error, "seeds": e.n, "low": e.low, "high": e.high}


def _wide(results: Results, joined: pd.DataFrame) -> pd.DataFrame:
    """A row per arm; ours and the paper's for each evaluation."""
    rows = []
    for arm, part in joined.groupby("arm", sort=False):
        counts = {"n": part["n"].iloc[0], "PT seeds": part["seeds"].iloc[0]}
        row: dict[str, object] = {"arm": label(str(arm)), **counts}
        for cell in part.to_dict("records"):
            row[EVALUATIONS[cell["evaluation"]]] = ours(cell)
            row[f"paper, {EVALUATIONS[cell['evaluation']]}"] = published(cell["paper_mean"], cell["paper_standard_error"])
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def numbers_of(results: Results, parts: list[pd.DataFrame]) -> pd.DataFrame:
    """The parts below one another, with the experiment's name, for the CSV."""
    numbers = pd.concat([part for part in parts if len(part)], ignore_index=True)
    numbers.insert(0, "experiment", results.experiment)
    return numbers.assign(**{name: numbers[name].astype("Int64") for name in ("n", "seeds") if name in numbers})
