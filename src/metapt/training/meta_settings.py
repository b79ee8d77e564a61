"""The settings of meta-pre-training."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import get_args

from metapt.errors import ConfigError
from metapt.hypergrad import FineTuning, Neumann, Unroll
from metapt.hypergrad.hybrid import Curvature
from metapt.hypergrad.inverse import Inverse
from metapt.training.optimizers import OptimizerSpec, check_spec, kind, plain

_SOLVER_ATTRIBUTES = ("minibatches", "optimizer", "uses_head_loss")
_LEAST = {"iterations": 1, "pretrain_steps": 1, "accumulate": 1, "max_skipped": 1}
_LEAST |= dict.fromkeys(("warmup", "remainder", "head_steps_between_updates"), 0)


@dataclass(frozen=True)
class MetaSettings:
    """Settings of meta-PT. The paper has none from `accumulate` on; all but explosion_factor and max_skipped are off.

    Args:
        iterations: N, number of meta-iterations of P PT steps each.
        pretrain_steps: P, PT steps per iteration.
        warmup: number of first iterations without a meta-update (N_warmup - 1 in Algorithm 2, where n < N_warmup).
        inverse: the approximation of the inverse PT Hessian.
        finetuning: the FT solver.
        curvature: the matrix used as the PT Hessian.
        pretrain_optimizer: the optimiser of encoder and PT head, with a learning-rate schedule over PT steps.
        meta_optimizer: the optimiser of the meta-parameters, with learning rates per group, and a schedule over applied
            meta-updates.
        head_steps_between_updates: FT steps of the head after each PT step that no meta-update follows, except those of
            `remainder` (1 in the released code).
        accumulate: number of hypergradients, each on minibatches of its own, whose mean is used for one meta-update; if
            one of them is not finite, none is applied.
        clip_norm: largest norm of an applied hypergradient; None for no limit.
        normalise: divide the hypergradient by its norm.
        average_decay: decay of an exponential moving average of the meta-parameters, which starts at the initial ones
            and is kept as `averaged_meta`; None for no average.
        explosion_factor: a meta-update is skipped if the norm of its hypergradient exceeds the running median by more
            than this factor.
        max_skipped: skipped meta-updates in a row at which the run stops.
        reuse_gradient: use the PT gradient of the last hypergradient of a meta-update for the next PT step, which then
            costs nothing; that hypergradient takes its minibatch from `Batches.pretrain`. A PT gradient that is not
            finite is dropped, and the PT step takes a new minibatch.
        remainder: PT steps after the last iteration, for a run whose number of PT steps P does not divide.

    Raises:
        ConfigError: a setting is out of range or of another kind, or the FT solver lacks what the settings need.
    """

    iterations: int
    pretrain_steps: int = 1
    warmup: int = 0
    inverse: Inverse = field(default_factory=lambda: Neumann(terms=1, step_size=1e-3))
    finetuning: FineTuning = field(default_factory=Unroll)
    curvature: Curvature = "hessian"
    pretrain_optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    meta_optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    head_steps_between_updates: int = 0
    accumulate: int = 1
    clip_norm: float | None = None
    normalise: bool = False
    average_decay: float | None = None
    explosion_factor: float = 1e4
    max_skipped: int = 10
    reuse_gradient: bool = False
    remainder: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, plain(getattr(self, each.name)))
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}; legal: a whole number, {least} or more")
        if self.warmup >= self.iterations:
            raise ConfigError(
                f"warmup is {self.warmup} of {self.iterations} iterations, so that the meta-parameters would "
                "never be learned; legal: fewer"
            )
        for name, legal, inside in (
            ("clip_norm", "a positive number, or None", self.clip_norm is None or self.clip_norm > 0),
            ("average_decay", "between 0 and 1, or None", self.average_decay is None or 0 < self.average_decay < 1),
            ("explosion_factor", "more than 1", self.explosion_factor > 1),
            ("curvature", " or ".join(get_args(Curvature)), self.curvature in get_args(Curvature)),
        ):
            if not inside:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; legal: {legal}")
        for name, example in {"inverse": "Neumann(terms=5, step_size=0.1)", "finetuning": "FittedHead(l2=0.1)"}.items():
            value = getattr(self, name)
            if isinstance(value, type) or not callable(value):
                raise ConfigError(f"{name} is {kind(value)}; legal: a solver, such as {example}")
        check_spec(self.pretrain_optimizer, "pretrain_optimizer")
        check_spec(self.meta_optimizer, "meta_optimizer")
        spec = self.pretrain_optimizer
        if any(each.get("maximize") for each in (spec.settings, *spec.groups.values())):
            raise ConfigError("pretrain_optimizer maximizes; legal: to minimize, with the PT loss of the other sign")
        solver = type(self.finetuning).__name__
        missing = [name for name in _SOLVER_ATTRIBUTES if not hasattr(self.finetuning, name)]
        if missing:
            names = " and no ".join(missing)
            raise ConfigError(f"the FT solver, a {solver}, has no attribute {names}; legal: see FineTuning")
        optimizer = self.finetuning.optimizer
        if optimizer is not None and (isinstance(optimizer, type) or not hasattr(optimizer, "init")):
            raise ConfigError(
                f"the optimizer of the FT solver is {kind(optimizer)}; legal: one whose steps can be differentiated, "
                "such as metapt.hypergrad.SGD(lr=0.01)"
            )
        if self.head_steps_between_updates and self.finetuning.optimizer is None:
            raise ConfigError(
                f"head_steps_between_updates is {self.head_steps_between_updates}, but the FT solver, a {solver}, has "
                "no optimizer for steps of the head; legal: 0, or a solver that has one, such as Unroll"
            )
