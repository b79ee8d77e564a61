"""A PT job: its run, and its outputs: the encoder, the learned hyperparameters, and numbers about the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metapt.evaluation import metrics
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import detached
from metapt.sections import ResumableSettings
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.meta import MetaPretraining
from metapt.training.pretrained_file import Learned, save_pretrained
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Measured, Recorder
from metapt.twostage.jobs import PretrainSettings
from metapt.twostage.quantities import PEAK_MEMORY, PRETRAINING, TIME_PER_STEP, WALL_TIME


@dataclass
class PretrainRun:
    """The result of a PT run."""

    pretrained: Pretrained  # encoder, PT head and buffers at the end
    # the meta-parameters at the end (averaged if the arm says so); empty if there are none
    meta: Params = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)  # further numbers by metric
    series: list[dict[str, Any]] = field(default_factory=list)  # rows of the series table
    checkpoints: list[Checkpoint] = field(default_factory=list)  # removed when everything is written


def time_per_step(measured: Measured, steps: int, recorder: Recorder | None = None) -> dict[str, float]:
    """Return the time per PT step, without that of the recorder's observations, which not all arms have.

    It is NaN if the run goes on from a checkpoint of another process.
    """
    seconds = measured.seconds - (recorder.seconds if recorder is not None else 0.0)
    return {TIME_PER_STEP: seconds / steps if steps and measured.whole else math.nan}


@dataclass(frozen=True)
class PretrainSetting:
    """What a PT job reads; a domain adds what is made of it."""

    job: Any  # the settings that the domain's PT job reads
    dataset: Any  # the domain's data, on its `device`
    checkpoint: Callable[[str], Checkpoint]  # the name of a part of the run -> its checkpoint

    @property
    def steps_per_epoch(self) -> int:
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Return the number of PT steps of a run."""
        return int(self.job.pretrain.epochs) * self.steps_per_epoch

    def placed(self, params: Params) -> Params:
        """Return parameters on the device of the data."""
        return {name: value.to(self.dataset.device) for name, value in params.items()}

    def plain_run(self, trainer: Pretrainer, meta: Params, recorder: Recorder | None = None) -> PretrainRun:
        """Take all PT steps with given meta-parameters."""
        checkpoint = self.checkpoint("")
        with Measured(self.dataset.device) as measured:
            taken = trainer.run(meta, self.steps, "PT", checkpoint, recorder=recorder)
        series = recorder.rows() if recorder is not None else []
        return PretrainRun(trainer.pretrained, meta, time_per_step(measured, taken, recorder), series, [checkpoint])

    def meta_run(self, loop: MetaPretraining, recorder: Recorder, from_start: bool = False) -> PretrainRun:
        """Run Algorithm 2; `from_start`: the recorder observes the initial meta-parameters, too."""
        checkpoint = self.checkpoint("")
        with Measured(self.dataset.device) as measured:
            if from_start:
                recorder(0)
            diagnosis = loop.run("meta-PT", checkpoint, recorder=recorder)
        numbers = time_per_step(measured, loop.steps_taken, recorder) | diagnosis.figures
        return PretrainRun(loop.pretrained, loop.averaged_meta, numbers, recorder.rows(), [checkpoint])


def finished(run: PretrainRun, measured: Measured) -> PretrainRun:
    """Return the run after adding time and memory to its numbers and detaching its tensors from any graph.

    Time and memory are NaN if the run goes on from a checkpoint of another process, since the part before was not seen.
    """
    whole = 1.0 if measured.whole else math.nan
    run.numbers |= {WALL_TIME: whole * measured.seconds, PEAK_MEMORY: whole * measured.peak_bytes / 1e9}
    run.pretrained = Pretrained(*(detached(part) for part in run.pretrained))
    run.meta = detached(run.meta)
    return run


def checkpoints(
    settings: ResumableSettings, inputs: dict[str, Path], module: str, device: str
) -> Callable[[str], Checkpoint]:
    """Return a function that returns the checkpoint of a part of a job; `module`: see `fingerprint`."""
    state, path = fingerprint(settings, inputs, module, device), Path(settings.checkpoint)
    return lambda part: Checkpoint(path.with_name(f"{path.stem}{part}.pt"), state)


def write(run: PretrainRun, settings: PretrainSettings, setting: str, outputs: dict[str, Path]) -> None:
    """Write `pretrained`, `metrics` and `series` of a PT job, and remove its checkpoints.

    `setting` is for the metrics table.
    """
    save_pretrained(Learned(run.pretrained, run.meta), outputs["pretrained"])
    words = {"replicate": settings.seed, "setting": setting, "evaluation": PRETRAINING}
    metrics.write(metrics.rows_of(settings.domain, settings.arm, run.numbers, **words), outputs["metrics"])
    metrics.write_series(run.series, outputs["series"])
    for checkpoint in run.checkpoints:
        checkpoint.remove()
