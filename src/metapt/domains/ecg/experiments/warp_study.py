"""Experiment `warp_study`: the hypergradient of the warp's strength and the results of PT with fixed strengths.

Not in the paper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from metapt.domains.ecg.config import STABLE_WARP, Arm, EcgMeta, EcgSettings, Simclr, Warp, access
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.quantities import DISPLACEMENT
from metapt.domains.ecg.results import EcgResults
from metapt.domains.ecg.strengths import draw, fixed_arm, start_arm, strength_table
from metapt.errors import ConfigError
from metapt.evaluation.comparisons import Comparison, Measurement, at_most, within
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import Tables, mean_and_error
from metapt.sections import NAME, ExperimentSection, Positive, Rate, key, plain
from metapt.twostage.quantities import EVALUATIONS, PRETRAINING


class WarpStudy(ExperimentSection):
    """The hypergradient of the warp's strength against the truth: what PT with a fixed strength leads to.

    Not in the paper.
    """

    warps: dict[str, Warp] = key(
        {"paper": Warp(), "stable": STABLE_WARP.model_copy(update={"network_width": 0})},
        "parametrisations whose strengths are fixed in turn",
    )
    strengths: dict[str, list[Rate]] = key(
        {"paper": [0.125, 0.25, 0.5, 1.0, 2.0, 4.0], "stable": [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]},
        "fixed values of `initial`, for each of `warps`",
        min_length=1,
    )
    starts: dict[str, list[Rate]] = key(
        {"meta": [1.0, 4.0], "meta-stable": [1.0, 16.0, 64.0]},
        "arms of `ecg.arms` whose hypergradients are drawn, and the values of `initial` that they start from",
        min_length=1,
    )
    draws: Positive = key(20, "hypergradients per strength and PT seed, each with its own minibatches")
    horizon: list[Positive] = key([1, 5, 25], "PT steps at each strength after which heads are compared", min_length=1)
    finetune_size: Positive = key(500, "labelled ECGs")

    def arm_names(self) -> list[str]:
        """Return the arms whose hypergradients are drawn."""
        return list(self.starts)

    def check(self, domain: EcgSettings) -> None:
        """Raise ValueError if a name is illegal, an arm has no hypergradient, or two arms would have one name."""
        super().check(domain)
        for name in self.warps:
            if not re.fullmatch(NAME, name):
                raise ValueError(f".warps has {name[:99]!r}; a name is made of letters, digits, - and _ (64 at most)")
        for name in self.strengths:
            if name not in self.warps:
                raise ValueError(f".strengths.{name} is of no warp; legal: {', '.join(self.warps)}")
        for name in self.starts:
            if not isinstance(domain.arms[name], EcgMeta):
                learned = ", ".join(key for key, arm in domain.arms.items() if isinstance(arm, EcgMeta))
                raise ValueError(f".starts.{name}: the arm has no hypergradient; legal: {learned}")
            own = plain(domain.arms[name])
            if own["pretrain"] or own["finetune"]:
                raise ValueError(
                    f".starts.{name}: the arm has PT or FT settings of its own, and fixed strengths have the domain's; "
                    "legal: arms without"
                )
        made: dict[str, str] = {}
        for name, origin, _ in _arms(self, domain):
            if name in domain.arms:
                raise ValueError(
                    f".{origin} makes an arm of the name of arms.{name}, which would be run in its place; give that "
                    "another name"
                )
            if made.setdefault(name, origin) != origin:
                raise ValueError(
                    f".{made[name]} and warp_study.{origin} both make the arm {name!r}; legal: values that differ in "
                    "their first six digits, and warps and arms whose names lead to different ones"
                )


def study_arms(section: WarpStudy, domain: EcgSettings) -> dict[str, Arm]:
    """Return the arms that the study makes: `fixed-{warp}-{initial}` and `{arm}-from-{initial}`."""
    return {name: arm for name, _, arm in _arms(section, domain)}


def _arms(section: WarpStudy, domain: EcgSettings) -> Iterator[tuple[str, str, Arm]]:
    """Yield the name of each arm that the study makes, the key and value that it comes from, and its settings."""
    for name, strengths in section.strengths.items():
        for initial in strengths:
            warp = section.warps[name].model_copy(update={"initial": initial})
            yield fixed_arm(name, initial), f"strengths.{name} {initial}", Simclr(method="simclr", warp=warp)
    for name, starts in section.starts.items():
        for initial in starts:
            arm = domain.arms[name]
            assert isinstance(arm, EcgMeta)
            started = arm.model_copy(update={"warp": arm.warp.model_copy(update={"initial": initial})})
            yield start_arm(name, initial), f"starts.{name} {initial}", started


def needs(jobs: EcgJobs, section: WarpStudy) -> Needs:
    """Return the PT and FT runs of the study's arms, and hypergradients of each arm and PT seed.

    Raises ConfigError as `fixed_arms`.
    """
    arms, size = study_arms(section, jobs.config), section.finetune_size
    starts = [start_arm(arm, initial) for arm, initials in section.starts.items() for initial in initials]
    fixed = [fixed_arm(warp, initial) for warp, initials in section.strengths.items() for initial in initials]
    runs = jobs.runs([(arm, access(arms[arm], size), size) for arm in (*fixed, *starts)], arms)
    for arm in section.starts:
        beside = fixed_arms(section, jobs.config, arm)
        for seed in jobs.pretrain_seeds:
            encoders = {initial: jobs.pretrain(name, "none", seed, arms[name]) for initial, name in beside.items()}
            runs.append(jobs.hypergradients(arm, seed, encoders, size, section.draws, section.horizon))
    return Needs(runs)


def fixed_arms(section: WarpStudy, domain: EcgSettings, arm: str) -> dict[float, str]:
    """Return the arms of fixed strength whose warp has the parametrisation of `arm`, by their `initial`.

    Raises ConfigError if there are none, or two for one `initial`.
    """
    learned = domain.arms[arm]
    assert isinstance(learned, EcgMeta)
    found: dict[float, str] = {}
    for name, strengths in section.strengths.items():
        if not section.warps[name].alike(learned.warp):
            continue
        for initial in strengths:
            if found.setdefault(initial, fixed_arm(name, initial)) != fixed_arm(name, initial):
                raise ConfigError(
                    f"ecg.warp_study.strengths has {initial:g} of {name!r} and of another warp with smoothing "
                    f"{learned.warp.smoothing} and scale {learned.warp.scale}, and the arm {arm!r} can be compared "
                    "with one of them: leave the other out."
                )
    if not found:
        raise ConfigError(
            f"ecg.warp_study.warps has none with smoothing {learned.warp.smoothing} and scale {learned.warp.scale}, "
            f"as the arm {arm!r} of ecg.warp_study.starts has: add one with its strengths, or leave the arm out."
        )
    return found


def tables(results: EcgResults) -> Tables:
    """Return a row per fixed strength: the results of PT with it, and each arm's hypergradient there."""
    strengths = strength_table(results)
    shown = pd.DataFrame(
        {
            "warp": strengths["warp"],
            "initial": [f"{value:g}" for value in strengths["initial"]],
            "displacement (samples)": strengths["displacement"],
            **{f"AUROC, {EVALUATIONS[e]} (%)": _with_error(strengths, e) for e in results.config.evaluations},
            "hypergradient of": strengths["arm"],
            "mean": _with_error(strengths, "hypergradient"),
            "t per draw": strengths["t"],
            "positive signs": strengths["positive"],
        }
    )
    caption = (
        "The warp's strength, fixed, and the hypergradient of its scale there. AUROC: mean ± standard error over PT "
        "seeds. Hypergradient: the same, or over the draws where there is one PT seed; positive: the FT loss would "
        "fall with less warp. t per draw: mean over standard deviation of the draws"
    )
    numbers = strengths.copy()
    numbers.insert(0, "experiment", results.name)
    return Tables({caption: shown}, numbers)


