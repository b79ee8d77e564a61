"""How each arm pre-trains: from random weights to an encoder, and to the task weights that it has learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metapt.domains.ppi import config
from metapt.domains.ppi.batches import CoTrainBatches, PpiBatches
from metapt.domains.ppi.cotraining import CoTrainer
from metapt.domains.ppi.data.dataset import Indices, PpiDataset, held_out_tasks, splits
from metapt.domains.ppi.data.graphs import pack, unpack
from metapt.domains.ppi.data.terms import related
from metapt.domains.ppi.features import head_aurocs
from metapt.domains.ppi.gin import Encoder, initial_head, initial_pretrained
from metapt.domains.ppi.problem import (
    WEIGHTS,
    CoTrainProblem,
    MultitaskProblem,
    encoder_of,
    head_of,
    initial_meta,
    task_weights,
    whole,
)
from metapt.errors import ConfigError
from metapt.hypergrad import Adam, FittedHead, Neumann, Params, Pretrained, RidgeHead, Unroll
from metapt.hypergrad.finetune import FineTuning
from metapt.hypergrad.params import detached
from metapt.training.checkpoint import Checkpoint
from metapt.training.configured import inverse
from metapt.training.measure import Measured
from metapt.training.meta import MetaPretraining, MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Recorder
from metapt.training.seeds import generator

ONLINE_VALIDATION, ONLINE_TEST = "online validation AUROC (%)", "online test AUROC (%)"
QUANTILES = {"weight, 10 % quantile": 0.1, "weight, median": 0.5, "weight, 90 % quantile": 0.9}
_OFF = -30.0
"""phi of a task that is left out: its weight is 2e-13."""

_Batches = TypeVar("_Batches", bound=PpiBatches)


@dataclass(frozen=True)
class Setting:
    """What a PT run has to do with.

    Args:
        dataset: all graphs.
        network: the encoder's shape.
        pretrain: what all arms have in common.
        test_species: NCBI taxa.
        seed: the PT seed.
        name: of the setting: full_access, half_data, held_out_{part}, permuted_tasks or released_centre.
        learned: logits of the task weights that another arm has learned; None where the arm takes none.
        checkpoint: of the run.
    """

    dataset: PpiDataset
    network: config.Network
    pretrain: config.PretrainSettings
    test_species: list[int]
    seed: int
    name: str
    learned: Tensor | None
    checkpoint: Callable[[], Checkpoint]

    @property
    def encoder(self) -> Encoder:
        return Encoder(self.network.layers, self.network.width)

    @property
    def graphs(self) -> Indices:
        """PT graphs."""
        return splits(self.dataset.graphs, self.test_species).pretrain

    @property
    def finetune(self) -> tuple[Indices, Indices]:
        """FT graphs at meta-PT time: training, validation."""
        parts = splits(self.dataset.graphs, self.test_species)
        if self.name != "half_data":
            return parts.train, parts.validation
        random = np.random.default_rng([self.seed, 1])
        train, validation = (np.sort(random.permutation(part)[: -(-len(part) // 2)]) for part in (parts.train, parts.validation))
        return train, validation

    @property
    def tasks(self) -> Tensor | None:
        """FT tasks at meta-PT time; None: all."""
        if not self.name.startswith("held_out_"):
            return None
        held_out = held_out_tasks(self.dataset.fine_tasks, int(self.name.removeprefix("held_out_")))
        return torch.tensor([task for task in range(self.dataset.fine_tasks) if task not in held_out])

    @property
    def finetune_tasks(self) -> int:
        tasks = self.tasks
        return self.dataset.fine_tasks if tasks is None else len(tasks)

    @property
    def steps_per_epoch(self) -> int:
        return max(1, len(self.graphs) // self.pretrain.batch_size)

    @property
    def steps(self) -> int:
        """PT steps of a run."""
        return self.pretrain.epochs * self.steps_per_epoch

    def permuted(self) -> Indices:
        """PT tasks whose labels are permuted over the PT graphs: half of them, by the PT seed; none in other settings."""
        if self.name != "permuted_tasks":
            return np.zeros(0, dtype=np.int64)
        random = np.random.default_rng([self.seed, 2])
        return np.sort(random.permutation(self.dataset.coarse_tasks)[: self.dataset.coarse_tasks // 2])

    def coarse(self) -> Tensor | None:
        """PT labels of all graphs as bits, where they are not the data set's."""
        chosen = self.permuted()
        if not len(chosen):
            return None
        graphs, random = self.graphs, np.random.default_rng([self.seed, 3])
        labels = unpack(self.dataset.graphs.coarse, self.dataset.coarse_tasks)
        for task in chosen:
            labels[graphs, task] = labels[random.permutation(graphs), task]
        return torch.from_numpy(pack(labels.astype(np.bool_))).to(self.dataset.device)

    def relatives(self) -> NDArray[np.bool_]:
        """PT tasks that an FT task implies (see `related`), by the labels that the setting grants: [PT tasks]."""
        known, bits, tasks = np.concatenate(self.finetune), self.coarse(), self.tasks
        coarse = self.dataset.graphs.coarse if bits is None else bits.cpu().numpy()
        fine = unpack(self.dataset.graphs.fine[known], self.dataset.fine_tasks)
        granted = fine if tasks is None else fine[:, tasks.numpy()]
        return np.asarray(related(unpack(coarse[known], self.dataset.coarse_tasks), granted).any(1))

    def sets(self, arm: config.Meta | None = None) -> dict[str, tuple[Indices, int]]:
        """Who learns from which graphs, in minibatches of what size; `arm` says those of meta-updates."""
        train, validation = self.finetune
        size = self.pretrain.batch_size
        larger = None if arm is None else arm.hypergradient_batch
        sets = {"pretrain": (self.graphs, size), "hypergradient": (self.graphs, larger or size)}
        if arm is None:
            return sets | {"train": (train, size), "validation": (validation, size)}
        if arm.folds is None:
            sizes = [arm.batch_size or len(part) for part in (train, validation)]
            return sets | {"train": (train, sizes[0]), "validation": (validation, sizes[1])}
        # What equal parts leave over goes to the validation part, so that no graph is in two parts of a meta-update.
        both = np.random.default_rng([self.seed, 4]).permutation(np.concatenate([train, validation]))
        largest = len(both) // arm.folds
        part = min(arm.batch_size or largest, largest)
        updates = 1 if part == largest else (len(both) - part) // (part * (arm.folds - 1))  # that a pass over them serves
        rest = len(both) - updates * part * (arm.folds - 1)
        return sets | {"train": (both[rest:], part), "validation": (both[:rest], rest if part == largest else part)}

    def batches(self, arm: config.Meta | None = None) -> PpiBatches:
        """Minibatches of an arm whose PT loss is of PT data alone."""
        return self._made(PpiBatches, arm)

    def pairs(self) -> CoTrainBatches:
        """Minibatches of co-training."""
        return self._made(CoTrainBatches, None)

    def _made(self, kind: type[_Batches], arm: config.Meta | None) -> _Batches:
        return kind(
            self.dataset,
            self.sets(arm),
            self.network,
            self.pretrain.dropout,
            self.seed,
            coarse=self.coarse(),
            tasks=self.tasks,
            offset_centres=self.name != "released_centre",
        )

    def initial(self) -> Pretrained:
        """Random weights of the PT seed, the same in all arms."""
        made = initial_pretrained(
            self.network.layers, self.network.width, self.dataset.coarse_tasks, generator("ppi weights", self.seed)
        )
        return made.to(self.dataset.device)

    def initial_head(self) -> Params:
        made = initial_head(self.network.width, self.finetune_tasks, generator("ppi head", self.seed))
        return {name: value.to(self.dataset.device) for name, value in made.items()}

    def initial_meta(self, tasks: int) -> Params:
        return {name: value.to(self.dataset.device) for name, value in initial_meta(tasks).items()}

    def online(self, encoder: Params, head: Params) -> dict[str, Tensor]:
        """AUROC (%) of an FT head as it is, on validation and test graphs."""
        parts = splits(self.dataset.graphs, self.test_species)
        tasks = self.tasks
        found = {
            name: head_aurocs(self.encoder, encoder, head, self.dataset, torch.from_numpy(indices), tasks)
            for name, indices in ((ONLINE_VALIDATION, parts.validation), (ONLINE_TEST, parts.test))
        }
        return {name: torch.tensor([value]) for name, value in found.items()}


