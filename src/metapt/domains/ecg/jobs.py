"""The jobs of the ECG domain: what they read, their memory and time."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from metapt.domains.ecg.config import (
    Arm,
    BestOf,
    BiSsl,
    EcgMeta,
    EcgPretraining,
    EcgSettings,
    Joint,
    NoPretraining,
    OptSla,
    RandomSearch,
    Simclr,
    sees_labels,
)
from metapt.domains.ecg.data import LABELS, Found, find
from metapt.domains.ecg.stages import EcgFinetuneSettings, EcgPretrainSettings, FolderSettings
from metapt.engine.jobs import Job
from metapt.errors import ConfigError
from metapt.sections import JobSettings, plain
from metapt.twostage.arms import to_pretrain
from metapt.twostage.jobs import TwoStageJobs, Work

RAW = ("ptbxl_database.csv", "scp_statements.csv", "records.json")
"""The raw files of each source. `records.json` names further ones in its folder."""
PREPARED = {"signals": "signals.npy", "records": "records.csv"}

_RECORDS = 20_000  # approximate number of ECGs in folds 1 to 9 of the largest source
_ECGS_PER_MINUTE = 60 * 500  # forward and backward passes of a core through an encoder of width 1


def labelled(size: int, seen: int | None = None) -> str:
    """Return the setting with `size` labelled ECGs in FT, of which PT may see `seen`, by default all.

    >>> labelled(500), labelled(500, 50)
    ('n500/n500', 'n50/n500')
    """
    return f"n{size if seen is None else seen}/n{size}"


class EcgJobs(TwoStageJobs[EcgSettings, Arm]):
    """The jobs of the ECG domain; see `labelled` for its settings."""

    config: EcgSettings

    @cached_property
    def found(self) -> Found:
        """The records of the config's folder. Raises ConfigError if it has no labels.csv, or can't be read."""
        assert self.config.folder is not None
        try:
            return find(Path(self.config.folder.path))
        except OSError as error:
            raise ConfigError(
                f"ecg.folder: {error.filename} can't be read ({error.strerror}); name a folder of WFDB records with a "
                f"{LABELS} that has the columns record, patient and one of 0 and 1 for each class."
            ) from error

    def prepared(self) -> Job:
        source = self.config.source
        if self.config.folder is not None:
            settings = FolderSettings(folder=self.config.folder, files=self.found.digest)
            raw, minutes = {LABELS: f"{self.config.folder.path}/{LABELS}"}, 30 + len(self.found.records) // 200
            return self.prepare(source, PREPARED, settings, raw, module=source, mem_mb=1000, minutes=minutes)
        raw = self.raw(RAW, mem_mb=1000, minutes=240)
        return self.prepare(source, PREPARED, JobSettings(), raw, mem_mb=1000, minutes=30)

    def pretrain_part(self, arm: Arm) -> dict[str, Any]:
        judge = {"finetune": plain(self.changed_finetune(arm))} if isinstance(arm, BestOf) else {}
        return super().pretrain_part(arm) | judge

    def pretrain_setting(self, arm: Arm, setting: str) -> str:
        """Return how many labelled ECGs an arm's PT sees: `n500`, or `none`."""
        return setting.partition("/")[0] if sees_labels(arm) else "none"

    def finetune_setting(self, arm: Arm, setting: str) -> str:
        """Return the setting, with `none` for PT that sees no labelled ECGs."""
        return f"{self.pretrain_setting(arm, setting)}/{setting.partition('/')[2]}"

    def pretrain_work(self, name: str, arm: Arm, setting: str, seed: int) -> Work:
        seen, pretrain, inputs = _number(setting), self.changed_pretrain(arm), self.prepared().outputs
        judge = self.changed_finetune(arm) if isinstance(arm, BestOf) else None
        if isinstance(arm, Simclr) and arm.warp_of is not None:
            inputs = inputs | {"learned": self.pretrain(arm.warp_of.of, setting, seed).outputs["pretrained"]}
        settings = EcgPretrainSettings(
            arm=name,
            seed=seed,
            arm_settings=to_pretrain(arm),
            meta_size=seen,
            split=None if seen is None else self.config.split,
            width=self.config.width,
            samples=self.config.length,
            capture=self.config.capture,
            pretrain=pretrain,
            finetune=judge,
        )
        labelled = arm.batch_size if isinstance(arm, EcgMeta | Joint | BiSsl | OptSla) else 0
        mem_mb = self.mem_mb(pretrain.batch_size, labelled, 0 if judge is None else judge.batch_size)
        mem_mb += max(0, self._records - _RECORDS) * 24 * self.config.length // 10**6  # PT's copy of 12 leads in int16
        minutes = self._pretrain_minutes(arm, pretrain, seen or 0)
        if isinstance(arm, BestOf):
            minutes = arm.runs * (minutes + self._minutes(arm.folds * self.changed_finetune(arm).epochs * (seen or 0)))
        return Work(settings, inputs, mem_mb, minutes)

    def finetune_work(self, name: str, arm: Arm, setting: str, seed: int) -> Work:
        config, own = self.config, self.changed_finetune(arm)
        seen, size = map(_number, setting.split("/"))
        settings = EcgFinetuneSettings(
            arm=name,
            seed=seed,
            finetune_seeds=config.finetune_seeds,
            evaluations=config.evaluations,
            meta_size=seen,
            size=size,
            split=config.split,
            width=config.width,
            samples=config.length,
            capture=config.capture,
            finetune=own,
        )
        minutes = self._minutes(config.finetune_seeds * own.epochs * settings.size)
        return Work(settings, self.prepared().outputs, self.mem_mb(own.batch_size), minutes)

    def mem_mb(self, *minibatches: int) -> int:
        """Return megabytes: 1,500 for imports, prepared ECGs and a reserve; activations by width, length, minibatch.

        `minibatches` are those of an arm, which may be larger than those of the config.
        """
        largest = max(self.config.pretrain.batch_size, self.config.finetune.batch_size, *minibatches)
        return 1500 + self.config.width * largest * self._times

    def _pretrain_minutes(self, arm: Arm, pretrain: EcgPretraining, seen: int) -> int:
        """Return the time limit of a PT run: two views of each ECG, and at least as long for what an arm adds.

        `seen` is the number of labelled ECGs that PT sees.
        """
        ecgs = 0 if isinstance(arm, NoPretraining) else pretrain.epochs * (pretrain.signals or self._records)
        added = 0
        if isinstance(arm, EcgMeta):
            each = arm.accumulate * (arm.passes * 2 * pretrain.batch_size + arm.batch_size * (arm.folds or 2))
            added = each * ecgs // (pretrain.batch_size * arm.pretrain_steps)
        if isinstance(arm, BiSsl) and arm.anchor == "learned":  # 8 updates with 5 products each
            each = 8 * ((3 + 5) * 2 * pretrain.batch_size + 4 * arm.batch_size)
            added = each * ecgs // (pretrain.batch_size * arm.pretrain_steps)
        if isinstance(arm, OptSla):  # it trains on four fifths, and validates on the others in each update
            each = (3 + arm.neumann_terms) * arm.batch_size + seen // 5
            steps = arm.epochs * max(1, 4 * seen // 5 // arm.batch_size)
            added = steps * (arm.batch_size + each // arm.pretrain_steps)
        if isinstance(arm, RandomSearch):
            added = int(2 * (arm.budget - 1) * ecgs)
        return self._minutes(2 * ecgs + max(2 * ecgs, added))

    def _minutes(self, ecgs: int) -> int:
        """Return the time limit of a job that makes `ecgs` forward and backward passes through the encoder."""
        return 240 if self.place.gpu else 60 + ecgs * self.config.width * self._times // _ECGS_PER_MINUTE

    @property
    def _records(self) -> int:
        return _RECORDS if self.config.folder is None else len(self.found.records)

    @property
    def _times(self) -> int:
        """Return how many times 10 s an ECG is long, about."""
        return max(1, round(self.config.length / 1000))


def _number(part: str) -> int | None:
    """Return a number of labelled ECGs in a setting.

    >>> _number("none"), _number("n500")
    (None, 500)
    """
    return None if part == "none" else int(part[1:])
