"""FT runs that share encoders: their means over all runs, as the papers have them, and over PT seeds, which are independent.

Values of FT runs are indexed by pair of seeds (`metapt.twostage.pairs`).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from metapt.errors import DataError
from metapt.evaluation.claims import Verdict, at_least, from_several
from metapt.evaluation.statistics import Difference, Estimate, cluster_bootstrap, cluster_means, estimate_mean, paired_difference
from metapt.twostage.pairs import pretrain_seed


def over_runs(values: pd.Series[float]) -> Estimate:
    """Mean and standard error over all FT runs, as the paper has them: as if runs of one encoder were independent."""
    return estimate_mean(values.to_numpy(dtype=float))


def seed_means(values: pd.Series[float]) -> pd.Series[float]:
    """Means over the FT runs of each PT seed."""
    return cluster_means(values, _pretrain_seeds(values))


def over_seeds(values: pd.Series[float]) -> Estimate:
    """Mean and standard error over the PT seeds' means."""
    return estimate_mean(seed_means(values).to_numpy(dtype=float))


def difference(a: pd.Series[float], b: pd.Series[float]) -> Difference:
    """Of the PT seeds' means, paired by PT seed. Raises DataError where the arms have other PT seeds."""
    return paired_difference(seed_means(a), seed_means(b))


def bootstrap(a: pd.Series[float], b: pd.Series[float]) -> Estimate:
    """The difference run by run, bootstrapped over PT seeds; without an interval where there is only one."""
    d = a - b.reindex(a.index)
    seeds = _pretrain_seeds(d)
    if len(set(seeds)) < 2:
        return Estimate(float(d.mean()), math.nan, 1, math.nan, math.nan)
    return cluster_bootstrap(d.to_numpy(dtype=float), seeds)


def difference_columns(a: pd.Series[float], b: pd.Series[float]) -> dict[str, Any]:
    """a minus b in the columns of a table: mean, seed_standard_error, seeds, low, high (95% t interval), p_value, bootstrap_low,
    bootstrap_high. Raises as `difference`."""
    d, drawn = difference(a, b), bootstrap(a, b)
    return {
        "mean": d.mean,
        "seed_standard_error": d.standard_error,
        "seeds": d.n,
        "low": d.low,
        "high": d.high,
        "p_value": d.p_value,
        "bootstrap_low": drawn.low,
        "bootstrap_high": drawn.high,
    }


def not_below(measured: Estimate, bound: float) -> Verdict:
    """Is a difference over PT seeds at least `bound`? Inconclusive where there is one PT seed."""
    verdict = from_several(lambda e: at_least(e, bound), measured, "PT seed")
    return Verdict(verdict.word, verdict.measured, f"difference at least {bound:g}")


def machine_of(record: Path) -> str:
    """The machine of a run's `run.json`, in words. Raises DataError where the file is no such record."""
    try:
        machine = json.loads(record.read_text(encoding="utf-8"))["machine"]
        return str(machine["name"]) if machine["device"] == "cuda" else f"{machine['name']}, threads: {machine['threads']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{record} is not the record of a run ({error!r}); make the run again.") from None


def _pretrain_seeds(values: pd.Series[float]) -> list[int]:
    return [pretrain_seed(int(replicate)) for replicate in values.index]
