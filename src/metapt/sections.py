"""The parts that the config's sections are made of; each domain's `config.py` builds on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

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
