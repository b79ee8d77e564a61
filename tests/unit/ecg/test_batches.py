"""Minibatches: their content, what arms share, and that they resume where they were saved."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from metapt.domains.ecg.batches import SimclrBatches, SupervisedBatches
from metapt.domains.ecg.config import EcgPretraining
from metapt.domains.ecg.data.dataset import Dataset

PRETRAIN, TRAIN, VALIDATION = np.arange(0, 20), np.arange(20, 32), np.arange(40, 45)
SETS = {"train": (TRAIN, 4), "validation": (VALIDATION, 5)}
FOLDS = {"folds": (np.arange(20, 45), 3)}
Make = Callable[..., Any]


def given(**keys: Any) -> EcgPretraining:
    return EcgPretraining(**{"jitter": "uniform", "batch_size": 8, **keys})


def simclr(
    dataset: Dataset, seed: int = 0, sets: dict[str, Any] = SETS, permuted: bool = False, **keys: Any
) -> SimclrBatches:
    return SimclrBatches(dataset, PRETRAIN, given(**keys), sets, seed, permuted_labels=permuted)


def cross_fitted(dataset: Dataset, seed: int = 0) -> SimclrBatches:
    return simclr(dataset, seed, FOLDS)


def supervised(dataset: Dataset, seed: int = 0) -> SupervisedBatches:
    return SupervisedBatches(dataset, given(), SETS, seed)


def members(dataset: Dataset, *batches: Any) -> list[int]:
    every = dataset.signals(np.arange(70)).flatten(1)
    signals = torch.cat([batch.signals for batch in batches])
    return [int((every == signal.flatten()).all(1).nonzero().item()) for signal in signals]


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return all(equal(a, b) for a, b in zip(first, second, strict=True))


def test_pt_minibatches_are_those_of_the_pt_set_with_draws_for_two_views(dataset: Dataset) -> None:
    batches = simclr(dataset)
    for _ in range(3):
        first, second = batches.pretrain(), batches.pretrain()
        indices = members(dataset, first, second)
        assert len(set(indices)) == 16, "one pass, without replacement; the last four are dropped"
        assert set(indices) <= set(PRETRAIN)
        assert first.draws.velocity.shape == (16, 64)
        assert first.draws.noise.shape == (16, 64, 12)
        assert not equal(first.draws, second.draws)
        assert len(set(first.draws.jitter.tolist())) == 16, "each view has its own"
    assert len(simclr(dataset, batch_size=256).pretrain().signals) == 20, "never more than the set"


@pytest.mark.parametrize(("make", "draw"), [(simclr, "train"), (simclr, "validation"), (supervised, "pretrain")])
def test_labelled_minibatches_are_those_of_their_sets_with_their_labels(
    dataset: Dataset, make: Make, draw: str
) -> None:
    batches = make(dataset)
    passed = [getattr(batches, draw)() for _ in range(1 if draw == "validation" else 3)]
    indices = members(dataset, *passed)
    assert sorted(indices) == (VALIDATION if draw == "validation" else TRAIN).tolist()
    assert torch.equal(torch.cat([batch.labels for batch in passed]), dataset.labels(np.array(indices)))
    if make is supervised:
        assert passed[0].draws.velocity.shape == (4, 64), "one view"


def test_permuted_labels_are_those_of_the_set_and_nothing_else_changes(dataset: Dataset) -> None:
    given, permuted, again = simclr(dataset), simclr(dataset, permuted=True), simclr(dataset, permuted=True)
    for draw in ("train", "validation"):
        theirs, ours, same = ([getattr(each, draw)() for _ in range(3)] for each in (given, permuted, again))
        assert equal([batch.signals for batch in ours], [batch.signals for batch in theirs])
        before, labels, others = (torch.cat([batch.labels for batch in each]) for each in (theirs, ours, same))
        assert not torch.equal(labels, before)
        assert sorted(labels.tolist()) == sorted(before.tolist())
        assert torch.equal(labels, others)
    assert equal(permuted.pretrain(), given.pretrain())


@pytest.mark.parametrize(("make", "of"), [(simclr, PRETRAIN), (supervised, TRAIN)])
def test_the_minibatches_of_hypergradients_pass_over_the_pt_set_and_leave_those_of_pt_as_they_are(
    dataset: Dataset, make: Make, of: np.ndarray
) -> None:
    alone, beside = make(dataset), make(dataset)
    passed = []
    for _ in range(6):
        passed.append(beside.hypergradient())
        pretrain = alone.pretrain()
        assert equal(pretrain, beside.pretrain())
        assert equal(alone.train(), beside.train())
        assert not equal(passed[-1].signals, pretrain.signals)
        assert not equal(passed[-1].draws, pretrain.draws)
    seen = members(dataset, *passed[: len(of) // len(pretrain.signals)])
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(of)


def test_each_pass_deals_patients_out_to_other_folds(dataset: Dataset) -> None:
    batches, other = cross_fitted(dataset), cross_fitted(dataset, seed=1)
    passes = [
        [members(dataset, batch) for batch in (each.train(), each.validation(), each.train())]
        for each in (batches, batches, other)
    ]
    assert all(first != second for first, second in zip(passes, passes[1:] + passes[:1], strict=True))
    for folds in passes:
        assert sorted(index for fold in folds for index in fold) == list(range(20, 45))
        patients = [set(dataset.records.patients[fold]) for fold in folds]
        assert sum(map(len, patients)) == len(set.union(*patients)) < 25
    batch = batches.train()
    assert torch.equal(batch.labels, dataset.labels(np.array(members(dataset, batch))))


@pytest.mark.parametrize("make", [simclr, supervised, cross_fitted])
def test_saved_minibatches_go_on_to_the_same_bits(dataset: Dataset, make: Make) -> None:
    def drawn(batches: Any) -> list[Any]:
        return [getattr(batches, kind)() for kind in 4 * ("pretrain", "hypergradient", "train", "validation")]

    batches, again = make(dataset), make(dataset)
    drawn(batches)
    file = io.BytesIO()
    torch.save(batches.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert equal(drawn(batches), drawn(again))


def test_views_have_the_same_draws_whatever_their_strengths(dataset: Dataset) -> None:
    usual, strong = (simclr(dataset, **keys).pretrain().draws for keys in ({}, {"crop": 0.9, "noise": 0.3}))
    torch.testing.assert_close(strong.crop_length, usual.crop_length * 1.8)
    torch.testing.assert_close(strong.jitter, usual.jitter * 3)
    for name in ("crop_start", "noise", "velocity"):
        assert torch.equal(getattr(strong, name), getattr(usual, name))
