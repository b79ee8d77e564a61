"""The `mnist` section of the config: its arms, and the settings of the studies.

A default is the paper's value (appendix "Synthetic Experiments: Further Details"), unless its description or that of
its section says that the paper has none. The released code has none of these experiments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field, SerializeAsAny, model_validator

from metapt import method
from metapt.domains.mnist.data import TRAIN_IMAGES
from metapt.method import ConjugateGradients
from metapt.sections import (
    ArmSection,
    Count,
    Distinct,
    DomainSection,
    ExperimentSection,
    Positive,
    Rate,
    ResumableSettings,
    Seeds,
    key,
    seed_numbers,
)

Heads = Annotated[
    Literal["separate", "shared"],
    Field(description="output layers of PT and FT: one each (Section 2), or one that FT takes over from PT"),
]


class MnistMeta(method.MetaArm):
    """Learn meta-parameters with Algorithm 2."""

    heads: Heads = "separate"
    epochs: Positive | None = key(None, "passes over the PT images; empty: the experiment's; not legal in `bptt`")
    pretrain_lr: Rate = key(0.01, "learning rate of PT (Adam)")
    pretrain_steps: Positive = key(1, "P: PT steps between meta-updates")
    warmup_epochs: Annotated[float, Field(ge=0)] = key(0, "PT epochs before the first meta-update")
    unroll: Literal["network", "head", "fitted"] = key(
        "network",
        "FT in a meta-update: steps of the network (Eq. 5), steps of its head, or a head fitted to convergence",
    )
    finetune_lr: Rate = key(0.01, "learning rate of the FT steps during PT (SGD); no effect with a fitted head")
    meta_lr: Rate = key(0.3, "learning rate of the meta-parameters")
    meta_groups: dict[str, dict[str, Any]] = key(
        {},
        "settings of the meta-optimiser by a pattern of names of meta-parameters, such as {deviation: {lr: 0.1}}",
    )

    @model_validator(mode="after")
    def _heads_fit(self) -> MnistMeta:
        if self.heads == "shared" and self.unroll != "network":
            raise ValueError(
                f"unroll is {self.unroll!r} with shared heads, where there is no head of its own to fine-tune; legal: "
                "network"
            )
        if self.heads == "shared" and self.head_steps_between_updates:
            raise ValueError("head_steps_between_updates is set with shared heads, where no FT head is kept; legal: 0")
        return self

    @property
    def joins_replicates(self) -> bool:
        """Return whether a replicate would learn something else if others were stacked with it.

        Conjugate gradients and fitted heads would have step lengths in common, and norms would be those of all. The
        guard against explosions and numbers that are not finite is always that of all.
        """
        joint_norm = self.normalise or self.clip_norm is not None or self.meta_optimizer == "Adafactor"
        return joint_norm or self.unroll == "fitted" or isinstance(self.inverse, ConjugateGradients)

    def iterations(self, epochs: int, steps_per_epoch: int) -> int:
        """Return the meta-iterations that `epochs` passes (or the arm's own number of them) take, rounded up."""
        return -(-(self.epochs or epochs) * steps_per_epoch // self.pretrain_steps)


class BpttArm(ArmSection):
    """Learn meta-parameters by backpropagation through all of PT and FT."""

    method: Literal["bptt"]
    heads: Heads = "separate"
    outer_steps: Positive = key(500, "updates of the meta-parameters, each through a whole PT and FT")
    budget_of: str | None = key(
        None,
        "another arm, whose mean wall time ends the run (the outer step in progress is finished)",
    )
    meta_lr: Rate = key(0.3, "learning rate of the meta-parameters, Adam (not in the paper; released code: none)")
    explosion_factor: Annotated[float, Field(gt=1)] = key(
        5.0, "skip a hypergradient this many times the running median (not in the paper; released code: none)"
    )


class FixedArm(ArmSection):
    """Pre-train with a fixed rotation."""

    method: Literal["fixed"]
    heads: Heads = "separate"
    mean: float = Field(description="mean rotation in PT, degrees")


SHARED = MnistMeta(heads="shared")
CURVATURE = MnistMeta(
    heads="shared",
    curvature="gauss_newton",
    inverse=ConjugateGradients(kind="conjugate_gradient", max_steps=5, rtol=1e-2, damping=0.1),
    meta_groups={"deviation": {"lr": 0.1}},
    epochs=20,
)


class Study(ExperimentSection):
    """The settings of an experiment each of whose arms is a run."""

    resumable: ClassVar[type[ArmSection]] = MnistMeta  # arms of this class save their state while they compute

    if TYPE_CHECKING:  # keys of every study, each in its own place among the others
        arms: dict[str, Any] = {}
        replicates: Seeds = 1


S = TypeVar("S", bound=Study)


class ArmSettings(ResumableSettings, Generic[S]):
    """What the run of an arm of an experiment reads beside its images; without a checkpoint, it saves no state."""

    experiment: str  # its key
    arm: str
    settings: SerializeAsAny[S]  # with this arm only: `budget_of` may name one that is not there


def minibatches(examples: int, batch_size: int) -> int:
    """Return the PT steps that count as a pass over `examples`, rounded up; a stream leaves a smaller last one out."""
    return -(-examples // batch_size)


def _check_warmup(name: str, arm: MnistMeta, iterations: int, per_epoch: int) -> None:
    """Raise ValueError if the warm-up of an arm leaves no meta-update."""
    warmup = arm.warmup(per_epoch)
    if warmup >= iterations:
        raise ValueError(
            f".arms.{name}.warmup_epochs is {arm.warmup_epochs:g}, which is {warmup} of {iterations} iterations of "
            f"{arm.pretrain_steps} PT steps, so that the meta-parameters would never be learned; legal: fewer, or "
            "more PT steps"
        )


class RotationData(Study):
    """Sizes of the rotation experiments."""

    pretrain_examples: Positive = key(3000, "PT images")
    finetune_examples: Positive = key(3000, "FT images, half of them for validation")
    batch_size: Positive = key(64, "images per minibatch, in PT and FT")

    @property
    def steps_per_epoch(self) -> int:
        return minibatches(self.pretrain_examples, self.batch_size)


class LearnedRotation(RotationData):
    """The settings that both studies of a learned rotation share."""

    arms: dict[str, MnistMeta]
    epochs: Positive = key(5, "passes over the PT images")

    def check(self, domain: Any) -> None:
        """Raise ValueError if a warm-up leaves no meta-update, or a mean starts over half a turn from the target."""
        super().check(domain)
        for name, arm in self.arms.items():
            _check_warmup(name, arm, arm.iterations(self.epochs, self.steps_per_epoch), self.steps_per_epoch)
        own: Any = self  # either study
        of_std = isinstance(self, RotationMeanStd)
        means, target = ([m for m, _ in own.starts], own.target[0]) if of_std else (own.initial_range, own.target)
        for mean in (each for each in means if abs(each - target) > 180):
            near = mean + (target - mean + 180) % 360 - 180
            raise ValueError(
                f".target is {target:g}, over half a turn from an initial mean of {mean:g}, so that the same rotation, "
                f"{near:g}, would count as an error of {abs(near - target):g} degrees; legal: at most half a turn"
            )


class RotationMean(LearnedRotation):
    """Learn the mean of the PT rotation."""

    arms: dict[str, MnistMeta] = {"meta": MnistMeta(), "meta-shared": SHARED}
    replicates: Seeds = key(10, "initialisations, or a list of their seeds")
    initial_range: tuple[float, float] = key((45.0, 135.0), "initial means are drawn from this range, degrees")
    target: float = key(90.0, "mean rotation of FT images, degrees; the standard deviation is 1 in PT and FT")


class RotationMeanStd(LearnedRotation):
    """Learn mean and standard deviation of the PT rotation."""

    arms: dict[str, MnistMeta] = {"meta": MnistMeta(), "meta-shared": SHARED, "meta-curvature": CURVATURE}
    replicates: Seeds = key(10, "random seeds per start, or a list of them (not in the paper; released code: none)")
    starts: Annotated[list[tuple[float, float]], Distinct] = key(
        [(0.0, 1.0), (90.0, 1.0)], "initial (mean, standard deviation), degrees", min_length=1
    )
    target: tuple[float, float] = key((45.0, 15.0), "mean and standard deviation of the rotation of FT images, degrees")

    def setting(self, start: int) -> str:
        """Return the setting of a start, an index of `starts`, in the paper's words."""
        (mean, deviation), (target_mean, target_deviation) = self.starts[start], self.target
        return f"init mean {mean:g} std {deviation:g}, target {target_mean:g}/{target_deviation:g}"

    def seed_of(self, start: int, seed: int) -> int:
        """Return a number that is unique for each start and seed; with the first start it is the seed.

        It names the random streams, and the replicates of the series table.
        """
        return start * (max(seed_numbers(self.replicates)) + 1) + seed


class ExampleWeighting(Study):
    """Learn a CNN that weights PT examples, some of which have noisy labels."""

    arms: dict[str, MnistMeta] = {
        "meta": MnistMeta(pretrain_lr=1e-3, meta_lr=1e-3),
        "meta-warmup": MnistMeta(pretrain_lr=1e-3, meta_lr=1e-3, heads="shared", warmup_epochs=5),
    }
    replicates: Seeds = key(10, "random seeds, or a list of them")
    pretrain_examples: Positive | Literal["all"] = key(
        3000, "PT images; the paper names both 3000 and the full training set (all)"
    )
    classes: Annotated[int, Field(ge=11)] = key(
        1000, "PT classes: digits 0-4 keep their label, 5-9 get a random one from 5 on"
    )
    batch_size: Positive = key(100, "images per minibatch, in PT and FT")
    epochs: Positive = key(100, "passes over the PT images")

    def check(self, domain: Any) -> None:
        """Raise ValueError if a warm-up leaves no meta-update, and for a curvature that needs outputs of PT."""
        super().check(domain)
        examples = TRAIN_IMAGES[domain.source] if self.pretrain_examples == "all" else self.pretrain_examples
        per_epoch = minibatches(examples, self.batch_size)
        for name, arm in self.arms.items():
            if arm.curvature != "hessian":
                raise ValueError(f".arms.{name}.curvature is {arm.curvature!r}, which is for rotations; legal: hessian")
            _check_warmup(name, arm, arm.iterations(self.epochs, per_epoch), per_epoch)


class BpttStudy(RotationData):
    """Compare our method with backpropagation through all of PT and FT."""

    resumable: ClassVar[type[ArmSection]] = BpttArm

    arms: dict[str, Annotated[MnistMeta | BpttArm | FixedArm, Field(discriminator="method")]] = {
        "bptt": BpttArm(method="bptt"),
        "meta": MnistMeta(),
        "bptt_limited": BpttArm(method="bptt", budget_of="meta"),
        "optimal_augmentation": FixedArm(method="fixed", mean=90.0),
        "initial_augmentation": FixedArm(method="fixed", mean=45.0),
        "bptt-shared": BpttArm(method="bptt", heads="shared"),
        "meta-shared": SHARED,
        "bptt_limited-shared": BpttArm(method="bptt", heads="shared", budget_of="meta-shared"),
        "optimal_augmentation-shared": FixedArm(method="fixed", heads="shared", mean=90.0),
        "initial_augmentation-shared": FixedArm(method="fixed", heads="shared", mean=45.0),
    }
    initial: float = key(45.0, "initial mean of the PT rotation of arms that learn it, degrees")
    target: float = key(90.0, "mean rotation of FT images, degrees; the standard deviation is 1 in PT and FT")
    pretrain_steps: Positive = key(500, "PT steps of each arm (of each outer step of bptt)")
    finetune_steps: Positive = key(500, "FT steps of each arm (of each outer step of bptt)")
    pretrain_lr: Rate = key(
        0.01, "learning rate (Adam) of PT in arms of method fixed and bptt; arms of method meta have their own"
    )
    finetune_lr: Rate = key(0.01, "learning rate (SGD) of the FT that is tested, and of FT inside bptt")
    replicates: Seeds = key(
        5,
        "runs of each arm, or a list of their seeds; they share nothing (not in the paper; released code: none)",
    )
    evaluations: Positive = key(
        2, "PT and FT runs whose mean accuracy is that of a replicate (not in the paper; released code: none)"
    )

    def check(self, domain: Any) -> None:
        """Raise ValueError for an arm with epochs, an unknown budget_of, or a warm-up that leaves no meta-update.

        The fixed arms `initial_augmentation` and `optimal_augmentation` must have the rotations `initial` and `target`;
        the arms that claims compare, the heads and the budget of the default.
        """
        super().check(domain)
        named = {"initial_augmentation": "initial", "optimal_augmentation": "target"}
        for name, arm in self.arms.items():
            if isinstance(arm, FixedArm) and (place := named.get(name.removesuffix("-shared"))):
                mean: float = getattr(self, place)
                if arm.mean != mean:
                    raise ValueError(f".arms.{name}.mean is {arm.mean:g}, and {place} is {mean:g}; legal: {mean:g}")
            if isinstance(arm, MnistMeta):
                if arm.epochs is not None:
                    raise ValueError(
                        f".arms.{name}.epochs has no meaning: all arms of bptt take bptt.pretrain_steps; leave it out"
                    )
                if self.pretrain_steps % arm.pretrain_steps:
                    raise ValueError(
                        f".arms.{name}.pretrain_steps is {arm.pretrain_steps}, which does not divide the "
                        f"{self.pretrain_steps} PT steps that all arms of bptt take; legal: a divisor of them"
                    )
                _check_warmup(name, arm, self.pretrain_steps // arm.pretrain_steps, self.steps_per_epoch)
            self._check_budget(name)
            default = type(self).model_fields["arms"].default.get(name, arm)
            for own in ("heads", "budget_of"):
                if (found := getattr(arm, own, None)) != getattr(default, own, None):
                    legal = "the default, since the claims on this arm are for it, or an arm of another name"
                    raise ValueError(f".arms.{name}.{own} is {found!r}; legal: {legal}")

    def _check_budget(self, name: str) -> None:
        chain = [name]
        while (other := getattr(self.arms[chain[-1]], "budget_of", None)) is not None:
            if other not in self.arms:
                legal = ", ".join(self.arms)
                raise ValueError(f".arms.{chain[-1]}.budget_of is {other!r}, which is no arm; legal: {legal}")
            if other in chain:
                raise ValueError(f".arms.{name}.budget_of runs in a circle: {' -> '.join([*chain, other])}")
            chain.append(other)


class FidelityArm(ArmSection):
    """Compare the hypergradients of one way to fine-tune. Not in the paper."""

    unroll: Literal["network", "head"] = key("head", "what the FT steps change")


class Fidelity(Study):
    """Compare the hypergradient of one weight per PT image with the exact one. Not in the paper."""

    arms: dict[str, FidelityArm] = {"head": FidelityArm(), "network": FidelityArm(unroll="network")}
    replicates: Seeds = key(5, "random seeds, or a list of them")
    examples: Positive = key(3000, "PT images, each with a weight; every PT step sees all of them")
    finetune_examples: Positive = key(3000, "FT images, half of them for validation")
    noisy_fraction: Annotated[float, Field(ge=0, le=1)] = key(0.5, "share of PT images with a random label")
    pretrain_steps: Annotated[list[Positive], Distinct] = key(
        [1, 10, 100, 500], "PT steps taken before the hypergradient", min_length=1
    )
    neumann_terms: Annotated[list[Count], Distinct] = key(
        [0, 1, 2, 5, 10, 20, 50], "terms of the Neumann series", min_length=1
    )
    unroll_steps: Annotated[list[Count], Distinct] = key(
        [0, 1, 5], "K: FT steps, the same in both hypergradients", min_length=1
    )
    pretrain_lr: Rate = key(0.1, "learning rate of PT (SGD on all examples), and step of the Neumann series")
    finetune_lr: Rate = key(0.01, "learning rate of FT (SGD)")

    @staticmethod
    def setting(pretrain_steps: int, unroll_steps: int, terms: int) -> str:
        """Return the setting of a case, as in the metrics table."""
        return f"{pretrain_steps} PT steps, K={unroll_steps}, {terms} Neumann terms"


class MnistSettings(DomainSection):
    """MNIST."""

    stand_ins: ClassVar[tuple[str, ...]] = ("digits",)
    source: Literal["digits", "mnist"] = key(
        "mnist", "digits: scikit-learn's, scaled to 28 x 28, no download; mnist: the four IDX files"
    )
