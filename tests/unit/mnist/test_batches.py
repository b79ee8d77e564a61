"""A replicate's images: the right ones, none twice, and independent of the other replicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metapt.domains.mnist.arms import Run
from metapt.domains.mnist.batches import RotationBatches, SingleBatches, WeightingBatches
from metapt.domains.mnist.config import BpttStudy, ExampleWeighting, RotationData, RotationMean
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.problem import rotate
from metapt.errors import ConfigError

SIZES = RotationData(pretrain_examples=120, finetune_examples=81, batch_size=20)
WEIGHTING = ExampleWeighting(pretrain_examples=300, classes=50, batch_size=30)
KINDS = ("pretrain", "hypergradient", "train", "validation")
Make = Callable[..., Any]


@pytest.fixture
def make(digits: MnistData, run_as: Callable[..., Run]) -> Make:
    """Return the function that returns the minibatches of an experiment."""

    def made(kind: str = "rotation", seeds: tuple[int, ...] = (0, 1), target: Any = (90.0, 1.0), **run: Any) -> Any:
        ran = run_as(**{"experiment": "rotation_mean"} | run)
        if kind == "weighting":
            return WeightingBatches(digits, WEIGHTING, ran, seeds[0])
        if kind == "single":
            return SingleBatches(digits, BpttStudy(**SIZES.model_dump()), ran, seeds[0])
        return RotationBatches(digits, SIZES, target, ran, list(seeds))

    return made


def drawn(batches: Any, times: int = 7) -> list[torch.Tensor]:
    """Return the content of the next minibatches of each kind."""
    return [part for _ in range(times) for kind in KINDS for part in getattr(batches, kind)()]


def pixels(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images.reshape(-1, 28, 28)}


def test_a_replicate_has_images_of_its_own_none_of_them_twice(make: Make, digits: MnistData) -> None:
    batches = make()
    chosen = [{*own.tolist()} for own in (*batches.pretrain_images, *batches.finetune_images)]
    assert [len(own) for own in chosen] == [120, 120, 81, 81]
    assert not chosen[0] & chosen[2]
    assert chosen[0] != chosen[1]
    images, labels, noise = batches.pretrain()
    assert images.shape[:2] == noise.shape == labels.shape == (2, 20)
    for own, seen in zip(batches.pretrain_images, images, strict=True):
        assert pixels(seen) <= pixels(digits.train_images[own])


def test_fine_tuning_images_are_rotated_once_and_keep_their_labels(make: Make, digits: MnistData, run_as: Any) -> None:
    batches = make(seeds=(3,), target=(90.0, 15.0))
    (chosen,), draws = batches.finetune_images, run_as("rotation_mean").generator("finetune rotation", 3)
    angles = 90 + 15 * torch.randn(81, generator=draws)
    torch.testing.assert_close(batches.rotated[0], rotate(digits.train_images[chosen], angles))
    assert torch.equal(batches.labels[0], digits.train_labels[chosen])


@pytest.mark.parametrize("kind", ["rotation", "weighting"])
def test_training_and_validation_minibatches_come_from_different_halves(make: Make, kind: str) -> None:
    batches = make(kind, seeds=(0,))
    train, validation = (
        set().union(*(pixels(getattr(batches, part)().images) for _ in range(12))) for part in ("train", "validation")
    )
    whole = pixels(batches.rotated if kind == "rotation" else batches.finetune_images)
    assert not train & validation
    assert whole >= train | validation
    assert len(whole) - len(train | validation) < 2 * 20, "a pass drops what is less than a minibatch"


def test_a_replicate_does_not_depend_on_how_many_others_there_are(make: Make) -> None:
    many, alone, single = make(seeds=(0, 1, 2)), make(seeds=(2,)), make("single", seeds=(2,))
    for among_many, by_itself, one in zip(drawn(many), drawn(alone), drawn(single), strict=True):
        assert torch.equal(among_many[2], by_itself[0])
        assert torch.equal(one, by_itself[0])
    images, labels = single.whole_validation()
    assert torch.equal(images, alone.rotated[0, 40:])
    assert torch.equal(labels, alone.labels[0, 40:])


@pytest.mark.parametrize("kind", ["rotation", "weighting", "single"])
def test_pt_and_ft_of_all_arms_see_the_same_with_and_without_hypergradients(make: Make, kind: str) -> None:
    alone, beside, elsewhere = make(kind), make(kind, arm="k5"), make(kind, experiment="rotation_mean_std")
    for _ in range(25):  # more than a pass over the PT images
        own, pretrain = beside.hypergradient(), alone.pretrain()
        assert all(map(torch.equal, pretrain, beside.pretrain()))
        assert not any(map(torch.equal, own, pretrain))
        assert not torch.equal(pretrain.images, elsewhere.pretrain().images)
        assert all(map(torch.equal, alone.train(), beside.train()))


def test_clean_labels_are_kept_and_noisy_ones_are_of_the_other_classes(make: Make, digits: MnistData) -> None:
    batches, other = make("weighting"), make("weighting", seeds=(1,))
    labelled = zip(digits.train_images, digits.train_labels, strict=True)
    true = {image.numpy().tobytes(): int(label) for image, label in labelled}
    labels = torch.tensor([true[image.numpy().tobytes()] for image in batches.images])
    assert len(pixels(batches.images)) == 300
    assert pixels(batches.images) != pixels(other.images)
    assert torch.equal(batches.clean, labels < 5)
    assert torch.equal(batches.labels[batches.clean], labels[batches.clean])
    noisy = batches.labels[~batches.clean]
    assert (noisy.min() >= 5, noisy.max() < 50, len(noisy.unique()) > 30) == (True, True, True)
    wanted = digits.test_labels < 5
    assert pixels(batches.finetune_images) == pixels(digits.test_images[wanted])
    assert torch.equal(batches.finetune_labels.bincount(), digits.test_labels[wanted].bincount())


def test_all_images_can_be_asked_for_and_more_are_one_clear_sentence(digits: MnistData, run_as: Any) -> None:
    every = ExampleWeighting(pretrain_examples="all", classes=50)
    assert pixels(WeightingBatches(digits, every, run_as("a"), 0).images) == pixels(digits.train_images)
    sentence = "6000 PT and FT images are asked for, but the data have 1300; lower the sizes"
    with pytest.raises(ConfigError, match=sentence):
        RotationBatches(digits, RotationMean(), (90.0, 1.0), run_as("rotation_mean"), [0])
    with pytest.raises(ConfigError, match="3000 PT images are asked for, but the data have 1300"):
        WeightingBatches(digits, ExampleWeighting(), run_as("example_weighting"), 0)
