"""Experiment `headroom`: what other strengths of the views, warps and temperatures of SimCLR could gain.

Not in the paper.
"""

from __future__ import annotations

from metapt.domains.ecg.config import Arm, EcgPretraining, EcgSettings, PretrainedEcgArm, Simclr, Warp, sees_labels
from metapt.domains.ecg.jobs import EcgJobs, labelled
from metapt.domains.ecg.results import EcgResults, finetune_setting
from metapt.evaluation.experiment import Needs
from metapt.sections import Positive, key
from metapt.twostage.headroom import HeadroomSection, Range, SharedSeeds, experiment

VIEWS = "crop", "noise", "temperature"  # keys of PT that a setting draws, beside the strength of its warp

NAMES = {
    "strength": "strength of the warp (samples)",
    "crop": "largest crop (share of a lead)",
    "noise": "noise (standard deviations of a lead)",
    "temperature": "temperature of NT-Xent",
}
"""Hyperparameter -> its name in tables and figures."""


class EcgHeadroom(HeadroomSection):
    """Random settings of warp, crop, jitter and temperature, each with the same PT seeds. Not in the paper."""

    reference: str = key("simclr", "the arm that settings are compared with, whose PT sees no labels")
    pretrain_seeds: SharedSeeds = [0, 1, 2, 3]
    strength: Range = key(
        (0.25, 64.0), "range of the strength of a warp whose velocity is smoothed, one for all ECGs, samples"
    )
    crop: Range = key((0.05, 0.95), "range of the largest share of a lead that a crop zeroes")
    noise: Range = key((0.01, 1.0), "range of the standard deviation of the white noise over the lead's")
    temperature: Range = key((0.05, 2.0), "range of the temperature of NT-Xent; all four are drawn log-uniformly")
    finetune_size: Positive = key(500, "labelled ECGs")

    def arm_names(self) -> list[str]:
        return [self.reference]

    def ranges(self) -> dict[str, tuple[float, float]]:
        return {name: getattr(self, name) for name in ("strength", *VIEWS)}

    def check(self, domain: EcgSettings) -> None:
        """Raise ValueError as `HeadroomSection.check`, for another kind of reference, and for crops above 1."""
        super().check(domain)
        reference = domain.arms[self.reference]
        if sees_labels(reference):
            raise ValueError(f".reference is {self.reference!r}, whose PT sees labels; legal: an arm without")
        changed = reference.finetune.model_fields_set
        if isinstance(reference, PretrainedEcgArm):
            changed = changed | reference.pretrain.model_fields_set - set(VIEWS)
        if changed:
            raise ValueError(
                f".reference is {self.reference!r}, which has {', '.join(sorted(changed))} of its own, and the "
                f"settings have the domain's; legal: an arm that changes {', '.join(VIEWS)} at most"
            )
        if self.crop[1] > 1:
            raise ValueError(f".crop goes up to {self.crop[1]:g}; legal: shares of at most 1")


def needs(jobs: EcgJobs, section: EcgHeadroom) -> Needs:
    """Return the FT runs of the settings and of the reference."""
    arms: dict[str, Arm] = {section.reference: jobs.config.arms[section.reference]}
    for name, drawn in section.drawn().items():
        warp = Warp(smoothing="velocity", scale="log", initial=drawn.pop("strength"), network_width=0)
        arms[name] = Simclr(method="simclr", warp=warp, pretrain=EcgPretraining(**drawn))
    setting, seeds = labelled(section.finetune_size), section.pretrain_seeds
    return Needs([jobs.finetune(name, setting, seed, arm) for seed in seeds for name, arm in arms.items()])


EXPERIMENT = experiment(
    EcgHeadroom,
    order=8,
    needs=needs,
    results=EcgResults,
    problem=lambda results: (finetune_setting(results.section.finetune_size), f"ecg width {results.config.width}"),
    test=lambda results: results.auroc,
    names=NAMES,
    title="What other warps, crops, jitters and temperatures of SimCLR could gain",
)
