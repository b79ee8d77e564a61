"""What the paper claims on protein graphs, and what we claim beyond it, each with the check that decides it.

Differences and ratios are over PT seeds, the FT runs of one averaged: those share an encoder and are no evidence of their own.
With a single PT seed nothing is decided. Claims on arms that the config does not run are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pandas as pd

from metapt.domains.ppi.config import Meta
from metapt.domains.ppi.gain_tables import losing, scratch
from metapt.domains.ppi.labels import SETTINGS
from metapt.domains.ppi.results import INTACT, ONLINE, PLANTED, Results, agreement, papers_cells, papers_number
from metapt.domains.ppi.settings import FULL_ACCESS, PERMUTED_TASKS, RELEASED_CENTRE
from metapt.domains.ppi.tables import BASELINE, LEARNED, costs, plain_arm
from metapt.domains.ppi.weight_tables import over_pretraining, relatives
from metapt.evaluation.claims import Claim, Verdict, at_least, at_most, from_several
from metapt.evaluation.looks import EVALUATIONS
from metapt.evaluation.statistics import estimate_mean, paired_difference
from metapt.evaluation.tables import published
from metapt.twostage.cost import PEAK_MEMORY, TIME_PER_STEP, at_most_times
from metapt.twostage.seeded import difference, not_below

BEYOND = "beyond the paper"
FOUND = 0.9
"""AUROC of weight against truth at which weights are said to find the useful tasks."""
AGREED = 0.5
"""Rank correlation between PT seeds at which their weights are said to agree."""
FEW_TASKS = 10.0
"""Per cent of the FT tasks; little negative transfer."""
TWICE, ABOUT_TWICE = 2.0, 2.2


class Compared(NamedTuple):
    """Two arms in a claim: `high` beats `low`; `paper` where the paper says so."""

    high: str
    low: str
    paper: bool


ARMS = (
    Compared("graph_supervised", "no_pt", True),
    Compared("graph_supervised", "cotrain", True),
    Compared("meta", "graph_supervised", True),
    Compared("meta", "cotrain", True),
    Compared("meta", "cotrain_pcgrad", True),
    Compared("meta", "no_pt", True),
    Compared("meta-stable", "graph_supervised", False),
    Compared("meta-stable", "meta", False),
    Compared("meta-frozen", "meta-permuted", False),
)
COTRAINED = ("cotrain", "cotrain_pcgrad", "cotrain_learned_weights")


def claims(results: Results) -> list[Claim]:
    """The claims of an experiment."""
    return list(_CLAIMS[results.key](results))


def _arms(results: Results) -> Iterator[Claim]:
    """A claim for each pair and evaluation, in the experiment's setting."""
    for high, low, paper in ARMS:
        if not {high, low} <= set(results.arms):
            continue
        for evaluation in results.config.evaluations:
            words = _papers(results, results.key, evaluation, high, low) if paper else ""
            check = partial(_beats, results, results.key, evaluation, high, low)
            text = f"{high} beats {low}, {SETTINGS[results.key]}, {EVALUATIONS[evaluation]}"
            yield Claim(results.experiment, text, check, words or BEYOND)


def _during_pretraining(results: Results) -> Iterator[Claim]:
    for other in COTRAINED:
        if not {LEARNED, other} <= set(results.arms):
            continue
        for which in ONLINE:
            a, b = (papers_number(results.key, arm, f"{which} AUROC (%)") for arm in (LEARNED, other))
            text = f"{LEARNED}'s FT head during PT beats {other}'s, {which} AUROC"
            check = partial(_online_beats, results, which, other)
            yield Claim(results.experiment, text, check, f"{published(a)} against {published(b)} %")


def _learned_weights(results: Results) -> Iterator[Claim]:
    planted = results.metrics[results.metrics["metric"] == PLANTED]
    for arm in results.learners:
        if results.config.source == "simulated" or (planted["arm"] == arm).any():
            yield _finds(results, arm, f"{arm}'s weights find the PT tasks of planted use", PLANTED, FULL_ACCESS)
    for arm in results.learners:
        yield _agrees(results, arm, FULL_ACCESS)
    for arm in results.learners:
        text = f"{arm} gives PT tasks that an FT task implies more weight than the others"
        yield Claim(results.experiment, text, partial(_relatives_go_up, results, arm), BEYOND)


def _negative_transfer(results: Results) -> Iterator[Claim]:
    base = scratch(results)
    if base is None:
        return
    for evaluation in results.config.evaluations:
        for arm in (BASELINE, LEARNED, "meta-stable"):
            if arm in results.arms:
                text = f"at most {FEW_TASKS:g} % of the FT tasks lose by {arm}, {EVALUATIONS[evaluation]}"
                check = partial(_few_lose, results, arm, evaluation)
                yield Claim(results.experiment, text, check, BEYOND if arm == "meta-stable" else "little negative transfer")
        if {BASELINE, LEARNED} <= set(results.arms):
            text = f"no more FT tasks lose by {LEARNED} than by {BASELINE}, {EVALUATIONS[evaluation]}"
            check = partial(_fewer_lose, results, evaluation)
            yield Claim(results.experiment, text, check, "a small extra reduction in negative transfer")


