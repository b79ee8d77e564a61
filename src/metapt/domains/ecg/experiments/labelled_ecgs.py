"""Experiment `labelled_ecgs`: on how many labelled ECGs an objective sees a difference between arms.

Not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from metapt.domains.ecg.config import EcgSettings, access
from metapt.domains.ecg.experiments.objectives import EPOCHS
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.looks import label
from metapt.domains.ecg.quantities import labelled_ecgs
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation import figures
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import Tables, mean_and_error
from metapt.sections import ExperimentSection, Positive, Sizes, key
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC, EVALUATIONS
from metapt.twostage.seeds import seed_means

COLUMNS = ["evaluation", "arm", "pretrain_seed", "labelled", "epoch", "auroc"]
"""Of the table of numbers: `labelled` (ECGs), `epoch` (or `BEST` or `TEST`), `auroc` (%)."""
BEST, TEST = "best", "test"
"""In the column of epochs: the objective after the best epoch, as searches with whole PT runs read it; test results."""


class LabelledEcgs(ExperimentSection):
    """Objectives on labelled sets of several sizes, and the test results they should agree with. Not in the paper."""

    arms: list[str] = key(
        ["simclr", "simclr-mild"], "two or more arms whose PT sees no labels; each is compared with the first one"
    )
    sizes: Sizes = key([100, 250, 500], "labelled ECGs of the objective")
    folds: int = key(4, "parts of the labelled ECGs, each of which one FT run leaves out", ge=2)
    finetune_size: Positive = key(500, "labelled ECGs of FT, whose test results are compared")

    def check(self, domain: EcgSettings) -> None:
        """Raise ValueError as `ExperimentSection.check`, for a single arm, and for an arm whose PT sees labels."""
        super().check(domain)
        if len(self.arm_names()) < 2:
            raise ValueError(f".arms names {len(self.arm_names())}; legal: 2 or more")
        for name in self.arm_names():
            if access(domain.arms[name], self.finetune_size) != "none":
                raise ValueError(f".arms names {name!r}, whose PT sees labels; legal: arms without")


def needs(jobs: EcgJobs, section: LabelledEcgs) -> Needs:
    """Return the PT and FT runs of the arms, and the objectives on each PT run."""
    runs = jobs.runs((arm, "none", section.finetune_size) for arm in section.arm_names())
    for arm in section.arm_names():
        runs += [jobs.objectives(arm, seed, section.sizes, section.folds) for seed in jobs.pretrain_seeds]
    return Needs(runs)


def numbers(results: EcgResults) -> pd.DataFrame:
    """Return a row with `COLUMNS` for each PT run, objective, number of labelled ECGs and epoch, and for each test."""
    found = []
    for evaluation in results.config.evaluations:
        for arm in results.arms:
            cell, size = {"evaluation": evaluation, "arm": arm}, results.section.finetune_size
            found.append(_rows(seed_means(results.runs(arm, size, evaluation)), **cell, labelled=size, epoch=TEST))
            for size in results.section.sizes:
                setting, words = labelled_ecgs(size), cell | {"labelled": size}
                best = seed_means(results.values(arm, CROSS_VALIDATED_AUROC, setting, evaluation))
                found.append(_rows(best, **words, epoch=BEST))
                own = results.series[
                    (results.series["arm"] == arm) & (results.series["name"] == f"{evaluation}, {setting}")
                ]
                for epoch, part in own[own["step"].isin(EPOCHS)].groupby("step"):
                    found.append(_rows(part.set_index("replicate")["value"], **words, epoch=str(epoch)))
    return pd.concat(found, ignore_index=True)


def _rows(values: pd.Series[float], **words: Any) -> pd.DataFrame:
    """Return a row for each value by PT seed."""
    seeds = [int(seed) for seed in values.index]
    rows = pd.DataFrame({"pretrain_seed": seeds, "auroc": values.to_numpy(dtype=float)}).assign(**words)
    return rows[COLUMNS].sort_values("pretrain_seed")


def differences(table: pd.DataFrame, reference: str) -> Iterator[tuple[dict[str, Any], pd.Series[float]]]:
    """Yield each cell of a table of `numbers` (evaluation, arm, labelled, epoch) and its differences by PT seed.

    They are those of the arm minus the reference, for the PT seeds that both have.
    """
    cell = ["evaluation", "labelled", "epoch"]
    for arm in table["arm"].unique():
        if arm != reference:
            for words, part in table.groupby(cell, sort=False):
                own, others = (
                    part[part["arm"] == name].set_index("pretrain_seed")["auroc"] for name in (arm, reference)
                )
                seeds = own.index.intersection(others.index)
                if len(seeds):
                    yield dict(zip(cell, words, strict=True)) | {"arm": arm}, own[seeds] - others[seeds]


def right_sides(seen: pd.Series[float], test: pd.Series[float]) -> int:
    """Return for how many PT seeds a difference has the sign of the mean test difference of the other PT seeds."""
    return sum(own * test.drop(seed).mean() > 0 for seed, own in seen.items())


def tables(results: EcgResults) -> Tables:
    """Return the differences between arms that objectives see after the best epoch, and those of the test."""
    table = numbers(results)
    found = list(differences(table, results.arms[0]))
    tests = {(cell["arm"], cell["evaluation"]): values for cell, values in found if cell["epoch"] == TEST}
    rows = []
    for cell, values in found:
        if cell["epoch"] not in (TEST, BEST):
            continue
        mean = estimate_mean(values.to_numpy(dtype=float))
        name = EVALUATIONS[cell["evaluation"]]
        row = {
            "arm": label(cell["arm"]),
            "result": f"test of {name}" if cell["epoch"] == TEST else f"objective: {name}",
            "labelled ECGs": cell["labelled"],
            f"difference to {label(results.arms[0])} (points)": mean_and_error(mean.mean, mean.standard_error),
        }
        for evaluation in results.config.evaluations:
            sides = right_sides(values, tests[cell["arm"], evaluation])
            row[f"PT seeds on the side of the test of {EVALUATIONS[evaluation]}"] = f"{sides} of {mean.n}"
        rows.append(row)
    caption = (
        "What objectives see, by the number of labelled ECGs. An objective is the AUROC of the best epoch, "
        f"cross-validated over {results.section.folds} folds. Differences: mean ± standard error over PT seeds. Side: "
        "for how many PT seeds the difference has the sign of the mean test difference of the other PT seeds"
    )
    return Tables({caption: pd.DataFrame(rows)}, table)


def figure(results: EcgResults) -> Figure:
    """Draw the differences that objectives see against FT epochs, a panel for each arm and objective."""
    return draw(numbers(results), results.arms[0])


def draw(table: pd.DataFrame, reference: str) -> Figure:
    """Draw a table of `numbers`; see `figure`."""
    found = list(differences(table, reference))
    panels = list(dict.fromkeys((cell["arm"], cell["evaluation"]) for cell, _ in found))
    columns = len(dict.fromkeys(evaluation for _, evaluation in panels))
    drawn, axes = figures.panels(columns, -(-len(panels) // columns), width=5.6, height=3.6)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (arm, evaluation) in zip(axes, panels, strict=False):
        own = [(c, values) for c, values in found if (c["arm"], c["evaluation"]) == (arm, evaluation)]
        sizes = list(dict.fromkeys(c["labelled"] for c, _ in own if c["epoch"] == BEST))
        with figures.style():
            axis.axhline(0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
            for number, (size, colour) in enumerate(zip(sizes, figures.ramp(len(sizes)), strict=True)):
                line = [
                    (int(c["epoch"]), estimate_mean(values.to_numpy(dtype=float)))
                    for c, values in own
                    if c["labelled"] == size and c["epoch"] not in (BEST, TEST)
                ]
                axis.errorbar(
                    [epoch for epoch, _ in line],
                    [mean.mean for _, mean in line],
                    [mean.standard_error for _, mean in line],
                    label=f"objective, {size} labelled ECGs",
                    color=colour,
                    marker=figures.MARKERS[number % len(figures.MARKERS)],
                    elinewidth=1.2,
                )
            test = next(values for c, values in own if c["epoch"] == TEST)
            axis.axhline(test.mean(), color="black", linewidth=1.2, label="test AUROC after FT")
            axis.set(xscale="log", xlabel="FT epochs", ylabel=f"difference to {label(reference)} (points)")
            figures.plain_log_ticks(axis.xaxis)
        figures.title(axis, f"{label(arm)}, {EVALUATIONS[evaluation]}")
    figures.legend_above(drawn, axes[: len(panels)], columns=4)
    return drawn


EXPERIMENT = Experiment(
    title="On how many labelled ECGs an objective sees a difference between arms",
    figure_title="The difference between arms that an objective sees over FT epochs, by the number of labelled ECGs",
    section=LabelledEcgs,
    order=11,
    needs=needs,
    results=EcgResults,
    tables=tables,
    figure=figure,
)
