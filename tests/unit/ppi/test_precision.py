"""The GIN in bfloat16 has the features and derivatives of the one in float32, but for rounding."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from metapt.domains.ppi.data.dataset import on_device
from metapt.domains.ppi.gin import GinEncoder, dropout_masks, initial_pretrained

from .graphs_helper import odd_graphs

LAYERS, WIDTH = 3, 16
BATCH = on_device(odd_graphs(), "cpu").batch(torch.arange(8))


def network() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    made = initial_pretrained(LAYERS, WIDTH, 4, torch.Generator().manual_seed(0))
    return made.encoder, {name: value.clone() for name, value in made.buffers.items()}


def keep(dropout: bool) -> Tensor | None:
    masks = dropout_masks(LAYERS, len(BATCH.graph), WIDTH, 0.25, torch.Generator().manual_seed(2))
    return masks if dropout else None


def flat(values: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([value.detach().flatten() for value in values])


def derivatives(encoder: GinEncoder, training: bool, dropout: bool) -> list[Tensor]:
    """Features, first derivatives, a product with second ones, and, in training, a derivative in forward mode."""
    parameters, buffers = network()
    wrt = [value.requires_grad_() for value in parameters.values()]
    features = encoder({**parameters, **buffers}, BATCH, training=training, keep=keep(dropout))
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(3))
    first = torch.autograd.grad((features * weights).sum() + features.square().sum(), wrt, create_graph=True)
    second = torch.autograd.grad(first, wrt, [value.detach() for value in wrt])
    assert all(value.dtype is torch.float32 for value in (features, *first, *second))
    results = [flat([features]), flat(first), flat(second)]
    if training:
        with torch.no_grad(), forward_ad.dual_level():
            duals = {
                name: forward_ad.make_dual(value.detach(), torch.ones_like(value)) for name, value in parameters.items()
            }
            result = encoder({**duals, **buffers}, BATCH, training=True, keep=keep(dropout))
            pushed = forward_ad.unpack_dual(result).tangent
        assert pushed is not None
        assert pushed.dtype is torch.float32
        results.append(flat([pushed]))
    return results


@pytest.mark.parametrize(("training", "dropout"), [(True, True), (False, False)])
def test_derivatives_are_those_in_float32_but_for_rounding(training: bool, dropout: bool) -> None:
    arguments = (training, dropout)
    both = (derivatives(GinEncoder(LAYERS, WIDTH, precision), *arguments) for precision in ("bfloat16", "float32"))
    errors = [float((low - high).norm() / high.norm()) for low, high in zip(*both, strict=True)]
    assert max(errors) < 0.2, errors
    assert min(errors) > 1e-5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [True, False])
def test_layers_that_are_computed_anew_have_the_same_results(
    precision: Literal["float32", "bfloat16"], dropout: bool
) -> None:
    again, once = (derivatives(GinEncoder(LAYERS, WIDTH, precision, each), True, dropout) for each in (True, False))
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(again, once, strict=True)]
    assert all(error < (1e-6 if precision == "float32" else 0.02) for error in errors), errors


def test_statistics_are_updated_once() -> None:
    kept = []
    for recompute in (True, False):
        parameters, buffers = network()
        wrt = [value.requires_grad_() for value in parameters.values()]
        features = GinEncoder(LAYERS, WIDTH, recompute=recompute)({**parameters, **buffers}, BATCH, training=True)
        torch.autograd.grad(features.sum(), wrt)
        kept.append(buffers)
    torch.testing.assert_close(*kept)
    assert kept[0]["layers.0.norm.num_batches_tracked"] == 1
