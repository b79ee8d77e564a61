"""What experiments on headroom share: the draw of settings, and the table of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Annotated, Any, NamedTuple

import pandas as pd
from pydantic import AfterValidator

from metapt.evaluation import headroom_report
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.headroom import CELL, RUN
from metapt.evaluation.results import Results
from metapt.sections import Distinct, ExperimentSection, Rate, Seed, key
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS, VALIDATION_AUROC
from metapt.twostage.replicates import SEEDS


def rising(ends: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of a range. Raises ValueError if the first one is not below the second."""
    if ends[0] >= ends[1]:
        raise ValueError(f"{ends[0]:g} is not below {ends[1]:g}; a range begins with its lower end")
    return ends


Range = Annotated[tuple[Rate, Rate], AfterValidator(rising)]


class HeadroomSection(ExperimentSection):
    """Random settings of the hyperparameters of PT, each with the same PT seeds. Not in the paper."""

    settings: int = key(24, "random settings", ge=2)
    seed: Seed = key(0, "seed of the random settings; the first ones are the same for any number of them")
    pretrain_seeds: Annotated[list[Seed], Distinct] = key(
        [0, 1, 2, 3], "PT seeds, the same for all settings; tables with other seeds can be joined"
    )

    def made_arms(self) -> list[str]:
        """Return the names of the settings, which are those of their arms."""
        return [f"headroom-{self.seed}-{number:02d}" for number in range(self.settings)]

    def draws(
        self, ranges: Mapping[str, tuple[float, float]], *, logarithmic: bool = True
    ) -> dict[str, dict[str, float]]:
        """Return the hyperparameters of each setting by its name, with four significant digits.

        They are drawn from their ranges, log-uniformly or uniformly.
        """
        drawn = {}
        for number, name in enumerate(self.made_arms()):
            random = Random(f"headroom {self.seed} {number}")
            shares = {each: random.random() for each in ranges}
            drawn[name] = {
                each: _rounded(low * (high / low) ** share if logarithmic else low + (high - low) * share, low, high)
                for (each, share), (low, high) in zip(shares.items(), ranges.values(), strict=True)
            }
        return drawn

    def check(self, domain: Any) -> None:
        """Raise ValueError as `ExperimentSection.check`, and for one seed."""
        super().check(domain)
        if len(self.pretrain_seeds) < 2:
            raise ValueError(f".pretrain_seeds names {len(self.pretrain_seeds)}; legal: 2 or more")


def _rounded(value: float, low: float, high: float) -> float:
    """Return a value with four significant digits, inside of its range."""
    return min(max(float(f"{value:.4g}"), low), high)


class Cell(NamedTuple):
    """The runs of a setting of hyperparameters."""

    arm: str  # arm, setting: as in the metrics table
    setting: str
    problem: str  # problem, name, hyperparameters: as in the table of runs
    name: str
    hyperparameters: dict[str, float]


def table_of_runs(
    results: Results, cells: Iterable[Cell], test: str, validation: str = VALIDATION_AUROC
) -> pd.DataFrame:
    """Return a row for each FT run of the cells, as `metapt.evaluation.headroom` takes them.

    `test` and `validation` are the metrics of its results.
    """
    columns = {test: "test", validation: "validation"}
    metrics = results.metrics[results.metrics["metric"].isin(columns) & results.metrics["evaluation"].isin(EVALUATIONS)]
    wide = metrics.pivot(index=["arm", "setting", "evaluation", "replicate"], columns="metric", values="value")
    runs = wide.rename(columns=columns).reset_index().rename(columns={"arm": "_arm", "setting": "_setting"})
    words = pd.DataFrame(
        [
            {"_arm": cell.arm, "_setting": cell.setting, "problem": cell.problem, "setting": cell.name}
            | cell.hyperparameters
            for cell in cells
        ]
    )
    found = words.merge(runs, on=["_arm", "_setting"], how="inner", validate="one_to_many")
    domain, seeds = results.name.partition("_")[0], found["replicate"].astype(int)
    found = found.assign(
        experiment=results.name, domain=domain, pretrain_seed=seeds // SEEDS, finetune_seed=seeds % SEEDS
    )
    names = [name for name in words if name not in ("_arm", "_setting", *RUN)]
    order = [*CELL, "setting", *names, *RUN[len(CELL) + 1 :]]
    return found.sort_values([*CELL, "setting", "pretrain_seed", "finetune_seed"], kind="stable")[order]


def experiment(
    section: type[HeadroomSection],
    *,
    order: int,
    needs: Callable[[Any, Any], Needs],
    results: type[Results],
    runs: Callable[[Any], pd.DataFrame],
    metric: str,
    label: str = AUROC_LABEL,
    names: Mapping[str, str],
    title: str,
) -> Experiment:
    """Return the record of an experiment on headroom.

    `runs` returns the table of runs, given the results; `metric` is that of its test results, with a short `label`.
    `names` has those of hyperparameters, with units.
    """
    named = {**EVALUATIONS, **names}
    return Experiment(
        title=title,
        figure_title=f"{title}: the gain of the best setting, and the response along single hyperparameters",
        section=section,
        order=order,
        needs=needs,
        results=results,
        tables=lambda found: headroom_report.tables(runs(found), named),
        figure=lambda found: headroom_report.figure(runs(found), named, label),
        comparisons=lambda found: headroom_report.comparisons(runs(found), str(found.section.reference), metric, named),
    )
