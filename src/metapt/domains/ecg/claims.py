"""What the paper claims on ECGs, and what we claim beyond it, each with the check that decides it.

Differences and ratios are over PT seeds, the FT runs of one averaged: those share an encoder and are no evidence of their own.
With a single PT seed nothing is decided. Claims on arms and sizes that the config does not run are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from metapt.domains.ecg.config import Meta, start_arm
from metapt.domains.ecg.results import Results, first_size, papers_cells
from metapt.domains.ecg.tables import costs, plain_arm, strength_table
from metapt.evaluation.claims import Claim, Verdict, at_most, from_several, within
from metapt.evaluation.looks import EVALUATIONS
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.evaluation.tables import published
from metapt.twostage.cost import PEAK_MEMORY, TIME_PER_STEP, at_most_times
from metapt.twostage.seeded import difference, not_below

BEYOND = "beyond the paper"
NO_WORSE = 0.5
"""Percentage points of AUROC by which an arm may fall behind one that it is to be as good as."""
FEW_POINTS = 1.0
"""Percentage points of AUROC that are called little."""
ABOUT_TWICE = 2.2


class Compared(NamedTuple):
    """Two arms in a claim: `high` beats `low`, or is at most `margin` points worse; `paper` where the paper says so."""

    high: str
    low: str
    paper: bool
    margin: float = 0.0


FULL_ACCESS = (
    Compared("simclr", "no_pt", True),
    Compared("meta", "simclr", True),
    Compared("meta", "optsla", True),
    Compared("meta-stable", "simclr", False),
    Compared("meta-stable", "meta", False),
    Compared("meta-stable", "random_search", False, NO_WORSE),
    Compared("meta-stable", "branch_search", False, NO_WORSE),
)
UNROLL_STEPS = (Compared("meta", "meta-k0", True), Compared("meta-k0", "simclr", True))


def claims(results: Results) -> list[Claim]:
    """The claims of an experiment."""
    return list(_CLAIMS[results.key](results))


def _full_access(results: Results) -> Iterator[Claim]:
    for compared in FULL_ACCESS:
        yield from _beats(results, compared)


def _unroll_steps(results: Results) -> Iterator[Claim]:
    for compared in UNROLL_STEPS:
        yield from _beats(results, compared)
    if {"meta", "meta-k10"} <= set(results.arms):
        for evaluation, size in _cells(results):
            paper = _papers(results, evaluation, size, ("meta-k10", None), ("meta", None)) or BEYOND
            text = f"meta-k10 comes within {FEW_POINTS:g} point of meta, {_where(evaluation, size)}"
            check = partial(_differs, results, evaluation, size, ("meta-k10", None), ("meta", None), _near)
            yield Claim(results.experiment, text, check, paper)


def _partial_access(results: Results) -> Iterator[Claim]:
    base, size = results.section.baseline, first_size(results)
    few = size // 10
    if few not in results.section.meta_sizes:
        return
    for arm in results.section.arms:
        for evaluation in results.config.evaluations:
            paper = _papers(results, evaluation, size, (arm, few), (base, 0)) or BEYOND
            text = f"{arm} with {few} FT ECGs at meta-PT time beats {base}, {_where(evaluation, size)}"
            check = partial(_differs, results, evaluation, size, (arm, few), (base, 0), partial(not_below, bound=0.0))
            yield Claim(results.experiment, text, check, paper)


def _warp_study(results: Results) -> Iterator[Claim]:
    study = results.section
    for arm, starts in study.starts.items():
        if len(starts) > 1:
            low, high = min(starts), max(starts)
            text = f"{arm} ends nearer to one displacement from {low:g} and from {high:g} than it began"
            yield Claim(results.experiment, text, partial(_come_together, results, arm, low, high), BEYOND)
    for arm, starts in study.starts.items():
        for start in starts:
            for evaluation in results.config.evaluations:
                text = f"{arm} from {start:g} ends within a factor of 2 of the best fixed displacement, {EVALUATIONS[evaluation]}"
                yield Claim(results.experiment, text, partial(_ends_near_best, results, arm, start, evaluation), BEYOND)


def _cost(results: Results) -> Iterator[Claim]:
    plain = plain_arm(results)
    for arm in results.arms:
        if plain is None or not isinstance(results.config.arms[arm], Meta):
            continue
        for metric, what, paper in (
            (TIME_PER_STEP, "time per PT step", "3 h against 1.5 h"),
            (PEAK_MEMORY, "memory", "8-9 GB against 4-5 GB"),
        ):
            text = f"{arm} takes at most about twice the {what} of {plain}"
            check = partial(_costs, results, arm, metric)
            yield Claim(results.experiment, text, check, paper if arm == "meta" else BEYOND)


def _none(results: Results) -> Iterator[Claim]:
    return iter(())


_CLAIMS: dict[str, Callable[[Results], Iterator[Claim]]] = {
    "full_access": _full_access,
    "unroll_steps": _unroll_steps,
    "partial_access": _partial_access,
    "augmentations": _none,
    "warp_study": _warp_study,
    "cost": _cost,
}


def _costs(results: Results, arm: str, metric: str, table: pd.DataFrame) -> Verdict:
    return at_most_times(costs(results), arm, metric, ABOUT_TWICE)


def _cells(results: Results) -> list[tuple[str, int]]:
    return [(evaluation, size) for evaluation in results.config.evaluations for size in results.section.finetune_sizes]


def _where(evaluation: str, size: int) -> str:
    return f"{EVALUATIONS[evaluation]}, |D_FT| = {size}"


def _beats(results: Results, compared: Compared) -> Iterator[Claim]:
    """A claim for each evaluation and |D_FT|."""
    high, low = compared.high, compared.low
    if not {high, low} <= set(results.arms):
        return
    verb = f"is at most {compared.margin:g} points worse than" if compared.margin else "beats"
    for evaluation, size in _cells(results):
        paper = _papers(results, evaluation, size, (high, None), (low, None)) if compared.paper else ""
        check = partial(
            _differs, results, evaluation, size, (high, None), (low, None), partial(not_below, bound=0.0 - compared.margin)
        )
        yield Claim(results.experiment, f"{high} {verb} {low}, {_where(evaluation, size)}", check, paper or BEYOND)


Cell = tuple[str, int | None]
"""An arm, and its FT ECGs at meta-PT time where that is not |D_FT|."""


def _differs(
    results: Results, evaluation: str, size: int, a: Cell, b: Cell, compare: Callable[[Estimate], Verdict], table: pd.DataFrame
) -> Verdict:
    (first, few), (second, other) = a, b
    measured = difference(results.runs(first, size, evaluation, few), results.runs(second, size, evaluation, other))
    return compare(measured)


def _near(measured: Estimate) -> Verdict:
    return from_several(lambda e: within(e, 0.0, FEW_POINTS), measured, "PT seed")


def _papers(results: Results, evaluation: str, size: int, a: Cell, b: Cell) -> str:
    """The paper's two numbers, in words; "" where it has not both."""
    cells = papers_cells(results.key, results.arms)
    texts = []
    for arm, few in (a, b):
        found = cells[(cells["evaluation"] == evaluation) & (cells["size"] == size) & (cells["arm"] == arm)]
        found = found[found["meta_size"].isna() if few is None else found["meta_size"] == few]
        texts += [published(row["mean"], row["standard_error"]) for row in found.to_dict("records")]
    return f"{texts[0]} against {texts[1]} %" if len(texts) == 2 else ""


