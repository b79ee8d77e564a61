"""The parts that the config's sections are made of; each domain's `config.py` builds on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NAME = r"[A-Za-z0-9_-]{1,64}"
"""What names that become parts of paths are made of."""


class Section(BaseModel):
    """A part of the config: unknown keys and numbers that are not finite are errors, values can't be changed once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Experiment(Section):
    """A section that is an experiment: it has a target, tables, figures and claims."""


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
