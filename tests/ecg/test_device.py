"""PT, meta-updates and FT of ECGs on a rehearsed device: the CPU's numbers, and where they wait for the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metapt.domains.ecg import config
from metapt.domains.ecg.arms import meta_loop, warp_numbers
from metapt.domains.ecg.config import EcgFinetuning, EcgPretraining, Warp
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.finetune import Labelled, Sets, full_transfer, linear_evaluation
from metapt.domains.ecg.resnet1d import Encoder, initial_pretrained
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.hypergrad import Pretrained
from metapt.hypergrad.layers import pairs
from metapt.method import ConjugateGradients
from metapt.training.checkpoint import Checkpoint
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator

Rehearse = Callable[..., dict[str, int]]
WIDTH = 2
ENCODER = Encoder(WIDTH)
NETWORK = Warp(smoothing="velocity", scale="log", initial=4.0, network_width=2)
SQUARE = Warp(initial=0.2, network_width=0)
ARMS = {
    "unrolled": config.EcgMeta(warp=SQUARE, pretrain_steps=2, warmup_epochs=0.5, batch_size=6),
    "with steps of the head": config.EcgMeta(
        warp=NETWORK, pretrain_steps=3, warmup_epochs=0.5, batch_size=6, head_steps_between_updates=1, recompute=True
    ),
    "fitted": config.EcgMeta(
        warp=NETWORK,
        pretrain_steps=2,
        warmup_epochs=0.5,
        unroll="fitted",
        folds=3,
        curvature="gauss_newton",
        inverse=ConjugateGradients(kind="conjugate_gradient", max_steps=2, rtol=1e-2, damping=1e-3),
        average_decay=0.5,
        reuse_gradient=True,
    ),
}
NEUMANN = {"hypergrad.inverse: Neumann.__call__": 1}
SOLVERS: dict[str, dict[str, int]] = {
    "unrolled": NEUMANN,
    "with steps of the head": NEUMANN | {"training.meta: MetaPretraining._head_step": 2},
    "fitted": {},
}
NEWTON = {
    "hypergrad.finetune: FittedHead._fit",
    "hypergrad.finetune: FittedHead._search",
    "hypergrad.inverse: ConjugateGradient.__call__",
}
FINETUNING = EcgFinetuning.model_validate({"epochs": 4, "batch_size": 16, "linear_epochs": 6})


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU compute narrow convolutions as other devices do."""
    monkeypatch.setattr(pairs, "faster", lambda *given: False)


def setting_on(device: str, dataset: Dataset, folder: Path) -> Setting:
    settings = EcgPretraining(signals=24, epochs=20, batch_size=6, lr=1e-3)
    there = dataclasses.replace(dataset, device=device)
    return Setting(there, WIDTH, settings, 0, 25, "patients", lambda part: Checkpoint(folder / f"{part}.pt", "a test"))


def plain(warp: Warp, dataset: Dataset, folder: Path, device: str) -> Callable[[], Pretrained]:
    setting, policy = setting_on(device, dataset, folder), policy_of(warp)
    trainer = Pretrainer(setting.problem(policy), setting.batches(), setting.initial(), setting.optimizer)
    meta = setting.initial_meta(policy)

    def steps() -> Pretrained:
        for _ in range(3):
            trainer.step(meta)
        return trainer.pretrained

    return steps


@pytest.mark.parametrize("warp", [NETWORK, SQUARE], ids=["network", "square"])
def test_a_pt_step_waits_nowhere(warp: Warp, dataset: Dataset, tmp_path: Path, rehearse: Rehearse) -> None:
    assert rehearse(partial(plain, warp, dataset, tmp_path)) == {}


@pytest.mark.gpu
def test_nor_does_it_on_a_gpu(dataset: Dataset, tmp_path: Path, queue_on_gpu: Callable[..., None]) -> None:
    queue_on_gpu(partial(plain, NETWORK, dataset, tmp_path))


@pytest.mark.parametrize("name", ARMS)
def test_where_a_meta_update_waits(name: str, dataset: Dataset, tmp_path: Path, rehearse: Rehearse) -> None:
    def updates(device: str) -> Callable[[], Any]:
        loop, _ = meta_loop(setting_on(device, dataset, tmp_path), ARMS[name])
        for _ in range(loop.settings.warmup):
            loop.iterate()

        def update() -> Any:
            loop.iterate()
            return loop.pretrained, loop.meta, loop.head, loop.averaged_meta

        return update

    waits = rehearse(updates)
    assert {place: count for place, count in waits.items() if place not in NEWTON} == SOLVERS[name] | {
        "hypergrad.finetune: finished": 1,
        "hypergrad.hybrid: hypergradient": 1,
        "training.meta: MetaPretraining._meta_update": 1,
    }
    assert (name == "fitted") == NEWTON.issubset(waits)


def test_what_a_warp_does_is_computed_without_a_wait(rehearse: Rehearse) -> None:
    def numbers(device: str) -> Callable[[], Any]:
        policy = policy_of(NETWORK)
        meta = {name: value.to(device) for name, value in policy.initial(generator("warp")).items()}
        return lambda: warp_numbers(policy, meta, 64)

    assert rehearse(numbers) == {}


def sets_on(device: str, dataset: Dataset) -> tuple[Pretrained, Sets]:
    there, count = dataclasses.replace(dataset, device=device), len(dataset.records.labels)
    parts = (range(40), range(40, 55), range(55, count))
    sets = Sets(*(Labelled(there.signals(np.array(part)), there.labels(np.array(part))) for part in parts))
    return initial_pretrained(WIDTH, generator("encoder")).to(device), sets


def test_ft_of_the_network_waits_once_in_an_epoch(dataset: Dataset, rehearse: Rehearse) -> None:
    def transfer(device: str) -> Callable[[], list[float]]:
        (start, _, buffers), sets = sets_on(device, dataset)
        run = full_transfer(ENCODER, start, buffers, WIDTH, sets, FINETUNING, generator("ft"))
        epochs = iter(range(1, 5))

        def epoch() -> list[float]:
            run.train(next(epochs))
            return run.curve

        return epoch

    assert rehearse(transfer) == {"twostage.transfer: Transfer.train": 1}


def test_ft_of_heads_waits_for_its_scores(dataset: Dataset, rehearse: Rehearse) -> None:
    def heads(device: str) -> Callable[[], list[Any]]:
        (start, _, buffers), sets = sets_on(device, dataset)
        streams = [generator("ft", seed) for seed in range(2)]
        return lambda: linear_evaluation(ENCODER, start, buffers, WIDTH, sets, FINETUNING, streams)

    assert rehearse(heads) == {
        "evaluation.auroc: defined_classes": 1 + 2,  # of validation, and of the test for each head
        "twostage.heads: linear_heads": 3,
        "twostage.heads: score": 2 * 2,
    }
