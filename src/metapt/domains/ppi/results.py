"""Results of the runs of a PPI experiment, in the form that its tables, figures and comparisons use."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ppi.config import ArmsSection, PpiSettings, Supervised, has_equal_weights, learns_weights, start_of
from metapt.domains.ppi.stages import AUROC, FULL_ACCESS, HALF_DATA, HELD_OUT, WEIGHT, finetune_setting
from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.figures import Style
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.evaluation.tables import Tables, published
from metapt.files import reading
from metapt.twostage import tables
from metapt.twostage.arms import Pair
from metapt.twostage.quantities import EVALUATIONS, VALIDATION_AUROC
from metapt.twostage.results import Cell, TwoStageResults
from metapt.twostage.tables import arm_differences, auroc_cells, beats, beside_papers, of_evaluation

STYLES: dict[str, Style] = {
    "no_pt": (6, 6, "-"),
    "graph_supervised": (0, 0, "-"),
    "graph_supervised-slow": (0, 1, "--"),
    "no_pt-released": (6, 3, ":"),
    "graph_supervised-released": (0, 3, ":"),
    "cotrain": (5, 4, "-"),
    "cotrain_pcgrad": (4, 5, "-"),
    "cotrain_learned_weights": (3, 3, "-"),
    "meta": (1, 1, "-"),
    "meta-fast": (1, 0, "--"),
    "meta-released": (1, 3, ":"),
    "meta-identity": (1, 6, "--"),
    "meta-stable": (2, 2, "-"),
    "meta-frozen": (4, 1, "--"),
    "meta-permuted": (6, 1, "--"),
    "meta-stable-frozen": (2, 4, ":"),
    "meta-stable-permuted": (6, 2, ":"),
}
"""How figures draw arms of the default config."""

SETTINGS = {"full_access": "full access", "half_data": "half data", "held_out_tasks": "held-out tasks"}
"""Names of settings in tables and figures."""

BASELINE, LEARNED = "graph_supervised", "meta"  # the paper's plain PT, and its meta arm
RELEASED = "meta-released"  # its meta arm with the released code's choices

PAPERS_CLAIMS = (
    (BASELINE, "no_pt"),
    (BASELINE, "cotrain"),
    (LEARNED, BASELINE),
    (LEARNED, "cotrain"),
    (LEARNED, "cotrain_pcgrad"),
    (LEARNED, "no_pt"),
)
"""Arm and control of each claim of the paper on AUROC."""

HELD_OUT_TASKS = "held_out_tasks"  # the experiment whose AUROC is the mean over the folds

PAIRED = f"{tables.DIFFERENCES}, and the p-value of the paired t test"


@dataclass(frozen=True)
class PpiResults(TwoStageResults):
    """The results of an experiment."""

    settings: ClassVar[type[PpiSettings]] = PpiSettings
    auroc: ClassVar[str] = AUROC
    styles: ClassVar[Mapping[str, Style]] = STYLES
    papers_claims: ClassVar[Collection[tuple[str, str]]] = PAPERS_CLAIMS

    config: PpiSettings  # the section `ppi`, with the arms that the experiment names

    @property
    def learners(self) -> list[str]:
        """Return the experiment's arms that learn task weights."""
        return [arm for arm in self.section.arms if learns_weights(self.config.arms[arm])]

    @property
    def plain(self) -> str | None:
        """Return the first arm with supervised PT and equal weights of all tasks; None if there is none."""
        own = ((name, self.config.arms[name]) for name in self.arms)
        return next((name for name, arm in own if isinstance(arm, Supervised) and has_equal_weights(arm)), None)

    def cells(self) -> list[Cell]:
        """Return the cells of the experiment's setting: each evaluation and arm, in this order."""
        return self.cells_of([self.key])

    def cells_of(self, settings: Iterable[str]) -> list[Cell]:
        """Return the cells of each setting, evaluation and arm, in this order."""
        return [
            Cell(arm, setting, evaluation, {"setting": setting, "evaluation": evaluation, "arm": arm})
            for setting in settings
            for evaluation in self.config.evaluations
            for arm in self.arms
        ]

    def where(self, cell: Cell) -> str:
        return f"{SETTINGS[cell.setting]}, {EVALUATIONS[cell.evaluation]}"

    def spread(self, arm: str, setting: str, evaluation: str) -> Estimate:
        """Return mean and standard error over all FT runs; under `held_out_tasks` over the folds, as in the paper."""
        if setting != HELD_OUT_TASKS:
            return super().spread(arm, setting, evaluation)
        return estimate_mean(self.folds(arm, evaluation).mean(skipna=False).to_numpy(dtype=float))

    def papers_cell(self, arm: str, setting: str, evaluation: str) -> tuple[pd.DataFrame, str]:
        """Return the paper's AUROC of an arm as at most one row, and a note: without PT it has full transfer only."""
        found, note = super().papers_cell(arm, self.key, evaluation)  # runs of a control can be of another setting
        if len(found) or arm != "no_pt":
            return found, note
        found = self.papers_aurocs([arm])
        return found[found["setting"] == self.key], " (no_pt: full transfer)"

    def setting_of_control(self, control: str, setting: str) -> str:
        """Return the setting of a control's runs; under half data, those of PT without FT data are of full access."""
        arm, served = self.config.arms.get(control), (FULL_ACCESS, HALF_DATA) if self.key == HALF_DATA else (HALF_DATA,)
        return finetune_setting(arm, HALF_DATA) if arm is not None and setting in served else setting

    def starts(self, arms: Iterable[str]) -> list[tuple[str, str]]:
        """Return pairs of an arm and its start (`start_of`), of those of `arms` that have one."""
        found = ((arm, start_of(arm, self.config.arms)) for arm in arms)
        return [(arm, start) for arm, start in found if start is not None]

    def gains(self) -> list[tuple[str, str]]:
        """Return the paper's meta arm and its plain PT if they are compared, then each meta arm and its start."""
        papers = [(arm, control) for arm, control, _ in self.pairs() if (arm, control) == (LEARNED, BASELINE)]
        return list(dict.fromkeys([*papers, *self.starts(self.meta_arms)]))

    def validation(self, arm: str, setting: str, evaluation: str) -> float:
        """Return the mean validation AUROC (%) over the FT runs; for `held_out_tasks` that of all folds.

        Raises NotMeasuredError if no run was measured in the setting, or in one of the folds.
        """
        served = HELD_OUT if setting == HELD_OUT_TASKS else [finetune_setting(self.config.arms[arm], setting)]
        found = [self.values(arm, VALIDATION_AUROC, each, evaluation).mean(skipna=False) for each in served]
        return sum(map(float, found)) / len(found)

    def runs(self, arm: str, setting: str, evaluation: str) -> pd.Series[float]:
        """Return the test AUROC (%) of each FT run, indexed by pair of seeds; for `held_out_tasks` the folds' mean.

        Raises NotMeasuredError if no run was measured, or none in one of the folds. Raises DataError if the folds have
        different seeds.
        """
        if setting != HELD_OUT_TASKS:
            return super().runs(arm, finetune_setting(self.config.arms[arm], setting), evaluation)
        folds = self.folds(arm, evaluation)
        if any(set(self.runs(arm, fold, evaluation).index) != set(folds.index) for fold in HELD_OUT):
            raise DataError(
                f"The folds of {arm}, {evaluation}, have other seeds than one another; make their runs again."
            )
        return folds.mean(axis=1, skipna=False)

    def folds(self, arm: str, evaluation: str) -> pd.DataFrame:
        """Return the test AUROC (%) by pair of seeds and fold.

        Raises NotMeasuredError if no run was measured in one of the folds.
        """
        return pd.concat({fold: self.runs(arm, fold, evaluation) for fold in HELD_OUT}, axis=1)

    def weights(self, arm: str) -> pd.DataFrame:
        """Return the learned weights [PT tasks, PT seeds]. Raises NotMeasuredError if the arm has learned none."""
        return self.by_seed(arm, WEIGHT, FULL_ACCESS)

    def papers_number(self, arm: str, metric: str) -> float:
        """Return the paper's number for an arm and metric of this experiment, NaN if it has none."""
        numbers = self.papers
        found = numbers[(numbers["experiment"] == self.name) & (numbers["arm"] == arm) & (numbers["metric"] == metric)]
        return float(found["paper_mean"].iloc[0]) if len(found) else math.nan

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """Return kind, task, term and description of the tasks. Raises DataError if the file is not a list of tasks."""
        path = self.files["tasks"]
        try:
            with reading(path, "prepare the data again") as file:
                found = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8")
            return found[["kind", "task", "term", "description"]].assign(task=found["task"].astype(int))
        except (ValueError, KeyError) as error:
            raise DataError(f"{path} is not the list of tasks ({error}); prepare the data again.") from None


