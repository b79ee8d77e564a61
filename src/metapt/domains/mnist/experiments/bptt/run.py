"""Experiment `bptt`: the cost of the two approximations.

Appendix "The Impact of Approximating Meta-Parameter Gradients".
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from metapt.domains.mnist import arms
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.batches import SingleBatches, rotated
from metapt.domains.mnist.config import ArmSettings, BpttArm, BpttStudy, FixedArm, MnistMeta
from metapt.domains.mnist.data import CLASSES
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.problem import Images, RotationProblem, initial_weights, logits
from metapt.domains.mnist.quantities import ACCURACY, MEAN, OUTER_STEPS, PEAK_MEMORY, SKIPPED, WALL_TIME
from metapt.evaluation import metrics
from metapt.hypergrad import SGD, Adam, Params, Pretrained, exact_hypergradient
from metapt.hypergrad.params import joined, norm, parted
from metapt.machine import Machine
from metapt.sections import seed_numbers
from metapt.training.checkpoint import Checkpoint
from metapt.training.guard import HypergradientGuard
from metapt.training.interruption import Every
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec, without_compiler
from metapt.training.progress import steps
from metapt.training.recorder import Measured
from metapt.training.supervised import accuracy, minimise

log = logging.getLogger(__name__)


def run(settings: ArmSettings[BpttStudy], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Train and time an arm; see `arms.run_arm`."""
    arms.run_arm(settings, train, __name__, inputs, outputs, machine)


def train(study: BpttStudy, run: Run, data: MnistData) -> Outcome:
    """Learn an arm's PT rotation (unless it is fixed), pre-train and fine-tune, once for each replicate.

    A replicate has its own images, initial weights and minibatches, the same in all arms. Replicates run one after the
    other, so that the time and memory of each are those of a run alone. Raises ConfigError if there are fewer images
    than the study asks for. Raises TrainingError if hypergradients stay unusable.
    """
    test = rotated_test_images(study, run, data)
    seeds = seed_numbers(study.replicates)
    return arms.together([_replicate(study, run, data, test, seeds[i]) for i in steps(0, len(seeds), "replicates")])


def rotated_test_images(study: BpttStudy, run: Run, data: MnistData) -> Images:
    """Return the images that FT is tested on, each rotated once."""
    return Images(rotated(data.test_images, (study.target, 1.0), run.generator("test rotation")), data.test_labels)


def _replicate(study: BpttStudy, run: Run, data: MnistData, test: Images, replicate: int) -> Outcome:
    """Return the numbers of a replicate, and the trajectory of its mean rotation if it learns one.

    The accuracy of every arm is that after the same numbers of PT and FT steps, the mean over `study.evaluations` runs
    of both, each with its own seed. Our method learns a rotation during each PT; the trajectory is that of the first.
    Backpropagation learns one rotation, on the first of the seeds, and all of them pre-train with its final mean. The
    wall time is that of learning and of one PT and FT.
    """
    arm, first = study.arms[run.arm], replicate * study.evaluations
    learned, checkpoints = _Learned([], 0.0, 0, 0), []
    if isinstance(arm, BpttArm):
        checkpoints.append(run.resumable(f"-{replicate}"))
        learned = _backpropagate(Stages(study, run, data, first), run, arm, checkpoints[0])
    accuracies, seconds, peaks, means = [], [], [learned.peak_bytes], [learned.means] if learned.means else []
    for seed in range(first, first + study.evaluations):
        with Measured(run.device) as measured:
            stages = Stages(study, run, data, seed)
            if isinstance(arm, MnistMeta):
                encoder, own = _meta_pretrain(stages, arm)
                means.append(own)
            else:
                encoder = stages.pretrain(arm.mean if isinstance(arm, FixedArm) else learned.means[-1])
            weights = stages.finetune(encoder)
        seconds.append(measured.seconds)
        peaks.append(measured.peak_bytes)
        accuracies.append(float(accuracy(logits(*weights, test.images), test.labels)))
    numbers: dict[str, float] = {ACCURACY: fmean(accuracies), WALL_TIME: learned.seconds + fmean(seconds)}
    numbers[PEAK_MEMORY] = max(peaks) / 1e6
    if means:
        numbers[MEAN] = fmean(trajectory[-1] for trajectory in means)
    if learned.means:
        numbers |= {OUTER_STEPS: len(learned.means) - 1, SKIPPED: learned.skipped}
    series = metrics.series("mean", means[0] if means else [], replicate)
    return Outcome(run.rows(numbers, replicate=replicate), series, checkpoints)


