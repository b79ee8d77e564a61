"""Experiment `during_pretraining`: AUROC of the FT head that is trained during PT."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ppi.config import (
    Arm,
    ArmsSection,
    CoTrain,
    LearnedWeights,
    Names,
    PpiMeta,
    PpiPretraining,
    PpiSettings,
    PretrainedPpiArm,
)
from metapt.domains.ppi.results import LEARNED, PAIRED, PpiResults, wide_differences
from metapt.domains.ppi.stages import FULL_ACCESS, ONLINE
from metapt.evaluation import figures
from metapt.evaluation.comparisons import NOT_BELOW, Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.evaluation.tables import Tables, mean_and_error, published
from metapt.sections import key
from metapt.twostage.arms import changed, differing
from metapt.twostage.quantities import PRETRAINING
from metapt.twostage.tables import dots, numbers_of

COTRAINED = ("cotrain", "cotrain_pcgrad", "cotrain_learned_weights")


class DuringPretraining(ArmsSection):
    """AUROC of the FT head that is trained during PT, on FT validation and test graphs."""

    arms: Names = key(["meta", *COTRAINED], "arms, keys of `ppi.arms`", min_length=1)

    def check(self, domain: PpiSettings) -> None:
        """Raise ValueError as `ArmsSection.check`, and if no arm trains an FT head during PT."""
        super().check(domain)
        if not any(trains_head(domain.arms[name]) for name in self.arms):
            raise ValueError(
                f".arms names {', '.join(self.arms)}, whose PT trains no FT head; legal: at least one co-training arm "
                "or meta arm with unrolled steps"
            )


def trains_head(arm: Arm) -> bool:
    """Return whether an FT head is trained in the course of an arm's PT."""
    return isinstance(arm, CoTrain | LearnedWeights) or (isinstance(arm, PpiMeta) and arm.trains_head)


def ends(results: PpiResults) -> pd.DataFrame:
    """Return the AUROC at the end of PT of each arm that trains an FT head, and the paper's.

    Columns: evaluation (a key of `ONLINE`), arm, mean, seed_standard_error, seeds, paper_mean.
    """
    rows = []
    for arm, (which, metric) in product(results.arms, ONLINE.items()):
        if trains_head(results.config.arms[arm]):
            e = estimate_mean(results.pretraining(arm, metric, FULL_ACCESS).to_numpy(dtype=float))
            row = {"evaluation": which, "arm": arm, "mean": e.mean, "seed_standard_error": e.standard_error}
            rows.append(row | {"seeds": e.n, "paper_mean": _papers(results, arm, which)})
    return pd.DataFrame(rows)


def online_tables(results: PpiResults) -> Tables:
    """Return the AUROC at the end of PT, and the differences between the paper's meta arm and the others."""
    table, gaps = ends(results), []
    learned = LEARNED in set(table["arm"])
    shown: dict[str, dict[str, object]] = {arm: {"arm": results.label(arm)} for arm in results.arms}
    for row in table.to_dict("records"):
        which, arm = row["evaluation"], row["arm"]
        ours = mean_and_error(row["mean"], row["seed_standard_error"])
        shown[arm] |= {"PT seeds": row["seeds"], which: ours, f"paper, {which}": published(row["paper_mean"])}
        if learned and arm != LEARNED:
            d = _gap(results, ONLINE[which], arm)
            words = {"evaluation": which, "arm": LEARNED, "minus": arm, "mean": d.mean}
            words |= {"seed_standard_error": d.standard_error, "seeds": d.n, "low": d.low, "high": d.high}
            gaps.append(words | {"p_value": d.p_value})
    caption = "AUROC (%) of the FT head that PT trains, when PT ends: mean ± standard error over PT seeds"
    blocks = {caption: pd.DataFrame(list(shown.values()))}
    if gaps:
        blocks[f"Differences {PAIRED}"] = wide_differences(results, pd.DataFrame(gaps))
    return Tables(blocks, numbers_of(results.name, [table, pd.DataFrame(gaps)]))


def draw_online(results: PpiResults) -> Figure:
    """Draw the AUROC over PT steps, or at the end of PT if it was not recorded before, and the paper's final AUROC."""
    if not set(ONLINE.values()) & set(results.series["name"]):
        return _ends(results)
    drawn, axes = figures.panels(columns=2, width=5.4, height=3.8)
    for axis, which in zip(axes, ONLINE, strict=True):
        _trajectories(axis, results, which)
        axis.set_title(f"FT head during PT, {which} graphs")
    figures.legend_above(drawn, axes, columns=3)
    return drawn


