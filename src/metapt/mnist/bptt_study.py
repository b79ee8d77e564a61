"""Experiment `bptt`: what the two approximations cost (appendix "The Impact of Approximating Meta-Parameter Gradients")."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from metapt.evaluation import metrics
from metapt.hypergrad import SGD, Adam, Params, Pretrained, exact_hypergradient
from metapt.hypergrad.params import norm
from metapt.mnist import arms, mlp
from metapt.mnist.arms import Results, Run
from metapt.mnist.config import BpttArm, BpttStudy, FixedArm, MetaArm
from metapt.mnist.prepare import MnistData
from metapt.mnist.problem import Images, RotationBatch, RotationProblem
from metapt.mnist.rotation_study import CLASSES, RotationBatches, rotated
from metapt.training.guard import HypergradientGuard
from metapt.training.measure import Measured
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.progress import steps
from metapt.training.supervised import accuracy
from metapt.training.supervised import train as minimise
from metapt.training.timing import Every

log = logging.getLogger(__name__)
WALL_TIME = "wall time (s)"


class SingleBatches:
    """`RotationBatches` of one replicate, without its leading dimension."""

    def __init__(self, data: MnistData, study: BpttStudy, run: Run, seed: int) -> None:
        self._stacked = RotationBatches(data, study, (study.target, 1.0), run, [seed])

    def pretrain(self) -> RotationBatch:
        return RotationBatch(*(value[0] for value in self._stacked.pretrain()))

    def train(self) -> Images:
        return Images(*(value[0] for value in self._stacked.train()))

    def validation(self) -> Images:
        return Images(*(value[0] for value in self._stacked.validation()))

    def whole_validation(self) -> Images:
        half = self._stacked.half
        return Images(self._stacked.rotated[0, half:], self._stacked.labels[0, half:])

    def state_dict(self) -> dict[str, Any]:
        return self._stacked.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stacked.load_state_dict(state)


def train(study: BpttStudy, run: Run, data: MnistData) -> Results:
    """One arm: learns its PT rotation (if it does), pre-trains and fine-tunes; the first seed's whole way is timed.

    Every arm has the same budget of PT and FT steps behind its accuracy. For ours the PT steps are those during which the rotation is learned.
    """
    arm = study.arms[run.arm]
    test = Images(
        rotated(data.test_images, (study.target, 1.0), run.generator("test rotation")),
        data.test_labels,
    )
    way = {MetaArm: _Ours, BpttArm: _Exact, FixedArm: _Fixed}[type(arm)](study, run, data)
    with Measured(run.device) as measured:
        first = way.model(0)
    models = [first, *(way.model(seed) for seed in range(1, study.evaluations))]
    with torch.no_grad():
        accuracies = [
            float(accuracy(mlp.logits(head, mlp.features(encoder, test.images)), test.labels)) for encoder, head in models
        ]

    row = partial(metrics.row, run.experiment, run.arm)
    rows = [row("FT test accuracy (%)", value, replicate=seed) for seed, value in enumerate(accuracies)]
    rows += [
        row(WALL_TIME, way.seconds_before + measured.seconds),
        row("peak memory (MB)", max(way.peak_before, measured.peak_bytes) / 1e6),
    ]
    rows += [row(name, value, replicate=seed) for (name, seed), value in way.numbers.items()]
    series = [{"replicate": 0, "step": step, "name": "mean", "value": value} for step, value in enumerate(way.means)]
    return Results(rows, series, [run.resumable()])


class _Way:
    """How an arm comes to a fine-tuned model.

    Attributes:
        numbers: (metric, replicate) -> value, of what it learned.
        means: trajectory of the mean rotation, degrees.
        seconds_before, peak_before: of the part of the first model's way that an interrupted run had made.
    """

    def __init__(self, study: BpttStudy, run: Run, data: MnistData) -> None:
        self.study, self.run, self.data = study, run, data
        self.problem = RotationProblem()
        self.numbers: dict[tuple[str, int | None], float] = {}
        self.means: list[float] = []
        self.seconds_before = 0.0
        self.peak_before = 0

    def model(self, seed: int) -> tuple[Params, Params]:
        """The fine-tuned encoder and head of one seed."""
        raise NotImplementedError

    def _initial(self, seed: int) -> tuple[Pretrained, Params]:
        pretrained, head = mlp.initial(self.study.heads, CLASSES, CLASSES, self.run.generator("weights", seed))
        return pretrained.to(self.run.device), {name: value.to(self.run.device) for name, value in head.items()}

    def _batches(self, seed: int) -> SingleBatches:
        return SingleBatches(self.data, self.study, self.run, seed)

    def _pretrain(self, mean: float, seed: int) -> tuple[Params, Params]:
        """PT with a fixed mean, then FT."""
        pretrained, head = self._initial(seed)
        batches = self._batches(seed)
        meta = {"mean": torch.tensor(mean, device=self.run.device)}

        def loss(weights: Params) -> Tensor:
            return self.problem.pretrain_loss(_split(weights, pretrained), meta, batches.pretrain())

        trained = minimise(
            loss, _join(pretrained), OptimizerSpec("Adam", {"lr": self.study.pretrain_lr}), self.study.pretrain_steps
        )
        return self._finetune(_split(trained, pretrained).encoder, head, batches)

    def _finetune(self, encoder: Params, head: Params, batches: SingleBatches) -> tuple[Params, Params]:
        start = Pretrained(encoder, head)

        def loss(weights: Params) -> Tensor:
            current, batch = _split(weights, start), batches.train()
            return self.problem.head_loss(current.head, self.problem.encode(current.encoder, batch), batch)

        tuned = minimise(loss, _join(start), OptimizerSpec("SGD", {"lr": self.study.finetune_lr}), self.study.finetune_steps)
        return _split(tuned, start)[:2]


class _Fixed(_Way):
    """PT with the arm's own rotation."""

    def model(self, seed: int) -> tuple[Params, Params]:
        arm = self.study.arms[self.run.arm]
        assert isinstance(arm, FixedArm)
        return self._pretrain(arm.mean, seed)


