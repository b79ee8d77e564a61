"""A replicate's images: the right ones, none twice, and independent of the other replicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metapt.domains.mnist.arms import Run
from metapt.domains.mnist.batches import RotationBatches, SingleBatches, WeightingBatches, sample
from metapt.domains.mnist.config import BpttStudy, ExampleWeighting, MnistMeta, RotationData, RotationMean, minibatches
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.problem import rotate
from metapt.errors import ConfigError

SIZES = RotationData(pretrain_examples=120, finetune_examples=81, batch_size=20)
WEIGHTING = ExampleWeighting(pretrain_examples=300, classes=50, batch_size=30)
Runs = Callable[..., Run]


def rotation_batches(
    digits: MnistData, run: Run, seeds: list[int], target: tuple[float, float] = (90.0, 1.0)
) -> RotationBatches:
    return RotationBatches(digits, SIZES, target, run, seeds)


KINDS = ("pretrain", "hypergradient", "train", "validation")


def drawn(batches: Any, times: int = 7) -> list[torch.Tensor]:
    """Return the content of the next minibatches of each kind."""
    return [part for _ in range(times) for kind in KINDS for part in getattr(batches, kind)()]


def pixels(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_pretraining_and_fine_tuning_images_are_disjoint(digits: MnistData, run_as: Runs) -> None:
    batches = rotation_batches(digits, run_as("rotation_mean"), [0, 1])
    assert batches.pretrain_images.shape == (2, 120)
    assert batches.finetune_images.shape == (2, 81)
    for pretrain, finetune in zip(batches.pretrain_images.tolist(), batches.finetune_images.tolist(), strict=True):
        assert len({*pretrain, *finetune}) == 201
    assert batches.pretrain_images[0].tolist() != batches.pretrain_images[1].tolist()


def test_pretraining_minibatches_are_the_replicates_own_images(digits: MnistData, run_as: Runs) -> None:
    batches = rotation_batches(digits, run_as("rotation_mean"), [0, 1])
    images, labels, noise = batches.pretrain()
    assert images.shape == (2, 20, 28, 28)
    assert noise.shape == labels.shape == (2, 20)
    for replicate in range(2):
        own = batches.pretrain_images[replicate]
        assert pixels(images[replicate]) <= pixels(digits.train_images[own])


def test_training_and_validation_minibatches_come_from_different_halves(digits: MnistData, run_as: Runs) -> None:
    batches = rotation_batches(digits, run_as("rotation_mean"), [0])
    assert batches.half == 40
    train = set().union(*(pixels(batches.train().images[0]) for _ in range(6)))
    validation = set().union(*(pixels(batches.validation().images[0]) for _ in range(12)))
    assert train == pixels(batches.rotated[0, :40])
    assert validation == pixels(batches.rotated[0, 40:])
    assert not train & validation


def test_fine_tuning_images_are_rotated_once_and_keep_their_labels(digits: MnistData, run_as: Runs) -> None:
    batches = rotation_batches(digits, run_as("rotation_mean"), [0], target=(90.0, 0.0))
    chosen = batches.finetune_images[0]
    torch.testing.assert_close(batches.rotated[0], rotate(digits.train_images[chosen], torch.full((81,), 90.0)))
    assert torch.equal(batches.labels[0], digits.train_labels[chosen])


def test_a_replicate_does_not_depend_on_how_many_others_there_are(digits: MnistData, run_as: Runs) -> None:
    many = rotation_batches(digits, run_as("rotation_mean"), [0, 1, 2])
    alone = rotation_batches(digits, run_as("rotation_mean"), [2])
    for among_many, by_itself in zip(drawn(many), drawn(alone), strict=True):
        assert torch.equal(among_many[2], by_itself[0])


def test_arms_of_an_experiment_see_the_same_minibatches_and_experiments_others(digits: MnistData, run_as: Runs) -> None:
    first, second, other = (
        rotation_batches(digits, run, [0])
        for run in (run_as("rotation_mean"), run_as("rotation_mean", "k5"), run_as("rotation_mean_std"))
    )
    expected = drawn(first)
    assert all(map(torch.equal, expected, drawn(second)))
    assert not torch.equal(expected[0], drawn(other)[0])


def test_single_batches_are_stacked_ones_without_the_leading_dimension(digits: MnistData, run_as: Runs) -> None:
    study = BpttStudy(**SIZES.model_dump())
    single = SingleBatches(digits, study, run_as("bptt"), 3)
    stacked = rotation_batches(digits, run_as("bptt"), [3])
    for one, many in zip(drawn(single), drawn(stacked), strict=True):
        assert torch.equal(one, many[0])
    images, labels = single.whole_validation()
    assert torch.equal(images, stacked.rotated[0, 40:])
    assert torch.equal(labels, stacked.labels[0, 40:])


def new(kind: str, digits: MnistData, run_as: Runs) -> Any:
    """Return the minibatches of an experiment."""
    if kind == "rotation":
        return rotation_batches(digits, run_as("rotation_mean"), [0, 1])
    if kind == "single":
        return SingleBatches(digits, BpttStudy(**SIZES.model_dump()), run_as("bptt"), 0)
    return WeightingBatches(digits, WEIGHTING, run_as("example_weighting"), 0)


@pytest.mark.parametrize("kind", ["rotation", "weighting", "single"])
def test_batches_go_on_where_their_state_was_taken(digits: MnistData, run_as: Runs, kind: str) -> None:
    batches, resumed = new(kind, digits, run_as), new(kind, digits, run_as)
    drawn(batches, 3)
    resumed.load_state_dict(batches.state_dict())
    assert all(map(torch.equal, drawn(batches), drawn(resumed)))


@pytest.mark.parametrize("kind", ["rotation", "weighting", "single"])
def test_the_minibatches_of_hypergradients_leave_those_of_pt_as_they_are(
    digits: MnistData, run_as: Runs, kind: str
) -> None:
    alone, beside = new(kind, digits, run_as), new(kind, digits, run_as)
    for _ in range(25):  # more than a pass over the PT images
        own, pretrain, same = beside.hypergradient(), alone.pretrain(), beside.pretrain()
        assert all(map(torch.equal, pretrain, same))
        assert [part.shape for part in own] == [part.shape for part in pretrain]
        assert not any(map(torch.equal, own, pretrain))
        assert all(map(torch.equal, alone.train(), beside.train()))


def test_clean_labels_are_kept_and_noisy_ones_are_of_the_other_classes(digits: MnistData, run_as: Runs) -> None:
    batches = WeightingBatches(digits, WEIGHTING, run_as("example_weighting"), 0)
    true = {
        image.numpy().tobytes(): int(label)
        for image, label in zip(digits.train_images, digits.train_labels, strict=True)
    }
    labels = torch.tensor([true[image.numpy().tobytes()] for image in batches.images])
    assert len(pixels(batches.images)) == 300
    assert torch.equal(batches.clean, labels < 5)
    assert torch.equal(batches.labels[batches.clean], labels[batches.clean])
    noisy = batches.labels[~batches.clean]
    assert noisy.min() >= 5
    assert noisy.max() < 50
    assert len(noisy.unique()) > 30, "they are spread over all 45 classes"


def test_all_pretraining_images_can_be_asked_for(digits: MnistData, run_as: Runs) -> None:
    study = ExampleWeighting(pretrain_examples="all", classes=50)
    batches = WeightingBatches(digits, study, run_as("example_weighting"), 0)
    assert pixels(batches.images) == pixels(digits.train_images)


def test_fine_tuning_sees_test_images_of_the_clean_classes_in_two_halves(digits: MnistData, run_as: Runs) -> None:
    batches = WeightingBatches(digits, WEIGHTING, run_as("example_weighting"), 0)
    wanted = digits.test_labels < 5
    assert pixels(batches.finetune_images) == pixels(digits.test_images[wanted])
    assert torch.equal(batches.finetune_labels.bincount(), digits.test_labels[wanted].bincount())
    train = set().union(*(pixels(batches.train().images) for _ in range(12)))
    validation = set().union(*(pixels(batches.validation().images) for _ in range(12)))
    assert abs(len(train) - len(validation)) <= 30
    assert not train & validation
    images, labels = batches.validation()
    assert images.shape == (30, 28, 28)
    assert labels.max() < 5


def test_the_data_of_a_seed_differ_from_those_of_another(digits: MnistData, run_as: Runs) -> None:
    first, second = (WeightingBatches(digits, WEIGHTING, run_as("example_weighting"), seed) for seed in (0, 1))
    assert pixels(first.images) != pixels(second.images)


def test_too_few_images_are_one_clear_sentence(digits: MnistData, run_as: Runs) -> None:
    sentence = "6000 PT and FT images are asked for, but the data have 1300; lower the sizes, or take source: mnist"
    with pytest.raises(ConfigError, match=sentence):
        RotationBatches(digits, RotationMean(), (90.0, 1.0), run_as("rotation_mean"), [0])
    with pytest.raises(ConfigError, match="3000 PT images are asked for, but the data have 1300"):
        WeightingBatches(digits, ExampleWeighting(), run_as("example_weighting"), 0)


def test_a_sample_has_no_example_twice() -> None:
    chosen = sample(10, 10, "images", torch.Generator().manual_seed(0))
    assert sorted(chosen.tolist()) == list(range(10))
    assert len(sample(10, 4, "images", torch.Generator().manual_seed(0)).unique()) == 4


def test_a_last_smaller_minibatch_counts_as_an_iteration() -> None:
    assert MnistMeta().iterations(5, minibatches(3000, 64)) == 235
    assert MnistMeta().iterations(100, minibatches(3000, 100)) == 3000


def test_an_arm_takes_the_same_number_of_pretraining_steps_however_many_stand_between_its_meta_updates() -> None:
    assert MnistMeta(pretrain_steps=5).iterations(5, minibatches(3000, 64)) == 47
    assert MnistMeta(epochs=20).iterations(5, minibatches(3000, 64)) == 940
