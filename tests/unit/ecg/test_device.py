"""PT, meta-updates and FT of ECGs on a rehearsed device: the CPU's numbers, where they wait, and what they launch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from metapt.domains.ecg.arms import meta_loop, warp_numbers
from metapt.domains.ecg.config import EcgFinetuning, EcgMeta, Warp
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.finetune import EcgFinetuneProblem, Labelled, Sets
from metapt.domains.ecg.resnet1d import initial_pretrained
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.hypergrad import Pretrained
from metapt.hypergrad.layers import pairs
from metapt.method import ConjugateGradients
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator
from metapt.twostage.finetuning import full_transfer, linear_evaluation

Rehearse = Callable[..., dict[str, int]]
Make = Callable[..., Setting]
WIDTH = 2
NETWORK = Warp(smoothing="velocity", scale="log", initial=4.0, network_width=2)
SQUARE = Warp(initial=0.2, network_width=0)
NEUMANN = {"hypergrad.inverse: Neumann.__call__": 1}
NEWTON = {
    "hypergrad.finetune: FittedHead._fit",
    "hypergrad.finetune: FittedHead._search",
    "hypergrad.inverse: ConjugateGradient.__call__",
}
UPDATES: dict[str, tuple[EcgMeta, dict[str, int]]] = {
    "unrolled": (EcgMeta(warp=SQUARE, pretrain_steps=2, warmup_epochs=0.5, batch_size=6), NEUMANN),
    "with steps of the head": (
        EcgMeta(
            warp=NETWORK,
            pretrain_steps=3,
            warmup_epochs=0.5,
            batch_size=6,
            head_steps_between_updates=1,
            recompute=True,
        ),
        NEUMANN | {"training.meta: MetaPretraining._head_step": 2},
    ),
    "fitted": (
        EcgMeta(
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
        {},
    ),
}
"""Arm, and where its solvers wait."""
FINETUNING = EcgFinetuning.model_validate({"epochs": 4, "batch_size": 16, "linear_epochs": 6})
PARAMETERS = 60
"""Of the encoder."""


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU compute narrow convolutions as other devices do."""
    monkeypatch.setattr(pairs, "faster", lambda *given: False)


@pytest.fixture
def setting_on(make: Make) -> Make:
    """Return a function (device) -> setting of 80 PT steps there."""

    def setting(device: str) -> Setting:
        made = make(epochs=20)
        return dataclasses.replace(made, dataset=dataclasses.replace(made.dataset, device=device))

    return setting


def plain(setting_on: Make, warp: Warp, device: str) -> Callable[[], Pretrained]:
    setting, policy = setting_on(device), policy_of(warp)
    trainer = Pretrainer(setting.problem(policy), setting.batches(), setting.initial(), setting.optimizer)
    meta = setting.initial_meta(policy)

    def steps() -> Pretrained:
        for _ in range(3):
            trainer.step(meta)
        return trainer.pretrained

    return steps


@pytest.mark.parametrize("warp", [NETWORK, SQUARE], ids=["network", "square"])
def test_a_pt_step_waits_nowhere(warp: Warp, setting_on: Make, rehearse: Rehearse) -> None:
    assert rehearse(partial(plain, setting_on, warp)) == {}


@pytest.mark.gpu
def test_nor_does_it_on_a_gpu(setting_on: Make, queue_on_gpu: Callable[..., None]) -> None:
    queue_on_gpu(partial(plain, setting_on, NETWORK))


@pytest.mark.parametrize("name", UPDATES)
def test_where_a_meta_update_waits(name: str, setting_on: Make, rehearse: Rehearse) -> None:
    arm, solvers = UPDATES[name]

    def updates(device: str) -> Callable[[], Any]:
        loop, _ = meta_loop(setting_on(device), arm)
        for _ in range(loop.settings.warmup):
            loop.iterate()

        def update() -> Any:
            loop.iterate()
            return loop.pretrained, loop.meta, loop.head, loop.averaged_meta

        return update

    waits = rehearse(updates)
    assert {place: count for place, count in waits.items() if place not in NEWTON} == solvers | {
        "hypergrad.finetune: finished": 1,
        "hypergrad.hybrid: hypergradient": 1,
        "training.meta: MetaPretraining._meta_update": 1,
    }
    assert (name == "fitted") == NEWTON.issubset(waits)


def test_a_meta_update_launches_few_kernels(make: Make, launches: Callable[..., Counter[str]]) -> None:
    """Vectors take one for a sum or a multiple, three for a norm; a loop over them would launch PARAMETERS more."""
    arm = UPDATES["unrolled"][0].model_copy(update={"warp": NETWORK, "warmup_epochs": 0.0})
    loop, _ = meta_loop(make(), arm)
    loop.iterate()
    assert len(loop.pretrained.encoder) == PARAMETERS
    assert sum(launches(loop._meta_update).values()) <= 3600
    counts = launches(loop._meta_update, {"_engine_run_backward", "pretrain_loss", "encode", "head_loss"})
    vectors = {name: counts[f"_foreach_{name}"] for name in ("add", "mul", "div", "norm")}
    assert vectors == {"add": 2, "mul": 3, "div": 1, "norm": 12}
    assert sum(counts.values()) <= 140


def test_what_a_warp_does_is_computed_without_a_wait(rehearse: Rehearse) -> None:
    def numbers(device: str) -> Callable[[], Any]:
        policy = policy_of(NETWORK)
        meta = {name: value.to(device) for name, value in policy.initial(generator("warp")).items()}
        return lambda: warp_numbers(policy, meta, 64)

    assert rehearse(numbers) == {}


@pytest.mark.parametrize(
    ("evaluation", "waits"),
    [
        ("full_transfer", {"twostage.transfer: Transfer.train": 1}),
        (
            "linear_evaluation",
            {
                "evaluation.auroc: defined_classes": 1 + 2,  # of validation, and of the test for each head
                "twostage.heads: linear_heads": 3,
                "twostage.heads: score": 2 * 2,
            },
        ),
    ],
)
def test_ft_waits_once_in_an_epoch_or_for_its_scores(
    evaluation: str, waits: dict[str, int], dataset: Dataset, rehearse: Rehearse
) -> None:
    def finetuning(device: str) -> Callable[[], list[Any]]:
        there, count = dataclasses.replace(dataset, device=device), len(dataset.records.labels)
        parts = (np.arange(40), np.arange(40, 55), np.arange(55, count))
        sets = Sets(*(Labelled(there.signals(part), there.labels(part)) for part in parts))
        start = initial_pretrained(WIDTH, generator("encoder")).to(device)
        problem = EcgFinetuneProblem(WIDTH, sets, FINETUNING)
        if evaluation == "linear_evaluation":
            return lambda: linear_evaluation(problem, start, [generator("ft", seed) for seed in range(2)])
        run = full_transfer(problem, start, FINETUNING.lr, generator("ft"))
        epochs = iter(range(1, 5))

        def epoch() -> list[float]:
            run.train(next(epochs))
            return run.curve

        return epoch

    assert rehearse(finetuning) == waits
