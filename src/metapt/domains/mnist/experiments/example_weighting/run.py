"""Experiment `example_weighting`: a CNN that weights PT examples, some of which have noisy labels.

Appendix "Meta-Parameterized Per-Example Weighting".
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metapt.domains.mnist import arms
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.batches import CLEAN_CLASSES, WeightingBatches
from metapt.domains.mnist.config import ArmSettings, ExampleWeighting, minibatches
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.problem import WeightingProblem, example_weights, initial_weights, weighting_network
from metapt.domains.mnist.quantities import DIAGNOSIS, MEAN_WEIGHT, RATIO, WEIGHT
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.sections import seed_numbers
from metapt.training.meta import MetaPretraining
from metapt.training.recorder import Recorder

_MOST_WEIGHTED = 3000
_RECORDS = 100  # points of a trajectory


def run(
    settings: ArmSettings[ExampleWeighting], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine
) -> None:
    """Learn the weights of an arm; see `arms.run_arm`."""
    arms.run_arm(settings, train, __name__, inputs, outputs, machine)


def train(study: ExampleWeighting, run: Run, data: MnistData) -> Outcome:
    """Train all replicates in parallel, in `run.threads` threads of one CPU thread each.

    The convolutions dominate here, and stacked (grouped) ones are slower than separate ones.
    """
    seeds = seed_numbers(study.replicates)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(run.threads) as pool:
            return arms.together(pool.map(lambda seed: _replicate(study, run, data, seed), seeds))
    finally:
        torch.set_num_threads(before)


def _replicate(study: ExampleWeighting, run: Run, data: MnistData, seed: int) -> Outcome:
    arm = study.arms[run.arm]
    batches = WeightingBatches(data, study, run, seed)
    stream = run.generator("weights", seed)
    pretrained, head = initial_weights(arm.heads, study.classes, CLEAN_CLASSES, stream, run.device)
    network = weighting_network(run.generator("weighting network", seed))
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
    rows = run.rows(numbers, **words) + run.rows(diagnosis.figures, evaluation=DIAGNOSIS, **words)
    series = [{**row, "replicate": seed} for row in recorder.rows()]
    for name, part in weights.items():
        series += metrics.series(WEIGHT.format(name), part.tolist(), seed)
    return Outcome(rows, series, [checkpoint])


@torch.no_grad()
def weigh(loop: MetaPretraining, batches: WeightingBatches) -> dict[str, Tensor]:
    """Return the weights of "clean" and "noisy" PT examples (of a random 3,000 where there are more), as one batch."""
    weights = example_weights(loop.averaged_meta, batches.images[:_MOST_WEIGHTED])
    clean = batches.clean[:_MOST_WEIGHTED]
    return {"clean": weights[clean].cpu(), "noisy": weights[~clean].cpu()}
