"""An encoder that computes its first blocks anew has the same features, statistics and derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metapt.domains.ecg import resnet1d
from metapt.domains.ecg.resnet1d import Encoder, initial_pretrained

WIDTH = 2


def results(encoder: Encoder, training: bool) -> list[Tensor]:
    made = initial_pretrained(WIDTH, torch.Generator().manual_seed(0))
    buffers = {
        name: value.double() if value.is_floating_point() else value.clone() for name, value in made.buffers.items()
    }
    parameters = {name: value.double().requires_grad_() for name, value in made.encoder.items()}
    signals = torch.randn(4, 128, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    wrt = [signals, *parameters.values()]
    features = encoder({**parameters, **buffers}, signals, training=training)
    weights = torch.linspace(-1, 1, features.numel(), dtype=torch.float64).view_as(features)
    first = torch.autograd.grad((features * weights).sum() + features.pow(3).sum(), wrt, create_graph=True)
    second = torch.autograd.grad(first, wrt, [value.detach().cos() for value in wrt])
    return [features, *buffers.values(), *first, *second]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("blocks", [1, 4, 8])
def test_results_are_those_without(blocks: int, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resnet1d, "RECOMPUTED", blocks)
    again, once = (results(Encoder(WIDTH, recompute=recompute), training) for recompute in (True, False))
    torch.testing.assert_close(again, once, rtol=1e-9, atol=1e-9)
