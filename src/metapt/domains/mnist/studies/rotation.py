"""Experiments `rotation_mean` and `rotation_mean_std`: learn the distribution of the PT rotation.

Appendix "Meta-Parameterized Data Augmentation".
"""

from __future__ import annotations

import torch
from torch import Tensor

from metapt.domains.mnist import arms, mlp
from metapt.domains.mnist.arms import Results, Run
from metapt.domains.mnist.config import MetaArm, RotationData, RotationMean, RotationMeanStd, iterations
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.data.sources import CLASSES
from metapt.domains.mnist.problem import Images, RotationBatch, RotationProblem
from metapt.domains.mnist.quantities import DEVIATION, ERROR, MEAN, setting_mean_std
from metapt.domains.mnist.rotation import rotate
from metapt.evaluation import metrics
from metapt.hypergrad import Params, Stacked
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.training.batches import StreamBatches
from metapt.training.meta import MetaPretraining
from metapt.training.recorder import Recorder
from metapt.training.streams import ShuffledStream


class RotationBatches(StreamBatches):
    """Minibatches of stacked replicates; each has its own PT images, and its own FT images, rotated once.

    Args:
        data: all images.
        sizes: of the sets and of a minibatch.
        target: mean and standard deviation of the rotation of FT images, degrees.
        run: names the random streams.
        seeds: one name per replicate.

    Attributes:
        pretrain_images, finetune_images: which of the training images are whose, indices [replicates, examples] (on the CPU).
        rotated, labels: the FT images [replicates, examples, 28, 28] and their labels: training half, then validation half.
        half: images in the training half.

    Raises:
        ConfigError: there are fewer images than the sizes ask for.
    """

    def __init__(self, data: MnistData, sizes: RotationData, target: tuple[float, float], run: Run, seeds: list[int]) -> None:
        self.data = data
        count = sizes.pretrain_examples + sizes.finetune_examples
        chosen = torch.stack(
            [arms.sample(len(data.train_images), count, "PT and FT images", run.generator("images", seed)) for seed in seeds]
        )
        self.pretrain_images = chosen[:, : sizes.pretrain_examples]
        self.finetune_images = chosen[:, sizes.pretrain_examples :]
        self.rotated = torch.stack(
            [
                rotated(data.train_images[indices.to(data.train_images.device)], target, run.generator("finetune rotation", seed))
                for indices, seed in zip(self.finetune_images, seeds, strict=True)
            ]
        )
        self.labels = data.train_labels[self.finetune_images.to(data.train_labels.device)]
        self.half = sizes.finetune_examples // 2

        def stream(size: int, name: str) -> ShuffledStream:
            return ShuffledStream(size, sizes.batch_size, [run.generator(name, seed) for seed in seeds])

        parts = {
            "pretrain": sizes.pretrain_examples,
            "hypergradient": sizes.pretrain_examples,
            "train": self.half,
            "validation": sizes.finetune_examples - self.half,
        }
        super().__init__({name: stream(size, name) for name, size in parts.items()})

    def pretrain(self) -> RotationBatch:
        return self._rotations("pretrain")

    def hypergradient(self) -> RotationBatch:
        """The PT minibatch of a hypergradient, from a stream of its own, lest meta-updates change what PT steps see."""
        return self._rotations("hypergradient")

    def _rotations(self, name: str) -> RotationBatch:
        stream = self._streams[name]
        indices = self.pretrain_images.gather(1, stream.next()).to(self.data.train_labels.device)
        noise = stream.normal().to(self.data.train_images.device)
        return RotationBatch(self.data.train_images[indices], self.data.train_labels[indices], noise)

    def train(self) -> Images:
        return self._finetune(self._streams["train"].next())

    def validation(self) -> Images:
        return self._finetune(self.half + self._streams["validation"].next())

    def _finetune(self, indices: Tensor) -> Images:
        indices = indices.to(self.labels.device)
        replicates = torch.arange(len(indices), device=indices.device).unsqueeze(1)
        return Images(self.rotated[replicates, indices], self.labels.gather(1, indices))


