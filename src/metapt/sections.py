"""The parts that the config's sections are made of; each domain's `config.py` builds on them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

NAME = r"[A-Za-z0-9_-]{1,64}"
"""What names that become parts of paths are made of."""

RENAMED = {
    "cross_fit": "folds",
    "lr": "pretrain_lr",
    "scale_lr": "meta_lr",
    "steps": "pretrain_steps",
    "warmup": "warmup_epochs",
    "weights_lr": "meta_lr",
}
"""Keys of the config that have another name now: old -> new."""


class Section(BaseModel):
    """A part of the config: unknown keys and numbers that are not finite are errors, values can't be changed once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ExperimentSection(Section):
    """The settings of an experiment."""

    def arm_names(self) -> list[str]:
        """Return the names of the arms that it compares, each once."""
        return list(dict.fromkeys(getattr(self, "arms", [])))

    def check(self, domain: Any) -> None:
        """Raise ValueError where the experiment does not fit the other settings of its domain's section."""


class DomainSection(Section):
    """The settings of a domain. Its experiments are added to it by `metapt.domain.section`."""

    def experiments(self) -> Iterator[tuple[str, ExperimentSection]]:
        """Yield key and section of each experiment that is in the config."""
        for key, value in self:
            if isinstance(value, ExperimentSection):
                yield key, value

    @model_validator(mode="after")
    def _experiments_fit(self) -> DomainSection:
        for key, section in self.experiments():
            try:
                section.check(self)
            except ValueError as error:
                raise ValueError(f"{key}{error}") from None
        return self


def plain(section: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """Return a section as sorted dictionaries, lists and scalars, the same however the YAML was ordered and numbers written."""
    values = section.model_dump(mode="json") if isinstance(section, BaseModel) else section
    result: dict[str, Any] = json.loads(json.dumps(values, sort_keys=True, default=_dumped))
    return result


def _dumped(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{value!r} can't be part of a job's config")


def _distinct(values: Sequence[Any]) -> Sequence[Any]:
    """Raise ValueError where a value stands twice: what it names would be counted twice."""
    again = [value for place, value in enumerate(values) if value in values[:place]]
    if again:
        raise ValueError(f"{again[0]} stands there twice; name it once")
    return values


Distinct = AfterValidator(_distinct)
"""For lists whose values each stand for one thing."""

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]


class Neumann(Section):
    """The inverse Hessian as a truncated Neumann series (Section 3.1)."""

    kind: Literal["neumann"] = "neumann"
    terms: Count = Field(1, description="Hessian-vector products in the series; 0 leaves step_size times the vector")
    step_size: Rate | None = Field(
        None, description="step of the series; empty: the PT learning rate (not in the paper; as the released code does)"
    )


class ConjugateGradient(Section):
    """The inverse Hessian by conjugate gradients; not in the paper, nor are its defaults."""

    kind: Literal["conjugate_gradient"]
    max_steps: Positive = Field(20, description="most Hessian-vector products in a solve")
    rtol: Rate = Field(1e-3, description="stop when the residual has shrunk by this factor")
    damping: Annotated[float, Field(ge=0)] = Field(0.0, description="added to the Hessian's diagonal")
    relative_damping: Annotated[float, Field(ge=0)] = Field(
        0.0, description="added too, in units of the Rayleigh quotient of the vector that is solved for"
    )


class Identity(Section):
    """The identity in place of the inverse Hessian (T1 - T2 of the literature)."""

    kind: Literal["identity"]


Inverse = Annotated[Neumann | ConjugateGradient | Identity, Field(discriminator="kind")]


FinetuningSolver = Literal["network", "head", "fitted", "ridge"]


class MetaArm(Section):
    """An arm that learns hyperparameters of PT with Algorithm 2.

    The paper has none of the keys from `l2` on; all but `explosion_factor` and `max_skipped` are off by default.
    """

    method: Literal["meta"] = "meta"
    pretrain_steps: Positive = Field(10, description="P: PT steps between meta-updates")
    warmup_epochs: Annotated[float, Field(ge=0)] = Field(1, description="PT epochs before the first meta-update")
    inverse: Inverse = Field(Neumann(), description="how the inverse Hessian is approximated")
    curvature: Literal["hessian", "gauss_newton"] = Field("hessian", description="what is inverted")
    unroll: FinetuningSolver = Field("head", description="FT solver of a meta-update")
    unroll_steps: Count = Field(1, description="K: differentiable FT steps per meta-update")
    head_steps_between_updates: Count = Field(
        0, description="FT head steps after each PT step without a meta-update (released code: 1)"
    )
    finetune_lr: Rate = Field(1e-4, description="learning rate of the unrolled steps")
    meta_lr: Rate = Field(1.0, description="learning rate of the meta-parameters")
    meta_optimizer: str = Field("Adam", description="optimiser of the meta-parameters, any class of torch.optim")
    meta_settings: dict[str, Any] = Field({}, description="further settings of that optimiser")
    l2: Rate = Field(
        1e-2, description="ridge of the fitted or ridge head, without effect on unrolled steps (not in the paper; released code: none)"
    )
    folds: Annotated[int, Field(ge=2)] | None = Field(
        None, description="cross-fit that head over this many parts; empty: fit on training data, evaluate on validation data"
    )
    accumulate: Positive = Field(1, description="hypergradients averaged into one meta-update")
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
    reuse_gradient: bool = Field(
        False, description="the meta-update's PT gradient serves as the next PT step's, which is then free"
    )

    @model_validator(mode="after")
    def _solver_fits(self) -> MetaArm:
        unrolled = self.unroll in ("network", "head")
        if self.head_steps_between_updates and not unrolled:
            raise ValueError("head_steps_between_updates goes with unrolled steps; a fitted head takes none")
        if self.folds is not None and unrolled:
            raise ValueError("folds goes with a head that is fitted: unroll: fitted")
        return self

    def warmup(self, steps_per_epoch: int) -> int:
        """Return the number of first iterations of P PT steps without a meta-update."""
        return math.ceil(self.warmup_epochs * steps_per_epoch / self.pretrain_steps)
