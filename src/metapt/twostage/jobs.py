"""The jobs of a domain with a PT and an FT stage, and what they read. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from metapt.engine.jobs import Files, Job, Jobs
from metapt.sections import DomainSection, JobSettings, ResumableSettings, plain, seed_numbers
from metapt.twostage.arms import NO_PT, ComparedArm, changed, sharing, to_pretrain

A = TypeVar("A", bound=ComparedArm)
S = TypeVar("S", bound=DomainSection)


class PretrainSettings(ResumableSettings):
    """What a PT job of an arm reads beside its inputs, as far as all domains have it."""

    arm: str  # its name
    seed: int  # the PT seed


class FinetuneSettings(ResumableSettings):
    """What an FT job of an arm reads: all its FT runs from the encoder of a PT seed."""

    arm: str  # its name
    seed: int  # the PT seed
    finetune_seeds: int  # how many FT runs there are under each evaluation
    evaluations: list[str]  # of `metapt.twostage.quantities.EVALUATIONS`


class Work(NamedTuple):
    """What a job reads and takes."""

    settings: JobSettings
    inputs: Files
    mem_mb: int
    minutes: int


class TwoStageJobs(Jobs[S], Generic[S, A]):
    """The jobs of a domain with PT and FT; one PT run serves each arm and experiment that needs it.

    A `setting` says what PT and FT may see. A domain overrides the methods below `arm`. Its section `S` has `arms` of
    the type `A`, `pretrain`, `finetune`, `pretrain_seeds`, `finetune_seeds` and `evaluations`.
    """

    config: Any

    @property
    def pretrain_seeds(self) -> list[int]:
        """The PT seeds of each arm."""
        return seed_numbers(self.config.pretrain_seeds)

    @cached_property
    def sharing(self) -> dict[str, str]:
        return sharing({name: self.pretrain_part(self.arm(name)) for name in self.config.arms})

    def pretrain(self, name: str, setting: str, seed: int, own: A | None = None) -> Job:
        """Return the PT job, with a PT seed, that serves an arm in a setting.

        `own` are the settings of an arm that is not in the config.
        """
        name = self.sharing.get(name, name)
        arm = self.arm(name, own)
        setting = self.pretrain_setting(arm, setting)
        path, entry = f"pretrain/{name}/{setting}/seed{seed}", f"domains.{self.domain}.pretrain"

        def make() -> Job:
            settings, inputs, mem_mb, minutes = self.pretrain_work(name, arm, setting, seed)
            return self.training("pretrain", path, entry, settings, inputs, mem_mb=mem_mb, minutes=minutes)

        return self.once(f"{self.domain}/{path}", make)

    def finetune(self, name: str, setting: str, seed: int, own: A | None = None) -> Job:
        """Return the job of an arm's FT runs, with a PT seed, that serve a setting; `own`: see `pretrain`."""
        arm = self.arm(name, own)
        setting = self.finetune_setting(arm, setting)
        path, entry = f"finetune/{name}/{setting}/seed{seed}", f"domains.{self.domain}.finetune"

        def make() -> Job:
            settings, inputs, mem_mb, minutes = self.finetune_work(name, arm, setting, seed)
            if self.has_encoder(arm):
                inputs = inputs | {"pretrained": self.pretrain(name, setting, seed, own).outputs["pretrained"]}
            return self.training("finetune", path, entry, settings, inputs, mem_mb=mem_mb, minutes=minutes)

        return self.once(f"{self.domain}/{path}", make)

    def encoders(self, arms: Iterable[str], setting: str) -> list[Job]:
        """Return the PT jobs of arms in a setting, of all PT seeds."""
        return [self.pretrain(arm, setting, seed) for arm in arms for seed in self.pretrain_seeds]

    def runs(self, cells: Iterable[tuple[str, str]]) -> list[Job]:
        """Return the PT and FT jobs of `cells` (arm, setting), each once.

        All jobs of a PT seed come before those of the next, so that a run that ends early leaves whole comparisons.
        """
        jobs, cells = dict[str, Job](), list(dict.fromkeys(cells))
        for seed in self.pretrain_seeds:
            for stage in (self.pretrain, self.finetune):
                jobs |= {job.name: job for job in (stage(arm, setting, seed) for arm, setting in cells)}
        return list(jobs.values())

    def finetunes(self, cells: Iterable[tuple[str, str]]) -> list[Job]:
        """Return the FT jobs of `cells`, as `runs` does."""
        cells = list(dict.fromkeys(cells))
        made = [self.finetune(arm, setting, seed) for seed in self.pretrain_seeds for arm, setting in cells]
        return list({job.name: job for job in made}.values())

    def study(
        self, path: str, settings: JobSettings, inputs: Files, arms: Sequence[str], setting: str, **limits: Any
    ) -> Job:
        """Return the job of an experiment that reads the encoders of arms in a setting, as `pretrained/{arm}/{seed}`.

        `path` is its folder below the domain's results, which begins with the experiment's key.
        """
        encoders = {
            f"pretrained/{arm}/{seed}": self.pretrain(arm, setting, seed).outputs["pretrained"]
            for arm in arms
            for seed in self.pretrain_seeds
        }
        entry = f"domains.{self.domain}.experiments.{path.partition('/')[0]}.run"
        return self.training("study", path, entry, settings, inputs | encoders, **limits)

    def arm(self, name: str, own: A | None = None) -> A:
        """Return the settings of an arm, with what it takes from another arm; `own`: see `pretrain`."""
        arm: A = self.config.arms[name] if own is None else own
        return arm.resolved(self.config.arms)

    def changed_pretrain(self, arm: A) -> Any:
        """Return the domain's `pretrain` with the changes of an arm; the defaults, which do not count, without PT."""
        own = self.config.pretrain
        return changed(own, arm.pretrain) if hasattr(arm, "pretrain") else type(own)()

    def changed_finetune(self, arm: Any) -> Any:
        """Return the domain's `finetune` with the changes of an arm."""
        return changed(self.config.finetune, arm.finetune)

    def pretrain_part(self, arm: Any) -> dict[str, Any]:
        """Return the settings on which an arm's PT depends."""
        pretrain = {} if arm.method == NO_PT else plain(self.changed_pretrain(arm))
        return {"arm_settings": plain(to_pretrain(arm)), "pretrain": pretrain}

    def pretrain_setting(self, arm: A, setting: str) -> str:
        """Return the setting of the PT run that serves an arm in a setting."""
        raise NotImplementedError

    def finetune_setting(self, arm: A, setting: str) -> str:
        """Return the setting of the FT runs that serve an arm in a setting."""
        raise NotImplementedError

    def has_encoder(self, arm: A) -> bool:
        """Return whether the arm's FT starts from the encoder of a PT job."""
        return True

    def pretrain_work(self, name: str, arm: A, setting: str, seed: int) -> Work:
        """Return what a PT job reads and takes."""
        raise NotImplementedError

    def finetune_work(self, name: str, arm: A, setting: str, seed: int) -> Work:
        """Return what an FT job reads, beside the encoder, and takes."""
        raise NotImplementedError
