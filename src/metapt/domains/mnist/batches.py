"""Minibatches of digits, as the training loops see them; each replicate has images and random streams of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metapt.domains.mnist.arms import Run
from metapt.domains.mnist.config import BpttStudy, ExampleWeighting, RotationData
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.problem import Images, RotationBatch, rotate
from metapt.errors import ConfigError
from metapt.training.batches import StreamBatches
from metapt.training.streams import ShuffledStream, to_device

CLEAN_CLASSES = 5  # of example weighting: classes whose labels are true


def sample(size: int, count: int, what: str, generator: torch.Generator) -> Tensor:
    """Draw the indices of `count` of `size` examples without replacement. Raises ConfigError if there are fewer."""
    if count > size:
        raise ConfigError(
            f"{count} {what} are asked for, but the data have {size}; lower the sizes (source: mnist has 60000)."
        )
    return torch.randperm(size, generator=generator)[:count]


def rotated(images: Tensor, target: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Rotate each of the images [n, 28, 28] by a normal draw (`target`: mean and standard deviation, degrees)."""
    mean, deviation = target
    return rotate(images, mean + deviation * torch.randn(len(images), generator=generator).to(images.device))


class DigitBatches(StreamBatches):
    """Minibatches of PT images and of two halves of FT images: `half` images for training, then those for validation.

    `pretrain` and `finetune` are the numbers of images of a replicate; `seeds` has one for each replicate.
    """

    def __init__(self, run: Run, seeds: list[int], batch_size: int, pretrain: int, finetune: int) -> None:
        self.half = finetune // 2
        sizes = {"pretrain": pretrain, "hypergradient": pretrain, "train": self.half}
        sizes["validation"] = finetune - self.half
        generators = {name: [run.generator(name, seed) for seed in seeds] for name in sizes}
        super().__init__({name: ShuffledStream(size, batch_size, generators[name]) for name, size in sizes.items()})

    def pretrain(self) -> Any:
        return self._pretrain("pretrain")

    def hypergradient(self) -> Any:
        """Return the PT minibatch of a hypergradient. Its stream is its own, so PT steps don't depend on it."""
        return self._pretrain("hypergradient")

    def train(self) -> Images:
        return self._finetune(self._streams["train"].next())

    def validation(self) -> Images:
        return self._finetune(self.half + self._streams["validation"].next())

    def _pretrain(self, name: str) -> Any:
        """Return the next PT minibatch of a stream."""
        raise NotImplementedError

    def _finetune(self, indices: Tensor) -> Images:
        """Return FT images by their indices [replicates, batch]."""
        raise NotImplementedError


class RotationBatches(DigitBatches):
    """Minibatches of stacked replicates, one per seed, each with its own PT and FT images; FT images are rotated once.

    `target` is mean and standard deviation of the rotation of FT images, degrees. `pretrain_images` and
    `finetune_images` are indices [replicates, examples] on the CPU. `rotated` and `labels` hold the FT images
    [replicates, examples, 28, 28] and their labels. Raises ConfigError if there are too few images.
    """

    def __init__(
        self, data: MnistData, sizes: RotationData, target: tuple[float, float], run: Run, seeds: list[int]
    ) -> None:
        self.data = data
        examples, total = sizes.pretrain_examples, sizes.pretrain_examples + sizes.finetune_examples
        images = len(data.train_images)
        chosen = [sample(images, total, "PT and FT images", run.generator("images", seed)) for seed in seeds]
        self.pretrain_images, self.finetune_images = torch.stack(chosen).tensor_split([examples], dim=1)
        finetune = self.finetune_images.to(data.train_images.device)
        streams = [run.generator("finetune rotation", seed) for seed in seeds]
        turned = [rotated(data.train_images[own], target, each) for own, each in zip(finetune, streams, strict=True)]
        self.rotated = torch.stack(turned)
        self.labels = data.train_labels[finetune]
        super().__init__(run, seeds, sizes.batch_size, examples, sizes.finetune_examples)

    def _pretrain(self, name: str) -> RotationBatch:
        stream = self._streams[name]
        device = self.data.train_images.device
        indices = to_device(self.pretrain_images.gather(1, stream.next()), device)
        noise = to_device(stream.normal(), device)
        return RotationBatch(self.data.train_images[indices], self.data.train_labels[indices], noise)

    def _finetune(self, indices: Tensor) -> Images:
        indices = to_device(indices, self.labels.device)
        replicates = torch.arange(len(indices), device=indices.device).unsqueeze(1)
        return Images(self.rotated[replicates, indices], self.labels.gather(1, indices))


class SingleBatches(RotationBatches):
    """`RotationBatches` of one replicate, without its leading dimension."""

    def __init__(self, data: MnistData, study: BpttStudy, run: Run, seed: int) -> None:
        super().__init__(data, study, (study.target, 1.0), run, [seed])

    def _pretrain(self, name: str) -> RotationBatch:
        return RotationBatch(*(value[0] for value in super()._pretrain(name)))

    def _finetune(self, indices: Tensor) -> Images:
        return Images(*(value[0] for value in super()._finetune(indices)))

    def whole_validation(self) -> Images:
        """Return all FT validation images."""
        return Images(self.rotated[0, self.half :], self.labels[0, self.half :])


class WeightingBatches(DigitBatches):
    """Minibatches of one replicate: PT images with clean (0-4) or random labels (5 and up), FT images of classes 0-4.

    `clean` [examples] marks true labels. FT images come from MNIST's test set. Raises ConfigError if there are fewer PT
    images than the study asks for.
    """

    def __init__(self, data: MnistData, study: ExampleWeighting, run: Run, seed: int) -> None:
        device = data.train_images.device
        size = len(data.train_labels) if study.pretrain_examples == "all" else study.pretrain_examples
        chosen = sample(len(data.train_labels), size, "PT images", run.generator("images", seed))
        self.images = data.train_images[chosen.to(device)]
        true_labels = data.train_labels.cpu()[chosen]
        noise = torch.randint(CLEAN_CLASSES, study.classes, (size,), generator=run.generator("label noise", seed))
        self.clean = (true_labels < CLEAN_CLASSES).to(device)
        self.labels = torch.where(true_labels < CLEAN_CLASSES, true_labels, noise).to(device)
        finetune = torch.nonzero(data.test_labels.cpu() < CLEAN_CLASSES).squeeze(1)
        finetune = finetune[torch.randperm(len(finetune), generator=run.generator("split", seed))].to(device)
        self.finetune_images, self.finetune_labels = data.test_images[finetune], data.test_labels[finetune]
        super().__init__(run, [seed], study.batch_size, size, len(finetune))

    def _pretrain(self, name: str) -> Images:
        indices = to_device(self._streams[name].next()[0], self.labels.device)
        return Images(self.images[indices], self.labels[indices])

    def _finetune(self, indices: Tensor) -> Images:
        indices = to_device(indices[0], self.labels.device)
        return Images(self.finetune_images[indices], self.finetune_labels[indices])
