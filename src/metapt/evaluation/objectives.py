"""Agreement of validation results along fine-tuning with the test results at its end, over settings of a headroom.

A learner of hyperparameters minimises some objective: the validation loss of a head, or of the whole network, after so
many epochs. Whether such an objective can see what the final test sees is measured on the runs of a headroom (see
`metapt.evaluation.headroom`), without any gradient: by Spearman's correlation over settings between the validation
results of one PT seed after an epoch and the mean test results of the other PT seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.agreement import with_others
from metapt.evaluation.headroom_table import grids
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.evaluation.tables import NOTHING

EPOCHS = ["evaluation", "setting", "pretrain_seed", "epoch", "validation"]
"""Columns of a table of validation results along FT."""


@dataclass(frozen=True)
class ObjectiveAgreement:
    """The agreement of an objective with the test results of one evaluation, mean over PT seeds.

    Attributes:
        objective: the evaluation whose validation results are the objective.
        epoch: after which it is read; None for the test results of one PT seed, which are a ceiling.
        evaluation: the evaluation of the test results.
        spearman: Spearman's correlation over settings, from -1 to 1.
    """

    objective: str
    epoch: int | None
    evaluation: str
    spearman: Estimate


def agreements(runs: pd.DataFrame, epochs: pd.DataFrame) -> Iterator[ObjectiveAgreement]:
    """Yield the agreement of each objective and epoch with each evaluation of the runs; of each, last, the ceiling.

    Args:
        runs: a table of runs of one problem.
        epochs: a table with the columns `EPOCHS`, for the same settings and PT seeds.

    Raises:
        DataError: the epochs lack a setting or a PT seed of the runs.
    """
    for grid in grids(runs):
        evaluation, test = grid.cell["evaluation"], pd.DataFrame(grid.test, grid.settings, grid.seeds)
        for (objective, epoch), part in epochs.groupby(["evaluation", "epoch"], sort=True):
            known = set(zip(part["setting"], part["pretrain_seed"], strict=True))
            missing = [
                (setting, seed) for setting in test.index for seed in test.columns if (setting, seed) not in known
            ]
            if missing:
                setting, seed = missing[0]
                raise DataError(
                    f"the validation results of {objective} after epoch {epoch} lack {setting} with PT seed {seed}; "
                    "give those of all runs."
                )
            seen = part.pivot(index="setting", columns="pretrain_seed", values="validation")
            seen = seen.reindex(index=test.index, columns=test.columns)
            yield ObjectiveAgreement(str(objective), int(str(epoch)), evaluation, _mean(seen, test))
        yield ObjectiveAgreement(evaluation, None, evaluation, _mean(test, test))


def _mean(seen: pd.DataFrame, test: pd.DataFrame) -> Estimate:
    """Return the mean over PT seeds of the correlation of a seed's results with the mean test of the other seeds."""
    measured, seeds = test.to_numpy(dtype=float), list(test)
    return estimate_mean([with_others(seen[seed].to_numpy(dtype=float), measured, seeds, seed)[0] for seed in seeds])


def table(found: list[ObjectiveAgreement], names: Mapping[str, str]) -> pd.DataFrame:
    """Return a row for each objective and epoch, with a column for each evaluation; `names` has those of evaluations.

    The last row has the ceilings.
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for each in sorted(found, key=lambda each: each.epoch is None):
        ceiling = each.epoch is None
        objective = "test AUROC of one PT seed" if ceiling else names.get(each.objective, each.objective)
        row = rows.setdefault((objective, NOTHING if ceiling else str(each.epoch)), {})
        test = f"correlation with the test AUROC, {names.get(each.evaluation, each.evaluation)}"
        row[test] = f"{each.spearman.mean:.2f} ± {each.spearman.standard_error:.2f}"
    return pd.DataFrame(
        [{"objective": objective, "FT epochs": epoch} | row for (objective, epoch), row in rows.items()]
    )


def figure(found: list[ObjectiveAgreement], names: Mapping[str, str]) -> Figure:
    """Draw the correlations against epochs, a panel for each evaluation; `names` has those of evaluations."""
    evaluations = list(dict.fromkeys(each.evaluation for each in found))
    drawn, axes = figures.panels(len(evaluations), 1, width=5.6, height=3.6)
    for axis, evaluation in zip(axes, evaluations, strict=True):
        own = [each for each in found if each.evaluation == evaluation]
        with figures.style():
            axis.axhline(0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
            for number, objective in enumerate(dict.fromkeys(each.objective for each in own if each.epoch)):
                line = [(each.epoch, each.spearman) for each in own if each.objective == objective and each.epoch]
                axis.errorbar(
                    [epoch for epoch, _ in line],
                    [found.mean for _, found in line],
                    [found.standard_error for _, found in line],
                    label=f"validation AUROC of {names.get(objective, objective)}",
                    color=figures.colour(number),
                    marker=figures.MARKERS[number % len(figures.MARKERS)],
                    elinewidth=1.2,
                )
            for each in own:
                if each.epoch is None:
                    axis.axhline(each.spearman.mean, color="black", linewidth=1.2, label="test AUROC of one PT seed")
            lowest = min((each.spearman.mean - each.spearman.standard_error for each in own), default=0.0)
            limits = min(-0.6, lowest - 0.05), 1.05
            axis.set(xscale="log", xlabel="FT epochs", ylabel="Spearman's correlation, mean ± SE", ylim=limits)
            figures.plain_log_ticks(axis.xaxis)
        figures.title(axis, f"agreement with the test AUROC of {names.get(evaluation, evaluation)}")
    figures.legend_above(drawn, axes, columns=3)
    return drawn
