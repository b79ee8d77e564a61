"""Experiments `rotation_mean` and `rotation_mean_std`: learn the distribution of the PT rotation.

Appendix "Meta-Parameterized Data Augmentation".
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metapt.domains.mnist import arms, mlp
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.config import LearnedRotation, RotationData, RotationMean, RotationMeanStd
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.data.sources import CLASSES
from metapt.domains.mnist.problem import Images, RotationBatch, RotationProblem
from metapt.domains.mnist.quantities import DEVIATION, ERROR, INITIAL_MEAN, MEAN, seed_of_start, setting_mean_std
from metapt.domains.mnist.rotation import rotate
from metapt.evaluation import metrics
from metapt.hypergrad import Params, Stacked
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.machine import Machine
from metapt.sections import seed_numbers
from metapt.training.batches import StreamBatches
from metapt.training.meta import MetaPretraining
from metapt.training.recorder import Recorder
from metapt.training.streams import ShuffledStream, to_device


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Learn the rotation of an arm; see `arms.run_arm`."""
    if "starts" in config["settings"]:
        arms.run_arm(RotationMeanStd, train_mean_std, __name__, config, inputs, outputs, machine)
    else:
        arms.run_arm(RotationMean, train_mean, __name__, config, inputs, outputs, machine)


class RotationBatches(StreamBatches):
    """Minibatches of stacked replicates, one per seed, each with its own PT and FT images; FT images are rotated once.

    `target` is mean and standard deviation of the rotation of FT images, degrees. `pretrain_images` and
    `finetune_images` are indices [replicates, examples] on the CPU. `rotated` and `labels` hold the FT images
    [replicates, examples, 28, 28] and their labels: `half` images for training, then those for validation. Raises
    ConfigError if there are too few images.
    """

    def __init__(
        self, data: MnistData, sizes: RotationData, target: tuple[float, float], run: Run, seeds: list[int]
    ) -> None:
        self.data = data
        total, count = len(data.train_images), sizes.pretrain_examples + sizes.finetune_examples
        drawn = [arms.sample(total, count, "PT and FT images", run.generator("images", seed)) for seed in seeds]
        chosen = torch.stack(drawn)
        self.pretrain_images = chosen[:, : sizes.pretrain_examples]
        self.finetune_images = chosen[:, sizes.pretrain_examples :]
        finetune = self.finetune_images.to(data.train_images.device)
        streams = [run.generator("finetune rotation", seed) for seed in seeds]
        self.rotated = torch.stack(
            [rotated(data.train_images[own], target, stream) for own, stream in zip(finetune, streams, strict=True)]
        )
        self.labels = data.train_labels[finetune]
        self.half = sizes.finetune_examples // 2

        def stream(size: int, name: str) -> ShuffledStream:
            return ShuffledStream(size, sizes.batch_size, [run.generator(name, seed) for seed in seeds])

        examples, rest = sizes.pretrain_examples, sizes.finetune_examples - self.half
        parts = {"pretrain": examples, "hypergradient": examples, "train": self.half, "validation": rest}
        super().__init__({name: stream(size, name) for name, size in parts.items()})

    def pretrain(self) -> RotationBatch:
        return self._rotations("pretrain")

    def hypergradient(self) -> RotationBatch:
        """Return the PT minibatch of a hypergradient. Its stream is its own, so PT steps don't depend on it."""
        return self._rotations("hypergradient")

    def _rotations(self, name: str) -> RotationBatch:
        stream = self._streams[name]
        device = self.data.train_images.device
        indices = to_device(self.pretrain_images.gather(1, stream.next()), device)
        noise = to_device(stream.normal(), device)
        return RotationBatch(self.data.train_images[indices], self.data.train_labels[indices], noise)

    def train(self) -> Images:
        return self._finetune(self._streams["train"].next())

    def validation(self) -> Images:
        return self._finetune(self.half + self._streams["validation"].next())

    def _finetune(self, indices: Tensor) -> Images:
        indices = to_device(indices, self.labels.device)
        replicates = torch.arange(len(indices), device=indices.device).unsqueeze(1)
        return Images(self.rotated[replicates, indices], self.labels.gather(1, indices))


