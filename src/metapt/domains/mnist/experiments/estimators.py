"""Experiment `estimators`: which estimates of the derivative w.r.t. the rotation agree with what happened.

Not in the paper.
"""

from __future__ import annotations

import pandas as pd

from metapt.domains.mnist.experiments.headroom import MnistHeadroom, fixed_runs, problem_of, study
from metapt.domains.mnist.jobs import MnistJobs, minutes
from metapt.domains.mnist.quantities import PROBLEM, VALIDATION_ACCURACY
from metapt.domains.mnist.results import MnistResults
from metapt.errors import DataError
from metapt.evaluation.experiment import Needs
from metapt.evaluation.headroom import REFERENCE
from metapt.jobs import Job, Json
from metapt.sections import Rate, key, plain
from metapt.twostage.estimators import (
    EstimatorsSection,
    Evolution,
    RunPair,
    experiment,
    measured_runs,
    pair,
    pair_slopes,
    slopes_of,
)
from metapt.twostage.quantities import FULL_TRANSFER


class MnistEstimators(EstimatorsSection):
    """Estimates of the derivative w.r.t. the mean rotation of PT images. Not in the paper."""

    reach: Rate = key(45.0, "settings up to this far from the reference of the headroom are compared, degrees")
    secant: Rate = key(22.5, "distance of both ends of a secant from the reference, degrees")
    evolution: Evolution = key(Evolution(size=22.5), "persistent evolution strategies")


def secant(section: MnistEstimators) -> RunPair:
    """Return the ends of the secant."""
    return pair("secant", {"mean": section.secant})


def needs(jobs: MnistJobs, section: MnistEstimators) -> Needs:
    """Return the estimates of each PT seed, and the runs of the secant."""
    sizes = getattr(jobs.config, "headroom", None) or MnistHeadroom()
    made = [
        _estimates(jobs, sizes, entry, seed, own)
        for entry, own in section.studies().items()
        for seed in section.pretrain_seeds
    ]
    ends, reach = secant(section), section.secant
    means = {ends.low: sizes.reference - reach, ends.high: sizes.reference + reach}
    runs = measured_runs(section, [problem_of(jobs.config)], ["mean"])
    return Needs(made + fixed_runs(jobs, sizes, means, section.pretrain_seeds), words=runs)


def _estimates(jobs: MnistJobs, sizes: MnistHeadroom, name: str, seed: int, settings: Json) -> Job:
    """Return the job of a study that estimates at the reference with a PT seed; `settings` are its own."""
    own = study(sizes, {"reference": sizes.reference})
    config = {"experiment": "headroom", "arm": "reference", "settings": plain(own), "seed": seed} | settings
    entry, inputs = f"domains.mnist.studies.{name}", {"data": jobs.prepared().outputs["data"]}
    words = "study", f"{name}/seed{seed}", entry, config, inputs
    return jobs.training(*words, resumable=False, mem_mb=2000, minutes=minutes(own, "reference", settings.get("pairs")))


def slopes(results: MnistResults) -> pd.DataFrame:
    """Return the table of slopes."""
    found = results.metrics[results.metrics["setting"].str.startswith(PROBLEM)]
    problem, ends = problem_of(results.config), [secant(results.section)]
    secants = pair_slopes(results, problem, "secant", ends, VALIDATION_ACCURACY, FULL_TRANSFER)
    return pd.concat([slopes_of(found).assign(problem=problem), secants], ignore_index=True)


def near(runs: pd.DataFrame, reach: float) -> pd.DataFrame:
    """Return the runs up to `reach` degrees from the reference: no line can follow a peak further away.

    Raises DataError if they lack the reference.
    """
    at_reference = runs.loc[runs["setting"] == REFERENCE, "mean"]
    if at_reference.empty:
        raise DataError("estimators.runs has no run of the setting reference; name the table.csv of a whole headroom.")
    found: pd.DataFrame = runs[(runs["mean"] - at_reference.iloc[0]).abs() <= reach]
    return found


EXPERIMENT = experiment(
    MnistEstimators,
    order=7,
    needs=needs,
    results=MnistResults,
    slopes=slopes,
    compared=lambda results, runs: near(runs, results.section.reach),
    title="Which estimates of the derivative w.r.t. the rotation agree with what happened",
)
