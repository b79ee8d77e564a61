"""PT, meta-updates and FT of each domain on a rehearsed device: the CPU's numbers, and where they wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metapt.domains.ecg import arms as ecg_arms
from metapt.domains.ecg.config import EcgFinetuning, EcgMeta
from metapt.domains.ecg.data.dataset import Labelled
from metapt.domains.ecg.finetune import EcgFinetuneProblem, Sets
from metapt.domains.ecg.resnet1d import initial_pretrained as initial_resnet
from metapt.domains.ecg.setting import policy_of
from metapt.domains.ppi import arms as ppi_arms
from metapt.domains.ppi.config import Network, PpiFinetuning
from metapt.domains.ppi.cotraining import CoTrainBatches, CoTrainer, CoTrainProblem
from metapt.domains.ppi.data.dataset import PpiDataset, on_device, splits
from metapt.domains.ppi.finetune import PpiFinetuneProblem, finetune_tasks
from metapt.domains.ppi.gin import initial_pretrained as initial_gin
from metapt.domains.ppi.problem import MultitaskProblem, PpiBatches
from metapt.hypergrad import Pretrained
from metapt.hypergrad.layers import pairs
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Transfer
from metapt.twostage.heads import FinetuneProblem, linear_evaluation, whole

from ..unit.ecg import small_ecgs
from ..unit.ppi.small_arms import ARMS_HERE, setting_in
from ..unit.ppi.small_graphs import TEST_SPECIES, small_graphs
from ..unit.training.problems import same

Rehearse = Callable[..., dict[str, int]]
ADAM = OptimizerSpec("Adam", {"lr": 1e-3, "fused": True})
STEPS = {"epochs": 4, "batch_size": 16, "linear_epochs": 6}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU compute narrow convolutions as other devices do."""
    monkeypatch.setattr(pairs, "faster", lambda *given: False)


def graphs_on(device: str) -> PpiDataset:
    return on_device(small_graphs(), device)


def simclr(warp: Any, folder: Path, device: str, capture: bool = False) -> tuple[Pretrainer, Any]:
    """Return a trainer of ECGs with a fixed warp, and the warp's parameters."""
    setting, policy = small_ecgs.setting_in(folder, device=device, epochs=20, capture=capture), policy_of(warp)
    trainer = setting.trainer(setting.problem(policy), setting.batches(), setting.initial())
    return trainer, setting.initial_meta(policy)


def supervised(folder: Path, device: str) -> tuple[Pretrainer, Any]:
    """Return a trainer of protein graphs with equal task weights."""
    setting = setting_in(folder, graphs_on(device), learned=None)
    problem, batches = MultitaskProblem(setting.trained()), setting.batches(PpiBatches)
    return Pretrainer(problem, batches, setting.initial(), ADAM), setting.initial_meta(setting.dataset.coarse_tasks)


def cotraining(gradients: Any, folder: Path, device: str) -> tuple[Pretrainer, Any]:
    setting = setting_in(folder, graphs_on(device), learned=None)
    start = setting.initial()
    heads = {"pretrain_head": start.head, "finetune_head": setting.initial_head()}
    network = Pretrained(whole(start.encoder, **heads), {}, start.buffers)
    batches = setting.batches(CoTrainBatches)
    return CoTrainer(CoTrainProblem(setting.trained()), batches, network, ADAM, gradients), {}


TRAINERS: dict[str, Callable[[Path, str], tuple[Pretrainer, Any]]] = {
    "ecg-network": partial(simclr, small_ecgs.NETWORK),
    "ecg-square": partial(simclr, small_ecgs.SQUARE),
    "ppi": supervised,
    **{f"ppi-{name}": partial(cotraining, name) for name in ("alternate", "pcgrad")},
}


def steps_of(name: str, folder: Path, device: str) -> Callable[[], Pretrained]:
    trainer, meta = TRAINERS[name](folder, device)

    def steps() -> Pretrained:
        for _ in range(3):
            trainer.step(meta)
        return trainer.pretrained

    return steps


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_a_pt_step_waits_nowhere(name: str, tmp_path: Path, rehearse: Rehearse) -> None:
    assert rehearse(partial(steps_of, name, tmp_path)) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ecg-network", "ppi"])
