"""AUROC after FT beside the paper's, paired differences and claims between arms, and the experiments made of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.labels import SETTINGS, label
from metapt.domains.ppi.quantities import AUROC
from metapt.domains.ppi.results import BASELINE, HELD_OUT_TASKS, LEARNED, RELEASED, PpiResults
from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import Tables, published
from metapt.twostage import panels, tables
from metapt.twostage.arms import without_pretraining
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.results import auroc_cell
from metapt.twostage.seeds import over_runs, over_seeds

PAIRED = f"{tables.DIFFERENCES}, and the p-value of the paired t test"
DIFFERENCES = f"{PAIRED}. The CSV has the interval of a bootstrap over PT seeds"

Cell = tuple[str, str]  # an arm and a setting


def experiment(
    section: type[ArmsSection], order: int, settings: Sequence[str], title: str, figure_title: str
) -> Experiment:
    """Return the record of an experiment on AUROC with the FT runs of each arm in some settings."""
    return Experiment(
        title=title,
        figure_title=figure_title,
        section=section,
        order=order,
        needs=lambda jobs, own: Needs(jobs.finetune_all(own.arms, *settings)),
        results=PpiResults,
        tables=auroc_tables,
        figure=figure,
        comparisons=comparisons,
    )


def auroc_tables(results: PpiResults) -> Tables:
    """Return AUROC beside the paper's, and the differences between arms, paired by PT seed."""
    joined = beside_papers(results, auroc_cells(results, [results.key]))
    key = results.key
    found = differences(results, [((arm, key), (control, key)) for arm, control, _ in results.pairs()])
    over = "the folds" if key == HELD_OUT_TASKS else "all FT runs"
    rows = []
    for arm, part in joined.groupby("arm", sort=False):
        row: dict[str, object] = {"arm": label(str(arm)), "n": part["n"].iloc[0], "PT seeds": part["seeds"].iloc[0]}
        for cell in part.to_dict("records"):
            name, paper = EVALUATIONS[cell["evaluation"]], published(cell["paper_mean"], cell["paper_standard_error"])
            row |= {name: tables.cell_text(cell), f"paper, {name}": paper}
        rows.append(row)
    blocks = {
        f"{AUROC}, {SETTINGS[key]}. Ours: mean ± standard error over {over}, as the paper's; "
        f"{tables.OVER_RUNS} (without PT each has its own)": pd.DataFrame(rows).fillna("")
    }
    if len(found):
        blocks[f"Differences between arms {DIFFERENCES}"] = wide_differences(found)
    return Tables(blocks, tables.numbers_of(results.name, [joined, found]))


def figure(results: PpiResults) -> Figure:
    """Draw the AUROC of each arm under each evaluation beside the paper's, and the paired differences to plain PT."""
    cells, papers = auroc_cells(results, [results.key]), results.papers_aurocs(results.arms)
    key, arms = results.key, results.arms
    below = differences(
        results, [((arm, key), (BASELINE, key)) for arm in arms if arm != BASELINE and BASELINE in arms]
    )
    below = below[below["seeds"] > 1] if len(below) else below
    evaluations, height = measured(results, cells), max(2.2, 0.5 * len(arms) + 1.1)
    drawn, axes = figures.panels(len(evaluations), 2 if len(below) else 1, width=5.6, height=height)
    for axis, evaluation in zip(axes, evaluations, strict=False):
        panels.dots(axis, of(cells, evaluation), of(papers, evaluation), label)
        figures.title(axis, f"{SETTINGS[key]}, {EVALUATIONS[evaluation]}")
    for axis, evaluation in zip(axes[len(evaluations) :], evaluations, strict=False):
        part = of(below, evaluation)
        intervals(axis, [label(arm) for arm in part["arm"]], part, f"AUROC minus {label(BASELINE)}'s")
    if len(below):
        figures.same_range(axes[len(evaluations) :], "x")
    figures.legend_above(drawn, axes)
    return drawn


def comparisons(results: PpiResults) -> Iterator[Comparison]:
    """Yield a claim for each of the results' pairs of arms and each evaluation."""
    for arm, control, papers in results.pairs():
        for evaluation in results.config.evaluations:
            paper = papers_words(results, results.name, evaluation, arm, control) if papers else BEYOND_THE_PAPER
            text = f"{arm} beats {control}, {SETTINGS[results.key]}"
            yield beats(results, text, arm, control, results.key, evaluation, paper)
    starts = dict(results.starts(arm for arm in (RELEASED, LEARNED) if arm in results.arms))
    if len(starts) == 2:
        yield from (_released_gains_more(results, starts, evaluation) for evaluation in results.config.evaluations)


def auroc_cells(results: PpiResults, settings: Sequence[str]) -> pd.DataFrame:
    """Return our test AUROC, one row per setting, evaluation and arm that was run, in this order.

    Columns: setting, evaluation, arm, mean, standard_error (over FT runs; under `held_out_tasks` over the folds, as in
    the paper), n (the number of FT runs or folds), seed_standard_error (over the means of the PT seeds), seeds. Raises
    DataError if no FT run has measured the AUROC.
    """
    rows = []
    for words in (
        {"setting": setting, "evaluation": evaluation, "arm": arm}
        for setting in settings
        for evaluation in results.config.evaluations
        for arm in results.arms
    ):
        setting, evaluation, arm = words.values()
        try:
            values = results.runs(arm, setting, evaluation)
        except NotMeasuredError:
            continue
        if setting == HELD_OUT_TASKS:
            spread = estimate_mean(results.folds(arm, evaluation).mean(skipna=False).to_numpy(dtype=float))
        else:
            spread = over_runs(values)
        seeds = over_seeds(values)
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
    ours, others = (partial(results.runs, each, setting, evaluation) for each in (arm, control))
    no_pt = without_pretraining(control, results.arm_settings(), results.config.finetune)
    without = None if no_pt is None else (no_pt, partial(results.runs, no_pt, setting, evaluation))
    words = (f"{text}, {EVALUATIONS[evaluation]}", arm, control, AUROC, evaluation)
    return tables.better(*words, (ours, others), paper=paper, without=without)


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
