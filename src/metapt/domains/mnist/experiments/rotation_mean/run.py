"""Experiments `rotation_mean` and `rotation_mean_std`: learn the distribution of the PT rotation.

Appendix "Meta-Parameterized Data Augmentation".
"""

from __future__ import annotations

from pathlib import Path

import torch

from metapt.domains.mnist import arms
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.batches import RotationBatches
from metapt.domains.mnist.config import ArmSettings, LearnedRotation, RotationMean, RotationMeanStd
from metapt.domains.mnist.data import CLASSES
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.problem import RotationProblem, initial_weights
from metapt.domains.mnist.quantities import DEVIATION, DIAGNOSIS, ERROR, INITIAL_MEAN, MEAN
from metapt.evaluation import metrics
from metapt.hypergrad import Params, Stacked
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.machine import Machine
from metapt.sections import seed_numbers
from metapt.training.meta import MetaPretraining
from metapt.training.recorder import Recorder


def run(
    settings: ArmSettings[RotationMean | RotationMeanStd],
    inputs: dict[str, Path],
    outputs: dict[str, Path],
    machine: Machine,
) -> None:
    """Learn the rotation of an arm; see `arms.run_arm`."""
    arms.run_arm(settings, train, __name__, inputs, outputs, machine)


def train(study: RotationMean | RotationMeanStd, run: Run, data: MnistData) -> Outcome:
    """Learn the mean from each initialisation, or mean and standard deviation from each start and seed.

    A replicate of the metrics table is a seed; one of the series table of a study with starts is `seed_of`.
    """
    seeds = seed_numbers(study.replicates)
    if isinstance(study, RotationMean):
        low, high = study.initial_range
        draws = torch.stack([torch.rand((), generator=run.generator("initial mean", seed)) for seed in seeds])
        initial = low + (high - low) * draws
        learned, outcome = learn(study, run, data, (study.target, 1.0), {"mean": initial.to(run.device)}, seeds)
        mean = learned["mean"].cpu()
        numbers = {ERROR: (mean - study.target).abs(), MEAN: mean, INITIAL_MEAN: initial}
        setting = f"{len(seeds)} initialisations in [{low:g},{high:g}], target {study.target:g}"
        places = [(setting, seed) for seed in seeds]
    else:
        cases = [(start, seed) for start in range(len(study.starts)) for seed in seeds]
        starts = torch.tensor([study.starts[start] for start, _ in cases]).to(run.device)
        meta = {"mean": starts[:, 0], "deviation": starts[:, 1]}
        learned, outcome = learn(study, run, data, study.target, meta, [study.seed_of(*case) for case in cases])
        # N(mean, s^2) and N(mean, (-s)^2) are one distribution.
        numbers = {MEAN: learned["mean"].cpu(), DEVIATION: learned["deviation"].abs().cpu()}
        places = [(study.setting(start), seed) for start, seed in cases]
    rows = [
        metrics.row(run.experiment, run.arm, metric, float(value), replicate=seed, setting=setting)
        for metric, values in numbers.items()
        for value, (setting, seed) in zip(values, places, strict=True)
    ]
    return outcome._replace(metrics=rows + outcome.metrics)


def learn(
    study: LearnedRotation, run: Run, data: MnistData, target: tuple[float, float], meta: Params, seeds: list[int]
) -> tuple[Params, Outcome]:
    """Run meta-PT of a replicate per seed from the initial meta-parameters `meta` [replicates], in degrees.

    The replicates are stacked, unless one would change what another one learns. Returns the meta-parameters that are
    reported [replicates], and the diagnosis, the trajectories of the meta-parameters and the checkpoints.
    """
    if not study.arms[run.arm].joins_replicates:
        return _learn_stacked(study, run, RotationBatches(data, study, target, run, seeds), meta, seeds)
    parts = []
    for i, seed in enumerate(seeds):
        own = {name: value[i : i + 1] for name, value in meta.items()}
        batches = RotationBatches(data, study, target, run, [seed])
        parts.append(_learn_stacked(study, run, batches, own, [seed], f"-replicate{seed}"))
    learned = {name: torch.cat([final[name] for final, _ in parts]) for name in meta}
    return learned, arms.together(outcome for _, outcome in parts)


def _learn_stacked(
    study: LearnedRotation, run: Run, batches: RotationBatches, meta: Params, seeds: list[int], part: str = ""
) -> tuple[Params, Outcome]:
    """Run meta-PT of stacked replicates; see `learn`. `part` names the checkpoint of a replicate that is alone."""
    arm, per_epoch = study.arms[run.arm], study.steps_per_epoch
    weights = [
        initial_weights(arm.heads, CLASSES, CLASSES, run.generator("weights", each), run.device) for each in seeds
    ]
    pretrained, head = stack_pretrained([each for each, _ in weights]), stack([each for _, each in weights])
    settings = arms.settings(arm, arm.iterations(study.epochs, per_epoch), per_epoch)
    loop = MetaPretraining(Stacked(RotationProblem()), batches, pretrained, meta, head, settings)
    recorder, checkpoint = Recorder(lambda: loop.averaged_meta), run.resumable(part)
    diagnosis = loop.run(f"meta-PT of replicate {seeds[0]}" if part else "meta-PT", checkpoint, recorder=recorder)
    rows = run.rows(diagnosis.figures, evaluation=DIAGNOSIS, replicate=seeds[0] if part else None)
    trajectories = [{**row, "replicate": seeds[row["replicate"]]} for row in recorder.rows()]
    return loop.averaged_meta, Outcome(rows, trajectories, [checkpoint])
