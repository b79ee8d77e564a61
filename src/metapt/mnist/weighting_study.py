"""Experiment `example_weighting`: a CNN that weights PT examples, some with noisy labels (appendix "Meta-Parameterized Per-Example Weighting")."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from metapt.evaluation import metrics
from metapt.mnist import arms, mlp, weighting
from metapt.mnist.arms import Results, Run
from metapt.mnist.config import ExampleWeighting
from metapt.mnist.prepare import MnistData
from metapt.mnist.problem import Images, WeightingProblem
from metapt.training.checkpoint import Checkpoint
from metapt.training.meta import MetaPretraining
from metapt.training.recorder import Recorder
from metapt.training.streams import ShuffledStream

CLEAN_CLASSES = 5
_MOST_WEIGHED = 3000
_RECORDS = 100


class WeightingBatches:
    """Minibatches of one replicate: PT images with clean (0-4) or noisy labels, FT images of classes 0-4 from the test set."""

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
        sizes = {"pretrain": size, "train": self.half, "validation": len(finetune) - self.half}
        self._streams = {
            name: ShuffledStream(count, study.batch_size, [run.generator(name, seed)]) for name, count in sizes.items()
        }

    def pretrain(self) -> Images:
        indices = self._next("pretrain")
        return Images(self.images[indices], self.labels[indices])

    def train(self) -> Images:
        return self._finetune(self._next("train"))

    def validation(self) -> Images:
        return self._finetune(self.half + self._next("validation"))

    def _next(self, name: str) -> Tensor:
        return self._streams[name].next()[0].to(self.labels.device)

    def _finetune(self, indices: Tensor) -> Images:
        return Images(self.finetune_images[indices], self.finetune_labels[indices])

    def state_dict(self) -> dict[str, Any]:
        return {name: stream.state_dict() for name, stream in self._streams.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, stream in self._streams.items():
            stream.load_state_dict(state[name])


def train(study: ExampleWeighting, run: Run, data: MnistData) -> Results:
    """All replicates, side by side in `run.threads` threads of one CPU thread each.

    The convolutions dominate here, and stacked ones (grouped convolutions) are slower than one after the other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(run.threads) as pool:
            parts = list(pool.map(lambda seed: _replicate(study, run, data, seed), range(study.replicates)))
    finally:
        torch.set_num_threads(before)
    return Results(
        [row for part in parts for row in part.metrics],
        [row for part in parts for row in part.series],
        [checkpoint for part in parts for checkpoint in part.checkpoints],
    )


def _replicate(study: ExampleWeighting, run: Run, data: MnistData, seed: int) -> Results:
    arm = study.arms[run.arm]
    batches = WeightingBatches(data, study, run, seed)
    pretrained, head = mlp.initial(arm.heads, study.classes, CLEAN_CLASSES, run.generator("weights", seed))
    head = {name: value.to(run.device) for name, value in head.items()}
    meta = {name: value.to(run.device) for name, value in weighting.network(run.generator("weighting network", seed)).items()}
    iterations = (arm.epochs or study.epochs) * -(-len(batches.labels) // study.batch_size)
    loop = MetaPretraining(WeightingProblem(), batches, pretrained.to(run.device), meta, head, arms.settings(arm, iterations))

    def observe() -> dict[str, Tensor]:
        clean, noisy = weigh(loop, batches)
        return {"mean weight, clean": clean.mean().reshape(1), "mean weight, noisy": noisy.mean().reshape(1)}

    recorder = Recorder(observe, every=max(1, iterations // _RECORDS))
    checkpoint: Checkpoint = run.resumable(f"-{seed}")
    diagnosis = loop.run(f"{run.experiment} {run.arm} {seed}", checkpoint, recorder=recorder)
    clean, noisy = weigh(loop, batches)
    numbers = {
        "ratio of mean weight clean/noisy": float(clean.mean() / noisy.mean()),
        "mean weight, clean": float(clean.mean()),
        "mean weight, noisy": float(noisy.mean()),
    }
    setting = f"{study.replicates} initialisations"
    rows = [metrics.row(run.experiment, run.arm, name, value, replicate=seed, setting=setting) for name, value in numbers.items()]
    rows += arms.diagnosis_rows(run, diagnosis, setting, seed)
    series = [{**row, "replicate": seed} for row in recorder.rows()]
    series += [
        {"replicate": seed, "step": index, "name": f"weight, {name}", "value": value}
        for name, values in {"clean": clean, "noisy": noisy}.items()
        for index, value in enumerate(values.tolist())
    ]
    return Results(rows, series, [checkpoint])


@torch.no_grad()
def weigh(loop: MetaPretraining, batches: WeightingBatches) -> tuple[Tensor, Tensor]:
    """Weights of clean and of noisy PT examples (of a random 3,000 where there are more), weighed as one batch."""
    weights = weighting.weights(loop.averaged_meta, batches.images[:_MOST_WEIGHED])
    clean = batches.clean[:_MOST_WEIGHED]
    return weights[clean].cpu(), weights[~clean].cpu()
