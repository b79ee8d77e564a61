"""Which PT, FT and study runs an experiment needs: what the workflow asks this domain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from metapt.domains.ppi.config import Arm, PpiConfig, learns_weights, uses_labels, weights_of
from metapt.domains.ppi.settings import FULL_ACCESS, HALF_DATA, HELD_OUT, PERMUTED_TASKS, RELEASED_CENTRE, SETTINGS
from metapt.errors import ConfigError

EXPERIMENTS = (
    "full_access",
    "half_data",
    "held_out_tasks",
    "summary",
    "during_pretraining",
    "representations",
    "learned_weights",
    "negative_transfer",
    "centre_offset",
    "known_answer",
    "cost",
)
"""Keys of the section `ppi`."""


class PretrainKey(NamedTuple):
    """A PT run; `setting` says what it saw."""

    arm: str
    setting: str
    seed: int

    @property
    def name(self) -> str:
        """Under which it is among a job's inputs."""
        return f"pretrain/{self.arm}/{self.setting}/{self.seed}"


class FinetuneKey(NamedTuple):
    """The FT runs of all PT and FT seeds of an arm in a setting."""

    arm: str
    setting: str

    @property
    def name(self) -> str:
        """Under which they are among a job's inputs."""
        return f"finetune/{self.arm}/{self.setting}"


@dataclass(frozen=True)
class Needs:
    """The runs that an experiment's tables are made of, none of them twice; a study's inputs are the PT runs beside it.

    The PT runs that FT starts from are inputs of FT, and are here only where the tables read them too.
    """

    pretrain: list[PretrainKey]
    finetune: list[FinetuneKey]
    study: list[str]


def pretrain_setting(arm: Arm, setting: str) -> str:
    """The setting of the PT run that FT in `setting` starts from: what is done to FT data is nothing to a PT that sees none.

    Raises:
        ConfigError: there is no such setting.
    """
    if setting not in SETTINGS:
        raise ConfigError(f"ppi has no setting {setting!r}; legal: {', '.join(SETTINGS)}.")
    return FULL_ACCESS if setting in (HALF_DATA, *HELD_OUT) and not uses_labels(arm) else setting


def finetune_setting(arm: Arm, setting: str) -> str:
    """The setting whose FT runs serve `setting`: FT is on all FT data under half data too. Raises as `pretrain_setting`."""
    return pretrain_setting(arm, setting) if setting == HALF_DATA else setting


def encoders(config: PpiConfig, key: FinetuneKey) -> list[PretrainKey]:
    """The PT runs whose encoders FT starts from: none without PT, where each FT seed draws one. Raises as `pretrain_setting`."""
    arm = config.arms[key.arm]
    setting = pretrain_setting(arm, key.setting)
    if arm.method == "no_pt":
        return []
    return [PretrainKey(key.arm, setting, seed) for seed in range(config.pretrain_seeds)]


def needs(config: PpiConfig, experiment: str) -> Needs:
    """What an experiment needs, in the order of the config.

    Raises:
        ConfigError: the experiment is not in the config, or is none.
    """
    section = _section(config, experiment)

    def cells(names: Iterable[str], *settings: str) -> list[FinetuneKey]:
        found = [FinetuneKey(name, finetune_setting(config.arms[name], setting)) for name in names for setting in settings]
        return list(dict.fromkeys(found))

    def runs(names: Iterable[str], *settings: str) -> list[PretrainKey]:
        found = [(name, pretrain_setting(config.arms[name], setting)) for name in names for setting in settings]
        return [PretrainKey(*run, seed) for run in dict.fromkeys(found) for seed in range(config.pretrain_seeds)]

    arms = arms_of(config, experiment)
    match experiment:
        case "full_access" | "half_data":
            return Needs([], cells(arms, experiment), [])
        case "held_out_tasks":
            return Needs([], cells(arms, *HELD_OUT), [])
        case "summary":
            half = [arm for arm in arms if config.half_data is not None and arm in config.half_data.arms]
            held_out = [arm for arm in arms if config.held_out_tasks is not None and arm in config.held_out_tasks.arms]
            found = cells(arms, FULL_ACCESS) + cells(half, HALF_DATA) + cells(held_out, *HELD_OUT)
            return Needs([], list(dict.fromkeys(found)), [])
        case "negative_transfer":
            return Needs([], cells(arms, FULL_ACCESS), [])
        case "centre_offset":
            return Needs([], cells(arms, FULL_ACCESS, RELEASED_CENTRE), [])
        case "known_answer":
            learners = [arm for arm in section.arms if learns_weights(config.arms[arm])]
            pretrain = runs(section.arms, PERMUTED_TASKS) + runs(learners, FULL_ACCESS)
            return Needs(pretrain, cells(section.arms, FULL_ACCESS, PERMUTED_TASKS) + cells(section.quarters, FULL_ACCESS), [])
        case "representations":
            return Needs(runs(arms, FULL_ACCESS), [], [experiment])
    return Needs(runs(arms, FULL_ACCESS), [], [])


def arms_of(config: PpiConfig, experiment: str) -> list[str]:
    """The arms in an experiment's tables, in the order of the config, what it compares them to included. Raises as `needs`."""
    section = _section(config, experiment)
    base = [arm for arm in config.arms if experiment == "negative_transfer" and config.arms[arm].method == "no_pt"]
    return list(dict.fromkeys([*base[:1], *section.arms, *getattr(section, "quarters", [])]))


def arms_and_sources(config: PpiConfig, experiment: str) -> list[str]:
    """`arms_of`, and the arms that they take their weights from: what a config of this experiment alone has to hold."""
    arms = arms_of(config, experiment)
    sources = [weights_of(config.arms[arm]) for arm in arms]
    return list(dict.fromkeys([*arms, *(source for source in sources if source is not None)]))


def _section(config: PpiConfig, experiment: str) -> Any:
    if experiment not in EXPERIMENTS:
        raise ConfigError(f"ppi.{experiment} is no experiment; legal: {', '.join(EXPERIMENTS)}.")
    section = getattr(config, experiment)
    if section is None:
        raise ConfigError(f"ppi.{experiment} is not in the config: add `{experiment}: {{}}` to the section ppi.")
    return section
