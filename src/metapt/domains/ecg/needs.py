"""Which PT, FT and study runs an experiment needs: what the workflow asks this domain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from metapt.domains.ecg.config import Arm, EcgConfig, Meta, PartialAccess, arms_of, fixed_arm, start_arm, uses_labels
from metapt.errors import ConfigError

EXPERIMENTS = ("full_access", "unroll_steps", "partial_access", "augmentations", "warp_study", "cost")
"""Keys of the section `ecg`."""


class PretrainKey(NamedTuple):
    """A PT run; `access` says how many labels it saw."""

    arm: str
    access: str
    seed: int

    @property
    def name(self) -> str:
        """Under which it is among a job's inputs."""
        return f"pretrain/{self.arm}/{self.access}/{self.seed}"


class FinetuneKey(NamedTuple):
    """The FT runs of all PT and FT seeds on `size` labelled ECGs."""

    arm: str
    access: str
    size: int

    @property
    def name(self) -> str:
        """Under which they are among a job's inputs."""
        return f"finetune/{self.arm}/{self.access}/n{self.size}"


class StudyKey(NamedTuple):
    """What the warp study computes for an arm."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Under which it is among a job's inputs."""
        return f"study/{self.arm}/{self.seed}"


@dataclass(frozen=True)
class Needs:
    """The runs that an experiment's tables are made of, none of them twice."""

    pretrain: list[PretrainKey]
    finetune: list[FinetuneKey]
    study: list[StudyKey]


def access(arm: Arm, size: int) -> str:
    """How many labelled ECGs a PT run of this arm sees where it may see `size` of them: `none` or `n{size}`."""
    return f"n{size}" if uses_labels(arm) else "none"


def meta_size(access: str) -> int | None:
    """The number in it.

    >>> meta_size("none"), meta_size("n500")
    (None, 500)
    """
    return None if access == "none" else int(access.removeprefix("n"))


def needs(config: EcgConfig, experiment: str) -> Needs:
    """What an experiment needs, in the order of the config.

    Raises:
        ConfigError: the experiment is not in the config, or is none; as `fixed_arms`.
    """
    section = getattr(config, experiment, None)
    if section is None:
        raise ConfigError(f"ecg.{experiment} is not in the config: add `{experiment}: {{}}` to the section ecg.")
    arms = arms_of(config)

    def cells(names: Iterable[str], sizes: Iterable[int]) -> list[FinetuneKey]:
        return [FinetuneKey(name, access(arms[name], size), size) for name in names for size in sizes]

    match experiment:
        case "full_access" | "unroll_steps":
            return _of_cells(config, cells(section.arms, section.finetune_sizes))
        case "partial_access":
            return _of_cells(config, cells([section.baseline], section.finetune_sizes) + _partial(section, arms))
        case "warp_study":
            starts = [start_arm(arm, initial) for arm, initials in section.starts.items() for initial in initials]
            fixed = [fixed_arm(warp, initial) for warp, initials in section.strengths.items() for initial in initials]
            found = _of_cells(config, cells([*fixed, *starts], [section.finetune_size]))
            study = [StudyKey(arm, seed) for arm in section.starts for seed in range(config.pretrain_seeds)]
            return Needs(found.pretrain, found.finetune, study)
        case "augmentations" | "cost":
            return Needs(_of_cells(config, cells(section.arms, [section.finetune_size])).pretrain, [], [])
    raise ConfigError(f"ecg.{experiment} is no experiment.")


def _partial(section: PartialAccess, arms: dict[str, Arm]) -> list[FinetuneKey]:
    return [
        FinetuneKey(name, access(arms[name], seen), size)
        for name in section.arms
        for size in section.finetune_sizes
        for seen in section.meta_sizes
        if seen <= size
    ]


def _of_cells(config: EcgConfig, cells: list[FinetuneKey]) -> Needs:
    """FT cells and the PT runs that they start from."""
    cells = list(dict.fromkeys(cells))
    encoders = dict.fromkeys((cell.arm, cell.access) for cell in cells)
    return Needs([PretrainKey(*encoder, seed) for encoder in encoders for seed in range(config.pretrain_seeds)], cells, [])


def fixed_arms(config: EcgConfig, arm: str) -> dict[float, str]:
    """The warp study's arms whose warp has a fixed strength in the parametrisation of `arm`, by their `initial`.

    Raises:
        ConfigError: there are none, or two for one `initial`.
    """
    study, learned = config.warp_study, config.arms[arm]
    assert study is not None
    assert isinstance(learned, Meta)
    found: dict[float, str] = {}
    for name, strengths in study.strengths.items():
        if (study.warps[name].smoothing, study.warps[name].scale) != (learned.warp.smoothing, learned.warp.scale):
            continue
        for initial in strengths:
            if found.setdefault(initial, fixed_arm(name, initial)) != fixed_arm(name, initial):
                raise ConfigError(
                    f"ecg.warp_study.strengths has {initial:g} of {name!r} and of another warp with smoothing "
                    f"{learned.warp.smoothing} and scale {learned.warp.scale}, and the arm {arm!r} can be compared with one of "
                    "them: leave the other out."
                )
    if not found:
        raise ConfigError(
            f"ecg.warp_study.warps has none with smoothing {learned.warp.smoothing} and scale {learned.warp.scale}, as the arm "
            f"{arm!r} of ecg.warp_study.starts has: add one with its strengths, or leave the arm out."
        )
    return found
