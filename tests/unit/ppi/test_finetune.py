"""Fine-tuning of a narrow encoder on small graphs whose edges determine their FT labels."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ppi import features, finetune
from metapt.domains.ppi.config import Network, PpiFinetuning
from metapt.domains.ppi.data.dataset import PpiDataset, on_device, splits
from metapt.domains.ppi.features import features_of, head_aurocs
from metapt.domains.ppi.finetune import PpiFinetuneProblem, PpiSets, finetune_tasks, sets_of
from metapt.domains.ppi.gin import GinEncoder, GraphBatch, dropout_masks, initial_head, initial_pretrained, logits
from metapt.errors import DataError
from metapt.evaluation.auroc import auroc, mean_auroc
from metapt.hypergrad import Params, Pretrained
from metapt.training.seeds import generator
from metapt.twostage.finetuning import full_transfer, linear_evaluation
from metapt.twostage.heads import Score, highest

from .small_graphs import FINE, TEST_SPECIES, small_graphs

LAYERS, WIDTH = 2, 6


def dataset_of(**changes: object) -> PpiDataset:
    return on_device(small_graphs(**changes), "cpu")  # type: ignore[arg-type]


def sets(dataset: PpiDataset, tasks: Tensor | None = None) -> PpiSets:
    return sets_of(
        dataset, splits(dataset.graphs, [TEST_SPECIES]), torch.arange(dataset.fine_tasks) if tasks is None else tasks
    )


def settings(**values: object) -> PpiFinetuning:
    return PpiFinetuning.model_validate(
        {"epochs": 3, "batch_size": 16, "linear_epochs": 6, "linear_lrs": [1e-2], **values}
    )


@pytest.fixture
def pretrained() -> Pretrained:
    return initial_pretrained(LAYERS, WIDTH, 3, generator("encoder"))


def problem(sets: PpiSets, settings: PpiFinetuning) -> PpiFinetuneProblem:
    return PpiFinetuneProblem(Network(layers=LAYERS, width=WIDTH), sets, settings)


def transfer(pretrained: Pretrained, sets: PpiSets, settings: PpiFinetuning, lr: float = 1e-2, seed: int = 0) -> Score:
    return full_transfer(problem(sets, settings), pretrained, lr, generator("ft", seed)).score()


def linear(pretrained: Pretrained, sets: PpiSets, settings: PpiFinetuning, seeds: list[int]) -> list[Score]:
    return linear_evaluation(problem(sets, settings), pretrained, [generator("ft", seed) for seed in seeds])


def test_what_it_starts_from_is_not_changed(pretrained: Pretrained) -> None:
    before = copy.deepcopy(pretrained)
    data = sets(dataset_of())
    transfer(pretrained, data, settings())
    linear(pretrained, data, settings(), [0, 1])
    for part, unchanged in zip(pretrained, before, strict=True):
        assert all(torch.equal(value, unchanged[name]) for name, value in part.items())
        assert not any(value.requires_grad or value.grad is not None for value in part.values())


def test_is_plain_training_with_adam_with_dropout_and_batch_norm_of_the_minibatch(pretrained: Pretrained) -> None:
    dataset = dataset_of(count=90)
    data, stream, encoder = sets(dataset), generator("ft", 0), GinEncoder(LAYERS, WIDTH)
    masks = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=stream)))
    head = {name: value.requires_grad_() for name, value in initial_head(WIDTH, FINE, stream).items()}
    body = {name: value.clone().requires_grad_() for name, value in pretrained.encoder.items()}
    buffers = {name: value.clone() for name, value in pretrained.buffers.items()}
    optimizer = torch.optim.Adam([*body.values(), *head.values()], lr=1e-2, fused=True)
    curve, aurocs = [], []
    for _ in range(2):
        for batch in torch.randperm(len(data.train), generator=stream).split(16):
            chosen = data.train[batch]
            graphs = dataset.batch(chosen)
            keep = dropout_masks(LAYERS, len(graphs.graph), WIDTH, 0.5, masks)
            features = encoder({**body, **buffers}, graphs, training=True, keep=keep)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(logits(head, features), dataset.fine(chosen)).backward()
            optimizer.step()
        for found, part in ((curve, data.validation), (aurocs, data.test)):
            outputs = logits(head, encoder({**body, **buffers}, dataset.batch(part), training=False))
            found.append(100 * auroc(outputs.mT, dataset.fine(part).mT))
    score = transfer(pretrained, data, settings(epochs=2))
    assert score.validation_curve == pytest.approx([float(each.mean()) for each in curve], abs=1e-9)
    assert score.class_aurocs == pytest.approx(aurocs[highest(score.validation_curve)].tolist(), abs=1e-9)


class Watched(GinEncoder):
    """An encoder that records its inputs."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, width)
        self.seen: list[tuple[int, bool]] = []
        self.kept: list[Tensor | None] = []

    def __call__(self, parameters: Params, batch: GraphBatch, *, training: bool, keep: Tensor | None = None) -> Tensor:
        self.seen.append((len(batch.sizes), training))
        self.kept.append(keep)
        return super().__call__(parameters, batch, training=training, keep=keep)


