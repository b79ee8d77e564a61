"""Experiment `negative_transfer`: FT tasks that pre-training harms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ppi.config import ArmsSection, PpiSettings, PretrainedPpiArm
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import BASELINE, LEARNED, PpiResults, task_names
from metapt.domains.ppi.stages import FULL_ACCESS, TASK_AUROC
from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, NOT_BELOW, Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.evaluation.tables import Tables, mean_and_error
from metapt.twostage.arms import without_pretraining
from metapt.twostage.quantities import EVALUATIONS, FULL_TRANSFER, pretrain_seed
from metapt.twostage.tables import numbers_of


class NegativeTransfer(ArmsSection):
    """FT tasks that pre-training harms. Each arm is compared with an arm without PT that has the same FT."""

    def check(self, domain: PpiSettings) -> None:
        """Raise ValueError as `ArmsSection.check`, if no arm has PT, and for an arm whose control is not there."""
        super().check(domain)
        pretrained = [name for name in self.arms if isinstance(domain.arms[name], PretrainedPpiArm)]
        if not pretrained:
            raise ValueError(f".arms names {', '.join(self.arms)}; legal: at least one arm with PT")
        if alone := [name for name in pretrained if name not in controls(pretrained, domain)]:
            raise ValueError(
                f".arms names {alone[0]!r}, and ppi.arms has no arm of method no_pt with its finetune; add one, or "
                "leave this arm out"
            )


def controls(names: Iterable[str], domain: PpiSettings) -> dict[str, str]:
    """Return for each arm with PT the arm without PT that has the same FT, if there is one."""
    pretrained = [name for name in names if isinstance(domain.arms[name], PretrainedPpiArm)]
    found = {name: without_pretraining(name, domain.arms, domain.finetune) for name in pretrained}
    return {arm: control for arm, control in found.items() if control is not None}


def transfer_runs(jobs: PpiJobs, section: NegativeTransfer) -> Needs:
    """Return the FT runs of each arm with PT and of its control, and the names of the tasks."""
    found = controls(section.arms, jobs.config)
    runs = jobs.finetunes((arm, FULL_ACCESS) for arm in [*found.values(), *found])
    return Needs(runs, files={"tasks": jobs.prepared().outputs["tasks"]}, arms=list(found.values()))


def control_evaluation(results: PpiResults) -> str:
    """Return the evaluation of the controls.

    It is FT of the whole network if that was run, since linear evaluation of a random encoder is no fair control.
    """
    evaluations = results.config.evaluations
    return FULL_TRANSFER if FULL_TRANSFER in evaluations else evaluations[0]


@dataclass(frozen=True)
class TaskTransfer:
    """What PT does to the test AUROC of each FT task."""

    # a row for each FT task; means over all FT runs (%): without, with; the change and its 95 % t interval over PT
    # seeds: change, low, high. NaN where the AUROC is not defined.
    tasks: pd.DataFrame
    # The share (%) of FT tasks that lose, by PT seed, each the mean of its FT runs. Tasks without a defined AUROC in
    # any run (test graphs of one class) do not count. A task with an undefined AUROC in some runs makes the share NaN.
    losing: pd.Series[float]


def transfer(results: PpiResults, arm: str, evaluation: str) -> TaskTransfer:
    """Return what PT of an arm does to each FT task. Raises NotMeasuredError if it or its control was not measured."""
    control = without_pretraining(arm, results.config.arms, results.config.finetune)
    if control is None:
        raise NotMeasuredError(f"{arm} has no arm without PT that has the same FT.")
    without = _task_aurocs(results, control, control_evaluation(results))
    after = _task_aurocs(results, arm, evaluation)
    changes = _by_seed(after) - _by_seed(without)
    found = [(e.mean, e.low, e.high) for e in map(estimate_mean, changes.to_numpy(dtype=float))]
    means = {"without": without.mean(axis=1, skipna=False), "with": after.mean(axis=1, skipna=False)}
    tasks = pd.DataFrame(means).join(pd.DataFrame(found, changes.index, ["change", "low", "high"]))
    scored = changes[~(without.isna().all(axis=1) | after.isna().all(axis=1))]
    return TaskTransfer(tasks, (100 * (scored < 0).mean()).where(scored.notna().all() & (len(scored) > 0)))


def transfers(results: PpiResults) -> dict[str, dict[str, TaskTransfer]]:
    """Return what PT does to each FT task, by arm and evaluation."""
    return {
        arm: {evaluation: transfer(results, arm, evaluation) for evaluation in results.config.evaluations}
        for arm in controls(results.arms, results.config)
    }


def transfer_tables(results: PpiResults) -> Tables:
    """Return the number of FT tasks that lose, and the tasks with the lowest change, for each arm and evaluation."""
    names = task_names(results.tasks, "fine", width=32)
    shown, parts = [], []
    without = controls(results.arms, results.config)
    for arm, measured in transfers(results).items():
        for evaluation, found in measured.items():
            table, e = found.tasks, estimate_mean(found.losing.to_numpy(dtype=float))
            scored = table.dropna(subset="change")
            row: dict[str, object] = {
                "arm": results.label(arm),
                "without PT": results.label(without[arm]),
                "evaluation": EVALUATIONS[evaluation],
                "FT tasks": len(table),
                "lose": int((scored["change"] < 0).sum()),
                "surely": int((scored["high"] < 0).sum()) if e.n > 1 else "",
                "not scored": len(table) - len(scored),
                "share that loses (%)": mean_and_error(e.mean, e.standard_error),
            }
            if len(scored):
                worst = int(scored.index[int(scored["change"].argmin())])
                row["median change"] = f"{scored['change'].median():+.1f}"
                row["least change"] = f"{scored['change'].min():+.1f}, {names.get(worst, f'task {worst}')}"
            shown.append(row)
            parts.append(table.reset_index(names="task").assign(arm=arm, evaluation=evaluation))
    against = EVALUATIONS[control_evaluation(results)]
    caption = (
        f"FT tasks with lower test AUROC than without PT, {against}. Lose: by the mean "
        "over all FT runs; surely: the 95% t interval over PT seeds lies below 0. Not scored: test graphs of one "
        "class, or a run that diverged. Share that loses: mean ± standard error over PT seeds, each the mean of its FT "
        "runs. Changes in percentage points"
    )
    return Tables({caption: pd.DataFrame(shown)}, numbers_of(results.name, parts))


def draw_transfer(results: PpiResults) -> Figure:
    """Draw the test AUROC of each FT task with PT over that without PT; tasks below the diagonal lose."""
    found = transfers(results)
    columns = next((count for count in (5, 4, 3) if len(found) % count == 0), min(4, len(found)))
    drawn, axes = figures.panels(columns=columns, rows=-(-len(found) // columns), width=3.7, height=3.8)
    for axis, arm in zip(axes, found, strict=False):
        _panel(axis, results, arm, found[arm])
    for axis in axes[len(found) :]:
        axis.remove()
    axes = axes[: len(found)]
    every = [each.tasks[["without", "with"]] for measured in found.values() for each in measured.values()]
    values = pd.concat(every).to_numpy(dtype=float)
    low, high = np.nanmin(values, initial=100.0) - 3, np.nanmax(values, initial=0.0) + 3
    for axis in axes:
        axis.axline((low, low), slope=1, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    figures.legend_above(drawn, axes)
    return drawn


def transfer_claims(results: PpiResults) -> Iterator[Comparison]:
    """Yield a claim for each meta arm and its control, that no more FT tasks lose by meta-PT."""

    def fewer(arm: str, control: str, evaluation: str) -> Estimate:
        return paired_difference(*(transfer(results, each, evaluation).losing for each in (control, arm)))

    for evaluation, (arm, control) in product(results.config.evaluations, results.gains()):
        text = f"no more FT tasks lose by {arm} than by {control}, {EVALUATIONS[evaluation]}"
        papers = (arm, control) == (LEARNED, BASELINE)
        paper = "a small extra reduction in negative transfer" if papers else BEYOND_THE_PAPER
        measure = partial(fewer, arm, control, evaluation)
        yield Comparison(text, arm, control, TASK_AUROC, NOT_BELOW, measure, evaluation, paper)


def _task_aurocs(results: PpiResults, arm: str, evaluation: str) -> pd.DataFrame:
    """Return the test AUROC (%) [FT tasks, pairs of seeds]. Raises NotMeasuredError if the arm was not measured."""
    s = results.series
    part = s[(s["stage"] == "finetune") & (s["arm"] == arm) & (s["name"] == f"{evaluation}, {TASK_AUROC}")]
    if part.empty:
        raise NotMeasuredError(f"No FT run of {arm} has measured the AUROC of single tasks, {evaluation}.")
    return part.pivot(index="step", columns="replicate", values="value")


def _by_seed(aurocs: pd.DataFrame) -> pd.DataFrame:
    """Return means over the FT runs of each PT seed [tasks, PT seeds]."""
    by_seed = aurocs.T.groupby(lambda replicate: pretrain_seed(int(replicate)))
    return pd.DataFrame({seed: runs.mean(axis=0, skipna=False) for seed, runs in by_seed})


def _panel(axis: Axes, results: PpiResults, arm: str, measured: dict[str, TaskTransfer]) -> None:
    lines = []
    for place, (evaluation, found) in enumerate(measured.items()):
        colour, table = figures.colour(place), found.tasks
        marker, words = figures.MARKERS[place], EVALUATIONS[evaluation]
        axis.scatter(table["without"], table["with"], s=22, color=colour, marker=marker, alpha=0.75, label=words)
        share = found.losing.mean(skipna=False)
        lines.append((f"{share:.0f} % lose" if math.isfinite(share) else "not all scored", colour))
    for number, (text, colour) in enumerate(lines):
        place_of = (0.97, 0.03 + 0.08 * (len(lines) - 1 - number))
        axis.annotate(text, place_of, xycoords="axes fraction", ha="right", fontsize=10, color=colour)
    axis.set(xlabel="AUROC without PT (%)", ylabel="AUROC with PT (%)")
    axis.set_title(results.label(arm))


EXPERIMENT = Experiment(
    title="FT tasks that lose by pre-training",
    figure_title="Test AUROC of each FT task with PT against that without",
    section=NegativeTransfer,
    order=8,
    needs=transfer_runs,
    results=PpiResults,
    tables=transfer_tables,
    figure=draw_transfer,
    comparisons=transfer_claims,
)
