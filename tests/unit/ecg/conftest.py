"""Short ECGs with planted conditions, a float64 network of torch's own layers, and the helpers that the tests share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metapt.domains.ecg.augment import Draws
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.resnet1d import initial_head, initial_pretrained
from metapt.domains.ecg.setting import Setting
from metapt.hypergrad import Params, Pretrained

from ...shared_files import shared
from . import small_ecgs

DTYPE = torch.float64


@pytest.fixture(scope="session")
def ptbxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with PTB-XL's tables and the records of its first block."""
    (restore,), folder = shared("ptbxl/restore.py"), tmp_path_factory.mktemp("ptbxl")
    subprocess.run([sys.executable, restore, folder, "--blocks", "00000"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    """Return 70 ECGs of 64 samples, 63 of them for training."""
    return small_ecgs.dataset()


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Setting]:
    """Return `small_ecgs.setting_in` a folder of the test."""
    return partial(small_ecgs.setting_in, tmp_path)


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
    for place, (name, value) in enumerate(encoder.items()):
        if value.dim() == 1:
            encoder[name] = value + 0.3 * Exact.random(place, *value.shape)
    for place, (name, value) in enumerate(buffers.items()):
        if "running" in name:
            some = 0.3 * Exact.random(place, *value.shape)
            buffers[name] = some.exp() if "var" in name else some
    signals, labels = Exact.random(1, 4, 64, 12), (Exact.random(2, 4, 5) > 0).double()
    finetune_head = double(initial_head(width, 5, generator))
    return Exact(width, Pretrained(encoder, head, buffers), finetune_head, signals, labels, small_ecgs.draws(8))