def test_each_set_is_seen_as_often_as_it_should_be_and_in_small_parts(
    pretrained: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "CHUNK", 8)
    data = sets(dataset_of(count=90))  # 51 to train, 9 to validate, 15 to test

    def watched(train: Callable[[Pretrained, PpiSets, PpiFinetuning], object], settings: PpiFinetuning) -> Watched:
        encoder = Watched(LAYERS, WIDTH)
        monkeypatch.setattr(finetune, "GinEncoder", lambda *_: encoder)
        train(pretrained, data, settings)
        return encoder

    encoder = watched(transfer, settings(epochs=2))
    epoch = [*[(16, True)] * 3, (3, True), (8, False), (1, False)]
    assert encoder.seen == [*epoch, *epoch, (8, False), (7, False)]
    assert [keep is not None for keep in encoder.kept] == [training for _, training in encoder.seen]
    encoder = watched(transfer, settings(epochs=1, dropout=0.0))
    assert encoder.kept == [None] * len(encoder.kept)
    encoder = watched(partial(linear, seeds=list(range(5))), settings(linear_lrs=[1e-2, 1e-3]))
    assert encoder.seen == [*[(8, False)] * 6, (3, False), (8, False), (1, False), (8, False), (7, False)]


def test_training_in_bfloat16_is_that_in_float32_but_for_rounding(
    pretrained: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen = sets(dataset_of()), set[tuple[bool, bool, torch.dtype]]()

    class Seen(GinEncoder):
        def __call__(self, *arguments: Any, training: bool, keep: Tensor | None = None) -> Tensor:
            features = super().__call__(*arguments, training=training, keep=keep)
            seen.add((training, torch.is_autocast_enabled("cpu"), features.dtype))
            return features

    exact = transfer(pretrained, data, settings(dropout=0.1))
    monkeypatch.setattr(finetune, "GinEncoder", Seen)
    score = transfer(pretrained, data, settings(dropout=0.1, precision="bfloat16"))
    assert seen == {(True, True, torch.float32), (False, False, torch.float32)}
    assert score.validation_curve != exact.validation_curve
    assert score.validation_curve == pytest.approx(exact.validation_curve, abs=5)


def test_a_task_without_positives_is_left_out_and_said_once(
    pretrained: Pretrained, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = dataset_of(without_positives=(1, 3))
    with caplog.at_level(logging.WARNING):
        data = sets(dataset, torch.tensor([1, 2, 3, 4]))
        score = transfer(pretrained, data, settings())
        (head,) = linear(pretrained, data, settings(), [0])
    assert [record.getMessage() for record in caplog.records] == [
        "the AUROC on the validation graphs leaves out FT task 1, FT task 3: all 12 have the same label"
    ]
    for each in (score, head):
        assert len(each.class_aurocs) == 4
        assert each.test_auroc == pytest.approx(sum(each.class_aurocs) / 4)


def test_a_diverged_network_has_no_score_and_says_so(pretrained: Pretrained, caplog: pytest.LogCaptureFixture) -> None:
    broken = pretrained._replace(encoder={name: value * math.nan for name, value in pretrained.encoder.items()})
    data = sets(dataset_of())
    for score in (transfer(broken, data, settings()), *linear(broken, data, settings(), [0])):
        assert math.isnan(score.test_auroc)
        assert score.best_epoch == 1
    assert "were not finite" in caplog.text


@pytest.mark.parametrize("count", [4, 6, 10, 40])
def test_held_out_parts_of_the_tasks_are_equal_disjoint_and_all(count: int) -> None:
    folds = [finetune_tasks(f"held_out_{fold}", count) for fold in range(4)]
    assert torch.equal(torch.cat(folds), torch.arange(count))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    for setting in ("full_access", "half_data", "permuted_50"):
        assert torch.equal(finetune_tasks(setting, 7), torch.arange(7))
    with pytest.raises(DataError, match="3 FT tasks don't make the 4 parts"):
        finetune_tasks("held_out_0", 3)


def test_the_auroc_of_a_head_is_that_of_its_logits_on_its_tasks(pretrained: Pretrained) -> None:
    dataset, encoder = dataset_of(), GinEncoder(LAYERS, WIDTH)
    data = sets(dataset)
    network = {**pretrained.encoder, **pretrained.buffers}
    tasks, head = torch.tensor([4, 0]), initial_head(WIDTH, 2, generator("head"))
    outputs = logits(head, encoder(network, dataset.batch(data.test), training=False))
    expected = 100 * float(mean_auroc(outputs, dataset.fine(data.test)[:, tasks]))
    assert head_aurocs(encoder, network, head, dataset, data.test, tasks) == pytest.approx(expected, abs=1e-9)
    whole = initial_head(WIDTH, FINE, generator("head"))
    assert 0 < head_aurocs(encoder, network, whole, dataset, data.test) < 100


def test_features_do_not_depend_on_the_parts_they_are_worked_out_in(
    pretrained: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, encoder = dataset_of(), GinEncoder(LAYERS, WIDTH)
    network, chosen = {**pretrained.encoder, **pretrained.buffers}, torch.tensor([5, 3, 99, 3, 0])
    whole = features_of(encoder, network, dataset, chosen)
    monkeypatch.setattr(features, "CHUNK", 2)
    torch.testing.assert_close(features_of(encoder, network, dataset, chosen), whole)
    assert whole.shape == (5, 2 * WIDTH)
