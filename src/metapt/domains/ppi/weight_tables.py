"""The tables of the learned task weights, and of whether they find the tasks that they should."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from metapt.domains.ppi.gain_tables import permuted_blocks
from metapt.domains.ppi.labels import label, task_names
from metapt.domains.ppi.results import INTACT, OTHERS, PLANTED, RELATIVES, Results, agreement, papers_number
from metapt.domains.ppi.settings import FULL_ACCESS, PERMUTED_TASKS
from metapt.domains.ppi.tables import numbers_of
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.evaluation.tables import Tables, mean_and_error, published

COMPARED = ("meta", "cotrain_learned_weights")
"""The arms whose weights the paper compares."""
PAPERS_ROW = ("learned_weights", "meta vs cotrain_learned_weights", "median absolute difference of the 5000 weights")
PAPERS_HALF_IQR = 0.09
TERMS = 8
"""Terms that are named at either end of an arm's weights."""


def weight_tables(results: Results) -> Tables:
    """What weights the tasks end with: in numbers, against another arm's, and by name."""
    rows = [weight_row(results, arm) for arm in results.learners]
    blocks = {}
    if any(row["seeds"] for row in rows):
        blocks[_CAPTION] = pd.DataFrame([_shown(row) for row in rows]).fillna("")
    parts = [pd.DataFrame(rows)]
    compared = comparison(results)
    if compared is not None:
        blocks[
            f"Absolute difference between the weights that {label(COMPARED[0])} and {label(COMPARED[1])} give a task: median and "
            "half of the interquartile range over tasks, mean ± standard error over PT seeds"
        ] = _wide_comparison(compared)
        parts.append(compared)
    for arm in results.learners:
        try:
            table = ranked(results, arm)
        except NotMeasuredError:
            continue
        parts.append(table.assign(arm=arm))
        blocks[f"PT tasks of the highest and of the lowest weight, {label(arm)}: mean over PT seeds, and its range"] = _ends(
            table
        )
    return Tables(blocks or {_CAPTION: pd.DataFrame({"arm": []})}, numbers_of(results, parts))


_CAPTION = (
    "Learned weights (1 at the start, at most 2). Shares: mean over PT seeds. Correlation: Spearman's, mean over pairs of PT "
    "seeds ± its jackknife standard error over seeds. Relatives: mean weight of the PT tasks that an FT task implies minus "
    "that of the others, mean ± standard error over PT seeds. AUROC: of weight against the planted use of a task"
)


def weight_row(results: Results, arm: str, setting: str = FULL_ACCESS) -> dict[str, float | str]:
    """The numbers of an arm's weights; those that were not measured are NaN, and `seeds` is 0 where there are no weights."""
    row: dict[str, float | str] = {"arm": arm, "setting": setting, "seeds": 0}
    try:
        weights = results.weights(arm, setting)
    except NotMeasuredError:
        return row
    values = weights.to_numpy(dtype=float)
    finite = bool(np.isfinite(values).all())
    row |= {
        "seeds": weights.shape[1],
        "below_half": 100 * float((values < 0.5).mean()) if finite else math.nan,
        "above_one_and_a_half": 100 * float((values > 1.5).mean()) if finite else math.nan,
        "median": float(np.median(values)),
    }
    measures: tuple[tuple[str, Callable[[], Estimate]], ...] = (
        ("agreement", lambda: agreement(weights)),
        ("relatives", lambda: relatives(results, arm, setting)),
        ("planted", lambda: over_pretraining(results, arm, PLANTED, setting)),
        ("intact", lambda: over_pretraining(results, arm, INTACT, setting)),
    )
    for name, measure in measures:
        try:
            e = measure()
        except NotMeasuredError:
            continue
        row |= {name: e.mean, f"{name}_standard_error": e.standard_error}
    return row


def relatives(results: Results, arm: str, setting: str = FULL_ACCESS) -> Estimate:
    """Mean weight of the FT tasks' relatives minus that of the other PT tasks, over PT seeds. Raises NotMeasuredError."""
    return paired_difference(results.pretraining(arm, RELATIVES, setting), results.pretraining(arm, OTHERS, setting))


def over_pretraining(results: Results, arm: str, metric: str, setting: str) -> Estimate:
    """A number of the PT runs, over PT seeds. Raises NotMeasuredError."""
    return estimate_mean(results.pretraining(arm, metric, setting).to_numpy(dtype=float))