def online_claims(results: PpiResults) -> Iterator[Comparison]:
    """Yield a claim for each co-trained arm with the PT and FT of the meta arm, on validation and on test graphs.

    There is none unless PT is as long as the paper's: the head of a shorter PT has not learned yet.
    """
    arms = results.arm_settings()
    if LEARNED not in arms or not _is_of_papers_length(results):
        return
    own = {"pretrain_lr", "gradients"}  # in which the paper's differ, too
    same = [each for each in COTRAINED if each in arms and differing(arms[LEARNED], arms[each]) <= own]
    for control, (which, metric) in product(same, ONLINE.items()):
        text = f"{LEARNED}'s FT head during PT beats {control}'s, {which} AUROC"
        measure = partial(_gap, results, metric, control)
        paper = " against ".join(published(_papers(results, arm, which)) for arm in (LEARNED, control)) + " %"
        yield Comparison(text, LEARNED, control, metric, NOT_BELOW, measure, PRETRAINING, paper)


def _is_of_papers_length(results: PpiResults) -> bool:
    """Return whether the meta arm takes as many PT steps as the paper's, on the paper's graphs."""
    arm, papers = results.config.arms[LEARNED], PpiPretraining()
    if results.config.source != "hu2020" or not isinstance(arm, PretrainedPpiArm):
        return False
    own = changed(results.config.pretrain, arm.pretrain)
    return (own.epochs, own.batch_size) == (papers.epochs, papers.batch_size)


def _papers(results: PpiResults, arm: str, which: str) -> float:
    return results.papers_number(arm, f"{which} AUROC (%)")


def _gap(results: PpiResults, metric: str, control: str) -> Estimate:
    """Return the difference between the paper's meta arm and a control, paired by PT seed.

    Raises NotMeasuredError if one of the two was not measured.
    """
    ours, others = (results.pretraining(arm, metric, FULL_ACCESS) for arm in (LEARNED, control))
    return paired_difference(ours, others)


def _trajectories(axis: Axes, results: PpiResults, which: str) -> None:
    look = results.looks()
    for arm, looked in look.items():
        try:
            table = results.by_seed(arm, ONLINE[which], FULL_ACCESS)
        except NotMeasuredError:
            continue
        mean, error = table.mean(axis=1, skipna=False), table.sem(axis=1, skipna=False).fillna(0.0)
        # Arms that learn weights count iterations of several PT steps.
        steps = table.index * getattr(results.config.arms[arm], "pretrain_steps", 1)
        figures.band(axis, steps, mean - error, mean, mean + error, looked.label, looked.colour)
        axis.plot(steps, mean, looked.marker, color=looked.colour, markersize=4.5)
    axis.margins(x=0.06)
    right = axis.get_xlim()[1]
    hollow: dict[str, Any] = {"markerfacecolor": "white", "markersize": 8}
    for arm, looked in look.items():
        papers = _papers(results, arm, which)
        if math.isfinite(papers):
            axis.plot(right, papers, looked.marker, color=looked.colour, clip_on=False, **hollow)
    axis.plot([], [], "o", color=figures.QUIET, label="the paper's, at the end", **hollow)
    axis.set(xlabel="PT step", ylabel=f"{which} AUROC (%), mean ± SE")


def _ends(results: PpiResults) -> Figure:
    table = ends(results)
    drawn, axes = figures.panels(columns=2, width=5.4, height=max(2.2, 0.5 * len(results.arms) + 1.1))
    for axis, which in zip(axes, ONLINE, strict=True):
        ours = table[table["evaluation"] == which]
        theirs = ours.assign(mean=ours["paper_mean"], seed_standard_error=math.nan).dropna(subset="mean")
        dots(axis, ours, theirs, results.label, f"{which} AUROC (%)")
    figures.legend_above(drawn, axes)
    return drawn


EXPERIMENT = Experiment(
    title="AUROC of the FT head that PT trains along, at the end of PT",
    figure_title="AUROC of the FT head that PT trains along, on validation and test graphs",
    section=DuringPretraining,
    order=5,
    needs=lambda jobs, section: Needs(jobs.encoders(section.arms, FULL_ACCESS)),
    results=PpiResults,
    tables=online_tables,
    figure=draw_online,
    comparisons=online_claims,
)
