"""A table of fixed strengths of the warp: the results of PT with them, and the hypergradients there."""

from __future__ import annotations

import math
from contextlib import suppress

import pandas as pd

from metapt.domains.ecg.quantities import DISPLACEMENT, HYPERGRADIENT, MEAN, POSITIVE, STANDARD_DEVIATION
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import estimate_mean
from metapt.twostage.seeds import seed_means


def fixed_arm(warp: str, initial: float) -> str:
    """Return the name of the arm whose warp has a fixed strength, as in `fixed-stable-0.5`."""
    return f"fixed-{warp}-{initial:g}"


def start_arm(arm: str, initial: float) -> str:
    """Return the name of an arm that starts from a given strength, as in `meta-from-4`."""
    return f"{arm}-from-{initial:g}"


def strength_table(results: EcgResults) -> pd.DataFrame:
    """Return a row per fixed strength, and per arm whose warp has its parametrisation.

    Columns: warp, initial, displacement; {evaluation}_mean and {evaluation}_standard_error over PT seeds (NaN where not
    run); arm, hypergradient_mean, hypergradient_standard_error, t, positive ("" and NaN where there is no such arm).
    """
    study = results.section
    rows = []
    for name, strengths in study.strengths.items():
        warp = study.warps[name]
        arms = [arm for arm in study.starts if warp.alike(results.config.arms[arm].warp)]
        for initial in strengths:
            row = {"warp": name, "initial": initial} | _fixed(results, fixed_arm(name, initial))
            rows += [row | {"arm": arm} | _hypergradient(results, arm, initial) for arm in arms] or [row | {"arm": ""}]
    return pd.DataFrame(rows)


def _fixed(results: EcgResults, arm: str) -> dict[str, float]:
    numbers = {"displacement": math.nan}
    with suppress(NotMeasuredError):
        numbers["displacement"] = float(results.pretraining(arm, DISPLACEMENT).mean())
    for evaluation in results.config.evaluations:
        try:
            e = estimate_mean(
                seed_means(results.runs(arm, results.section.finetune_size, evaluation)).to_numpy(dtype=float)
            )
        except NotMeasuredError:
            continue
        numbers |= {f"{evaluation}_mean": e.mean, f"{evaluation}_standard_error": e.standard_error}
    return numbers


def _hypergradient(results: EcgResults, arm: str, initial: float) -> dict[str, float]:
    def values(metric: str) -> pd.Series[float]:
        return results.values(arm, metric, f"initial={initial:g}", HYPERGRADIENT)

    try:
        mean, deviation, positive = (values(m) for m in (MEAN, STANDARD_DEVIATION, POSITIVE))
    except NotMeasuredError:
        return {}
    e = estimate_mean(mean.to_numpy(dtype=float))
    error = e.standard_error if e.n > 1 else float(deviation.iloc[0]) / math.sqrt(results.section.draws)
    return {
        "hypergradient_mean": e.mean,
        "hypergradient_standard_error": error,
        "t": float((mean / deviation).mean()),
        "positive": float(positive.mean()),
    }
