"""The base classes and types of the config's sections; each domain's `config.py` uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_jsonable_python

NAME = r"[A-Za-z0-9_-]{1,64}"  # regular expression of names that become parts of paths
OWN_DATA = "folder"  # the value of `source` for data of the user's own


def key(default: Any, description: str, **legal: Any) -> Any:
    """Return the default of a config key, with what it means and which values are legal; see pydantic's `Field`."""
    return Field(default, description=description, **legal)


class Section(BaseModel):
    """A part of the config. Unknown keys and numbers that are not finite are errors; values can't be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class JobSettings(Section):
    """What a job reads beside its inputs. The class of an entry module documents what its jobs read.

    The domain, and the path of a checkpoint, are set by `metapt.engine.jobs.Jobs`.
    """

    domain: str = ""  # empty for jobs of no domain


class ResumableSettings(JobSettings):
    """What a job reads that keeps a checkpoint while it runs."""

    checkpoint: str = ""  # path of the checkpoint


class SimulateSettings(JobSettings):
    """What a job reads that generates raw files."""

    source: str


OWN_KEYS = ("extends", "controls", "label")
"""Keys of an arm that say how it is compared and shown. No run depends on them, and no arm inherits them."""


class ArmSection(Section):
    """An arm: one way to pre-train that an experiment compares with others."""

    extends: str | None = key(None, "name of another arm in the same `arms`; this arm says only what differs from it")

    def to_run(self) -> Self:
        """Return the arm without `OWN_KEYS`."""
        own = {key: type(self).model_fields[key].get_default() for key in OWN_KEYS if key in type(self).model_fields}
        return self.model_copy(update=own)

    def resolved(self, arms: Mapping[str, Any]) -> Self:
        """Return the arm with what it takes from another one of its domain's `arms`."""
        return self


class SummarySettings(JobSettings):
    """What a job reads that summarises an experiment."""

    experiment: str  # its key
    settings: dict[str, Any]  # the domain's section, without experiments and arms that the summary does not need
    section: dict[str, Any]  # the experiment's section


class PageExperiment(Section):
    """An experiment on the page."""

    key: str
    title: str
    figure: str  # title of its figure; empty: as its table
    arms: dict[str, str]  # what each of its arms is, by name and by label


class PageDomain(Section):
    """A domain on the page."""

    name: str
    title: str
    source: str
    stand_in: bool
    experiments: list[PageExperiment]


class PageSettings(JobSettings):
    """What the job reads that writes the page."""

    domains: list[PageDomain]


class ExperimentSection(Section):
    """The settings of an experiment."""

    def arm_names(self) -> list[str]:
        """Return the names of the arms that the experiment compares, each once."""
        return list(dict.fromkeys(getattr(self, "arms", [])))

    def made_arms(self) -> list[str]:
        """Return the names of arms that the experiment makes itself."""
        return []

    def check(self, domain: Any) -> None:
        """Raise ValueError where the experiment doesn't fit its domain, such as one whose arm is not in the config."""
        if getattr(self, "arms", None) == {}:
            raise ValueError(".arms has none left; legal: one or more")
        arms: Any = getattr(domain, "arms", None)
        for name in self.made_arms():
            if arms is not None and name in arms:
                raise ValueError(f" makes an arm of its own with the name of arms.{name}; rename that")
        for name in self.arm_names() if arms is not None else []:
            if name not in arms:
                raise ValueError(f" names the arm {name!r}, which is not in arms; legal: {', '.join(arms)}")


class DomainSection(Section):
    """The settings of a domain; `metapt.engine.domain.Domain.section` adds its experiments."""

    stand_ins: ClassVar[tuple[str, ...]] = ()  # values of `source` whose data stand in for the paper's

    @property
    def stand_in(self) -> bool:
        """Return whether the data only stand in for the paper's, so that claims on them have known answers."""
        return getattr(self, "source", None) in self.stand_ins

    @property
    def papers_data(self) -> bool:
        """Return whether the data are the paper's, so that its numbers can stand beside results."""
        return not self.stand_in and getattr(self, "source", None) != OWN_DATA

    def experiments(self) -> Iterator[tuple[str, ExperimentSection]]:
        """Yield key and section of each experiment in the config."""
        for key, value in self:
            if isinstance(value, ExperimentSection):
                yield key, value

    def named_arms(self) -> dict[str, Any]:
        """Return the arms that experiments name; none in the settings of a summary, which hold no experiments."""
        arms: dict[str, Any] = getattr(self, "arms", {})
        names = dict.fromkeys(name for _, section in self.experiments() for name in section.arm_names())
        return {name: arms[name] for name in names if name in arms}

    @model_validator(mode="after")
    def _experiments_fit(self) -> DomainSection:
        for key, section in self.experiments():
            try:
                section.check(self)
            except ValueError as error:
                raise ValueError(f"{key}{error}") from None
        return self


def plain(section: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """Return a section as sorted dictionaries, lists and scalars.

    Neither the order of the YAML nor the notation of its numbers changes the result.
    """
    result: dict[str, Any] = json.loads(json.dumps(to_jsonable_python(section), sort_keys=True))
    return result


def _distinct(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values. Raises ValueError if one is repeated, since what it names would be counted twice."""
    again = [value for place, value in enumerate(values) if value in values[:place]]
    if again:
        raise ValueError(f"{again[0]} stands there twice; name it once")
    return values


Distinct = AfterValidator(_distinct)  # for lists without repeated values

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Sizes = Annotated[list[Positive], Distinct, Field(min_length=1)]
MOST_FINETUNE_SEEDS = 1000
FinetuneSeeds = Annotated[int, Field(ge=1, le=MOST_FINETUNE_SEEDS)]
Seed = Annotated[int, Field(ge=0, le=999_999_999)]  # NumPy takes less than 2^32
Seeds = Positive | Annotated[list[Seed], Distinct, Field(min_length=1)]  # see `seed_numbers`


def seed_numbers(seeds: int | Sequence[int]) -> list[int]:
    """Return the seeds of a key that gives them, or how many there are from 0 on.

    >>> seed_numbers(3), seed_numbers([100, 101])
    ([0, 1, 2], [100, 101])
    """
    return list(range(seeds) if isinstance(seeds, int) else seeds)
