"""Experiment `example_weighting`: a CNN that weights PT examples, some of which have noisy labels.

Appendix "Meta-Parameterized Per-Example Weighting".
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metapt.domains.mnist import arms, mlp, weighting
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.config import ExampleWeighting, minibatches
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.problem import Images, WeightingProblem
from metapt.domains.mnist.quantities import MEAN_WEIGHT, RATIO, WEIGHT
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.sections import seed_numbers
from metapt.training.batches import StreamBatches
from metapt.training.meta import MetaPretraining
from metapt.training.recorder import Recorder
from metapt.training.streams import ShuffledStream, to_device

CLEAN_CLASSES = 5
_MOST_WEIGHTED = 3000
_RECORDS = 100  # points of a trajectory


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Learn the weights of an arm; see `arms.run_arm`."""
    arms.run_arm(ExampleWeighting, train, __name__, config, inputs, outputs, machine)


class WeightingBatches(StreamBatches):
    """Minibatches of one replicate: PT images with clean (0-4) or random labels (5 and up), FT images of classes 0-4.

    `clean` [examples] marks true labels. FT images come from MNIST's test set: `half` for training, then those for
    validation. Raises ConfigError if there are fewer PT images than the study asks for.
    """

    def __init__(self, data: MnistData, study: ExampleWeighting, run: Run, seed: int) -> None:
        device = data.train_images.device
        size = len(data.train_labels) if study.pretrain_examples == "all" else study.pretrain_examples
        chosen = arms.sample(len(data.train_labels), size, "PT images", run.generator("images", seed))
        self.images = data.train_images[chosen.to(device)]
        true_labels = data.train_labels.cpu()[chosen]
        noise = torch.randint(CLEAN_CLASSES, study.classes, (size,), generator=run.generator("label noise", seed))
        self.clean = (true_labels < CLEAN_CLASSES).to(device)
        self.labels = torch.where(true_labels < CLEAN_CLASSES, true_labels, noise).to(device)
        finetune = torch.nonzero(data.test_labels.cpu() < CLEAN_CLASSES).squeeze(1)
        finetune = finetune[torch.randperm(len(finetune), generator=run.generator("split", seed))].to(device)
        self.finetune_images, self.finetune_labels = data.test_images[finetune], data.test_labels[finetune]
        self.half = len(finetune) // 2
        sizes = {"pretrain": size, "hypergradient": size, "train": self.half, "validation": len(finetune) - self.half}
        batch = study.batch_size
        super().__init__({n: ShuffledStream(count, batch, [run.generator(n, seed)]) for n, count in sizes.items()})

    def pretrain(self) -> Images:
        return self._weighted("pretrain")

    def hypergradient(self) -> Images:
        """Return the PT minibatch of a hypergradient. Its stream is its own, so PT steps don't depend on it."""
        return self._weighted("hypergradient")

    def _weighted(self, name: str) -> Images:
        indices = self._next(name)
        return Images(self.images[indices], self.labels[indices])

    def train(self) -> Images:
        return self._finetune(self._next("train"))

    def validation(self) -> Images:
        return self._finetune(self.half + self._next("validation"))

    def _next(self, name: str) -> Tensor:
        return to_device(self._streams[name].next()[0], self.labels.device)

    def _finetune(self, indices: Tensor) -> Images:
        return Images(self.finetune_images[indices], self.finetune_labels[indices])


def train(study: ExampleWeighting, run: Run, data: MnistData) -> Outcome:
    """Train all replicates in parallel, in `run.threads` threads of one CPU thread each.

    The convolutions dominate here, and stacked (grouped) ones are slower than separate ones.
    """
    seeds = seed_numbers(study.replicates)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(run.threads) as pool:
            parts = list(pool.map(lambda seed: _replicate(study, run, data, seed), seeds))
    finally:
        torch.set_num_threads(before)
    return Outcome(*(list(chain.from_iterable(lists)) for lists in zip(*parts, strict=True)))


def _replicate(study: ExampleWeighting, run: Run, data: MnistData, seed: int) -> Outcome:
    arm = study.arms[run.arm]
    batches = WeightingBatches(data, study, run, seed)
    pretrained, head = mlp.initial(arm.heads, study.classes, CLEAN_CLASSES, run.generator("weights", seed), run.device)
    network = weighting.network(run.generator("weighting network", seed))
    meta = {name: value.to(run.device) for name, value in network.items()}
    per_epoch = minibatches(len(batches.labels), study.batch_size)
    settings = arms.settings(arm, arm.iterations(study.epochs, per_epoch), per_epoch)
    loop = MetaPretraining(WeightingProblem(), batches, pretrained, meta, head, settings)

    def observe() -> dict[str, Tensor]:
        return {MEAN_WEIGHT.format(name): part.mean().reshape(1) for name, part in weigh(loop, batches).items()}

    recorder = Recorder(observe, every=max(1, settings.iterations // _RECORDS))
    checkpoint = run.resumable(f"-{seed}")
    diagnosis = loop.run(f"meta-PT of seed {seed}", checkpoint, recorder=recorder)
    weights = weigh(loop, batches)
    numbers = {RATIO: float(weights["clean"].mean() / weights["noisy"].mean())}
    numbers |= {MEAN_WEIGHT.format(name): float(part.mean()) for name, part in weights.items()}
    words: dict[str, Any] = {"replicate": seed, "setting": f"{len(seed_numbers(study.replicates))} initialisations"}
    rows = metrics.rows_of(run.experiment, run.arm, numbers, **words) + arms.diagnosis_rows(run, diagnosis, **words)
    series = [{**row, "replicate": seed} for row in recorder.rows()]
    for name, part in weights.items():
        series += metrics.series(WEIGHT.format(name), part.tolist(), seed)
    return Outcome(rows, series, [checkpoint])


@torch.no_grad()
def weigh(loop: MetaPretraining, batches: WeightingBatches) -> dict[str, Tensor]:
    """Return the weights of "clean" and "noisy" PT examples (of a random 3,000 where there are more), as one batch."""
    weights = weighting.weights(loop.averaged_meta, batches.images[:_MOST_WEIGHTED])
    clean = batches.clean[:_MOST_WEIGHTED]
    return {"clean": weights[clean].cpu(), "noisy": weights[~clean].cpu()}
