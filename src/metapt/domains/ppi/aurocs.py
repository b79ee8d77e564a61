"""Tables, figures and claims on AUROC after FT, and the experiments made of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.quantities import AUROC
from metapt.domains.ppi.results import BASELINE, HELD_OUT_TASKS, LEARNED, RELEASED, SETTINGS, PpiResults
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.tables import Tables, published
from metapt.twostage import tables
from metapt.twostage.arms import Pair
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.tables import arm_differences, auroc_cells, beats, beside_papers, evaluation_words

PAIRED = f"{tables.DIFFERENCES}, and the p-value of the paired t test"
DIFFERENCES = f"{PAIRED}. The CSV has the interval of a bootstrap over PT seeds"


def experiment(
    section: type[ArmsSection], order: int, settings: Sequence[str], title: str, figure_title: str
) -> Experiment:
    """Return the record of an experiment on AUROC with the FT runs of each arm in some settings."""
    return Experiment(
        title=title,
        figure_title=figure_title,
        section=section,
        order=order,
        needs=lambda jobs, own: Needs(jobs.finetunes((arm, setting) for arm in own.arms for setting in settings)),
        results=PpiResults,
        tables=auroc_tables,
        figure=draw_auroc,
        comparisons=auroc_claims,
    )


def auroc_tables(results: PpiResults) -> Tables:
    """Return AUROC beside the paper's, and the differences between arms, paired by PT seed."""
    joined, found = beside_papers(results, auroc_cells(results)), arm_differences(results, results.pairs())
    key = results.key
    over = "the folds" if key == HELD_OUT_TASKS else "all FT runs"
    rows = []
    for arm, part in joined.groupby("arm", sort=False):
        row: dict[str, object] = {
            "arm": results.label(str(arm)),
            "n": part["n"].iloc[0],
            "PT seeds": part["seeds"].iloc[0],
        }
        for cell in part.to_dict("records"):
            name, paper = EVALUATIONS[cell["evaluation"]], published(cell["paper_mean"], cell["paper_standard_error"])
            row |= {name: tables.cell_text(cell), f"paper, {name}": paper}
        rows.append(row)
    blocks = {
        f"{AUROC}, {SETTINGS[key]}. Ours: mean ± standard error over {over}, as the paper's; "
        f"{tables.OVER_RUNS} (without PT each has its own)": pd.DataFrame(rows).fillna("")
    }
    if len(found):
        blocks[f"Differences between arms {DIFFERENCES}"] = wide_differences(results, found)
    return Tables(blocks, tables.numbers_of(results.name, [joined, found]))


def draw_auroc(results: PpiResults) -> Figure:
    """Draw the AUROC of each arm under each evaluation beside the paper's, and the paired differences to plain PT."""
    cells, papers, key, arms = auroc_cells(results), results.papers_cells(), results.key, results.arms
    below = arm_differences(results, [Pair(arm, BASELINE) for arm in arms if arm != BASELINE and BASELINE in arms])
    below = below[below["seeds"] > 1] if len(below) else below
    evaluations, height = measured(results, cells), max(2.2, 0.5 * len(arms) + 1.1)
    drawn, axes = figures.panels(len(evaluations), 2 if len(below) else 1, width=5.6, height=height)
    for axis, evaluation in zip(axes, evaluations, strict=False):
        tables.dots(axis, of(cells, evaluation), of(papers, evaluation), results.label)
        figures.title(axis, f"{SETTINGS[key]}, {EVALUATIONS[evaluation]}")
    for axis, evaluation in zip(axes[len(evaluations) :], evaluations, strict=False):
        part = of(below, evaluation)
        intervals(axis, [results.label(arm) for arm in part["arm"]], part, f"AUROC minus {results.label(BASELINE)}'s")
    if len(below):
        figures.same_range(axes[len(evaluations) :], "x")
    figures.legend_above(drawn, axes)
    return drawn


def auroc_claims(results: PpiResults) -> Iterator[Comparison]:
    """Yield a claim for each of the results' pairs of arms and each evaluation."""
    yield from beats(results)
    starts = dict(results.starts(arm for arm in (RELEASED, LEARNED) if arm in results.arms))
    if len(starts) == 2:
        yield from (_released_gains_more(results, starts, evaluation) for evaluation in results.config.evaluations)


def difference_text(row: tables.Row) -> str:
    """Return mean ± standard error [interval] and the p-value of a row of differences."""
    return tables.difference_text(row, p_value=True)


def wide_differences(results: PpiResults, found: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row per difference and a column per evaluation."""

    def words(row: tables.Row) -> dict[str, object]:
        difference = f"{results.label(row['arm'])} minus {results.label(row['minus'])}"
        return {"difference": difference, "PT seeds": row["seeds"]}

    return tables.wide(found, ("arm", "setting", "minus"), words, evaluation_words, difference_text)


def _released_gains_more(results: PpiResults, starts: Mapping[str, str], evaluation: str) -> Comparison:
    """Return the claim that learned weights gain more with the released code's choices than without them.

    A gain is the difference between an arm and its start. `starts` gives the start of both arms.
    """

    def runs(arm: str) -> pd.Series[float]:
        return results.runs(arm, results.key, evaluation)

    def gain(arm: str) -> pd.Series[float]:
        return runs(arm) - runs(starts[arm])

    where = f"{SETTINGS[results.key]}, {EVALUATIONS[evaluation]}"
    text = f"{RELEASED} gains more over {starts[RELEASED]} than {LEARNED} over {starts[LEARNED]}, {where}"
    return tables.better(text, RELEASED, LEARNED, AUROC, evaluation, (partial(gain, RELEASED), partial(gain, LEARNED)))


def of(cells: pd.DataFrame, evaluation: str) -> pd.DataFrame:
    """Return the rows of an evaluation."""
    return cells[cells["evaluation"] == evaluation] if len(cells) else cells


def measured(results: PpiResults, cells: pd.DataFrame) -> list[str]:
    """Return the evaluations that have cells."""
    return [each for each in results.config.evaluations if (cells["evaluation"] == each).any()]


def intervals(axis: Axes, names: Sequence[str], rows: pd.DataFrame, xlabel: str) -> None:
    """Draw a row per difference: its mean and its 95% interval. `rows` has the columns mean, low, high."""
    means, low, high = (rows[name].to_numpy(dtype=float) for name in ("mean", "low", "high"))
    reach = np.nan_to_num(np.stack([means - low, high - means]))
    with figures.style():
        axis.axvline(0.0, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        axis.errorbar(means, range(len(means)), xerr=reach, fmt="o", color=figures.colour(0), elinewidth=1.6)
        figures.named_rows(axis, names, f"{xlabel}\n(points, 95% interval over PT seeds)")
