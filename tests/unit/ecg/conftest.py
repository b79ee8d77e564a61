"""Short ECGs with planted conditions, a float64 network of torch's own layers, and the helpers that the tests share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metapt.domains.ecg.augment import Draws, draw
from metapt.domains.ecg.config import EcgFinetuning, EcgPretraining
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.data.prepare import COLUMNS, EcgRecords
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.resnet1d import initial_head, initial_pretrained
from metapt.domains.ecg.setting import Setting
from metapt.hypergrad import Params, Pretrained
from metapt.training.checkpoint import Checkpoint

DTYPE = torch.float64


def _records(count: int, samples: int, seed: int = 0) -> EcgRecords:
    """Return ECGs of random walks; each class adds an oscillation to a lead of its own.

    Every tenth is in fold 10, and every second patient has two.
    """
    random = np.random.default_rng(seed)
    labels = (random.random((count, len(CLASSES))) < 0.4).astype(np.int64)
    signals = random.normal(0, 100, (count, 12, samples))
    signals[:, :5] += 300 * labels[:, :, None] * np.sin(0.4 * np.arange(samples))
    index = np.arange(count)
    patient = np.where(index // 10 % 3 == 1, index - 10, index)
    columns = (index + 1, patient, index % 10 + 1, *labels.T)
    table = dict(zip(COLUMNS, columns, strict=True))
    return EcgRecords(signals.astype(np.int16), table, labels.astype(np.float32))


@pytest.fixture(scope="session")
def records_of() -> Callable[..., EcgRecords]:
    """Return a function (count, samples, seed) -> ECGs."""
    return _records


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    """Return 70 ECGs of 64 samples, 63 of them for training."""
    return Dataset(_records(70, 64), 0.0, 200.0, 64, "cpu")


def _setting(
    dataset: Dataset,
    folder: Path,
    seed: int = 0,
    checkpoint: type[Checkpoint] = Checkpoint,
    meta_size: int = 25,
    **changes: Any,
) -> Setting:
    return Setting(
        dataset,
        2,
        EcgPretraining(**{"signals": 24, "epochs": 2, "batch_size": 6, "lr": 1e-3, **changes}),
        seed,
        meta_size,
        "patients",
        lambda part: checkpoint(folder / f"state{part}.pt", "a test"),
        finetune_settings=EcgFinetuning(epochs=2, batch_size=6, linear_epochs=3),
    )


@pytest.fixture(scope="session")
def setting_in(dataset: Dataset) -> Callable[..., Setting]:
    """Return a function (folder) -> setting of eight PT steps on 24 ECGs, width 2, and an FT set of 25."""
    return partial(_setting, dataset)


@pytest.fixture
def make(setting_in: Callable[..., Setting], tmp_path: Path) -> Callable[..., Setting]:
    """Return `setting_in` a folder of the test."""
    return partial(setting_in, tmp_path)


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv1d(inputs, outputs, 15, stride, 7, bias=False), nn.BatchNorm1d(outputs)
        self.second, self.second_norm = nn.Conv1d(outputs, outputs, 15, 1, 7, bias=False), nn.BatchNorm1d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv1d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm1d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second_norm(self.second(torch.relu(self.first_norm(self.first(x)))))
        return torch.relu(inner + self.shortcut(x))


class PlainResNet(nn.Module):
    """ResNet-18 in one dimension, of torch's layers, on [batch, leads, samples]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv1d(12, width, 15, 2, 7, bias=False), nn.BatchNorm1d(width)
        w = width
        self.blocks = nn.Sequential(
            _Block(w, w, 1), _Block(w, w, 1),
            _Block(w, 2 * w, 2), _Block(2 * w, 2 * w, 1),
            _Block(2 * w, 4 * w, 2), _Block(4 * w, 4 * w, 1),
            _Block(4 * w, 8 * w, 2), _Block(8 * w, 8 * w, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(self.blocks(torch.relu(self.stem_norm(self.stem(x)))), 1).squeeze(2)


class PlainEncoder:
    """`metapt.domains.ecg.resnet1d.Encoder` made of torch's layers."""

    def __init__(self, width: int) -> None:
        self.module = PlainResNet(width)

    def __call__(self, parameters: Params, signals: Tensor, *, training: bool) -> Tensor:
        parameters = {name: value.squeeze(2) if value.dim() == 4 else value for name, value in parameters.items()}
        result: Tensor = torch.func.functional_call(self.module.train(training), parameters, (signals.transpose(1, 2),))
        return result


@pytest.fixture(scope="session")
def plain_encoder() -> type[PlainEncoder]:
    return PlainEncoder


def double(params: Params) -> Params:
    return {name: value.double() if value.is_floating_point() else value.clone() for name, value in params.items()}


class Exact(NamedTuple):
    """A narrow network in float64, with random biases and running statistics, and its inputs."""

    width: int
    pretrained: Pretrained
    head: Params
    signals: Tensor
    labels: Tensor
    draws: Draws

    @staticmethod
    def random(seed: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


@pytest.fixture
def exact() -> Exact:
    """Return a network of width 2, four ECGs of 64 samples, and draws for two views of each."""
    width, generator = 2, torch.Generator().manual_seed(0)
    encoder, head, buffers = (double(part) for part in initial_pretrained(width, generator))
    encoder = {
        k: v + 0.3 * Exact.random(i, *v.shape) if v.dim() == 1 else v for i, (k, v) in enumerate(encoder.items())
    }
    buffers = {
        k: (0.3 * Exact.random(i, *v.shape)).exp()
        if "var" in k
        else 0.3 * Exact.random(i, *v.shape)
        if "mean" in k
        else v
        for i, (k, v) in enumerate(buffers.items())
    }
    draws = draw(8, 64, 12, "fixed", generator, DTYPE, crop=0.5, noise=0.1)
    signals, labels = Exact.random(1, 4, 64, 12), (Exact.random(2, 4, 5) > 0).double()
    return Exact(
        width, Pretrained(encoder, head, buffers), double(initial_head(width, generator)), signals, labels, draws
    )