def _with_error(table: pd.DataFrame, name: str) -> list[str]:
    if f"{name}_mean" not in table:
        return [""] * len(table)
    pairs = zip(table[f"{name}_mean"], table[f"{name}_standard_error"], strict=True)
    return ["" if math.isnan(mean) else mean_and_error(mean, error) for mean, error in pairs]


def comparisons(results: EcgResults) -> Iterator[Comparison]:
    """Yield the claims on where learned strengths end."""
    starts = results.section.starts
    for arm, initials in starts.items():
        if len(initials) > 1:
            low, high = min(initials), max(initials)
            text = f"{arm} ends nearer to one displacement from {low:g} and from {high:g} than it began"
            names = start_arm(arm, high), start_arm(arm, low)
            gap = partial(_remaining_gap, results, *reversed(names))
            yield Comparison(text, *names, DISPLACEMENT, at_most(1.0), gap, PRETRAINING)
    for arm, initial in ((arm, initial) for arm, initials in starts.items() for initial in initials):
        for evaluation in results.config.evaluations:
            words = "ends within a factor of 2 of the best fixed displacement"
            text, name = f"{arm} from {initial:g} {words}, {EVALUATIONS[evaluation]}", start_arm(arm, initial)
            distance = partial(_distance_from_best, results, name, evaluation)
            yield Comparison(text, name, "", DISPLACEMENT, within(0.0, 1.0), distance, evaluation)