def test_nor_does_it_on_a_gpu(name: str, tmp_path: Path, queue_on_gpu: Callable[..., None]) -> None:
    queue_on_gpu(partial(steps_of, name, tmp_path))


def ecg_loop(arm: EcgMeta, folder: Path, device: str, capture: bool = False) -> MetaPretraining:
    return ecg_arms.meta_loop(small_ecgs.setting_in(folder, device=device, epochs=20, capture=capture), arm)[0]


def ppi_loop(name: str, folder: Path, device: str) -> MetaPretraining:
    return ppi_arms.meta_loop(setting_in(folder, graphs_on(device), learned=None), ARMS_HERE[name])  # type: ignore[arg-type]


EACH = {
    "hypergrad.finetune: finished": 1,
    "hypergrad.hybrid: hypergradient": 1,
    "training.meta: MetaPretraining._meta_update": 1,
}
NEUMANN = {"hypergrad.inverse: Neumann.__call__": 1}
HEAD_STEP = "training.meta: MetaPretraining._head_step"
NEWTON = {
    "hypergrad.fitted: FittedHead._fit",
    "hypergrad.fitted: FittedHead._search",
    "hypergrad.inverse: ConjugateGradient.__call__",
}
"""Places where a fitted head waits as often as it takes steps."""
SQUARE = EcgMeta(warp=small_ecgs.SQUARE.model_copy(update={"network_width": 0}), **small_ecgs.STEPS)
HEAD = {"warp": small_ecgs.NETWORK, "pretrain_steps": 3, "head_steps_between_updates": 1, "recompute": True}
UPDATES: dict[str, tuple[Callable[[Path, str], MetaPretraining], dict[str, int]]] = {
    "ecg-unrolled": (partial(ecg_loop, SQUARE), NEUMANN),
    "ecg-with steps of the head": (partial(ecg_loop, SQUARE.model_copy(update=HEAD)), NEUMANN | {HEAD_STEP: 2}),
    "ecg-fitted": (partial(ecg_loop, EcgMeta(**small_ecgs.STEPS | small_ecgs.FITTED)), {}),
    "ppi-meta": (partial(ppi_loop, "meta"), NEUMANN),
    "ppi-meta-identity": (partial(ppi_loop, "meta-identity"), NEUMANN),
    "ppi-meta-released": (partial(ppi_loop, "meta-released"), NEUMANN | {HEAD_STEP: 1}),
    "ppi-meta-stable": (
        partial(ppi_loop, "meta-stable"),
        {"hypergrad.ridge: _errors": 1, "hypergrad.inverse: ConjugateGradient.__call__": 22},
    ),
}
"""The loop, and where its solvers wait."""


@pytest.mark.slow
@pytest.mark.parametrize("name", UPDATES)
def test_where_a_meta_update_waits(name: str, tmp_path: Path, rehearse: Rehearse) -> None:
    made, solvers = UPDATES[name]

    def updates(device: str) -> Callable[[], Any]:
        loop = made(tmp_path, device)
        for _ in range(loop.settings.warmup):
            loop.iterate()

        def update() -> Any:
            loop.iterate()
            return loop.pretrained, loop.meta, loop.head, loop.averaged_meta

        return update

    waits = rehearse(updates)
    fitted = name == "ecg-fitted"
    assert {place: count for place, count in waits.items() if not (fitted and place in NEWTON)} == EACH | solvers
    assert not fitted or NEWTON.issubset(waits)


def ecg_finetuning(device: str, capture: bool = False, **changes: Any) -> tuple[FinetuneProblem, Pretrained]:
    dataset = small_ecgs.dataset(device)
    parts = (np.arange(40), np.arange(40, 55), np.arange(55, 70))
    sets = Sets(*(Labelled(dataset.signals(part), dataset.labels(part)) for part in parts))
    settings = EcgFinetuning.model_validate(STEPS | changes)
    return EcgFinetuneProblem(2, sets, settings, capture), initial_resnet(2, generator("encoder")).to(device)