class _Ours(_Way):
    """Meta-PT (Algorithm 2), then FT of its encoder from a new head."""

    def model(self, seed: int) -> tuple[Params, Params]:
        arm = self.study.arms[self.run.arm]
        assert isinstance(arm, MetaArm)
        pretrained, head = self._initial(seed)
        batches = self._batches(seed)
        meta = {"mean": torch.tensor(self.study.initial, device=self.run.device)}
        loop = MetaPretraining(
            self.problem, batches, pretrained, meta, head, arms.settings(arm, self.study.pretrain_steps // arm.pretrain_steps)
        )
        means: list[float] = [self.study.initial]
        for _ in range(loop.settings.iterations):
            loop.iterate()
            means.append(float(loop.averaged_meta["mean"]))
        if seed == 0:
            self.means = means
        self.numbers["learned mean (degrees)", seed] = means[-1]
        return self._finetune(loop.pretrained.encoder, head, batches)


class _Exact(_Way):
    """Backpropagation through all of PT and FT, from the same initial weights each time; then PT and FT with the mean that it ends with."""

    def model(self, seed: int) -> tuple[Params, Params]:
        if not self.means:
            self._learn()
        return self._pretrain(self.means[-1], seed)

    def _learn(self) -> None:
        arm = self.study.arms[self.run.arm]
        assert isinstance(arm, BpttArm)
        pretrained, head = self._initial(0)
        batches = self._batches(0)
        mean = torch.tensor(self.study.initial, device=self.run.device, requires_grad=True)
        optimizer = torch.optim.Adam([mean], lr=arm.meta_lr)
        guard = HypergradientGuard(explosion_factor=1e4, max_skipped=10)
        means = [self.study.initial]
        checkpoint = self.run.resumable()
        saved = checkpoint.load()
        if saved is not None:
            mean.data.copy_(saved["mean"])
            optimizer.load_state_dict(saved["optimizer"])
            guard.load_state_dict(saved["guard"])
            batches.load_state_dict(saved["batches"])
            means, self.seconds_before, self.peak_before = saved["means"], saved["seconds"], saved["peak"]
            log.info("%s %s goes on at outer step %d", self.run.experiment, self.run.arm, len(means) - 1)
        due, start = Every(60.0), time.monotonic()
        for step in steps(len(means) - 1, arm.outer_steps, f"{self.run.experiment} {self.run.arm}"):
            spent = self.seconds_before + time.monotonic() - start
            if arm.budget_of is not None and self.run.budget_seconds is not None and step and spent >= self.run.budget_seconds:
                break
            with Measured(self.run.device) as measured:
                result = exact_hypergradient(
                    self.problem,
                    pretrained,
                    {"mean": mean},
                    head,
                    pretrain_batches=[batches.pretrain() for _ in range(self.study.pretrain_steps)],
                    train_batches=[batches.train() for _ in range(self.study.finetune_steps)],
                    validation_batches=[batches.whole_validation()],
                    pretrain_optimizer=Adam(self.study.pretrain_lr),
                    finetune_optimizer=SGD(self.study.finetune_lr),
                )
            self.peak_before = max(self.peak_before, measured.peak_bytes)
            if guard.accepts(float(norm(list(result.gradient.values()))), step):
                mean.grad = result.gradient["mean"]
                optimizer.step()
            means.append(float(mean.detach()))
            if due():
                state = {
                    "mean": mean.detach(),
                    "optimizer": optimizer.state_dict(),
                    "guard": guard.state_dict(),
                    "batches": batches.state_dict(),
                }
                checkpoint.save(
                    state | {"means": means, "seconds": self.seconds_before + time.monotonic() - start, "peak": self.peak_before}
                )
        self.means = means
        self.numbers["learned mean (degrees)", 0] = means[-1]
        self.numbers["outer steps", None] = len(means) - 1


def _join(params: Pretrained) -> Params:
    return {f"encoder/{k}": v for k, v in params.encoder.items()} | {f"head/{k}": v for k, v in params.head.items()}


def _split(params: Params, like: Pretrained) -> Pretrained:
    return Pretrained({k: params[f"encoder/{k}"] for k in like.encoder}, {k: params[f"head/{k}"] for k in like.head})