def task_names(tasks: pd.DataFrame, kind: str, width: int = 48) -> dict[int, str]:
    """Return the description of each task of a kind, by index, or its term if it has none; cut to `width` letters.

    >>> tasks = pd.DataFrame({"kind": ["coarse"], "task": [3], "term": ["GO:0008150"], "description": [""]})
    >>> task_names(tasks, "coarse")
    {3: 'GO:0008150'}
    """
    rows = tasks[tasks["kind"] == kind].to_dict("records")
    names = {int(row["task"]): row["description"] or row["term"] or f"task {row['task']}" for row in rows}
    return {task: textwrap.shorten(name, width, placeholder=" ...") for task, name in names.items()}


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
    shown = by_arm(results, joined, {"n": "n", "PT seeds": "seeds"}, lambda cell: EVALUATIONS[cell["evaluation"]])
    blocks = {
        f"{AUROC}, {SETTINGS[key]}. Ours: mean ± standard error over {over}, as the paper's; "
        f"{tables.OVER_RUNS} (without PT each has its own)": shown
    }
    if len(found):
        blocks[f"Differences between arms {PAIRED}"] = wide_differences(results, found)
    return Tables(blocks, tables.numbers_of(results.name, [joined, found]))


def by_arm(
    results: PpiResults,
    joined: pd.DataFrame,
    counts: Mapping[str, str],
    name: Callable[[tables.Row], str],
    text: Callable[[tables.Row], str] = tables.cell_text,
) -> pd.DataFrame:
    """Return a row per arm, with the `counts` (title -> column) of its first cell, and each cell beside the paper's."""
    rows: dict[str, dict[str, object]] = {}
    for cell in joined.to_dict("records"):
        first = {"arm": results.label(cell["arm"])} | {title: cell[column] for title, column in counts.items()}
        paper = published(cell["paper_mean"], cell["paper_standard_error"])
        rows.setdefault(cell["arm"], first).update({name(cell): text(cell), f"paper, {name(cell)}": paper})
    return pd.DataFrame(list(rows.values())).fillna("")