@dataclass
class PretrainRun:
    """What a PT run leaves.

    Attributes:
        pretrained: encoder, PT head and buffers at the end.
        meta: the learned task weights' logits (averaged where the arm says so); empty where there are none.
        figures: further numbers, by metric.
        series: rows of the series table.
        checkpoint: to remove when all is written.
    """

    pretrained: Pretrained
    meta: Params = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    series: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None


def pretrain(arm: config.Arm, setting: Setting) -> PretrainRun:
    """Pre-trains an arm, with the time and the memory that it took among its figures."""
    with Measured(setting.dataset.device) as measured:
        match arm:
            case config.NoPretraining():
                run = PretrainRun(setting.initial())
            case config.Supervised():
                run = _supervised(setting, arm)
            case config.CoTrain():
                run = _cotrain(setting, arm)
            case config.LearnedWeights():
                run = _learned_weights(setting, arm)
            case config.Meta():
                run = _meta(setting, arm)
    run.figures |= {"PT wall time (s)": measured.seconds, "PT peak memory (GB)": measured.peak_bytes / 1e9}
    run.pretrained = Pretrained(*(detached(part) for part in (run.pretrained[0], run.pretrained[1], run.pretrained[2])))
    run.meta = detached(run.meta)
    return run


def fixed_weights(setting: Setting, arm: config.Supervised) -> Params:
    """Logits of the weights that an arm keeps all through PT."""
    tasks = setting.dataset.coarse_tasks
    phi = torch.zeros(tasks)
    if arm.weights is not None:
        assert setting.learned is not None
        phi = setting.learned.cpu()
        order = phi.argsort(descending=True)
        match arm.weights.use:
            case "permuted":
                phi = phi[torch.randperm(tasks, generator=generator("ppi permuted weights", setting.seed))]
            case "top_quarter" | "bottom_quarter":
                count = max(1, tasks // 4)
                kept = order[:count] if arm.weights.use == "top_quarter" else order[-count:]
                phi = torch.full((tasks,), _OFF)
                phi[kept] = 0.0
    if arm.tasks == "related":
        relatives = setting.relatives()
        if not relatives.any():
            raise ConfigError("no PT task is implied by an FT task, so that an arm with `tasks: related` has none: leave it out.")
        phi = torch.where(torch.from_numpy(relatives), phi, torch.full((tasks,), _OFF))
    return {WEIGHTS: phi.to(setting.dataset.device)}


def _supervised(setting: Setting, arm: config.Supervised) -> PretrainRun:
    problem = MultitaskProblem(setting.encoder)
    trainer = Pretrainer(problem, setting.batches(), setting.initial(), _adam(arm.lr))
    return _plain(setting, trainer, fixed_weights(setting, arm), None)


def _cotrain(setting: Setting, arm: config.CoTrain) -> PretrainRun:
    problem, start = CoTrainProblem(setting.encoder), setting.initial()
    network = Pretrained(whole(start.encoder, start.head, setting.initial_head()), {}, start.buffers)
    trainer = CoTrainer(problem, setting.pairs(), network, _adam(arm.lr), arm.gradients)
    every = setting.steps // max(1, setting.pretrain.online_evaluations)
    recorder = Recorder(lambda: _online_of(setting, trainer.pretrained), max(1, every))
    run = _plain(setting, trainer, {}, recorder)
    run.figures |= {name: float(value) for name, value in _online_of(setting, run.pretrained).items()}
    run.pretrained = _parts(run.pretrained)
    return run


def _plain(setting: Setting, trainer: Pretrainer, meta: Params, recorder: Recorder | None) -> PretrainRun:
    """Training with given task weights."""
    checkpoint = setting.checkpoint()
    with Measured(setting.dataset.device) as measured:
        taken = trainer.run(meta, setting.steps, "PT", checkpoint, recorder=recorder)
    figures = {"PT time per step (s)": _per(measured.seconds, taken)}
    series = recorder.rows() if recorder is not None and setting.pretrain.online_evaluations else []
    return PretrainRun(trainer.pretrained, {}, figures, series, checkpoint)


def _learned_weights(setting: Setting, arm: config.LearnedWeights) -> PretrainRun:
    problem, start = CoTrainProblem(setting.encoder), setting.initial()
    network = Pretrained(whole(start.encoder, start.head, setting.initial_head()), {}, start.buffers)
    meta = setting.initial_meta(setting.dataset.coarse_tasks + setting.finetune_tasks)
    settings = MetaSettings(
        iterations=max(1, setting.steps // arm.steps),
        pretrain_steps=arm.steps,
        warmup=_warmup(setting, arm.warmup_epochs, arm.steps),
        inverse=Neumann(arm.neumann_terms, arm.lr),
        finetuning=Unroll(0),
        pretrain_optimizer=_adam(arm.lr),
        meta_optimizer=OptimizerSpec("Adam", {"lr": arm.weights_lr}),
    )
    loop = MetaPretraining(problem, setting.pairs(), network, meta, {}, settings)
    run = _learn(setting, loop, lambda: _online_of(setting, loop.pretrained))
    run.meta = {WEIGHTS: run.meta[WEIGHTS][: setting.dataset.coarse_tasks]}
    run.pretrained = _parts(run.pretrained)
    return run


def _meta(setting: Setting, arm: config.Meta) -> PretrainRun:
    loop = meta_loop(setting, arm)
    solver = loop.settings.finetuning
    trains_head = solver.optimizer is not None and solver.minibatches > 0

    def online() -> dict[str, Tensor]:
        return setting.online({**loop.pretrained.encoder, **loop.pretrained.buffers}, loop.head)

    return _learn(setting, loop, online if trains_head else dict)


def meta_loop(setting: Setting, arm: config.Meta) -> MetaPretraining:
    """The loop of a meta arm at its start."""
    settings = MetaSettings(
        iterations=max(1, setting.steps // arm.pretrain_steps),
        pretrain_steps=arm.pretrain_steps,
        warmup=_warmup(setting, arm.warmup_epochs, arm.pretrain_steps),
        inverse=inverse(arm.inverse, arm.lr),
        finetuning=_finetuning(arm),
        curvature=arm.curvature,
        pretrain_optimizer=_adam(arm.lr),
        meta_optimizer=OptimizerSpec(arm.meta_optimizer, {"lr": arm.weights_lr, **arm.meta_settings}),
        head_steps_between_updates=arm.head_steps_between_updates,
        accumulate=arm.accumulate,
        clip_norm=arm.clip_norm,
        normalise=arm.normalise,
        average_decay=arm.average_decay,
        explosion_factor=arm.explosion_factor,
        reuse_gradient=arm.reuse_gradient,
    )
    return MetaPretraining(
        MultitaskProblem(setting.encoder),
        setting.batches(arm),
        setting.initial(),
        setting.initial_meta(setting.dataset.coarse_tasks),
        setting.initial_head(),
        settings,
    )


def _learn(setting: Setting, loop: MetaPretraining, online: Callable[[], dict[str, Tensor]]) -> PretrainRun:
    """Runs a loop that learns task weights, with their quantiles and the online AUROC on the way."""
    iterations = loop.settings.iterations
    evaluations = setting.pretrain.online_evaluations
    every = max(1, iterations // max(1, evaluations))

    def observe() -> dict[str, Tensor]:
        weights = task_weights(detached(loop.averaged_meta))[: setting.dataset.coarse_tasks]
        seen = {name: weights.quantile(share).reshape(1) for name, share in QUANTILES.items()}
        return seen | (online() if evaluations else {})

    recorder = Recorder(observe, every)
    checkpoint = setting.checkpoint()
    with Measured(setting.dataset.device) as measured:
        diagnosis = loop.run("meta-PT", checkpoint, recorder=recorder)
    taken = (iterations - loop.first_iteration) * loop.settings.pretrain_steps
    figures = {"PT time per step (s)": _per(measured.seconds, taken)} | diagnosis.figures
    figures |= {name: float(value) for name, value in online().items()}
    return PretrainRun(loop.pretrained, loop.averaged_meta, figures, recorder.rows(), checkpoint)


def _finetuning(arm: config.Meta) -> FineTuning:
    """Return the FT solver of an arm."""
    cross_fit, minibatches = arm.folds is not None, (arm.folds or 2) - 1
    match arm.unroll:
        case "head":
            return Unroll(arm.unroll_steps, Adam(arm.finetune_lr))
        case "fitted":
            return FittedHead(arm.l2, cross_fit=cross_fit, minibatches=minibatches)
        case "ridge":
            return RidgeHead(arm.l2, cross_fit=cross_fit, minibatches=minibatches)


def _online_of(setting: Setting, network: Pretrained) -> dict[str, Tensor]:
    """Of a co-trained network's FT head."""
    values = detached({**network.encoder, **network.buffers})
    return setting.online(encoder_of(values), head_of(values, "finetune_head"))


def _parts(network: Pretrained) -> Pretrained:
    """A co-trained network as encoder and PT head."""
    return Pretrained(encoder_of(network.encoder), head_of(network.encoder, "pretrain_head"), network.buffers)


def _adam(lr: float) -> OptimizerSpec:
    return OptimizerSpec("Adam", {"lr": lr, "fused": True})


def _warmup(setting: Setting, epochs: float, steps: int) -> int:
    """Iterations of so many PT steps without a meta-update."""
    return math.ceil(epochs * setting.steps_per_epoch / steps)


def _per(seconds: float, steps: int) -> float:
    """Time per step of the steps that this process took; NaN where it found them all taken."""
    return seconds / steps if steps else math.nan