def _centre_offset(results: Results) -> Iterator[Claim]:
    plain = plain_arm(results)
    for arm in results.arms:
        if plain is None or not isinstance(results.config.arms[arm], Meta):
            continue
        for evaluation in results.config.evaluations:
            where = EVALUATIONS[evaluation]
            released = partial(_beats, results, RELEASED_CENTRE, evaluation, arm, plain)
            words = _papers(results, FULL_ACCESS, evaluation, arm, plain, key=FULL_ACCESS) if arm == LEARNED else ""
            yield Claim(results.experiment, f"{arm} beats {plain} with released batching, {where}", released, words or BEYOND)
            right = partial(_beats, results, FULL_ACCESS, evaluation, arm, plain)
            text = f"{arm}'s gain over {plain} stands with the right centre, {where}"
            yield Claim(results.experiment, text, right, BEYOND)


def _known_answer(results: Results) -> Iterator[Claim]:
    for arm in results.learners:
        yield _finds(results, arm, f"{arm}'s weights find the PT tasks whose labels are intact", INTACT, PERMUTED_TASKS)
    for arm in results.learners:
        yield _agrees(results, arm, FULL_ACCESS)
    plain = plain_arm(results)
    for evaluation in results.config.evaluations:
        where = EVALUATIONS[evaluation]
        for arm in results.learners:
            if plain is None:
                continue
            text = f"{arm} beats {plain} with half of the PT tasks permuted, {where}"
            yield Claim(results.experiment, text, partial(_beats, results, PERMUTED_TASKS, evaluation, arm, plain), BEYOND)
        for low in results.section.quarters[1:]:
            high = results.section.quarters[0]
            yield Claim(
                results.experiment,
                f"{high} beats {low}, {where}",
                partial(_beats, results, FULL_ACCESS, evaluation, high, low),
                BEYOND,
            )


def _cost(results: Results) -> Iterator[Claim]:
    plain = plain_arm(results)
    for arm in results.arms:
        if plain is None or not isinstance(results.config.arms[arm], Meta):
            continue
        for metric, what, bound, paper in (
            (TIME_PER_STEP, "twice the time per PT step", TWICE, "5 h against 2.5 h"),
            (PEAK_MEMORY, "about twice the memory", ABOUT_TWICE, "8-9 GB against 4-5 GB"),
        ):
            text = f"{arm} takes at most {what} of {plain}"
            check = partial(_costs, results, arm, metric, bound)
            yield Claim(results.experiment, text, check, paper if arm == LEARNED else BEYOND)


def _none(results: Results) -> Iterator[Claim]:
    return iter(())


_CLAIMS: dict[str, Callable[[Results], Iterator[Claim]]] = {
    "full_access": _arms,
    "half_data": _arms,
    "held_out_tasks": _arms,
    "summary": _none,
    "during_pretraining": _during_pretraining,
    "representations": _none,
    "learned_weights": _learned_weights,
    "negative_transfer": _negative_transfer,
    "centre_offset": _centre_offset,
    "known_answer": _known_answer,
    "cost": _cost,
}


def _finds(results: Results, arm: str, text: str, metric: str, setting: str) -> Claim:
    def check(table: pd.DataFrame) -> Verdict:
        return from_several(partial(at_least, bound=FOUND), over_pretraining(results, arm, metric, setting), "PT seed")

    return Claim(results.experiment, text, check, BEYOND)


def _agrees(results: Results, arm: str, setting: str) -> Claim:
    def check(table: pd.DataFrame) -> Verdict:
        return from_several(partial(at_least, bound=AGREED), agreement(results.weights(arm, setting)), "pair of PT seeds")

    text = f"{arm}'s weights agree between PT seeds (rank correlation at least {AGREED:g})"
    return Claim(results.experiment, text, check, BEYOND)


def _beats(results: Results, setting: str, evaluation: str, high: str, low: str, table: pd.DataFrame) -> Verdict:
    measured = difference(results.runs(high, setting, evaluation), results.runs(low, setting, evaluation))
    return not_below(measured, 0.0)


def _online_beats(results: Results, which: str, other: str, table: pd.DataFrame) -> Verdict:
    metric = ONLINE[which]
    return not_below(paired_difference(results.pretraining(LEARNED, metric), results.pretraining(other, metric)), 0.0)


def _relatives_go_up(results: Results, arm: str, table: pd.DataFrame) -> Verdict:
    return not_below(relatives(results, arm), 0.0)


def _few_lose(results: Results, arm: str, evaluation: str, table: pd.DataFrame) -> Verdict:
    shares = losing(results, arm, evaluation).to_numpy(dtype=float)
    return from_several(partial(at_most, bound=FEW_TASKS), estimate_mean(shares), "PT seed")


def _fewer_lose(results: Results, evaluation: str, table: pd.DataFrame) -> Verdict:
    return not_below(paired_difference(losing(results, BASELINE, evaluation), losing(results, LEARNED, evaluation)), 0.0)


def _costs(results: Results, arm: str, metric: str, bound: float, table: pd.DataFrame) -> Verdict:
    return at_most_times(costs(results), arm, metric, bound)


def _papers(results: Results, setting: str, evaluation: str, high: str, low: str, key: str = "") -> str:
    """The paper's two numbers, in words; "" where it has not both. Without PT it has full transfer only."""
    cells = papers_cells(key or results.key, [high, low])
    cells = cells[cells["setting"] == setting]
    texts, note = [], ""
    for arm in (high, low):
        found = cells[(cells["arm"] == arm) & (cells["evaluation"] == evaluation)]
        if found.empty and arm == "no_pt":
            found, note = cells[cells["arm"] == arm], " (no_pt: full transfer)"
        texts += [published(row["mean"], row["standard_error"]) for row in found.to_dict("records")]
    return f"{texts[0]} against {texts[1]} %{note}" if len(texts) == 2 else ""