def _remaining_gap(results: EcgResults, low: str, high: str) -> Measurement:
    """Return the ratio of two arms' gap in log displacement at the end of PT to the gap at its start."""
    lows, highs = _first_and_last(results, low), _first_and_last(results, high)
    seeds = sorted(set(lows) & set(highs))
    with np.errstate(all="ignore"):  # a displacement of 0 decides nothing
        gaps = np.abs(np.log([highs[seed] for seed in seeds]) - np.log([lows[seed] for seed in seeds]))
        measured = estimate_mean(gaps[:, 1] / gaps[:, 0])
    return Measurement(measured, "gap at the end over gap at the start: {}")


def _distance_from_best(results: EcgResults, arm: str, evaluation: str) -> Measurement:
    """Return log2 of an arm's final displacement over the fixed displacement with the best mean AUROC."""
    strengths = strength_table(results)
    name = f"{evaluation}_mean"
    if name not in strengths or strengths[name].isna().all():
        raise NotMeasuredError(f"No fixed strength has been fine-tuned with {evaluation}.")
    best = float(strengths["displacement"].iloc[int(strengths[name].argmax())])
    with np.errstate(divide="ignore"):
        measured = estimate_mean(np.log2([end / best for _, end in _first_and_last(results, arm).values()]))
    side = "above" if measured.mean > 0 else "below"
    return Measurement(
        measured, f"{2 ** abs(measured.mean):.3g} times {side} the best one, {best:.3g} samples; log2: {{}}"
    )


def _first_and_last(results: EcgResults, arm: str) -> dict[int, tuple[float, float]]:
    """Return PT seed -> first and last displacement of its series. Raises NotMeasuredError if there is no series."""
    found = {seed: each["value"].to_numpy(dtype=float) for seed, each in results.trajectories(arm).items()}
    if not found:
        raise NotMeasuredError(f"No PT run of {arm} has left a trajectory.")
    return {seed: (float(values[0]), float(values[-1])) for seed, values in found.items()}


EXPERIMENT = Experiment(
    title="What PT with fixed strengths of the warp leads to, and the hypergradient there",
    figure_title="Test AUROC after PT with fixed strengths of the warp, the hypergradient there, and where learned "
    "strengths go",
    section=WarpStudy,
    order=5,
    needs=needs,
    results=EcgResults,
    tables=tables,
    figure=draw,
    comparisons=comparisons,
)
