"""What experiments on headroom share: the draw of settings, and the table of their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Annotated, Any, ClassVar

import pandas as pd
from pydantic import AfterValidator, Field

from metapt.evaluation import headroom_report
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.headroom import CELL, REFERENCE, RUN
from metapt.evaluation.results import Results
from metapt.sections import MOST_FINETUNE_SEEDS, Distinct, ExperimentSection, Rate, Seed, key
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS, VALIDATION_AUROC


def rising(ends: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of a range. Raises ValueError if the first one is not below the second."""
    if ends[0] >= ends[1]:
        raise ValueError(f"{ends[0]:g} is not below {ends[1]:g}; a range begins with its lower end")
    return ends


Range = Annotated[tuple[Rate, Rate], AfterValidator(rising)]
SharedSeeds = Annotated[
    list[Seed],
    Distinct,
    Field(description="PT seeds, the same for all settings; tables with other seeds can be joined"),
]


class HeadroomSection(ExperimentSection):
    """Random settings of the hyperparameters of PT, each with the same PT seeds. Not in the paper.

    The last of `arm_names` is the arm that settings are compared with.
    """

    logarithmic: ClassVar[bool] = True  # whether hyperparameters are drawn log-uniformly, or else uniformly

    settings: int = key(24, "random settings", ge=2)
    seed: Seed = key(0, "seed of the random settings; the first ones are the same for any number of them")
    pretrain_seeds: SharedSeeds = list(range(8))

    def made_arms(self) -> list[str]:
        """Return the names of the settings, which are those of their arms."""
        return [f"headroom-{self.seed}-{number:02d}" for number in range(self.settings)]

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return the ranges of the hyperparameters, by name."""
        raise NotImplementedError

    def reference_values(self) -> dict[str, float]:
        """Return the hyperparameters that the reference has, by name."""
        return {}

    def drawn(self) -> dict[str, dict[str, float]]:
        """Return the hyperparameters of each setting by its name, drawn from their ranges, with four digits."""
        ranges, found = self.ranges(), {}
        for number, name in enumerate(self.made_arms()):
            random = Random(f"headroom {self.seed} {number}")
            found[name] = {each: self._draw(random.random(), low, high) for each, (low, high) in ranges.items()}
        return found

    def _draw(self, share: float, low: float, high: float) -> float:
        value = low * (high / low) ** share if self.logarithmic else low + (high - low) * share
        return min(max(float(f"{value:.4g}"), low), high)

    def check(self, domain: Any) -> None:
        """Raise ValueError as `ExperimentSection.check`, and for one seed."""
        super().check(domain)
        if len(self.pretrain_seeds) < 2:
            raise ValueError(f".pretrain_seeds names {len(self.pretrain_seeds)}; legal: 2 or more")


def experiment(
    section: type[HeadroomSection],
    *,
    order: int,
    needs: Callable[[Any, Any], Needs],
    results: type[Results],
    problem: Callable[[Any], tuple[str, str]],
    test: Callable[[Any], str],
    validation: str = VALIDATION_AUROC,
    label: str = AUROC_LABEL,
    names: Mapping[str, str],
    title: str,
) -> Experiment:
    """Return the record of an experiment on headroom.

    Given the results, `problem` returns the setting of the runs in the metrics table and the name of the problem, and
    `test` the metric that FT runs are tested by; `validation` is that which chooses them, `label` a short name of the
    former. `names` has those of hyperparameters, with units.
    """
    named = {**EVALUATIONS, **names}

    def runs(found: Results) -> pd.DataFrame:
        return table_of_runs(found, *problem(found), {test(found): "test", validation: "validation"})

    return Experiment(
        title=title,
        figure_title=f"{title}: the gain of the best setting, and the response along single hyperparameters",
        section=section,
        order=order,
        needs=needs,
        results=results,
        tables=lambda found: headroom_report.tables(runs(found), named),
        figure=lambda found: headroom_report.figure(runs(found), named, label),
        comparisons=lambda found: headroom_report.comparisons(
            runs(found), str(found.section.reference), test(found), named
        ),
    )


def table_of_runs(results: Results, setting: str, problem: str, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return a row for each FT run, as `metapt.evaluation.headroom` takes them.

    `setting` is that of the runs in the metrics table; `columns` has the column of each metric.
    """
    section: HeadroomSection = results.section
    reference = section.arm_names()[-1]
    hyperparameters = section.drawn() | {reference: section.reference_values()}
    known = {"metric": columns, "evaluation": EVALUATIONS, "setting": [setting], "arm": hyperparameters}
    metrics = results.metrics[
        results.metrics[[*known]].isin({key: [*legal] for key, legal in known.items()}).all(axis=1)
    ]
    wide = metrics.pivot(index=["arm", "evaluation", "replicate"], columns="metric", values="value")
    runs = wide.rename(columns=columns).reset_index()
    drawn = pd.DataFrame([hyperparameters[arm] for arm in runs["arm"]], runs.index, [*section.ranges()])
    seeds = runs["replicate"].astype(int)
    found = runs.join(drawn).assign(
        experiment=results.name,
        domain=results.name.partition("_")[0],
        problem=("" if results.config.papers_data else f"{results.config.source} ") + problem,
        setting=runs["arm"].where(runs["arm"] != reference, REFERENCE),
        pretrain_seed=seeds // MOST_FINETUNE_SEEDS,
        finetune_seed=seeds % MOST_FINETUNE_SEEDS,
    )
    order = [*CELL, "setting", *drawn, *RUN[len(CELL) + 1 :]]
    return found.sort_values([*CELL, "setting", "pretrain_seed", "finetune_seed"], kind="stable")[order]