def ppi_finetuning(device: str) -> tuple[FinetuneProblem, Pretrained]:
    dataset = graphs_on(device)
    tasks = finetune_tasks("full_access", dataset.fine_tasks)
    parts = splits(dataset.graphs, [TEST_SPECIES])
    settings = PpiFinetuning.model_validate(STEPS | {"linear_lrs": [1e-3, 1e-2]})
    problem = PpiFinetuneProblem(Network(layers=2, width=6), dataset, parts, tasks, settings)
    return problem, initial_gin(2, 6, 3, generator("encoder")).to(device)


FINETUNING = [ecg_finetuning, ppi_finetuning]


@pytest.mark.slow
@pytest.mark.parametrize("made", FINETUNING)
def test_ft_of_the_network_waits_once_in_an_epoch(made: Any, rehearse: Rehearse) -> None:
    def transfer(device: str) -> Callable[[], list[float]]:
        run = Transfer(*made(device), 1e-3, generator("ft"))
        epochs = iter(range(1, 5))

        def epoch() -> list[float]:
            run.train(next(epochs))
            return run.curve

        return epoch

    assert rehearse(transfer) == {"twostage.finetuning: Transfer.train": 1}


# Captured


@pytest.mark.parametrize("warp", [small_ecgs.NETWORK, small_ecgs.SQUARE])
def test_captured_pt_of_ecgs_is_plain_pt(warp: Any, tmp_path: Path, recordings: Callable[[], int]) -> None:
    (plain, meta), (ours, _) = (simclr(warp, tmp_path, "cpu", each) for each in (False, True))
    for each in (plain, ours):
        each.run(meta, 6)
    assert same(plain.state_dict(), ours.state_dict())
    assert recordings() == 1


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, HEAD])
def test_captured_meta_pt_of_ecgs_is_plain_meta_pt(changes: Any, tmp_path: Path, recordings: Callable[[], int]) -> None:
    plain, ours = (ecg_loop(SQUARE.model_copy(update=changes), tmp_path, "cpu", each) for each in (False, True))
    for each in (plain, ours):
        each.run()
    assert same(plain.state_dict(), ours.state_dict())
    assert recordings() == 2


@pytest.mark.parametrize("changes", [{}, {"batch_norm": "eval"}, {"precision": "bfloat16"}])
def test_captured_ft_of_ecgs_is_plain_ft(changes: Any, recordings: Callable[[], int]) -> None:
    plain, ours = (Transfer(*ecg_finetuning("cpu", each, **changes), 1e-3, generator("ft")) for each in (False, True))
    assert plain.score() == ours.score()
    assert recordings() == 2  # the last minibatch of an epoch is smaller


@pytest.mark.gpu
def test_on_a_gpu_captured_ecgs_have_the_losses_of_plain_ones(
    tmp_path: Path, queue_on_gpu: Callable[..., None]
) -> None:
    def losses(capture: bool) -> list[float]:
        trainer, meta = simclr(small_ecgs.NETWORK, tmp_path, "cuda", capture)
        loop = ecg_loop(SQUARE, tmp_path, "cuda", capture)
        for _ in range(loop.settings.warmup + 4):
            loop.iterate()
        transfer = Transfer(*ecg_finetuning("cuda", capture), 1e-3, generator("ft"))
        batch = next(transfer.minibatches())
        return [
            *(float(trainer.step(meta)) for _ in range(6)),
            *(float(transfer.step(batch)) for _ in range(6)),
            float(loop.loss),
        ]

    assert losses(True) == pytest.approx(losses(False), rel=1e-2)


@pytest.mark.parametrize("epochs", [1, 5])
@pytest.mark.parametrize("made", FINETUNING)
def test_ft_of_heads_waits_at_its_beginning_and_for_its_scores(made: Any, epochs: int, rehearse: Rehearse) -> None:
    """None of its waits comes with an epoch or a step."""

    def heads(device: str) -> Callable[[], list[Any]]:
        problem, start = made(device)
        problem.linear_epochs = epochs
        streams = [generator("ft", seed) for seed in range(2)]
        return lambda: linear_evaluation(problem, start, streams)

    assert rehearse(heads) == {
        "twostage.auroc: defined_classes": 1 + 2,  # of validation, and of the test for each head
        "twostage.heads: linear_evaluation": 3,  # first heads and learning rates go to the device, the curves come back
        "twostage.heads: score": 2 * 2,
    }