def rotated(images: Tensor, target: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Images [n, 28, 28], each rotated once by a draw from N(mean, deviation^2) degrees."""
    mean, deviation = target
    return rotate(images, mean + deviation * torch.randn(len(images), generator=generator).to(images.device))


def learn(
    run: Run, arm: MetaArm, batches: RotationBatches, meta: Params, seeds: list[int], count: int
) -> tuple[MetaPretraining, Recorder, Results]:
    """Meta-PT of stacked replicates in `count` iterations, `meta` holding each one's initial mean [replicates] (and deviation).

    Returns:
        the loop at its end; the trajectories of the meta-parameters; a `Results` with the diagnosis and the checkpoint.
    """
    initial = [mlp.initial(arm.heads, CLASSES, CLASSES, run.generator("weights", seed), run.device) for seed in seeds]
    pretrained = stack_pretrained([pretrained for pretrained, _ in initial])
    head = stack([head for _, head in initial])
    loop = MetaPretraining(Stacked(RotationProblem()), batches, pretrained, meta, head, arms.settings(arm, count))
    recorder = Recorder(lambda: loop.averaged_meta)
    checkpoint = run.resumable()
    diagnosis = loop.run(f"{run.experiment} {run.arm}", checkpoint, recorder=recorder)
    return loop, recorder, Results(arms.diagnosis_rows(run, diagnosis), [], [checkpoint])


def train_mean(study: RotationMean, run: Run, data: MnistData) -> Results:
    """Learns the mean from `replicates` initialisations at once."""
    arm = study.arms[run.arm]
    seeds = list(range(study.replicates))
    low, high = study.initial_range
    start = torch.stack([low + (high - low) * torch.rand((), generator=run.generator("initial mean", seed)) for seed in seeds])
    batches = RotationBatches(data, study, (study.target, 1.0), run, seeds)
    count = iterations(arm, study.epochs, study.pretrain_examples, study.batch_size)
    loop, recorder, results = learn(run, arm, batches, {"mean": start.to(run.device)}, seeds, count)
    final = loop.averaged_meta["mean"].cpu()
    setting = f"{study.replicates} initialisations in [{low:g},{high:g}], target {study.target:g}"
    rows = [
        metrics.row(run.experiment, run.arm, metric, float(values[seed]), replicate=seed, setting=setting)
        for metric, values in {
            ERROR: (final - study.target).abs(),
            MEAN: final,
            "initial mean (degrees)": start,
        }.items()
        for seed in seeds
    ]
    return Results(rows + results.metrics, recorder.rows(), results.checkpoints)


def train_mean_std(study: RotationMeanStd, run: Run, data: MnistData) -> Results:
    """Learns mean and standard deviation from every start and seed at once.

    A replicate of the metrics table is a seed; one of the series table is start * seeds + seed.
    """
    arm = study.arms[run.arm]
    seeds = list(range(study.replicates))
    replicates = [(start, seed) for start in range(len(study.starts)) for seed in seeds]
    starts = torch.tensor([study.starts[start] for start, _ in replicates])
    names = [start * study.replicates + seed for start, seed in replicates]
    batches = RotationBatches(data, study, study.target, run, names)
    meta = {"mean": starts[:, 0].to(run.device), "deviation": starts[:, 1].to(run.device)}
    count = iterations(arm, study.epochs, study.pretrain_examples, study.batch_size)
    loop, recorder, results = learn(run, arm, batches, meta, names, count)
    # N(mean, s^2) and N(mean, (-s)^2) are one distribution.
    final = {MEAN: loop.averaged_meta["mean"].cpu(), DEVIATION: loop.averaged_meta["deviation"].abs().cpu()}
    rows = [
        metrics.row(run.experiment, run.arm, metric, float(values[index]), replicate=seed, setting=setting_mean_std(study, start))
        for metric, values in final.items()
        for index, (start, seed) in enumerate(replicates)
    ]
    return Results(rows + results.metrics, recorder.rows(), results.checkpoints)
