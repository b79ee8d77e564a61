"""The `mnist` section of the config.

A default is the paper's value (appendix "Synthetic Experiments: Further Details"), unless its description, or that of its
section, says that the paper has none. The released code has none of these experiments.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from metapt.sections import ConjugateGradient, Count, Experiment, Inverse, Neumann, Positive, Rate, Section

Heads = Annotated[
    Literal["separate", "shared"],
    Field(description="an output layer each for PT and FT (Section 2), or the whole network transferred, output layer included"),
]


class MetaArm(Section):
    """An arm that learns meta-parameters with Algorithm 2.

    The paper has none of the keys from `accumulate` on; all but `explosion_factor` and `max_skipped` are off by default.
    """

    method: Literal["meta"] = "meta"
    heads: Heads = "separate"
    inverse: Inverse = Neumann()
    curvature: Literal["hessian", "gauss_newton"] = Field(
        "hessian", description="what is inverted; gauss_newton for rotations only"
    )
    unroll: Literal["network", "head", "fitted"] = Field(
        "network",
        description="unrolled FT steps of encoder and head (Eq. 5), of the head only, "
        "or a head fitted to convergence instead of steps",
    )
    unroll_steps: Count = Field(1, description="K: differentiable FT steps per meta-update")
    l2: Rate = Field(1e-2, description="ridge of the fitted head (not in the paper; released code: none)")
    cross_fit: bool = Field(False, description="cross-fit the fitted head over the FT minibatches")
    epochs: Positive | None = Field(None, description="passes over the PT images; empty: the experiment's")
    pretrain_steps: Positive = Field(1, description="P: PT steps between meta-updates")
    warmup: Count = Field(0, description="iterations of P PT steps before the first meta-update")
    head_steps_between_updates: Count = Field(
        0, description="FT head steps after each PT step without a meta-update (released code: 1)"
    )
    pretrain_lr: Rate = Field(0.01, description="learning rate of PT (Adam)")
    finetune_lr: Rate = Field(0.01, description="learning rate of FT (SGD)")
    meta_lr: Rate = Field(0.3, description="learning rate of the meta-parameters")
    meta_optimizer: str = Field("Adam", description="optimiser of the meta-parameters, any class of torch.optim")
    meta_settings: dict[str, Any] = Field({}, description="further settings of that optimiser")
    meta_groups: dict[str, dict[str, Any]] = Field(
        {}, description="settings that differ for meta-parameters whose name matches a pattern"
    )
    accumulate: Positive = Field(1, description="hypergradients, on minibatches of their own, averaged into one meta-update")
    clip_norm: Rate | None = Field(None, description="largest norm of an applied hypergradient")
    normalise: bool = Field(False, description="divide each hypergradient by its norm")
    average_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="report an exponential moving average of the meta-parameters"
    )
    explosion_factor: Annotated[float, Field(gt=1)] = Field(
        1e4, description="skip a hypergradient this many times the running median (not in the paper; released code: none)"
    )
    max_skipped: Positive = Field(
        10, description="skipped meta-updates in a row that end the run (not in the paper; released code: none)"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> MetaArm:
        if self.heads == "shared" and self.unroll != "network":
            raise ValueError(
                f"unroll is {self.unroll!r} with shared heads, where there is no head of its own to fine-tune; legal: network"
            )
        if self.head_steps_between_updates and self.unroll == "fitted":
            raise ValueError("head_steps_between_updates goes with unrolled steps; a fitted head takes none")
        return self


class BpttArm(Section):
    """An arm that learns meta-parameters by backpropagation through all of PT and FT."""

    method: Literal["bptt"]
    heads: Heads = "separate"
    outer_steps: Positive = Field(500, description="updates of the meta-parameters, each through a whole PT and FT")
    budget_of: str | None = Field(
        None, description="stop when the wall time of this arm's run is used up (the outer step in progress is finished)"
    )
    meta_lr: Rate = Field(0.3, description="learning rate of the meta-parameters, Adam (not in the paper; released code: none)")
    explosion_factor: Annotated[float, Field(gt=1)] = Field(
        5.0, description="skip a hypergradient this many times the running median (not in the paper; released code: none)"
    )


class FixedArm(Section):
    """An arm whose PT rotation is fixed."""

    method: Literal["fixed"]
    heads: Heads = "separate"
    mean: float = Field(description="mean rotation in PT, degrees")


class RotationData(Experiment):
    """Sizes of the rotation experiments."""

    pretrain_examples: Positive = Field(3000, description="PT images")
    finetune_examples: Positive = Field(3000, description="FT images, half of them for validation")
    batch_size: Positive = Field(64, description="images per minibatch, in PT and FT")


SHARED = MetaArm(heads="shared")
CURVATURE = MetaArm(
    heads="shared",
    curvature="gauss_newton",
    inverse=ConjugateGradient(kind="conjugate_gradient", max_steps=5, rtol=1e-2, damping=0.1),
    meta_groups={"deviation": {"lr": 0.1}},
    epochs=20,
)


class RotationMean(RotationData):
    """Learn the mean of the PT rotation."""

    arms: dict[str, MetaArm] = {"meta": MetaArm(), "meta-shared": SHARED}
    replicates: Positive = Field(10, description="initialisations")
    initial_range: tuple[float, float] = Field((45.0, 135.0), description="initial means are drawn from this range, degrees")
    target: float = Field(90.0, description="mean rotation of FT images, degrees; the deviation is 1 in PT and FT")
    epochs: Positive = Field(5, description="passes over the PT images")


class RotationMeanStd(RotationData):
    """Learn mean and standard deviation of the PT rotation."""

    arms: dict[str, MetaArm] = {"meta": MetaArm(), "meta-shared": SHARED, "meta-curvature": CURVATURE}
    replicates: Positive = Field(10, description="random seeds per start (not in the paper; released code: none)")
    starts: list[tuple[float, float]] = Field(
        [(0.0, 1.0), (90.0, 1.0)], min_length=1, description="initial (mean, standard deviation), degrees"
    )
    target: tuple[float, float] = Field(
        (45.0, 15.0), description="mean and standard deviation of the rotation of FT images, degrees"
    )
    epochs: Positive = Field(5, description="passes over the PT images")


class ExampleWeighting(Experiment):
    """Learn a CNN that weights PT examples, some of which have noisy labels."""

    arms: dict[str, MetaArm] = {
        "meta": MetaArm(pretrain_lr=1e-3, meta_lr=1e-3),
        "meta-warmup": MetaArm(pretrain_lr=1e-3, meta_lr=1e-3, heads="shared", warmup=150),
    }
    replicates: Positive = Field(10, description="random seeds")
    pretrain_examples: Positive | Literal["all"] = Field(
        3000, description="PT images; the paper names both 3000 and the full training set (all)"
    )
    classes: Annotated[int, Field(ge=11)] = Field(
        1000, description="PT classes: digits 0-4 keep their label, 5-9 get a random one from 5 on"
    )
    batch_size: Positive = Field(100, description="images per minibatch, in PT and FT")
    epochs: Positive = Field(100, description="passes over the PT images")


class BpttStudy(RotationData):
    """What the approximations cost: ours against backpropagation through all of PT and FT."""

    arms: dict[str, Annotated[MetaArm | BpttArm | FixedArm, Field(discriminator="method")]] = {
        "bptt": BpttArm(method="bptt"),
        "meta": MetaArm(),
        "bptt_limited": BpttArm(method="bptt", budget_of="meta"),
        "optimal_augmentation": FixedArm(method="fixed", mean=90.0),
        "initial_augmentation": FixedArm(method="fixed", mean=45.0),
        "bptt-shared": BpttArm(method="bptt", heads="shared"),
        "meta-shared": SHARED,
        "bptt_limited-shared": BpttArm(method="bptt", heads="shared", budget_of="meta-shared"),
        "optimal_augmentation-shared": FixedArm(method="fixed", heads="shared", mean=90.0),
        "initial_augmentation-shared": FixedArm(method="fixed", heads="shared", mean=45.0),
    }
    initial: float = Field(45.0, description="initial mean of the PT rotation of arms that learn it, degrees")
    target: float = Field(90.0, description="mean rotation of FT images, degrees; the deviation is 1 in PT and FT")
    pretrain_steps: Positive = Field(500, description="PT steps of each arm (of each outer step of bptt)")
    finetune_steps: Positive = Field(500, description="FT steps of each arm (of each outer step of bptt)")
    pretrain_lr: Rate = Field(0.01, description="learning rate of PT (Adam)")
    finetune_lr: Rate = Field(0.01, description="learning rate of FT (SGD)")
    evaluations: Positive = Field(
        10,
        description="PT and FT runs behind each accuracy, by seed (not in the paper; released code: none)",
    )


class FidelityArm(Section):
    """One way of pre-training whose hypergradients are compared with the exact ones. Not in the paper."""

    unroll: Literal["network", "head"] = Field("head", description="what the FT steps change")


class Fidelity(Experiment):
    """How near our hypergradient of one weight per PT example is to the exact one, by backpropagation through PT and FT.

    Not in the paper.
    """

    arms: dict[str, FidelityArm] = {"head": FidelityArm(), "network": FidelityArm(unroll="network")}
    replicates: Positive = Field(5, description="random seeds")
    examples: Positive = Field(3000, description="PT images, each with a weight; every PT step sees all of them")
    finetune_examples: Positive = Field(3000, description="FT images, half of them for validation")
    noisy_fraction: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="share of PT images with a random label")
    pretrain_steps: list[Positive] = Field([1, 10, 100, 500], min_length=1, description="PT steps taken before the hypergradient")
    neumann_terms: list[Count] = Field([0, 1, 2, 5, 10, 20, 50], min_length=1, description="terms of the Neumann series")
    unroll_steps: list[Count] = Field([0, 1, 5], min_length=1, description="K: FT steps, the same in both hypergradients")
    pretrain_lr: Rate = Field(0.1, description="learning rate of PT (SGD on all examples), and step of the Neumann series")
    finetune_lr: Rate = Field(0.01, description="learning rate of FT (SGD)")


EXAMPLES = {"digits": (1300, 497), "mnist": (60_000, 10_000)}
"""Training and test images of each source."""


def iterations(arm: MetaArm, epochs: int, examples: int, batch_size: int) -> int:
    """Meta-iterations whose PT steps make `epochs` passes (or the arm's own number) over the PT images, rounded up."""
    steps = (arm.epochs or epochs) * -(-examples // batch_size)
    return -(-steps // arm.pretrain_steps)


class MnistConfig(Section):
    """MNIST studies; an experiment that is left out is not run."""

    source: Literal["digits", "mnist"] = Field(
        "mnist", description="digits: scikit-learn's, scaled to 28 x 28, no download; mnist: the four IDX files"
    )
    rotation_mean: RotationMean | None = None
    rotation_mean_std: RotationMeanStd | None = None
    example_weighting: ExampleWeighting | None = None
    bptt: BpttStudy | None = None
    fidelity: Fidelity | None = None

    @model_validator(mode="after")
    def _bptt_arms_fit_together(self) -> MnistConfig:
        if self.bptt is not None:
            for name, arm in self.bptt.arms.items():
                if isinstance(arm, MetaArm) and arm.epochs is not None:
                    raise ValueError(
                        f"bptt.arms.{name}.epochs has no meaning: all arms of bptt take bptt.pretrain_steps; leave it out"
                    )
                if isinstance(arm, BpttArm) and arm.budget_of is not None and arm.budget_of not in self.bptt.arms:
                    raise ValueError(
                        f"bptt.arms.{name}.budget_of is {arm.budget_of!r}, which is no arm; legal: {', '.join(self.bptt.arms)}"
                    )
        return self

    @model_validator(mode="after")
    def _meta_updates_are_left(self) -> MnistConfig:
        for key, study in self:
            for name, arm in getattr(study, "arms", {}).items():
                if not isinstance(arm, MetaArm):
                    continue
                count = self._iterations(study, arm)
                if arm.warmup >= count:
                    raise ValueError(
                        f"{key}.arms.{name}.warmup is {arm.warmup} of {count} iterations of {arm.pretrain_steps} PT steps, so "
                        f"that the meta-parameters would never be learned; legal: fewer, or more PT steps"
                    )
        return self

    def _iterations(self, study: Experiment, arm: MetaArm) -> int:
        match study:
            case BpttStudy():
                return study.pretrain_steps // arm.pretrain_steps
            case RotationMean() | RotationMeanStd() | ExampleWeighting():
                examples = EXAMPLES[self.source][0] if study.pretrain_examples == "all" else study.pretrain_examples
                return iterations(arm, study.epochs, examples, study.batch_size)
        raise AssertionError(study)
