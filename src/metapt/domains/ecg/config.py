"""The `ecg` section of the config.

A default is the paper's value (Section 6 and appendix "Meta-Parameterized SimCLR PT"), unless its description, or that of its
section, says that the paper has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from metapt.sections import NAME, Count, Experiment, Inverse, Neumann, Positive, Rate, Section

Fraction = Annotated[float, Field(gt=0, lt=1)]


class Warp(Section):
    """The random temporal warp of a view, whose strength is learned."""

    smoothing: Literal["displacement", "velocity"] = Field(
        "displacement",
        description="what is smoothed: the displacement after integration (paper), or the velocity before it, "
        "which makes a true diffeomorphism",
    )
    scale: Literal["square", "log"] = Field(
        "square",
        description="strength as 100 m^2 (where m = 0 is stationary) or as exp(m), times the network's output "
        "(not in the paper; released code: square)",
    )
    initial: Rate = Field(
        4.0,
        description="where the strength starts: m for square, the typical displacement in samples for log "
        "(not in the paper; released code: 4)",
    )
    network_width: Count = Field(32, description="channels of the network that sets each ECG's strength; 0: one strength for all")


class PretrainSettings(Section):
    """SimCLR pre-training, the same for every arm."""

    signals: Positive | None = Field(None, description="ECGs of folds 1-9 that are pre-trained on; empty: all")
    epochs: Positive = Field(50, description="passes over them")
    batch_size: Positive = Field(
        256, description="ECGs per minibatch, two views of each; a last part that is too short is dropped"
    )
    lr: Rate = Field(1e-4, description="learning rate (Adam)")
    temperature: Rate = Field(0.5, description="of NT-Xent")
    jitter: Literal["fixed", "uniform"] = Field(
        "fixed",
        description="white noise of 10 % of each lead's standard deviation (paper), or of a share drawn from U(0, 10 %) "
        "for each view (released code)",
    )


class FinetuneSettings(Section):
    """Fine-tuning and its evaluation, the same for every arm. The paper fine-tunes the whole network only."""

    epochs: Positive = Field(200, description="passes over the FT training ECGs; the best one on validation AUROC is tested")
    batch_size: Positive = Field(256, description="ECGs per minibatch (released code: 64)")
    lr: Rate = Field(1e-3, description="learning rate (Adam)")
    batch_norm: Literal["train", "eval"] = Field(
        "train",
        description="mode of BatchNorm while the whole network trains (not in the paper; released code: eval)",
    )
    linear_lr: Rate = Field(
        1e-2,
        description="learning rate of linear evaluation, Adam on the head alone (not in the paper; released code: 1e-3)",
    )
    linear_epochs: Positive = Field(200, description="passes of linear evaluation (not in the paper; released code: 200)")


class NoPretraining(Section):
    """An arm that starts FT from random weights."""

    method: Literal["no_pt"]


class Simclr(Section):
    """An arm whose warp has a fixed strength (with a network: an untrained one, as the paper's SimCLR)."""

    method: Literal["simclr"]
    warp: Warp = Warp()


class Meta(Section):
    """An arm that learns the warp's strength with Algorithm 2.

    The paper has none of the keys from `l2` on; all but `explosion_factor` are off by default.
    """

    method: Literal["meta"] = "meta"
    warp: Warp = Warp()
    pretrain_steps: Positive = Field(10, description="P: PT steps between meta-updates")
    warmup_epochs: Annotated[float, Field(ge=0)] = Field(1, description="PT epochs before the first meta-update")
    inverse: Inverse = Neumann()
    curvature: Literal["hessian", "gauss_newton"] = Field("hessian", description="what is inverted")
    unroll: Literal["head", "fitted"] = Field(
        "head", description="unrolled FT steps of the head, or a head fitted to convergence, differentiated implicitly"
    )
    unroll_steps: Count = Field(1, description="K: differentiable FT steps per meta-update (Adam, its state carried on)")
    head_steps_between_updates: Count = Field(
        0, description="FT head steps after each PT step without a meta-update (released code: 1)"
    )
    batch_size: Positive = Field(256, description="ECGs per FT minibatch of a meta-update (not in the paper; released code: 256)")
    finetune_lr: Rate = Field(1e-4, description="learning rate of the unrolled steps (not in the paper; released code: 1e-4)")
    scale_lr: Rate = Field(1.0, description="learning rate of the warp's global scale m")
    network_lr: Rate = Field(1e-4, description="learning rate of the warp network")
    meta_optimizer: str = Field("Adam", description="optimiser of the meta-parameters, any class of torch.optim")
    meta_settings: dict[str, Any] = Field({}, description="further settings of that optimiser")
    l2: Rate = Field(1e-2, description="ridge of the fitted head (not in the paper; released code: none)")
    folds: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="cross-fit the fitted head over this many folds of all FT ECGs, all ECGs of a patient in one; empty: fit on "
        "train, evaluate on validation",
    )
    accumulate: Positive = Field(1, description="hypergradients averaged into one meta-update")
    clip_norm: Rate | None = Field(None, description="largest norm of an applied hypergradient")
    normalise: bool = Field(False, description="divide each hypergradient by its norm")
    average_decay: Fraction | None = Field(None, description="report an exponential moving average of the meta-parameters")
    explosion_factor: Annotated[float, Field(gt=1)] = Field(
        1e4,
        description="skip a hypergradient this many times the running median (not in the paper; released code: none)",
    )
    reuse_gradient: bool = Field(
        False, description="the meta-update's PT gradient serves as the next PT step's, which is then free"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Meta:
        if self.head_steps_between_updates and self.unroll == "fitted":
            raise ValueError("head_steps_between_updates goes with unrolled steps; a fitted head takes none")
        if self.folds is not None and self.unroll != "fitted":
            raise ValueError("folds goes with unroll: fitted")
        return self


class OptSla(Section):
    """SimCLR with the warp that was optimised for supervised learning on the FT data (Lorraine et al. 2020), then frozen."""

    method: Literal["optsla"]
    warp: Warp = Warp()
    epochs: Positive = Field(
        200, description="passes over the FT training ECGs of the supervised run (not in the paper; released code: none)"
    )
    lr: Rate = Field(1e-3, description="learning rate of the supervised run, Adam (not in the paper; released code: none)")
    batch_size: Positive = Field(
        256, description="ECGs per minibatch of the supervised run (not in the paper; released code: none)"
    )
    steps: Positive = Field(1, description="supervised steps between meta-updates (not in the paper; released code: none)")
    neumann_terms: Count = Field(1, description="Hessian-vector products per meta-update")
    scale_lr: Rate = Field(1.0, description="learning rate of the warp's global scale m (not in the paper; released code: none)")
    network_lr: Rate = Field(1e-4, description="learning rate of the warp network (not in the paper; released code: none)")


def _needs_log_scale(warp: Warp) -> Warp:
    if warp.scale != "log":
        raise ValueError("a search moves the logarithm of the strength; legal: scale: log")
    return warp


SearchedWarp = Annotated[Warp, AfterValidator(_needs_log_scale)]


class RandomSearch(Section):
    """SimCLR with the best of several random fixed strengths; search and final run together cost what a meta run costs.

    Not in the paper.
    """

    method: Literal["random_search"]
    warp: SearchedWarp = Warp(smoothing="velocity", scale="log", network_width=0)
    candidates: Positive = Field(5, description="strengths that are tried")
    range: tuple[Rate, Rate] = Field((0.25, 64.0), description="they are drawn from here, log-uniformly, samples")
    budget: Annotated[float, Field(gt=1)] = Field(
        1.55, description="PT steps of search and final run, as a multiple of the final run's"
    )


class BranchSearch(Section):
    """Population-based: every so many PT steps, two branches with a lower and a higher strength; the better one is kept.

    Not in the paper.
    """

    method: Literal["branch_search"]
    warp: SearchedWarp = Warp(smoothing="velocity", scale="log", network_width=0)
    period: Positive = Field(25, description="PT steps of a branch")
    factor: Annotated[float, Field(gt=1)] = Field(
        1.5, description="the branches' strengths are the current one times and over this"
    )
    select: Literal["validation", "random", "lower"] = Field(
        "validation",
        description="keep the branch with the lower cross-validated loss of a refitted head; controls: a random one, the lower",
    )
    l2: Rate = Field(1e-2, description="ridge of the refitted head")
    folds: Annotated[int, Field(ge=2)] = Field(5, description="folds of its cross-validation")


Arm = Annotated[NoPretraining | Simclr | Meta | OptSla | RandomSearch | BranchSearch, Field(discriminator="method")]

STABLE_WARP = Warp(smoothing="velocity", scale="log", initial=16.0)
STABLE = Meta(
    warp=STABLE_WARP,
    unroll_steps=5,
    head_steps_between_updates=1,
    finetune_lr=1e-3,
    scale_lr=0.1,
    meta_settings={"betas": [0.8, 0.9]},
    explosion_factor=10.0,
)
REFITTED = Meta(
    warp=STABLE_WARP,
    unroll="fitted",
    folds=5,
    scale_lr=0.1,
    meta_settings={"betas": [0.8, 0.9]},
    explosion_factor=10.0,
)

ARMS: dict[str, Arm] = {
    "no_pt": NoPretraining(method="no_pt"),
    "simclr": Simclr(method="simclr"),
    "simclr-mild": Simclr(method="simclr", warp=Warp(smoothing="velocity", scale="log", initial=4.0, network_width=0)),
    "optsla": OptSla(method="optsla"),
    "meta": Meta(),
    "meta-k0": Meta(unroll_steps=0),
    "meta-k5": Meta(unroll_steps=5),
    "meta-k10": Meta(unroll_steps=10),
    "meta-identity": Meta(inverse=Neumann(terms=0)),
    "meta-stable": STABLE,
    "meta-refitted": REFITTED,
    "random_search": RandomSearch(method="random_search"),
    "branch_search": BranchSearch(method="branch_search"),
    "branch_search-random": BranchSearch(method="branch_search", select="random"),
    "branch_search-lower": BranchSearch(method="branch_search", select="lower"),
}

TRAINING_RECORDS = {"simulated": 2162, "ptbxl-1.0.3": 19601, "ptbxl-1.0.1": 19634}
"""ECGs of folds 1 to 9 of each source."""

Evaluations = list[Literal["full_transfer", "linear_evaluation"]]


class FullAccess(Experiment):
    """All FT data are there at meta-PT time, at several sizes of the FT set."""

    arms: list[str] = Field(list(ARMS), min_length=1, description="arms, keys of `ecg.arms`")
    finetune_sizes: list[Positive] = Field([100, 250, 500, 1000, 2500], min_length=1, description="labelled ECGs, |D_FT|")


class UnrollSteps(Experiment):
    """How many FT steps are differentiated through."""

    arms: list[str] = Field(
        ["simclr", "meta-k0", "meta", "meta-k5", "meta-k10"], min_length=1, description="arms, keys of `ecg.arms`"
    )
    finetune_sizes: list[Positive] = Field([100, 250, 500, 1000], min_length=1, description="labelled ECGs, |D_FT|")


class PartialAccess(Experiment):
    """Fewer FT data at meta-PT time than in FT."""

    arms: list[str] = Field(["meta", "meta-stable"], min_length=1, description="arms, keys of `ecg.arms`, that learn the warp")
    baseline: str = Field("simclr", description="arm that uses no FT data; it is the curve's point at 0")
    finetune_sizes: list[Positive] = Field(
        [100, 250, 500, 1000], min_length=1, description="labelled ECGs in FT, |D_FT| (the paper: 500)"
    )
    meta_sizes: list[Positive] = Field(
        [10, 25, 50, 100, 250, 500, 1000],
        min_length=1,
        description="labelled ECGs at meta-PT time, no more than in FT (the paper names 10, 25 and 50)",
    )


class Augmentations(Experiment):
    """What the learned warp does. Not in the paper."""

    arms: list[str] = Field(["simclr", "meta", "meta-stable"], min_length=1, description="arms, keys of `ecg.arms`")
    finetune_size: Positive = Field(500, description="labelled ECGs at meta-PT time")


class WarpStudy(Experiment):
    """The hypergradient of the warp's strength against the truth: what PT with a fixed strength leads to.

    Not in the paper.
    """

    warps: dict[str, Warp] = Field(
        {"paper": Warp(), "stable": STABLE_WARP.model_copy(update={"network_width": 0})},
        description="parametrisations whose strengths are fixed in turn",
    )
    strengths: dict[str, list[Rate]] = Field(
        {"paper": [0.125, 0.25, 0.5, 1.0, 2.0, 4.0], "stable": [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]},
        description="fixed values of `initial`, for each of them",
    )
    starts: dict[str, list[Rate]] = Field(
        {"meta": [1.0, 4.0], "meta-stable": [1.0, 16.0, 64.0]},
        description="arms of `ecg.arms` whose hypergradients are drawn, and the values of `initial` that they start from",
    )
    draws: Positive = Field(20, description="hypergradients per strength and PT seed, each with its own minibatches")
    horizon: list[Positive] = Field(
        [1, 5, 25], min_length=1, description="PT steps at each strength after which heads are compared"
    )
    finetune_size: Positive = Field(500, description="labelled ECGs")


class Cost(Experiment):
    """Time and memory, as measured in the PT runs themselves."""

    arms: list[str] = Field(["simclr", "meta", "meta-stable"], min_length=1, description="arms, keys of `ecg.arms`")
    finetune_size: Positive = Field(500, description="labelled ECGs at meta-PT time")


class EcgConfig(Section):
    """SimCLR on ECGs; an experiment that is left out is not run. One PT or FT run serves every experiment that needs it."""

    source: Literal["simulated", "ptbxl-1.0.3", "ptbxl-1.0.1"] = Field(
        "ptbxl-1.0.3",
        description="simulated: generated 12-lead ECGs with planted conditions, no download; or PTB-XL at 100 Hz, of which the "
        "paper has 1.0.1 (21,837 ECGs) and 1.0.3 is the corrected edition (21,799)",
    )
    split: Literal["patients", "released"] = Field(
        "patients",
        description="how an FT set is split into training and validation (80/20; of 25 ECGs 60/40, of 10 halved); patients: no "
        "patient in both, validation filled with whole patients, at most to its size, training the rest, |D_FT| is exact; "
        "released: the ECGs that the released code draws, split by record (not in the paper; released code: released)",
    )
    samples: Literal[1000, 1024] = Field(1000, description="length of a signal; 1024: padded with zeros (released code)")
    width: Positive = Field(32, description="channels of the encoder's first stage; its features are eight times as many")
    pretrain_seeds: Positive = Field(3, description="PT runs of each arm, each with its own weights, minibatches and FT set")
    finetune_seeds: Positive = Field(5, description="FT runs of each encoder")
    evaluations: Evaluations = Field(
        ["full_transfer", "linear_evaluation"],
        min_length=1,
        description="FT of the whole network (the paper's), or of the head alone",
    )
    arms: dict[str, Arm] = ARMS
    pretrain: PretrainSettings = PretrainSettings()
    finetune: FinetuneSettings = FinetuneSettings()
    full_access: FullAccess | None = None
    unroll_steps: UnrollSteps | None = None
    partial_access: PartialAccess | None = None
    augmentations: Augmentations | None = None
    warp_study: WarpStudy | None = None
    cost: Cost | None = None

    @model_validator(mode="after")
    def _arms_are_there(self) -> EcgConfig:
        for key, name in self._named():
            if name not in self.arms:
                raise ValueError(f"{key} names the arm {name!r}, which is not in arms; legal: {', '.join(self.arms)}")
        study = self.warp_study
        for name in study.warps if study else ():
            if not re.fullmatch(NAME, name):
                raise ValueError(f"warp_study.warps has {name[:99]!r}; a name is made of letters, digits, - and _ (64 at most)")
        for name in study.strengths if study else ():
            if study and name not in study.warps:
                raise ValueError(f"warp_study.strengths.{name} is of no warp; legal: {', '.join(study.warps)}")
        for name in study.starts if study else ():
            if not isinstance(self.arms[name], Meta):
                learned = ", ".join(key for key, arm in self.arms.items() if isinstance(arm, Meta))
                raise ValueError(f"warp_study.starts.{name}: the arm has no hypergradient; legal: {learned}")
        return self

    @model_validator(mode="after")
    def _the_names_of_arms_differ(self) -> EcgConfig:
        made: dict[str, str] = {}
        for name, origin, _ in _study_arms(self):
            if name in self.arms:
                raise ValueError(
                    f"arms.{name} has the name of the arm that warp_study.{origin} makes, which would be "
                    "run in its place; give it another"
                )
            if made.setdefault(name, origin) != origin:
                raise ValueError(
                    f"warp_study.{made[name]} and warp_study.{origin} both make the arm {name!r}; legal: values that differ in "
                    "their first six digits, and warps and arms whose names lead to different ones"
                )
        return self

    @model_validator(mode="after")
    def _meta_updates_are_left(self) -> EcgConfig:
        per_epoch = steps_per_epoch(self.pretrain, self.pretrain.signals or TRAINING_RECORDS[self.source])
        for _, name in self._named():
            arm = self.arms[name]
            if not isinstance(arm, Meta):
                continue
            iterations, warmup = meta_iterations(arm, self.pretrain.epochs, per_epoch)
            if warmup >= iterations:
                most = math.floor(100 * (iterations - 1) * arm.pretrain_steps / per_epoch) / 100
                raise ValueError(
                    f"arms.{name}.warmup_epochs is {arm.warmup_epochs:g}, which is {warmup} iterations of {arm.pretrain_steps} "
                    f"PT steps, and pretrain.epochs {self.pretrain.epochs} of {per_epoch} PT steps each make {iterations}, so "
                    f"that the warp would never be learned; legal: at most {most:g}, or more epochs"
                )
        return self

    def _named(self) -> Iterator[tuple[str, str]]:
        """The key of an experiment and the name of an arm, for each that is named."""
        for key, section in self:
            if isinstance(section, Experiment):
                names = [*getattr(section, "arms", []), *getattr(section, "starts", {})]
                names += [section.baseline] if isinstance(section, PartialAccess) else []
                yield from ((key, name) for name in names)


def arms_of(config: EcgConfig) -> dict[str, Arm]:
    """Every arm that the config can run: those it names, and those of the warp study.

    The study's are `fixed-{warp}-{initial}` and `{arm}-from-{initial}`, as in `fixed-stable-0.5` and `meta-from-4`.
    """
    return config.arms | {name: arm for name, _, arm in _study_arms(config)}


def _study_arms(config: EcgConfig) -> Iterator[tuple[str, str, Arm]]:
    """The arms that the warp study makes: name, the key and value that they come from, settings."""
    study = config.warp_study
    if study is None:
        return
    for name, strengths in study.strengths.items():
        for initial in strengths:
            warp = study.warps[name].model_copy(update={"initial": initial})
            yield fixed_arm(name, initial), f"strengths.{name} {initial}", Simclr(method="simclr", warp=warp)
    for name, starts in study.starts.items():
        for initial in starts:
            arm = config.arms[name]
            assert isinstance(arm, Meta)
            started = arm.model_copy(update={"warp": arm.warp.model_copy(update={"initial": initial})})
            yield start_arm(name, initial), f"starts.{name} {initial}", started


def fixed_arm(warp: str, initial: float) -> str:
    return f"fixed-{warp}-{initial:g}"


def start_arm(arm: str, initial: float) -> str:
    return f"{arm}-from-{initial:g}"


def steps_per_epoch(pretrain: PretrainSettings, signals: int) -> int:
    """PT steps of a pass over so many ECGs."""
    return max(1, signals // pretrain.batch_size)


def meta_iterations(arm: Meta, epochs: int, per_epoch: int) -> tuple[int, int]:
    """Meta-iterations of a PT run of so many epochs and PT steps per epoch, and how many of them are warm-up."""
    iterations = max(1, epochs * per_epoch // arm.pretrain_steps)
    return iterations, math.ceil(arm.warmup_epochs * per_epoch / arm.pretrain_steps)


def uses_labels(arm: Arm) -> bool:
    """Whether PT of this arm sees FT data, so that there is a run for each number of them."""
    return not isinstance(arm, NoPretraining | Simclr)
