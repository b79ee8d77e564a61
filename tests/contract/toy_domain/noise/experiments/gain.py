"""The experiment `gain`: the effect of learned noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure
from metapt.domains.noise.config import NoiseSettings
from metapt.domains.noise.jobs import NoiseJobs
from pydantic import Field

from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.tables import Tables, mean_and_error
from metapt.sections import ExperimentSection
from metapt.twostage.quantities import LINEAR_EVALUATION
from metapt.twostage.results import TwoStageResults, over_seeds
from metapt.twostage.tables import better


class Gain(ExperimentSection):
    """Learned noise against half noise in each feature."""

    arms: list[str] = Field(["fixed", "meta"], description="arms, keys of `noise.arms`")


@dataclass(frozen=True)
class NoiseResults(TwoStageResults):
    """The results of the experiment; see `TwoStageResults`."""

    settings = NoiseSettings
    auroc = "test AUROC (%)"


def needs(jobs: NoiseJobs, section: Gain) -> Needs:
    """Return the PT and FT runs of the arms."""
    seeds = range(jobs.config.pretrain_seeds)
    return Needs([make(arm, seed) for make in (jobs.pretrain, jobs.finetune) for arm in section.arms for seed in seeds])


def cells(results: NoiseResults) -> pd.DataFrame:
    """Return a row per arm: arm (as label), mean, standard_error over PT seeds, seeds."""
    found = {arm: over_seeds(results.runs(arm, "", LINEAR_EVALUATION)) for arm in results.arms}
    rows = [
        {"label": arm, "mean": e.mean, "standard_error": e.standard_error, "seeds": e.n} for arm, e in found.items()
    ]
    return pd.DataFrame(rows)


def tables(results: NoiseResults) -> Tables:
    """Return a row per arm."""
    found = cells(results)
    shown = [mean_and_error(mean, error) for mean, error in zip(found["mean"], found["standard_error"], strict=True)]
    block = pd.DataFrame({"arm": found["label"], "PT seeds": found["seeds"], results.auroc: shown})
    return Tables({f"{results.auroc}: mean ± standard error over PT seeds": block}, found)


def figure(results: NoiseResults) -> Figure:
    """Draw a dot per arm."""
    return figures.bars_with_error(cells(results), xlabel=results.auroc)


def comparisons(results: NoiseResults) -> Iterator[Comparison]:
    """Yield one claim: learned noise is better than its initial value."""
    if {"meta", "fixed"} <= set(results.arms):
        runs = [lambda arm=arm: results.runs(arm, "", LINEAR_EVALUATION) for arm in ("meta", "fixed")]
        yield better("meta beats fixed", "meta", "fixed", results.auroc, LINEAR_EVALUATION, (runs[0], runs[1]))


EXPERIMENT = Experiment(
    title="Test AUROC of each arm",
    figure_title="Test AUROC of each arm",
    section=Gain,
    order=1,
    needs=needs,
    results=NoiseResults,
    tables=tables,
    figure=figure,
    comparisons=comparisons,
)
