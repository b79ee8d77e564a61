"""Experiment `headroom`: what weights of groups of PT tasks could gain, with intact and with permuted tasks.

Not in the paper.
"""

from __future__ import annotations

from typing import Annotated

import pandas as pd
from pydantic import Field

from metapt.domains.ppi.config import Arm, PpiSettings, Supervised, has_equal_weights
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.quantities import AUROC
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import group, permuted
from metapt.evaluation.experiment import Needs
from metapt.evaluation.headroom import REFERENCE
from metapt.sections import Distinct, Seed, key
from metapt.twostage.headroom import Cell, HeadroomSection, Range, experiment, table_of_runs


class PpiHeadroom(HeadroomSection):
    """Random weights of groups of PT tasks, each with the same PT seeds. Not in the paper."""

    reference: str = key("graph_supervised", "the arm that settings are compared with: plain PT with equal weights")
    pretrain_seeds: Annotated[list[Seed], Distinct] = key(
        list(range(8)), "PT seeds, the same for all settings; tables with other seeds can be joined"
    )
    groups: int = key(20, "groups of PT tasks with alike labels", ge=2)
    weight: Range = key((0.02, 1.98), "range of a group's weight, 2 sigmoid(phi), drawn log-uniformly")
    permuted: Annotated[list[Annotated[int, Field(ge=0, le=99)]], Distinct] = key(
        [0, 50, 90], "share of the PT tasks whose labels are permuted (%), a problem each", min_length=1
    )

    def arm_names(self) -> list[str]:
        """Return the reference."""
        return [self.reference]

    def check(self, domain: PpiSettings) -> None:
        """Raise ValueError as `HeadroomSection.check`, for a reference with task weights, and for weights above 2."""
        super().check(domain)
        check_reference(self.reference, domain)
        if self.weight[1] >= 2:
            raise ValueError(f".weight goes up to {self.weight[1]:g}; legal: weights below 2")


def check_reference(name: str, domain: PpiSettings) -> None:
    """Raise ValueError if an arm is not plain PT with equal task weights."""
    arm = domain.arms[name]
    if not (isinstance(arm, Supervised) and has_equal_weights(arm)):
        raise ValueError(f".reference is {name!r}; legal: an arm of method supervised with tasks: all and no weights")


def settings(section: PpiHeadroom) -> dict[str, dict[str, float]]:
    """Return the weights of each setting, by its name."""
    return section.draws({group(number): section.weight for number in range(section.groups)})


def needs(jobs: PpiJobs, section: PpiHeadroom) -> Needs:
    """Return the FT runs of the settings and of the reference on each problem."""
    reference = jobs.config.arms[section.reference]
    assert isinstance(reference, Supervised)
    arms: dict[str, Arm] = {section.reference: reference}
    for name, drawn in settings(section).items():
        arms[name] = reference.model_copy(update={"group_weights": list(drawn.values())})
    problems = [permuted(percent) for percent in section.permuted]
    return Needs(
        [
            jobs.finetune(name, problem, seed, arm)
            for problem in problems
            for name, arm in arms.items()
            for seed in section.pretrain_seeds
        ]
    )


def problem_of(config: PpiSettings, setting: str) -> str:
    """Return the name of a problem in the table of runs."""
    source = f"{config.source} " * config.stand_in
    return f"{source}ppi {config.network.layers}x{config.network.width} {setting}"


def runs(results: PpiResults) -> pd.DataFrame:
    """Return the table of runs."""
    section, drawn = results.section, settings(results.section)
    equal = dict.fromkeys(next(iter(drawn.values())), 1.0)
    cells = []
    for setting in map(permuted, section.permuted):
        problem = problem_of(results.config, setting)
        cells += [Cell(name, setting, problem, name, weights) for name, weights in drawn.items()]
        cells.append(Cell(section.reference, setting, problem, REFERENCE, equal))
    return table_of_runs(results, cells, AUROC)


EXPERIMENT = experiment(
    PpiHeadroom,
    order=12,
    needs=needs,
    results=PpiResults,
    runs=runs,
    metric=AUROC,
    names={},
    title="What weights of groups of PT tasks could gain, with intact and with permuted tasks",
)
