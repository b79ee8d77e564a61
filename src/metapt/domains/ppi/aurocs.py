"""AUROC after FT: cells beside the paper's, paired differences between arms, and claims that one arm beats another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from metapt.domains.ppi.labels import label
from metapt.domains.ppi.quantities import AUROC
from metapt.domains.ppi.results import HELD_OUT_TASKS, PpiResults
from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import published
from metapt.twostage import tables
from metapt.twostage.comparisons import better
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS
from metapt.twostage.results import auroc_cell
from metapt.twostage.seeds import over_runs, over_seeds

PAIRED = f"{tables.DIFFERENCES}, and the p-value of the paired t test"
DIFFERENCES = f"{PAIRED}. The CSV has the interval of a bootstrap over PT seeds"

Cell = tuple[str, str]
"""An arm and a setting."""


def auroc_cells(results: PpiResults, settings: Sequence[str]) -> pd.DataFrame:
    """Return our test AUROC, one row per setting, evaluation and arm that was run, in this order.

    Columns: setting, evaluation, arm, mean, standard_error (over FT runs; under `held_out_tasks` over the folds, as in
    the paper), n (the number of FT runs or folds), seed_standard_error (over the means of the PT seeds), seeds. Raises
    DataError if no FT run has measured the AUROC.
    """
    rows = []
    for setting in settings:
        for evaluation in results.config.evaluations:
            for arm in results.arms:
                try:
                    values = results.runs(arm, setting, evaluation)
                except NotMeasuredError:
                    continue
                if setting == HELD_OUT_TASKS:
                    spread = estimate_mean(results.folds(arm, evaluation).mean(skipna=False).to_numpy(dtype=float))
                else:
                    spread = over_runs(values)
                seeds = over_seeds(values)
                words = {"setting": setting, "evaluation": evaluation, "arm": arm}
                rows.append(auroc_cell(words, seeds.mean, spread, seeds))
    if not rows:
        raise DataError(f"No FT run of {results.name} has measured {AUROC!r}.")
    return pd.DataFrame(rows)


def beside_papers(results: PpiResults, cells: pd.DataFrame) -> pd.DataFrame:
    """Return `cells` with the columns paper_mean and paper_standard_error."""
    return tables.beside_papers(cells, results.papers_aurocs(results.arms), ["setting", "evaluation", "arm"])


def differences(results: PpiResults, pairs: Iterable[tuple[Cell, Cell]]) -> pd.DataFrame:
    """Return the differences between pairs of cells that were run, under each evaluation.

    Columns: evaluation, arm, setting, minus, minus_setting, and those of `metapt.twostage.seeds.difference_columns`.
    """
    pairs = list(pairs)
    return tables.differences(
        (
            {"evaluation": evaluation, "arm": a[0], "setting": a[1], "minus": b[0], "minus_setting": b[1]},
            partial(results.runs, *a, evaluation),
            partial(results.runs, *b, evaluation),
        )
        for evaluation in results.config.evaluations
        for a, b in pairs
    )


def difference_text(row: tables.Row) -> str:
    """Return mean ± standard error [interval] and the p-value of a row of differences."""
    return tables.difference_text(row, p_value=True)


def minus(row: tables.Row) -> str:
    """Return the label of a row of differences."""
    return f"{label(row['arm'])} minus {label(row['minus'])}"


def wide_differences(found: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row per difference and a column per evaluation."""
    return tables.wide(
        found,
        ("arm", "setting", "minus", "minus_setting"),
        lambda row: {"difference": minus(row), "PT seeds": row["seeds"]},
        lambda row: EVALUATIONS.get(row["evaluation"], str(row["evaluation"])),
        difference_text,
    )


def beats(
    results: PpiResults, text: str, arm: str, control: str, setting: str, evaluation: str, paper: str = BEYOND_THE_PAPER
) -> Comparison:
    """Return the claim that an arm beats its control in a setting; the claim's text is `text` and the evaluation."""
    runs = tuple(partial(results.runs, each, setting, evaluation) for each in (arm, control))
    return better(
        f"{text}, {EVALUATIONS[evaluation]}", arm, control, AUROC, evaluation, (runs[0], runs[1]), paper=paper
    )


def papers_words(results: PpiResults, name: str, evaluation: str, arm: str, control: str) -> str:
    """Return the paper's AUROC of two arms in the experiment `name` as text.

    Without PT the paper reports full transfer only. The text is `BEYOND_THE_PAPER` where the paper lacks one of the
    arms.
    """
    cells = results.papers_aurocs([arm, control], name=name)
    cells = cells[cells["setting"] == name.removeprefix("ppi_")]
    texts, note = [], ""
    for each in (arm, control):
        found = cells[(cells["arm"] == each) & (cells["evaluation"] == evaluation)]
        if found.empty and each == "no_pt":
            found, note = cells[cells["arm"] == each], " (no_pt: full transfer)"
        texts += [published(row["mean"], row["standard_error"]) for row in found.to_dict("records")]
    return f"{texts[0]} against {texts[1]} %{note}" if len(texts) == 2 else BEYOND_THE_PAPER


def of(cells: pd.DataFrame, evaluation: str) -> pd.DataFrame:
    """Return the rows of an evaluation."""
    return cells[cells["evaluation"] == evaluation] if len(cells) else cells


def dots(axis: Axes, ours: pd.DataFrame, others: pd.DataFrame, names: tuple[str, str] = ("ours", "paper")) -> None:
    """Draw a row per arm of `ours`: mean and standard error over PT seeds, and below it, hollow, those of `others`."""
    shown = pd.DataFrame(
        {
            "label": [label(a) for a in ours["arm"]],
            "mean": list(ours["mean"]),
            "standard_error": list(ours["seed_standard_error"]),
        }
    )
    others = others[others["arm"].isin(ours["arm"])]
    error = others["seed_standard_error"] if "seed_standard_error" in others else others["standard_error"]
    beside = pd.DataFrame(
        {"label": [label(a) for a in others["arm"]], "mean": list(others["mean"]), "standard_error": list(error)}
    )
    figures.bars_with_error(shown, beside, xlabel=AUROC_LABEL, names=names, axis=axis)


def intervals(axis: Axes, names: Sequence[str], rows: pd.DataFrame, xlabel: str) -> None:
    """Draw a row per difference: its mean and its 95% interval. `rows` has the columns mean, low, high."""
    means = rows["mean"].to_numpy(dtype=float)
    reach = np.stack([means - rows["low"].to_numpy(dtype=float), rows["high"].to_numpy(dtype=float) - means])
    with figures.style():
        axis.axvline(0.0, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        axis.errorbar(
            means, range(len(means)), xerr=np.nan_to_num(reach), fmt="o", color=figures.colour(0), elinewidth=1.6
        )
        axis.set_yticks(range(len(means)), list(names))
        axis.set_ylim(len(means) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel(xlabel)
