"""The jobs of the ECG domain: their settings, files, threads, memory and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from metapt.domains.ecg.config import (
    Arm,
    BestOf,
    EcgMeta,
    EcgPretraining,
    EcgSettings,
    NoPretraining,
    Simclr,
    resolved,
)
from metapt.jobs import Job, Jobs, Json
from metapt.sections import plain, seed_numbers
from metapt.twostage.arms import changed, own_settings, pretrain_settings, sharing

RAW = ("ptbxl_database.csv", "scp_statements.csv", "records.json")
"""The raw files of each source. `records.json` names further ones in its folder."""
PREPARED = {"signals": "signals.npy", "records": "records.csv"}

_RECORDS = 20_000  # approximate number of ECGs in folds 1 to 9 of the largest source
_ECGS_PER_MINUTE = 60 * 500  # forward and backward passes of a core through an encoder of width 1


class EcgJobs(Jobs[EcgSettings]):
    """The jobs of the ECG domain."""

    @property
    def pretrain_seeds(self) -> list[int]:
        """The PT seeds of each arm."""
        return seed_numbers(self.config.pretrain_seeds)

    @cached_property
    def sharing(self) -> dict[str, str]:
        """See `Jobs.sharing`."""
        return sharing({name: self._pretrain_settings(self._settings(name)) for name in self.config.arms})

    def prepared(self) -> Job:
        """Return the job that prepares the ECGs of the config's source."""
        source = self.config.source
        if source == "simulated":
            raw = self.simulate(source, RAW).outputs
        else:
            listed = self.place.sources[source]
            raw = {file: self.download(listed, file, mem_mb=1000, minutes=240).outputs["file"] for file in RAW}
        return self.prepare(source, PREPARED, config={}, inputs=raw, mem_mb=1000, minutes=30)

    def pretrain(self, arm: str, access: str, seed: int, settings: Arm | None = None) -> Job:
        """Return the PT job that serves an arm and sees the labelled ECGs `access`, see `config.access`.

        `settings` are those of an arm that is not in `ecg.arms`.
        """
        arm = self.sharing.get(arm, arm)
        section, size = self._settings(arm, settings), _meta_size(access)
        inputs = self.prepared().outputs
        config = self._studied(size) | {"arm": arm, "seed": seed} | self._pretrain_settings(section)
        config |= {"split": None} if size is None else {}
        minutes = self._pretrain_minutes(section, self._pretrain(section))
        if isinstance(section, BestOf):
            minutes += self._minutes(section.folds * config["finetune"]["epochs"] * (size or 0))
            minutes *= section.runs
        if isinstance(section, Simclr) and section.warp_of is not None:
            inputs = inputs | {"learned": self.pretrain(section.warp_of.of, access, seed).outputs["pretrained"]}
        return self.training(
            "pretrain",
            f"pretrain/{arm}/{access}/seed{seed}",
            "domains.ecg.pretrain",
            config,
            inputs,
            mem_mb=self._pretrain_mem_mb(section),
            minutes=minutes,
        )

    def finetune(self, arm: str, access: str, size: int, seed: int, settings: Arm | None = None) -> Job:
        """Return the job of all FT runs of an arm on `size` labelled ECGs, from the PT job that `pretrain` returns."""
        encoder = self.pretrain(arm, access, seed, settings).outputs["pretrained"]
        own = changed(self.config.finetune, self._settings(arm, settings).finetune)
        keys = "split", "finetune_seeds", "evaluations", "width", "samples"
        given = {"arm": arm, "meta_size": _meta_size(access), "size": size, "seed": seed, "finetune": own}
        return self.training(
            "finetune",
            f"finetune/{arm}/{access}/n{size}/seed{seed}",
            "domains.ecg.finetune",
            self.pick(*keys) | given,
            self.prepared().outputs | {"pretrained": encoder},
            mem_mb=self._mem_mb(own.batch_size),
            minutes=self._minutes(self.config.finetune_seeds * own.epochs * size),
        )

    def encoders(self, arm: str, access: str, settings: Arm | None = None) -> list[Job]:
        """Return the PT jobs of an arm, one for each PT seed; takes what `pretrain` does."""
        return [self.pretrain(arm, access, seed, settings) for seed in self.pretrain_seeds]

    def runs(self, cells: Iterable[tuple[str, str, int]], settings: Mapping[str, Arm] | None = None) -> list[Job]:
        """Return the PT and FT jobs of `cells` (arm, access, size), without duplicates.

        All jobs of a PT seed come before those of the next, so that a run that ends early leaves whole comparisons.
        """
        own, jobs = settings or {}, dict[str, Job]()
        found = list(dict.fromkeys(cells))
        for seed in self.pretrain_seeds:
            made = [self.pretrain(arm, access, seed, own.get(arm)) for arm, access, _ in found]
            made += [self.finetune(arm, access, size, seed, own.get(arm)) for arm, access, size in found]
            jobs |= {job.name: job for job in made}
        return list(jobs.values())

    def views(self, encoders: Mapping[str, Sequence[Job]], size: int) -> Job:
        """Return the job of `studies.augmentations`; `encoders`: arm -> PT jobs; `size`: its labelled ECGs."""
        pretrained = {
            f"pretrained/{arm}/{seed}": job.outputs["pretrained"]
            for arm, jobs in encoders.items()
            for seed, job in zip(self.pretrain_seeds, jobs, strict=True)
        }
        arms = {arm: own_settings(self._settings(arm)) for arm in encoders}
        return self.training(
            "study",
            "augmentations/views",
            "domains.ecg.studies.augmentations",
            self._studied(size) | {"arms": arms, "seeds": self.pretrain_seeds},
            self.prepared().outputs | pretrained,
            mem_mb=self._mem_mb(),
            minutes=30,
            resumable=False,
        )

    def _settings(self, arm: str, settings: Arm | None = None) -> Arm:
        """Return the settings of an arm, with its warp; `settings` are those of an arm that is not in `ecg.arms`."""
        return resolved(settings or self.config.arms[arm], self.config.arms)

    def _pretrain_settings(self, section: Arm) -> Json:
        """Return the settings on which the PT of an arm depends."""
        judge = {"finetune": plain(changed(self.config.finetune, section.finetune))}
        return pretrain_settings(section, self.config) | (judge if isinstance(section, BestOf) else {})

    def _pretrain(self, section: Arm) -> EcgPretraining:
        """Return the settings of an arm's PT."""
        own = self.config.pretrain
        return own if isinstance(section, NoPretraining) else changed(own, section.pretrain)

    def _studied(self, size: int | None) -> Json:
        """Return the settings of PT runs, which studies read too."""
        return {"meta_size": size} | self.pick("split", "width", "samples", "pretrain")

    def _mem_mb(self, *minibatches: int) -> int:
        """Return megabytes: 1,500 for imports, prepared ECGs and a reserve, and activations by width and minibatch.

        `minibatches` are those of an arm, which may be larger than those of the config.
        """
        largest = max(self.config.pretrain.batch_size, self.config.finetune.batch_size, *minibatches)
        return 1500 + self.config.width * largest

    def _pretrain_mem_mb(self, section: Arm) -> int:
        """Return megabytes of an arm's PT, with its FT minibatches if it takes some."""
        own = section.batch_size if isinstance(section, EcgMeta) and section.batch_size is not None else 0
        finetune = changed(self.config.finetune, section.finetune).batch_size if isinstance(section, BestOf) else 0
        return self._mem_mb(self._pretrain(section).batch_size, own, finetune)

    def _pretrain_minutes(self, section: Arm, pretrain: EcgPretraining) -> int:
        """Return the time limit of a PT job: two views of each ECG, and meta-updates, which get at least as long."""
        ecgs = pretrain.epochs * (pretrain.signals or _RECORDS)
        updates = 0
        if isinstance(section, EcgMeta):
            labelled = section.batch_size * (section.folds or 2)
            each = section.accumulate * (section.passes * 2 * pretrain.batch_size + labelled)
            updates = each * ecgs // (pretrain.batch_size * section.pretrain_steps)
        return self._minutes(2 * ecgs + max(2 * ecgs, updates))

    def _minutes(self, ecgs: int) -> int:
        """Return the time limit of a job that makes `ecgs` forward and backward passes through the encoder."""
        return 240 if self.place.gpu else 60 + ecgs * self.config.width // _ECGS_PER_MINUTE


def _meta_size(access: str) -> int | None:
    """Return the number of labelled ECGs.

    >>> _meta_size("none"), _meta_size("n500")
    (None, 500)
    """
    return None if access == "none" else int(access.removeprefix("n"))
