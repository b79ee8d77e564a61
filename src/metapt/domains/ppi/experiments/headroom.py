"""Experiment `headroom`: what weights of groups of PT tasks could gain. Not in the paper."""

from __future__ import annotations

from itertools import product

from metapt.domains.ppi.config import Arm, PpiSettings, Supervised, has_equal_weights
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.stages import FULL_ACCESS, group
from metapt.evaluation.experiment import Needs
from metapt.sections import key
from metapt.twostage.headroom import HeadroomSection, Range, experiment


class PpiHeadroom(HeadroomSection):
    """Random weights of groups of PT tasks, each with the same PT seeds. Not in the paper."""

    reference: str = key("graph_supervised", "the arm that settings are compared with: plain PT with equal weights")
    groups: int = key(20, "groups of PT tasks with alike labels", ge=2)
    weight: Range = key((0.02, 1.98), "range of a group's weight, 2 sigmoid(phi), drawn log-uniformly")

    def arm_names(self) -> list[str]:
        return [self.reference]

    def ranges(self) -> dict[str, tuple[float, float]]:
        return {group(number): self.weight for number in range(self.groups)}

    def reference_values(self) -> dict[str, float]:
        return dict.fromkeys(self.ranges(), 1.0)

    def check(self, domain: PpiSettings) -> None:
        """Raise ValueError as `HeadroomSection.check`, for a reference with task weights, and for weights above 2."""
        super().check(domain)
        arm = domain.arms[self.reference]
        if not (isinstance(arm, Supervised) and has_equal_weights(arm)):
            raise ValueError(f".reference is {self.reference!r}; legal: an arm of method supervised without weights")
        if self.weight[1] >= 2:
            raise ValueError(f".weight goes up to {self.weight[1]:g}; legal: weights below 2")


def headroom_runs(jobs: PpiJobs, section: PpiHeadroom) -> Needs:
    """Return the FT runs of the settings and of the reference."""
    reference = jobs.config.arms[section.reference]
    assert isinstance(reference, Supervised)
    arms: dict[str, Arm] = {section.reference: reference}
    for name, drawn in section.drawn().items():
        arms[name] = reference.model_copy(update={"group_weights": list(drawn.values())})
    runs = product(arms.items(), section.pretrain_seeds)
    return Needs([jobs.finetune(name, FULL_ACCESS, seed, arm) for (name, arm), seed in runs])


def problem(results: PpiResults) -> tuple[str, str]:
    """Return the setting of the FT runs and the name of the problem."""
    network = results.config.network
    return FULL_ACCESS, f"ppi {network.layers}x{network.width} {FULL_ACCESS}"


EXPERIMENT = experiment(
    PpiHeadroom,
    order=12,
    needs=headroom_runs,
    results=PpiResults,
    problem=problem,
    test=lambda results: results.auroc,
    names={},
    title="What weights of groups of PT tasks could gain",
)
