"""Experiment `known_answer`: half of the PT tasks have permuted labels and should get low weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ppi.aurocs import DIFFERENCES, auroc_cells, beats, difference_text, differences, minus, of
from metapt.domains.ppi.config import ArmsSection, Names, PpiSettings, Supervised, learns_weights
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.labels import SETTINGS, label
from metapt.domains.ppi.quantities import AUROC, INTACT, PERMUTED
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import FULL_ACCESS, PERMUTED_TASKS
from metapt.domains.ppi.weights import (
    EDGES,
    FOUND,
    Panel,
    agreement_panels,
    agrees,
    drawn,
    finds,
    number_text,
    strips,
    weight_row,
    weights_by_arm,
)
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.tables import Tables
from metapt.sections import key
from metapt.twostage.panels import dots
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.tables import Row, cell_text, numbers_of, wide

TASKS = {PERMUTED_TASKS: "half permuted", FULL_ACCESS: "all intact"}
AFTER = {FULL_ACCESS: "all PT tasks intact", PERMUTED_TASKS: SETTINGS[PERMUTED_TASKS]}


class KnownAnswer(ArmsSection):
    """Half of the PT tasks have permuted labels: are their weights low, and does FT gain? Not in the paper."""

    arms: Names = key(
        ["graph_supervised", "graph_supervised-slow", "meta", "meta-stable"], "arms, keys of `ppi.arms`", min_length=1
    )
    quarters: Names = key(
        ["meta-top", "meta-bottom"], "arms, keys of `ppi.arms`, that pre-train on part of the (intact) tasks"
    )

    def arm_names(self) -> list[str]:
        """Return the names of all arms in the experiment, each once."""
        return list(dict.fromkeys([*self.arms, *self.quarters]))

    def check(self, domain: PpiSettings) -> None:
        """Raise ValueError as `ArmsSection.check`, and for quarters that differ in more than the tasks they take."""
        super().check(domain)
        kinds = []
        for name in self.quarters:
            arm = domain.arms[name]
            if not isinstance(arm, Supervised) or arm.weights is None or not arm.weights.use.endswith("quarter"):
                raise ValueError(
                    f".quarters names {name!r}, which has not the tasks of highest or lowest weight; legal: arms with "
                    "weights.use of top_quarter or bottom_quarter"
                )
            kinds.append(arm.model_copy(update={"weights": arm.weights.of}))
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError(
                f".quarters names {', '.join(self.quarters)}, which differ in more than weights.use; legal: arms that "
                "differ in that alone"
            )


def needs(jobs: PpiJobs, section: KnownAnswer) -> Needs:
    """Return PT and FT runs on permuted and on intact tasks, and FT runs after PT on a part of the tasks."""
    learners = [arm for arm in section.arms if learns_weights(jobs.config.arms[arm])]
    runs = jobs.pretrain_all(section.arms, PERMUTED_TASKS) + jobs.pretrain_all(learners, FULL_ACCESS)
    runs += jobs.finetune_all(section.arms, FULL_ACCESS, PERMUTED_TASKS)
    return Needs(runs + jobs.finetune_all(section.quarters, FULL_ACCESS))


def tables(results: PpiResults) -> Tables:
    """Return how well the weights find the intact tasks, and how permuted tasks and a choice of tasks change FT."""
    rows = [weight_row(results, arm, setting) for arm in results.learners for setting in (PERMUTED_TASKS, FULL_ACCESS)]
    found = [_found(results, row) for row in rows if row["seeds"]]
    cells, changes = auroc_cells(results, [FULL_ACCESS, PERMUTED_TASKS]), effects(results)
    blocks = {}
    if found:
        caption = (
            "Learned weights. AUROC: of weight against intact labels, mean ± standard error over PT seeds, and for "
            "each seed. Correlation: Spearman's, mean over pairs of PT seeds ± its jackknife standard error over seeds"
        )
        blocks[caption] = pd.DataFrame(found).fillna("")
    caption = (
        f"{AUROC}. Mean ± standard error over all FT runs; in brackets over PT seeds. The quarters are the PT tasks of "
        "highest and of lowest learned weight"
    )
    blocks[caption] = wide(cells, ("evaluation", "arm"), _cell_words, lambda cell: AFTER[cell["setting"]], cell_text)
    if len(changes):
        blocks[f"Differences {DIFFERENCES}"] = wide(
            changes,
            ("arm", "setting", "minus", "minus_setting"),
            lambda effect: {"difference": _effect_name(effect), "PT seeds": effect["seeds"]},
            lambda effect: EVALUATIONS[effect["evaluation"]],
            difference_text,
        )
    return Tables(blocks, numbers_of(results.name, [pd.DataFrame(rows), cells, changes]))


def effects(results: PpiResults) -> pd.DataFrame:
    """Return the effect of permuted PT tasks on each arm, the gains over plain PT, and the effect of a choice of tasks.

    Plain PT is the arm's own: with its PT learning rate and weights of 1. The columns are those of `differences`.
    """
    section = results.section
    pairs = [((arm, PERMUTED_TASKS), (arm, FULL_ACCESS)) for arm in section.arms]
    pairs += [((arm, PERMUTED_TASKS), (plain, PERMUTED_TASKS)) for arm, plain in results.starts(section.arms)]
    pairs += [((arm, FULL_ACCESS), (plain, FULL_ACCESS)) for arm, plain in results.starts(section.quarters)]
    pairs += [((section.quarters[0], FULL_ACCESS), (other, FULL_ACCESS)) for other in section.quarters[1:]]
    return differences(results, pairs)


def figure(results: PpiResults) -> Figure:
    """Draw the weights of intact and permuted tasks, and AUROC after FT with and without permuted tasks."""
    panels: list[Panel] = []
    for arm in results.learners:
        with suppress(NotMeasuredError):
            weights, permuted = results.weights(arm, PERMUTED_TASKS), results.by_seed(arm, PERMUTED, PERMUTED_TASKS)
            panels.append(partial(_intact_and_permuted, arm, weights, permuted.reindex_like(weights)))
    panels += strips(
        results.learners,
        lambda arm: results.pretraining(arm, INTACT, PERMUTED_TASKS),
        "intact tasks",
        "AUROC of weight against intact labels",
        FOUND,
    )
    panels += agreement_panels(weights_by_arm(results))
    cells = auroc_cells(results, [FULL_ACCESS, PERMUTED_TASKS])
    for evaluation in results.config.evaluations:
        part = of(cells, evaluation)
        if len(part):
            panels.append(partial(_with_and_without, part, evaluation))
    return drawn(panels)


def comparisons(results: PpiResults) -> Iterator[Comparison]:
    """Yield claims on the weights, on the gain over plain PT with permuted tasks, and on choices of tasks."""
    for arm in results.learners:
        yield finds(results, arm, "the PT tasks whose labels are intact", INTACT, PERMUTED_TASKS)
    for arm in results.learners:
        yield agrees(results, arm)
    quarters = results.section.quarters
    for evaluation in results.config.evaluations:
        for arm, plain in results.starts(results.learners):
            text = f"{arm} beats {plain} with half of the PT tasks permuted"
            yield beats(results, text, arm, plain, PERMUTED_TASKS, evaluation)
        for low in quarters[1:]:
            yield beats(results, f"{quarters[0]} beats {low}", quarters[0], low, FULL_ACCESS, evaluation)


def _found(results: PpiResults, row: dict[str, float | str]) -> dict[str, object]:
    arm, setting = str(row["arm"]), str(row["setting"])
    shown: dict[str, object] = {"arm": label(arm), "PT tasks": TASKS[setting], "PT seeds": row["seeds"]}
    shown["AUROC against intact labels"] = number_text(row, "intact")
    if "intact" in row:
        shown["by PT seed"] = ", ".join(f"{value:.2f}" for value in results.pretraining(arm, INTACT, setting))
    return shown | {"correlation between PT seeds": number_text(row, "agreement")}


def _cell_words(cell: Row) -> dict[str, object]:
    return {"evaluation": EVALUATIONS[cell["evaluation"]], "arm": label(cell["arm"]), "PT seeds": cell["seeds"]}


def _effect_name(effect: Row) -> str:
    if effect["arm"] == effect["minus"]:
        return f"{label(effect['arm'])}: permuted minus intact"
    return minus(effect) + (", permuted" if effect["setting"] == PERMUTED_TASKS else "")


def _intact_and_permuted(arm: str, weights: pd.DataFrame, permuted: pd.DataFrame, axis: Axes) -> None:
    values, broken = weights.to_numpy(dtype=float), permuted.to_numpy(dtype=float) > 0
    with figures.style():
        figures.histogram(axis, values[~broken], EDGES, "intact PT tasks", figures.colour(0))
        figures.histogram(axis, values[broken], EDGES, "permuted PT tasks", figures.colour(1))
        axis.set(xlabel="learned weight", ylabel="share of the PT tasks\nof a kind (%)")
    figures.title(axis, f"weights of {label(arm)}, all PT seeds")


def _with_and_without(cells: pd.DataFrame, evaluation: str, axis: Axes) -> None:
    intact, permuted = (cells[cells["setting"] == setting] for setting in (FULL_ACCESS, PERMUTED_TASKS))
    names = "FT after PT on intact tasks", "FT after PT on tasks of which half are permuted"
    dots(axis, intact, permuted, label, names=names)
    figures.title(axis, EVALUATIONS[evaluation])


EXPERIMENT = Experiment(
    title="What the learned weights say of PT tasks with permuted labels, and what FT gains",
    figure_title="The learned weights of PT tasks with permuted and with intact labels, and what FT gains",
    section=KnownAnswer,
    order=10,
    needs=needs,
    results=PpiResults,
    tables=tables,
    figure=figure,
    comparisons=comparisons,
)
