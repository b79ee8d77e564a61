"""Config sections that describe the method, and the objects of `metapt.hypergrad` and `metapt.training` made from them.

The plan reads these sections without torch, so each function imports what it makes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from metapt.errors import ConfigError
from metapt.sections import ArmSection, Count, Positive, Rate, Section, key

if TYPE_CHECKING:
    from metapt.hypergrad.finetune import FineTuning
    from metapt.hypergrad.inverse import Inverse as InverseSolver
    from metapt.hypergrad.optimizers import DifferentiableOptimizer
    from metapt.training.meta_settings import MetaSettings
    from metapt.training.optimizers import OptimizerSpec


class NeumannSeries(Section):
    """The inverse Hessian as a truncated Neumann series (Section 3.1)."""

    kind: Literal["neumann"] = "neumann"
    terms: Count = key(1, "Hessian-vector products in the series; 0 leaves step_size times the vector")
    step_size: Rate | None = key(
        None, "step of the series; empty: the PT learning rate (not in the paper; as the released code does)"
    )

    def solver(self, pretrain_lr: float) -> InverseSolver:
        """Return the solver; its step size is the PT learning rate unless the section gives one."""
        from metapt.hypergrad.inverse import Neumann

        return Neumann(self.terms, pretrain_lr if self.step_size is None else self.step_size)


class ConjugateGradients(Section):
    """The inverse Hessian by conjugate gradients; not in the paper, nor are its defaults."""

    kind: Literal["conjugate_gradient"]
    max_steps: Positive = key(20, "most Hessian-vector products in a solve")
    rtol: Annotated[float, Field(gt=0, lt=1)] = key(
        1e-3, "norm of the residual, over that of the right-hand side, at which the solve ends"
    )
    damping: Annotated[float, Field(ge=0)] = key(0.0, "added to the Hessian's diagonal")
    relative_damping: Annotated[float, Field(ge=0)] = key(
        0.0, "added too, in units of the right-hand side's Rayleigh quotient"
    )

    def solver(self, pretrain_lr: float) -> InverseSolver:
        """Return the solver; the PT learning rate is not used."""
        from metapt.hypergrad.inverse import ConjugateGradient

        return ConjugateGradient(self.rtol, self.max_steps, self.damping, self.relative_damping)


class NoInverse(Section):
    """The identity in place of the inverse Hessian (T1 - T2 of the literature)."""

    kind: Literal["identity"]

    def solver(self, pretrain_lr: float) -> InverseSolver:
        """Return the solver; the PT learning rate is not used."""
        from metapt.hypergrad.inverse import Identity

        return Identity()


Inverse = Annotated[NeumannSeries | ConjugateGradients | NoInverse, Field(discriminator="kind")]

FinetuningSolver = Literal["network", "head", "fitted", "ridge"]


def finetuning(arm: MetaArm, optimizer: DifferentiableOptimizer) -> FineTuning:
    """Return the FT solver of an arm; `optimizer` takes the unrolled steps."""
    from metapt.hypergrad.finetune import Unroll
    from metapt.hypergrad.fitted import FittedHead
    from metapt.hypergrad.ridge import RidgeHead

    cross_fit, minibatches = arm.folds is not None, (arm.folds or 2) - 1
    match arm.unroll:
        case "fitted":
            return FittedHead(arm.l2, cross_fit=cross_fit, minibatches=minibatches)
        case "ridge":
            return RidgeHead(arm.l2, cross_fit=cross_fit, minibatches=minibatches)
        case solver:
            return Unroll(arm.unroll_steps, optimizer, network=solver == "network")


Optimizer = Literal[
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"
]
Recompute = Annotated[
    bool,
    Field(description="meta-updates compute parts of the encoder anew for each derivative: less memory, more time"),
]


class MetaArm(ArmSection):
    """Learn hyperparameters of PT with Algorithm 2. The paper has none of the keys from `l2` on."""

    method: Literal["meta"] = "meta"
    pretrain_steps: Positive = key(10, "P: PT steps between meta-updates")
    warmup_epochs: Annotated[float, Field(ge=0)] = key(1, "PT epochs before the first meta-update")
    inverse: Inverse = key(NeumannSeries(), "how the inverse Hessian is approximated")
    curvature: Literal["hessian", "gauss_newton"] = key(
        "hessian", "matrix that is inverted: the PT Hessian or its Gauss-Newton approximation"
    )
    unroll: FinetuningSolver = key(
        "head",
        "FT in a meta-update: steps of the network, steps of its head, a head fitted to convergence, or a ridge "
        "regression",
    )
    unroll_steps: Count = key(1, "K: differentiable FT steps per meta-update; no effect with a fitted head")
    head_steps_between_updates: Count = key(
        0, "FT head steps after each PT step without a meta-update (released code: 1)"
    )
    finetune_lr: Rate = key(1e-4, "learning rate of the FT steps during PT; no effect with a fitted head")
    meta_lr: Rate = key(1.0, "learning rate of the meta-parameters")
    meta_optimizer: Optimizer = key("Adam", "optimiser of the meta-parameters, a class of torch.optim")
    meta_settings: dict[str, Any] = key(
        {}, "further settings of that optimiser, in place of all those of the arm that is extended"
    )
    l2: Rate = key(
        1e-2, "weight of the squared norm in the loss of a fitted head (not in the paper; released code: none)"
    )
    folds: Annotated[int, Field(ge=2)] | None = key(
        None, "cross-fit the fitted head over this many parts; empty: fit on training data, evaluate on validation data"
    )
    accumulate: Positive = key(1, "hypergradients averaged into one meta-update")
    clip_norm: Rate | None = key(None, "largest norm of a hypergradient; a larger one is scaled down; empty: no limit")
    normalise: bool = key(False, "divide each hypergradient by its norm")
    average_decay: Annotated[float, Field(gt=0, lt=1)] | None = key(
        None, "decay of a moving average of the meta-parameters, which is reported; empty: the last values are"
    )
    explosion_factor: Annotated[float, Field(gt=1)] = key(
        1e4, "skip a hypergradient with this many times the median norm (not in the paper; released code: none)"
    )
    max_skipped: Positive = key(
        10, "skipped meta-updates in a row that end the run (not in the paper; released code: none)"
    )
    reuse_gradient: bool = key(False, "the meta-update's PT gradient serves as the next PT step's, which is then free")

    @model_validator(mode="after")
    def _solver_fits(self) -> MetaArm:
        if "lr" in self.meta_settings:
            raise ValueError("meta_settings has lr; legal: other settings, since the learning rate is meta_lr")
        unrolled = self.unroll in ("network", "head")
        if self.head_steps_between_updates and not unrolled:
            raise ValueError(
                f"head_steps_between_updates is {self.head_steps_between_updates}, and unroll is {self.unroll!r}, "
                f"which takes no FT steps; legal: 0"
            )
        if self.folds is not None and unrolled:
            raise ValueError(
                f"folds is {self.folds}, and unroll is {self.unroll!r}, which fits no head; legal: leave folds out, or "
                "take a fitted head"
            )
        return self

    @property
    def trains_head(self) -> bool:
        """Return whether an FT head is trained in the course of PT; a fitted head is fitted anew in each update."""
        return self.unroll in ("network", "head") and self.unroll_steps + self.head_steps_between_updates > 0

    @property
    def passes(self) -> int:
        """Return the largest possible number of passes through the PT loss in a hypergradient.

        There are three, and one for each step of the inverse.
        """
        return 3 + int(getattr(self.inverse, "terms", getattr(self.inverse, "max_steps", 0)))

    def warmup(self, steps_per_epoch: int) -> int:
        """Return the number of meta-iterations (of P PT steps each) before the first meta-update."""
        return warmup_iterations(self.warmup_epochs, steps_per_epoch, self.pretrain_steps)

    def check_updates(self, place: str, what: str, epochs: int, steps_per_epoch: int) -> None:
        """Raise ValueError if PT of `epochs` takes no meta-update, by which the arm at `place` learns `what`."""
        steps, size = epochs * steps_per_epoch, self.pretrain_steps
        iterations, warmup = steps // size, self.warmup(steps_per_epoch)
        if size > steps:
            given, made, most = f"pretrain_steps is {size}", steps, float(steps)
        elif warmup >= iterations:
            given = f"warmup_epochs is {self.warmup_epochs:g}, which is {warmup} iterations of {size} PT steps"
            made, most = iterations, math.floor(100 * (iterations - 1) * size / steps_per_epoch) / 100
        else:
            return
        raise ValueError(
            f"{place}.{given}, and pretrain.epochs {epochs} of {steps_per_epoch} PT steps each make {made}, so that "
            f"{what} would never be learned; legal: at most {most:g}, or more epochs"
        )


def warmup_iterations(epochs: float, steps_per_epoch: int, pretrain_steps: int) -> int:
    """Return the iterations of `pretrain_steps` PT steps that are needed for a number of PT epochs.

    >>> warmup_iterations(1.1, 100, 10)  # although 1.1 * 100 is above 110 in floating point
    11
    """
    return math.ceil(round(epochs * steps_per_epoch / pretrain_steps, 9))


def whole_iterations(steps: int, pretrain_steps: int) -> tuple[int, int]:
    """Return the iterations of `pretrain_steps` PT steps in a run of `steps`, and the PT steps left over.

    >>> whole_iterations(744, 10)
    (74, 4)

    Raises:
        ConfigError: the run is shorter than one iteration.
    """
    if pretrain_steps > steps:
        raise ConfigError(
            f"pretrain_steps is {pretrain_steps}, which is more than the {steps} steps of the run, so that nothing "
            f"would be learned; legal: at most {steps}, or a longer run"
        )
    return divmod(steps, pretrain_steps)


def meta_settings(
    arm: MetaArm,
    *,
    iterations: int,
    warmup: int,
    remainder: int = 0,
    pretrain_lr: float,
    pretrain_optimizer: OptimizerSpec,
    finetune_optimizer: DifferentiableOptimizer,
    groups: dict[str, dict[str, Any]] | None = None,
) -> MetaSettings:
    """Return the settings of Algorithm 2 for an arm.

    `warmup` of its `iterations` have no meta-update, and `remainder` PT steps follow them; see `whole_iterations`.
    `pretrain_lr`: see `NeumannSeries.solver`; `finetune_optimizer` takes the unrolled steps; `groups`: settings of the
    meta-optimiser that differ for meta-parameters whose name matches a pattern.
    """
    from metapt.training.meta_settings import MetaSettings
    from metapt.training.optimizers import OptimizerSpec

    return MetaSettings(
        iterations=iterations,
        pretrain_steps=arm.pretrain_steps,
        warmup=warmup,
        remainder=remainder,
        inverse=arm.inverse.solver(pretrain_lr),
        finetuning=finetuning(arm, finetune_optimizer),
        curvature=arm.curvature,
        pretrain_optimizer=pretrain_optimizer,
        meta_optimizer=OptimizerSpec(arm.meta_optimizer, {"lr": arm.meta_lr, **arm.meta_settings}, groups or {}),
        head_steps_between_updates=arm.head_steps_between_updates,
        accumulate=arm.accumulate,
        clip_norm=arm.clip_norm,
        normalise=arm.normalise,
        average_decay=arm.average_decay,
        explosion_factor=arm.explosion_factor,
        max_skipped=arm.max_skipped,
        reuse_gradient=arm.reuse_gradient,
    )