def comparison(results: Results) -> pd.DataFrame | None:
    """The weights of the arms that the paper compares, a row per PT seed: seed, median, half_iqr of the absolute difference.

    None where one of them was not run.
    """
    try:
        ours, others = (results.weights(arm) for arm in COMPARED)
    except (NotMeasuredError, KeyError):
        return None
    seeds = [seed for seed in ours.columns if seed in others.columns]
    rows = []
    for seed in seeds:
        apart = (ours[seed] - others[seed]).abs().to_numpy(dtype=float)
        low, median, high = np.quantile(apart, [0.25, 0.5, 0.75])
        rows.append({"arm": COMPARED[0], "minus": COMPARED[1], "seed": int(seed), "median": median, "half_iqr": (high - low) / 2})
    return pd.DataFrame(rows) if rows else None


def ranked(results: Results, arm: str) -> pd.DataFrame:
    """PT tasks by weight, the highest first: task, term, weight (mean over PT seeds), lowest, highest. Raises NotMeasuredError.

    A task with a weight that is not finite has no place and comes last.
    """
    weights, names = results.weights(arm), task_names(results.tasks, "coarse")
    table = pd.DataFrame(
        {
            "task": weights.index.to_numpy(dtype=int),
            "term": [names.get(int(task), f"task {task}") for task in weights.index],
            "weight": weights.mean(axis=1, skipna=False).to_numpy(),
            "lowest": weights.min(axis=1, skipna=False).to_numpy(),
            "highest": weights.max(axis=1, skipna=False).to_numpy(),
        }
    )
    return table.sort_values("weight", ascending=False, kind="stable", na_position="last").reset_index(drop=True)


def known_answer_tables(results: Results) -> Tables:
    """Do the weights find the tasks whose labels are intact, and what do the permuted ones, and part of the tasks, do to FT?"""
    rows = [weight_row(results, arm, setting) for arm in results.learners for setting in (PERMUTED_TASKS, FULL_ACCESS)]
    measured = [row for row in rows if row["seeds"]]
    blocks, parts = permuted_blocks(results)
    caption = (
        "Learned weights. AUROC: of weight against intact labels, mean ± standard error over PT seeds, and for each seed. "
        "Correlation: Spearman's, mean over pairs of PT seeds ± its jackknife standard error over seeds"
    )
    found = {caption: pd.DataFrame([_found(results, row) for row in measured]).fillna("")} if measured else {}
    return Tables(found | blocks, numbers_of(results, [pd.DataFrame(rows), *parts]))


def _found(results: Results, row: dict[str, float | str]) -> dict[str, object]:
    arm, setting = str(row["arm"]), str(row["setting"])
    shown: dict[str, object] = {"arm": label(arm), "PT tasks": _TASKS[setting], "PT seeds": row["seeds"]}
    shown["AUROC against intact labels"] = _text(row, "intact")
    if "intact" in row:
        shown["by PT seed"] = ", ".join(f"{value:.2f}" for value in results.pretraining(arm, INTACT, setting))
    return shown | {"correlation between PT seeds": _text(row, "agreement")}


_TASKS = {PERMUTED_TASKS: "half permuted", FULL_ACCESS: "all intact"}


def _shown(row: dict[str, float | str]) -> dict[str, object]:
    shown: dict[str, object] = {"arm": label(str(row["arm"])), "PT seeds": row["seeds"]}
    if not row["seeds"]:
        return shown
    shares = {
        name: f"{float(row[key]):.0f}"
        for name, key in (("below 0.5 (%)", "below_half"), ("above 1.5 (%)", "above_one_and_a_half"))
    }
    shown |= shares | {"median": f"{float(row['median']):.2f}", "correlation between PT seeds": _text(row, "agreement")}
    shown["relatives minus others"] = _text(row, "relatives")
    return shown | ({"AUROC against planted use": _text(row, "planted")} if "planted" in row else {})


def _text(row: dict[str, float | str], name: str) -> str:
    return mean_and_error(float(row[name]), float(row[f"{name}_standard_error"])) if name in row else ""


def _wide_comparison(compared: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for name, column, paper in (("median", "median", papers_number(*PAPERS_ROW)), ("half IQR", "half_iqr", PAPERS_HALF_IQR)):
        e = estimate_mean(compared[column].to_numpy(dtype=float))
        rows.append({"": name, "PT seeds": e.n, "ours": mean_and_error(e.mean, e.standard_error), "paper": published(paper)})
    return pd.DataFrame(rows)


def _ends(table: pd.DataFrame) -> pd.DataFrame:
    """The terms at either end, side by side."""
    known = table.dropna(subset="weight")
    count = min(TERMS, len(known) // 2)
    high, low = known.head(count), known.tail(count).iloc[::-1]
    return pd.DataFrame(
        {
            "highest": list(high["term"]),
            "weight": [_weight(row) for row in high.to_dict("records")],
            "lowest": list(low["term"]),
            "its weight": [_weight(row) for row in low.to_dict("records")],
        }
    )


def _weight(row: Mapping[Any, float]) -> str:
    return f"{row['weight']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"