def _come_together(results: Results, arm: str, low: float, high: float, table: pd.DataFrame) -> Verdict:
    """Is the ratio of the two displacements nearer to 1 at the end, on a logarithmic scale?"""
    ways = [_ways(results, start_arm(arm, start)) for start in (low, high)]
    seeds = sorted(set(ways[0]) & set(ways[1]))
    with np.errstate(all="ignore"):  # a displacement of 0 decides nothing
        gaps = np.abs(np.log([ways[1][seed] for seed in seeds]) - np.log([ways[0][seed] for seed in seeds]))
        measured = estimate_mean(gaps[:, 1] / gaps[:, 0])
    verdict = from_several(lambda e: at_most(e, 1.0), measured, "PT seed")
    return Verdict(verdict.word, f"gap at the end over gap at the start: {verdict.measured}", verdict.bound)


def _ends_near_best(results: Results, arm: str, start: float, evaluation: str, table: pd.DataFrame) -> Verdict:
    """Is the displacement at the end within a factor of 2 of the fixed one with the best mean AUROC?"""
    strengths = strength_table(results)
    name = f"{evaluation}_mean"
    if name not in strengths or strengths[name].isna().all():
        raise NotMeasuredError(f"No fixed strength has been fine-tuned with {evaluation}.")
    best = float(strengths["displacement"].iloc[int(strengths[name].argmax())])
    ends = _ways(results, start_arm(arm, start))
    with np.errstate(divide="ignore"):
        measured = estimate_mean(np.log2([end / best for _, end in ends.values()]))
    verdict = from_several(lambda e: within(e, 0.0, 1.0), measured, "PT seed")
    side = "above" if measured.mean > 0 else "below"
    text = f"{2 ** abs(measured.mean):.3g} times {side} the best one, {best:.3g} samples; log2: {verdict.measured}"
    return Verdict(verdict.word, text, verdict.bound)


def _ways(results: Results, arm: str) -> dict[int, tuple[float, float]]:
    """PT seed -> displacement when its series begins and when it ends. Raises NotMeasuredError where there is no series."""
    found = results.series[results.series["arm"] == arm]
    ways = {int(seed): results.trajectory(arm, int(seed))["value"].to_numpy(dtype=float) for seed in np.unique(found["seed"])}
    if not ways:
        raise NotMeasuredError(f"No PT run of {arm} has left a trajectory.")
    return {seed: (float(way[0]), float(way[-1])) for seed, way in ways.items()}
