"""Experiment `objectives`: what validation results along FT say about the test results, over settings of the headroom.

Not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from metapt.domains.ecg.config import EcgSettings
from metapt.domains.ecg.experiments import headroom
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation import objectives
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.tables import Tables
from metapt.sections import ExperimentSection, plain
from metapt.twostage.quantities import EVALUATIONS, VALIDATION_AUROC
from metapt.twostage.replicates import SEEDS

EPOCHS = (1, 2, 3, 5, 8, 12, 20, 30, 40, 50, 60, 100, 200)
"""FT epochs whose validation results are read; a shorter FT has the first ones."""


class EcgObjectives(ExperimentSection):
    """The settings, seeds and runs of `ecg.headroom`, which has to be in the config. Not in the paper."""

    def check(self, domain: EcgSettings) -> None:
        """Raise ValueError as `ExperimentSection.check`, and if the config has no headroom."""
        super().check(domain)
        if getattr(domain, "headroom", None) is None:
            raise ValueError(" compares the settings of ecg.headroom, which is not in the config; add `headroom: {}`")


def needs(jobs: EcgJobs, section: EcgObjectives) -> Needs:
    """Return the FT runs of the headroom."""
    settings = getattr(jobs.config, "headroom")  # noqa: B009 - the keys of experiments are added to the model
    return Needs(headroom.needs(jobs, settings).runs, words={"headroom": plain(settings)})


def agreements(results: EcgResults) -> Iterator[objectives.ObjectiveAgreement]:
    """Yield the agreement of each objective with each evaluation."""
    return objectives.agreements(runs(results), epochs(results))


def runs(results: EcgResults) -> pd.DataFrame:
    """Return the table of runs of the headroom."""
    return headroom.runs(replace(results, section=_headroom(results)))


def epochs(results: EcgResults) -> pd.DataFrame:
    """Return the validation AUROC (%) of each setting and PT seed after each of `EPOCHS`, mean over FT seeds."""
    every = results.series[(results.series["stage"] == "finetune") & results.series["step"].isin(EPOCHS)]
    evaluations = {f"{evaluation}, {VALIDATION_AUROC}": evaluation for evaluation in EVALUATIONS}
    rows = pd.DataFrame(
        {
            "evaluation": every["name"].map(evaluations),
            "setting": every["arm"],
            "pretrain_seed": every["replicate"].astype(int) // SEEDS,
            "epoch": every["step"].astype(int),
            "validation": every["value"],
        }
    )
    compared = rows[rows["setting"].isin(_headroom(results).made_arms())].dropna(subset="evaluation")
    grouped = compared.groupby(objectives.EPOCHS[:-1])["validation"]
    return grouped.agg(lambda values: values.mean(skipna=False)).reset_index()


def _headroom(results: EcgResults) -> headroom.EcgHeadroom:
    return headroom.EcgHeadroom.model_validate(results.words["headroom"])


def tables(results: EcgResults) -> Tables:
    """Return the correlations; the numbers are the validation AUROCs behind them."""
    caption = (
        "What an objective sees. Spearman's correlation over the settings of the headroom, between the validation "
        "AUROC of one PT seed after so many FT epochs and the mean test AUROC of the other PT seeds; mean ± standard "
        "error over PT seeds. The test AUROC of one PT seed is a ceiling"
    )
    return Tables({caption: objectives.table(list(agreements(results)), EVALUATIONS)}, epochs(results))


EXPERIMENT = Experiment(
    title="What an objective sees: agreement of validation results along FT with test results",
    section=EcgObjectives,
    order=10,
    needs=needs,
    results=EcgResults,
    tables=tables,
    figure=lambda results: objectives.figure(list(agreements(results)), EVALUATIONS),
)