def rotated(images: Tensor, target: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Rotate each of the images [n, 28, 28] by a normal draw (`target`: mean and standard deviation, degrees)."""
    mean, deviation = target
    return rotate(images, mean + deviation * torch.randn(len(images), generator=generator).to(images.device))


def learn(
    study: LearnedRotation, run: Run, data: MnistData, target: tuple[float, float], meta: Params, seeds: list[int]
) -> tuple[Params, Outcome]:
    """Run meta-PT of a replicate per seed from the initial meta-parameters `meta` [replicates], in degrees.

    The replicates are stacked, unless one would change what another one learns. Returns the meta-parameters that are
    reported [replicates], and the diagnosis, the trajectories of the meta-parameters and the checkpoints.
    """
    if not study.arms[run.arm].joins_replicates:
        return learn_stacked(study, run, RotationBatches(data, study, target, run, seeds), meta, seeds)
    alone = []
    for place, seed in enumerate(seeds):
        own = {name: value[place : place + 1] for name, value in meta.items()}
        batches = RotationBatches(data, study, target, run, [seed])
        alone.append(learn_stacked(study, run, batches, own, [seed], f"-replicate{seed}"))
    learned = {name: torch.cat([final[name] for final, _ in alone]) for name in meta}
    outcomes = zip(*(outcome for _, outcome in alone), strict=True)
    return learned, Outcome(*(list(chain.from_iterable(parts)) for parts in outcomes))


def learn_stacked(
    study: LearnedRotation, run: Run, batches: RotationBatches, meta: Params, seeds: list[int], part: str = ""
) -> tuple[Params, Outcome]:
    """Run meta-PT of stacked replicates; see `learn`. `part` names the checkpoint."""
    arm = study.arms[run.arm]
    initial = [mlp.initial(arm.heads, CLASSES, CLASSES, run.generator("weights", seed), run.device) for seed in seeds]
    pretrained = stack_pretrained([pretrained for pretrained, _ in initial])
    head = stack([head for _, head in initial])
    settings = arms.settings(arm, arm.iterations(study.epochs, study.steps_per_epoch), study.steps_per_epoch)
    loop = MetaPretraining(Stacked(RotationProblem()), batches, pretrained, meta, head, settings)
    recorder = Recorder(lambda: loop.averaged_meta)
    checkpoint = run.resumable(part)
    diagnosis = loop.run(f"meta-PT of replicate {seeds[0]}" if part else "meta-PT", checkpoint, recorder=recorder)
    trajectories = [{**row, "replicate": seeds[row["replicate"]]} for row in recorder.rows()]
    words = {"replicate": seeds[0]} if part else {}
    return loop.averaged_meta, Outcome(arms.diagnosis_rows(run, diagnosis, **words), trajectories, [checkpoint])


def train_mean(study: RotationMean, run: Run, data: MnistData) -> Outcome:
    """Learn the mean from `replicates` initialisations."""
    seeds = seed_numbers(study.replicates)
    low, high = study.initial_range
    draws = torch.stack([torch.rand((), generator=run.generator("initial mean", seed)) for seed in seeds])
    start = low + (high - low) * draws
    learned, outcome = learn(study, run, data, (study.target, 1.0), {"mean": start.to(run.device)}, seeds)
    final = learned["mean"].cpu()
    setting = f"{len(seeds)} initialisations in [{low:g},{high:g}], target {study.target:g}"
    numbers = {ERROR: (final - study.target).abs(), MEAN: final, INITIAL_MEAN: start}
    rows = [
        metrics.row(run.experiment, run.arm, metric, float(value), replicate=seed, setting=setting)
        for metric, values in numbers.items()
        for seed, value in zip(seeds, values, strict=True)
    ]
    return outcome._replace(metrics=rows + outcome.metrics)


def train_mean_std(study: RotationMeanStd, run: Run, data: MnistData) -> Outcome:
    """Learn mean and standard deviation from every start and seed.

    A replicate of the metrics table is a seed; one of the series table is `seed_of_start`.
    """
    replicates = [(start, seed) for start in range(len(study.starts)) for seed in seed_numbers(study.replicates)]
    starts = torch.tensor([study.starts[start] for start, _ in replicates])
    names = [seed_of_start(study, start, seed) for start, seed in replicates]
    meta = {"mean": starts[:, 0].to(run.device), "deviation": starts[:, 1].to(run.device)}
    learned, outcome = learn(study, run, data, study.target, meta, names)
    # N(mean, s^2) and N(mean, (-s)^2) are one distribution.
    final = {MEAN: learned["mean"].cpu(), DEVIATION: learned["deviation"].abs().cpu()}
    settings = [setting_mean_std(study, start) for start in range(len(study.starts))]
    rows = [
        metrics.row(run.experiment, run.arm, metric, float(value), replicate=seed, setting=settings[start])
        for metric, values in final.items()
        for value, (start, seed) in zip(values, replicates, strict=True)
    ]
    return outcome._replace(metrics=rows + outcome.metrics)
