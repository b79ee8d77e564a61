"""PT, meta-updates and FT of protein graphs on a rehearsed device: the CPU's numbers, and where they wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metapt.domains.ppi.arms import meta_loop
from metapt.domains.ppi.batches import CoTrainBatches, PpiBatches
from metapt.domains.ppi.config import Network, PpiFinetuning
from metapt.domains.ppi.cotraining import CoTrainer
from metapt.domains.ppi.data.dataset import on_device, splits
from metapt.domains.ppi.finetune import PpiFinetuneProblem, PpiSets, finetune_tasks, sets_of
from metapt.domains.ppi.gin import initial_pretrained
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import CoTrainProblem, MultitaskProblem, whole
from metapt.hypergrad import Pretrained
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator
from metapt.twostage.finetuning import full_transfer, linear_evaluation

from .small_arms import ARMS_HERE, setting_in
from .small_graphs import TEST_SPECIES, small_graphs

Rehearse = Callable[..., dict[str, int]]
ADAM = OptimizerSpec("Adam", {"lr": 1e-3, "fused": True})
NETWORK = Network(layers=2, width=6)


def setting_on(device: str, folder: Path) -> PpiSetting:
    return setting_in(folder, on_device(small_graphs(), device), learned=None)


def plain(folder: Path, device: str) -> Callable[[], Pretrained]:
    setting = setting_on(device, folder)
    problem, batches = MultitaskProblem(setting.trained()), setting.batches(PpiBatches)
    trainer = Pretrainer(problem, batches, setting.initial(), ADAM)
    meta = setting.initial_meta(setting.dataset.coarse_tasks)

    def steps() -> Pretrained:
        for _ in range(3):
            trainer.step(meta)
        return trainer.pretrained

    return steps


def cotraining(gradients: Any, folder: Path, device: str) -> Callable[[], Pretrained]:
    setting = setting_on(device, folder)
    start = setting.initial()
    network = Pretrained(whole(start.encoder, start.head, setting.initial_head()), {}, start.buffers)
    batches = setting.batches(CoTrainBatches)
    trainer = CoTrainer(CoTrainProblem(setting.trained()), batches, network, ADAM, gradients)

    def step() -> Pretrained:
        trainer.step({})
        return trainer.pretrained

    return step


def test_a_pt_step_waits_nowhere(tmp_path: Path, rehearse: Rehearse) -> None:
    assert rehearse(partial(plain, tmp_path)) == {}


@pytest.mark.gpu
def test_nor_does_it_on_a_gpu(tmp_path: Path, queue_on_gpu: Callable[..., None]) -> None:
    queue_on_gpu(partial(plain, tmp_path))


@pytest.mark.parametrize("gradients", ["alternate", "pcgrad", "pcgrad_shared"])
def test_nor_does_a_step_of_cotraining(gradients: str, tmp_path: Path, rehearse: Rehearse) -> None:
    assert rehearse(partial(cotraining, gradients, tmp_path)) == {}


UPDATE = {
    "hypergrad.finetune: finished": 1,
    "hypergrad.hybrid: hypergradient": 1,
    "training.meta: MetaPretraining._meta_update": 1,
}
SOLVERS = {
    "meta": {"hypergrad.inverse: Neumann.__call__": 1},
    "meta-identity": {"hypergrad.inverse: Neumann.__call__": 1},
    "meta-released": {"hypergrad.inverse: Neumann.__call__": 1, "training.meta: MetaPretraining._head_step": 1},
    "meta-stable": {"hypergrad.ridge: _errors": 1, "hypergrad.inverse: ConjugateGradient.__call__": 22},
}


@pytest.mark.parametrize("name", SOLVERS)
def test_where_a_meta_update_waits(name: str, tmp_path: Path, rehearse: Rehearse) -> None:
    def updates(device: str) -> Callable[[], Any]:
        loop = meta_loop(setting_on(device, tmp_path), ARMS_HERE[name])
        for _ in range(loop.settings.warmup):
            loop.iterate()

        def update() -> Any:
            loop.iterate()
            return loop.pretrained, loop.meta, loop.head, loop.averaged_meta

        return update

    assert rehearse(updates) == UPDATE | SOLVERS[name]


def finetuning(epochs: int) -> PpiFinetuning:
    values = {"epochs": epochs, "batch_size": 16, "linear_epochs": epochs, "linear_lrs": [1e-3, 1e-2]}
    return PpiFinetuning.model_validate(values)


def sets_on(device: str) -> tuple[Pretrained, PpiSets]:
    dataset = on_device(small_graphs(), device)
    tasks = finetune_tasks("full_access", dataset.fine_tasks)
    sets = sets_of(dataset, splits(dataset.graphs, [TEST_SPECIES]), tasks)
    return initial_pretrained(2, 6, 3, generator("encoder")).to(device), sets


def test_ft_of_the_network_waits_once_in_an_epoch(rehearse: Rehearse) -> None:
    def transfer(device: str) -> Callable[[], list[float]]:
        start, sets = sets_on(device)
        run = full_transfer(PpiFinetuneProblem(NETWORK, sets, finetuning(4)), start, 1e-3, generator("ft"))
        epochs = iter(range(1, 5))

        def epoch() -> list[float]:
            run.train(next(epochs))
            return run.curve

        return epoch

    assert rehearse(transfer) == {"twostage.transfer: Transfer.train": 1}


@pytest.mark.parametrize("epochs", [1, 5])
def test_ft_of_heads_waits_at_its_beginning_and_for_its_scores(epochs: int, rehearse: Rehearse) -> None:
    """None of its waits comes with an epoch or a step."""

    def heads(device: str) -> Callable[[], list[Any]]:
        start, sets = sets_on(device)
        streams = [generator("ft", seed) for seed in range(2)]
        return lambda: linear_evaluation(PpiFinetuneProblem(NETWORK, sets, finetuning(epochs)), start, streams)

    assert rehearse(heads) == {
        "evaluation.auroc: defined_classes": 1 + 2,  # of validation, and of the test for each head
        "twostage.heads: linear_heads": 3,  # first heads and learning rates go to the device, the curves come back
        "twostage.heads: score": 2 * 2,
    }
