"""Minibatches: their content, what arms share, and that they resume where they were saved."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from metapt.domains.ecg.batches import SimclrBatches, SupervisedBatches, Views
from metapt.domains.ecg.data.dataset import Dataset

PRETRAIN, TRAIN, VALIDATION = np.arange(0, 20), np.arange(20, 32), np.arange(40, 45)


def views(dataset: Dataset, seed: int = 0) -> Callable[[str], Views]:
    return lambda name: Views(name, seed, dataset.samples, 12, "uniform", "cpu", crop=0.5, noise=0.1)


def simclr(dataset: Dataset, seed: int = 0, labelled: bool = True, size: int = 8) -> SimclrBatches:
    sets = {"train": (TRAIN, 4), "validation": (VALIDATION, 5)} if labelled else {}
    return SimclrBatches(dataset, PRETRAIN, size, views(dataset, seed), sets, seed)


def supervised(dataset: Dataset, seed: int = 0) -> SupervisedBatches:
    return SupervisedBatches(dataset, views(dataset, seed), {"train": (TRAIN, 4), "validation": (VALIDATION, 5)}, seed)


def members(dataset: Dataset, signals: torch.Tensor) -> list[int]:
    every = dataset.signals(np.arange(70)).flatten(1)
    return [int((every == signal.flatten()).all(1).nonzero().item()) for signal in signals]


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return all(equal(a, b) for a, b in zip(first, second, strict=True))


def test_pt_minibatches_are_those_of_the_pt_set_with_draws_for_two_views(dataset: Dataset) -> None:
    batches = simclr(dataset)
    for _ in range(3):
        first, second = batches.pretrain(), batches.pretrain()
        indices = members(dataset, torch.cat([first.signals, second.signals]))
        assert len(set(indices)) == 16  # one pass, without replacement; the last four are dropped
        assert set(indices) <= set(PRETRAIN)
        assert first.draws.velocity.shape == (16, 64)
        assert first.draws.noise.shape == (16, 64, 12)
        assert not equal(first.draws, second.draws)
        assert len(set(first.draws.jitter.tolist())) == 16  # each view its own


def test_ft_minibatches_are_those_of_their_sets_with_their_labels(dataset: Dataset) -> None:
    batches = simclr(dataset)
    passed = [batches.train() for _ in range(3)]
    indices = [index for batch in passed for index in members(dataset, batch.signals)]
    assert sorted(indices) == TRAIN.tolist()
    assert torch.equal(torch.cat([batch.labels for batch in passed]), dataset.labels(np.array(indices)))
    whole = batches.validation()
    assert sorted(members(dataset, whole.signals)) == VALIDATION.tolist()


def test_permuted_labels_are_those_of_the_set_and_nothing_else_changes(dataset: Dataset) -> None:
    given, sets = simclr(dataset), {"train": (TRAIN, 4), "validation": (VALIDATION, 5)}
    permuted = SimclrBatches(dataset, PRETRAIN, 8, views(dataset), sets, 0, permuted_labels=True)
    again = SimclrBatches(dataset, PRETRAIN, 8, views(dataset), sets, 0, permuted_labels=True)
    for draw in (SimclrBatches.train, SimclrBatches.validation):
        ours, theirs = ([draw(batches) for _ in range(3)] for batches in (permuted, given))
        assert equal([batch.signals for batch in ours], [batch.signals for batch in theirs])
        labels, before = (torch.cat([batch.labels for batch in each]) for each in (ours, theirs))
        assert not torch.equal(labels, before)
        assert sorted(labels.tolist()) == sorted(before.tolist())
        assert torch.equal(labels, torch.cat([draw(again).labels for _ in range(3)]))
    assert equal(permuted.pretrain(), given.pretrain())


def test_minibatches_are_never_larger_than_the_set(dataset: Dataset) -> None:
    assert len(simclr(dataset, size=256).pretrain().signals) == 20


def test_supervised_minibatches_are_labelled_with_draws_for_one_view(dataset: Dataset) -> None:
    batches = supervised(dataset)
    passed = [batches.pretrain() for _ in range(3)]
    indices = [index for batch in passed for index in members(dataset, batch.signals)]
    assert sorted(indices) == TRAIN.tolist()
    assert torch.equal(torch.cat([batch.labels for batch in passed]), dataset.labels(np.array(indices)))
    assert passed[0].draws.velocity.shape == (4, 64)


def test_arms_see_the_same_minibatches_whatever_labels_they_use_and_seeds_see_others(dataset: Dataset) -> None:
    first, unlabelled, other = simclr(dataset), simclr(dataset, labelled=False), simclr(dataset, seed=1)
    first.train()
    first.validation()
    a, b, c = (batches.pretrain() for batches in (first, unlabelled, other))
    assert equal(a, b)
    assert not equal(a.signals, c.signals)
    assert not equal(a.draws, c.draws)


@pytest.mark.parametrize("make", [simclr, supervised])
def test_the_minibatches_of_hypergradients_leave_those_of_pt_as_they_are(dataset: Dataset, make: Any) -> None:
    alone, beside = make(dataset), make(dataset)
    for _ in range(6):
        own = beside.hypergradient()
        pretrain = alone.pretrain()
        assert equal(pretrain, beside.pretrain())
        assert equal(alone.train(), beside.train())
        assert own.signals.shape == pretrain.signals.shape
        assert not equal(own.signals, pretrain.signals)
        assert not equal(own.draws, pretrain.draws)


@pytest.mark.parametrize(("make", "members_of"), [(simclr, PRETRAIN), (supervised, TRAIN)])
def test_the_minibatches_of_hypergradients_pass_over_the_whole_pt_set(
    dataset: Dataset, make: Any, members_of: np.ndarray
) -> None:
    batches = make(dataset)
    passed = [batches.hypergradient() for _ in range(len(members_of) // len(make(dataset).pretrain().signals))]
    seen = members(dataset, torch.cat([batch.signals for batch in passed]))
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(members_of)


def cross_fitted(dataset: Dataset, seed: int = 0) -> SimclrBatches:
    return SimclrBatches(dataset, PRETRAIN, 8, views(dataset, seed), {"folds": (np.arange(20, 45), 3)}, seed)


def test_each_pass_deals_patients_out_to_other_folds(dataset: Dataset) -> None:
    batches = cross_fitted(dataset)
    passes = [
        [members(dataset, batch.signals) for batch in (batches.train(), batches.validation(), batches.train())]
        for _ in "12"
    ]
    assert all(sorted(index for fold in folds for index in fold) == list(range(20, 45)) for folds in passes)
    assert passes[0] != passes[1]
    for folds in passes:
        patients = [set(dataset.records.patients[fold]) for fold in folds]
        assert sum(map(len, patients)) == len(set.union(*patients)) < 25
    other = cross_fitted(dataset, seed=1)
    assert [members(dataset, batch.signals) for batch in (other.train(), other.validation(), other.train())] != passes[
        0
    ]
    batch = batches.train()
    assert torch.equal(batch.labels, dataset.labels(np.array(members(dataset, batch.signals))))


@pytest.mark.parametrize("make", [simclr, supervised, cross_fitted])
def test_saved_minibatches_go_on_to_the_same_bits(dataset: Dataset, make: Any) -> None:
    batches = make(dataset)
    for _ in range(4):
        batches.pretrain(), batches.hypergradient(), batches.train(), batches.validation()
    file = io.BytesIO()
    torch.save(batches.state_dict(), file)
    file.seek(0)
    again = make(dataset)
    again.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(4):
        for kind in ("pretrain", "hypergradient", "train", "validation"):
            assert equal(getattr(batches, kind)(), getattr(again, kind)())