def draw_auroc(results: PpiResults) -> Figure:
    """Draw the AUROC of each arm under each evaluation beside the paper's, and the paired differences to plain PT."""
    cells, papers, key, arms = auroc_cells(results), results.papers_cells(), results.key, results.arms
    below = arm_differences(results, [Pair(arm, BASELINE) for arm in arms if arm != BASELINE and BASELINE in arms])
    below = below[below["seeds"] > 1] if len(below) else below
    evaluations = [each for each in results.config.evaluations if (cells["evaluation"] == each).any()]
    height = max(2.2, 0.5 * len(arms) + 1.1)
    drawn, axes = figures.panels(len(evaluations), 2 if len(below) else 1, width=5.6, height=height)
    for axis, evaluation in zip(axes, evaluations, strict=False):
        tables.dots(axis, of_evaluation(cells, evaluation), of_evaluation(papers, evaluation), results.label)
        axis.set_title(f"{SETTINGS[key]}, {EVALUATIONS[evaluation]}")
    for axis, evaluation in zip(axes[len(evaluations) :], evaluations, strict=False):
        part = of_evaluation(below, evaluation)
        _intervals(axis, [results.label(arm) for arm in part["arm"]], part, f"AUROC minus {results.label(BASELINE)}'s")
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


def wide_differences(results: PpiResults, found: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row per difference and a column per evaluation."""

    def words(row: tables.Row) -> dict[str, object]:
        difference = f"{results.label(row['arm'])} minus {results.label(row['minus'])}"
        return {"difference": difference, "PT seeds": row["seeds"]}

    def evaluation(row: tables.Row) -> str:
        return EVALUATIONS.get(row["evaluation"], str(row["evaluation"]))

    text = partial(tables.difference_text, p_value=True)
    return tables.wide(found, ("arm", "setting", "minus"), words, evaluation, text)


def _released_gains_more(results: PpiResults, starts: Mapping[str, str], evaluation: str) -> Comparison:
    """Return the claim that learned weights gain more over their start with the released code's choices than without.

    `starts` gives the start of both arms.
    """

    def gain(arm: str) -> pd.Series[float]:
        return results.runs(arm, results.key, evaluation) - results.runs(starts[arm], results.key, evaluation)

    where = f"{SETTINGS[results.key]}, {EVALUATIONS[evaluation]}"
    text = f"{RELEASED} gains more over {starts[RELEASED]} than {LEARNED} over {starts[LEARNED]}, {where}"
    return tables.better(text, RELEASED, LEARNED, AUROC, evaluation, (partial(gain, RELEASED), partial(gain, LEARNED)))


def _intervals(axis: Axes, names: Sequence[str], rows: pd.DataFrame, xlabel: str) -> None:
    """Draw a row per difference: its mean and its 95% interval. `rows` has the columns mean, low, high."""
    means, low, high = (rows[name].to_numpy(dtype=float) for name in ("mean", "low", "high"))
    reach = np.nan_to_num(np.stack([means - low, high - means]))
    axis.axvline(0.0, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
    axis.errorbar(means, range(len(means)), xerr=reach, fmt="o", color=figures.colour(0), elinewidth=1.6)
    figures.named_rows(axis, names, f"{xlabel}\n(points, 95% interval over PT seeds)")