class Stages:
    """PT and FT of one seed, from initial weights (never changed) and on minibatches that are the same in every arm."""

    def __init__(self, study: BpttStudy, run: Run, data: MnistData, seed: int) -> None:
        self.study = study
        self.device = run.device
        self.problem = RotationProblem()
        heads, weights = study.arms[run.arm].heads, run.generator("weights", seed)
        self.pretrained, self.head = initial_weights(heads, CLASSES, CLASSES, weights, run.device)
        self.batches = SingleBatches(data, study, run, seed)
        self._first = self.batches.state_dict()

    def pretrain(self, mean: float) -> Params:
        """Return the encoder after PT with a fixed mean rotation (degrees)."""
        meta = {"mean": torch.tensor(mean, device=self.device)}

        def loss(weights: Params) -> Tensor:
            return self.problem.pretrain_loss(parted(weights, self.pretrained, {}), meta, self.batches.pretrain())

        optimizer = OptimizerSpec("Adam", {"lr": self.study.pretrain_lr})
        learned = minimise(loss, joined(*self.pretrained[:2]), optimizer, self.study.pretrain_steps)
        return parted(learned, self.pretrained, {}).encoder

    def finetune(self, encoder: Params) -> tuple[Params, Params]:
        """Return encoder and head after FT of both, the head from its initial weights.

        The streams of FT minibatches start again, since meta-PT has drawn from them.
        """
        start = Pretrained(encoder, self.head)
        self.batches.load_state_dict(self._first)

        def loss(weights: Params) -> Tensor:
            current, batch = parted(weights, start, {}), self.batches.train()
            return self.problem.head_loss(current.head, self.problem.encode(current.encoder, batch), batch)

        optimizer = OptimizerSpec("SGD", {"lr": self.study.finetune_lr})
        tuned = parted(minimise(loss, joined(*start[:2]), optimizer, self.study.finetune_steps), start, {})
        return tuned.encoder, tuned.head


def _meta_pretrain(stages: Stages, arm: MnistMeta) -> tuple[Params, list[float]]:
    """Return the encoder after meta-PT (Algorithm 2), and the mean rotation (degrees), initial and per iteration."""
    study = stages.study
    meta = {"mean": torch.tensor(study.initial, device=stages.device)}
    settings = arms.settings(arm, study.pretrain_steps // arm.pretrain_steps, study.steps_per_epoch)
    loop = MetaPretraining(stages.problem, stages.batches, stages.pretrained, meta, stages.head, settings)
    means = []
    for _ in loop.iterations():
        loop.iterate()
        means.append(loop.averaged_meta["mean"].clone())
    return loop.pretrained.encoder, [study.initial, *torch.stack(means).tolist()]


class _Learned(NamedTuple):
    """The mean that backpropagation through PT and FT has learned, and its cost."""

    means: list[float]  # the mean rotation, initial and after each outer step, degrees
    seconds: float  # wall time, including that of an interrupted run up to its last checkpoint
    peak_bytes: int  # peak memory over the outer steps
    skipped: int  # outer steps whose hypergradient was not applied


def _backpropagate(stages: Stages, run: Run, arm: BpttArm, checkpoint: Checkpoint) -> _Learned:
    """Learn the mean by backpropagation through all of PT and FT of one seed.

    Each outer step starts from the same initial weights. An arm with a budget stops when that is spent, but takes at
    least one outer step.
    """
    study, batches = stages.study, stages.batches
    mean = torch.tensor(study.initial, device=run.device, requires_grad=True)
    optimizer = without_compiler(torch.optim.Adam)([mean], lr=arm.meta_lr)
    # The derivative of Adam's step is up to lr / eps where a gradient is nearly 0 (border pixels), so that some
    # hypergradients are far too large. Applied, they would stay in the second moment of Adam on the mean and stop it.
    guard = HypergradientGuard(arm.explosion_factor, max_skipped=10)
    learned = _Learned([study.initial], 0.0, 0, 0)
    if (saved := checkpoint.load()) is not None:
        mean.data.copy_(saved["mean"])
        optimizer.load_state_dict(saved["optimizer"])
        guard.load_state_dict(saved["guard"])
        batches.load_state_dict(saved["batches"])
        learned = _Learned(*saved["learned"])
        log.info("%s %s goes on at outer step %d", run.experiment, run.arm, len(learned.means) - 1)

    def save() -> None:
        parts = {"optimizer": optimizer.state_dict(), "guard": guard.state_dict(), "batches": batches.state_dict()}
        checkpoint.save({**parts, "mean": mean.detach(), "learned": tuple(learned)})

    due, start = Every(60.0), time.monotonic() - learned.seconds
    limit = None if run.budget_seconds is None else run.budget_seconds - learned.seconds
    # Within a block, freed memory stays in the process. An outer step takes 0.7 of the time that it takes without it.
    with Measured(run.device):
        done = len(learned.means) - 1
        for step in steps(done, arm.outer_steps, "outer loop", time_limit=limit, status={"mean": mean}):
            with Measured(run.device) as measured:
                result = exact_hypergradient(
                    stages.problem,
                    stages.pretrained,
                    {"mean": mean},
                    stages.head,
                    pretrain_batches=[batches.pretrain() for _ in range(study.pretrain_steps)],
                    train_batches=[batches.train() for _ in range(study.finetune_steps)],
                    validation_batches=[batches.whole_validation()],
                    pretrain_optimizer=Adam(study.pretrain_lr),
                    finetune_optimizer=SGD(study.finetune_lr),
                )
            if guard.accepts(float(norm(list(result.gradient.values()))), step):
                mean.grad = result.gradient["mean"]
                optimizer.step()
            peak = max(learned.peak_bytes, measured.peak_bytes)
            skipped = sum(guard.skipped.values())
            learned = _Learned([*learned.means, float(mean.detach())], time.monotonic() - start, peak, skipped)
            if due():
                save()
    save()  # so that a run that is interrupted in a later replicate keeps this one
    return learned
