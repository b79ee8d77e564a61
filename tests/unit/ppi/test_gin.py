"""The network in summed form equals the one with a message per edge, in all derivatives, precisions and ways."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from metapt.domains.ppi.data.dataset import on_device
from metapt.domains.ppi.gin import (
    GinEncoder,
    GraphBatch,
    dropout_masks,
    initial_head,
    initial_pretrained,
    neighbour_sum,
)
from metapt.hypergrad import Params
from metapt.twostage.heads import logits

from ..hypergrad.problems import flat_vector as flat
from .graphs_helper import DTYPE, LAYERS, WIDTH, draw, exact, exact_pretrained, odd_graphs, plain, pyg_batch
from .small_graphs import COARSE

ENCODER = GinEncoder(LAYERS, WIDTH)
NUMBERS = [7, 1, 0, 3, 7, 2]


def batch_of(numbers: list[int] = NUMBERS) -> GraphBatch:
    return exact(on_device(odd_graphs(), "cpu").batch(torch.tensor(numbers)))


def parameters() -> Params:
    encoder, _, buffers = exact_pretrained()
    return {**encoder, **buffers}


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("layers", [1, LAYERS])
def test_is_the_network_with_a_message_per_edge(layers: int, training: bool, dropout: bool) -> None:
    batch = batch_of()
    keep = (draw(3, layers, len(batch.graph), WIDTH) > 0).to(DTYPE) * 2 if dropout else None
    results = []
    for network, graphs in ((GinEncoder(layers, WIDTH), batch), (plain, pyg_batch(odd_graphs(), NUMBERS))):
        encoder, _, buffers = exact_pretrained(layers)
        encoder = {name: value.requires_grad_() for name, value in encoder.items()}
        features = network({**encoder, **buffers}, graphs, training=training, keep=keep)
        gradient = torch.autograd.grad((features * draw(4, *features.shape)).sum(), list(encoder.values()))
        results.append([features.detach(), *gradient, *(value for name, value in buffers.items() if "running" in name)])
        assert {int(value) for name, value in buffers.items() if "num_batches" in name} == {int(training)}
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    assert results[0][0].norm() > 1


def adjacency(batch: GraphBatch) -> Tensor:
    dense = torch.zeros(len(batch.graph), len(batch.graph), dtype=DTYPE)
    for node, (first, last) in enumerate(zip(batch.neighbour_offsets[:-1], batch.neighbour_offsets[1:], strict=True)):
        dense[node, batch.neighbours[first:last].long()] = 1
    return dense


def pushed(states: Tensor, tangent: Tensor, batch: GraphBatch) -> Tensor:
    """Return the sum's derivative along a tangent, in forward mode."""
    with torch.no_grad(), forward_ad.dual_level():
        dual: Tensor = forward_ad.make_dual(states.detach(), tangent)  # type: ignore[no-untyped-call]
        slope: Tensor = forward_ad.unpack_dual(neighbour_sum(dual, batch)).tangent  # type: ignore[no-untyped-call]
    return slope


def test_the_sum_over_neighbours_is_the_product_with_the_adjacency_matrix_in_all_derivatives() -> None:
    batch = batch_of([7, 1, 3, 2])
    dense = adjacency(batch)
    assert torch.equal(dense, dense.T)
    states = draw(0, len(dense), 2).requires_grad_()
    torch.testing.assert_close(neighbour_sum(states, batch), dense @ states, rtol=1e-14, atol=1e-14)
    assert torch.autograd.gradcheck(lambda x: neighbour_sum(x, batch), states, check_forward_ad=True)
    # A nonlinearity and a product, so that second derivatives are not zero.
    assert torch.autograd.gradgradcheck(lambda x: neighbour_sum(torch.tanh(neighbour_sum(x, batch)), batch), states)
    tangent = draw(1, len(dense), 2)
    torch.testing.assert_close(pushed(states, tangent, batch), dense @ tangent, rtol=1e-14, atol=1e-14)


def test_graphs_without_edges_have_no_sum_and_no_slope() -> None:
    batch = batch_of([1, 3, 9, 5])
    assert not len(batch.neighbours)
    states = draw(0, len(batch.graph), 3).requires_grad_()
    result = neighbour_sum(states, batch)
    (slope,) = torch.autograd.grad(result.sum(), states)
    assert not result.any()
    assert not slope.any()
    assert not pushed(states, states.detach(), batch).any()
    assert ENCODER(parameters(), batch, training=False).isfinite().all()


@pytest.mark.parametrize("rate", [0.2, 0.9])
def test_dropouts_masks_have_their_rate_and_keep_the_mean(rate: float) -> None:
    mask = dropout_masks(3, 501, 101, rate, torch.Generator().manual_seed(0))
    count = mask.numel()
    assert (mask.shape, mask.dtype) == ((3, 501, 101), torch.float32)
    kept = mask != 0
    assert ((mask[kept] * (1 - rate) - 1).abs() < 1e-3).all()
    sigma = math.sqrt(rate * (1 - rate) / count)
    assert abs(float(kept.double().mean()) - (1 - rate)) < 4 * sigma + 1 / 65536
    assert abs(float(mask.double().mean()) - 1) < 4 * sigma / (1 - rate)
    flat = kept.flatten().double() - (1 - rate)
    for lane in range(4):  # four factors share a random number
        assert abs(float(flat[lane::4].mean())) < 4 * sigma * 2 + 1 / 65536
    for shift in range(1, 5):
        assert abs(float((flat[shift:] * flat[:-shift]).mean())) < 4 * rate * (1 - rate) / math.sqrt(count)


def test_dropouts_masks_come_of_their_generator_and_stay_finite() -> None:
    first, second = (torch.Generator().manual_seed(1) for _ in range(2))
    masks = [dropout_masks(2, 30, 5, 0.3, first) for _ in range(2)]
    assert not torch.equal(*masks)
    assert all(torch.equal(mask, dropout_masks(2, 30, 5, 0.3, second)) for mask in masks)
    assert torch.equal(dropout_masks(2, 30, 5, 0.0, first), torch.ones(2, 30, 5))
    assert set(dropout_masks(1, 1000, 1000, 1 - 1e-9, first).unique().tolist()) == {0.0, 65536.0}


def test_initial_weights_are_seeded_and_of_their_distributions() -> None:
    width = 40
    made, again, other = (initial_pretrained(2, width, COARSE, torch.Generator().manual_seed(i)) for i in (3, 3, 4))
    for part, twin, stranger in zip(made, again, other, strict=True):
        assert all(torch.equal(value, twin[name]) for name, value in part.items())
        constant = [name for name, value in part.items() if torch.equal(value, stranger[name])]
        assert all("norm" in name for name in constant)
    wide = 1 / math.sqrt(2 * width)
    bounds = {"node": math.sqrt(6 / (2 + width)), "layers.1.edge.weight": 1 / 3, "layers.1.edge.bias": 1 / 3}
    bounds |= {f"layers.1.{name}": wide for name in ("linear1.weight", "linear1.bias", "linear2.weight")}
    for name, bound in bounds.items():
        value = made.encoder[name]
        assert 0.85 * bound < float(value.abs().max()) <= bound
        assert abs(float(value.mean())) < 4 * bound / math.sqrt(3 * value.numel())
    assert made.encoder["node"].shape == (width,)
    assert {name: tuple(value.shape) for name, value in made.head.items()} == {
        "weight": (COARSE, 80),
        "bias": (COARSE,),
    }
    head = initial_head(width, 3, torch.Generator().manual_seed(0))
    assert logits(head, torch.zeros(5, 2 * width)).tolist() == [head["bias"].tolist()] * 5


BROAD = 16
SINGLE = on_device(odd_graphs(), "cpu").batch(torch.arange(8))


def derivatives(encoder: GinEncoder, training: bool, dropout: bool) -> list[Tensor]:
    """Features, first derivatives, a product with second ones and, in training, one in forward mode and statistics."""
    parameters, _, buffers = initial_pretrained(LAYERS, BROAD, 4, torch.Generator().manual_seed(0))
    masks = dropout_masks(LAYERS, len(SINGLE.graph), BROAD, 0.25, torch.Generator().manual_seed(2))
    keep, wrt = masks if dropout else None, [value.requires_grad_() for value in parameters.values()]
    features = encoder({**parameters, **buffers}, SINGLE, training=training, keep=keep)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(3))
    first = torch.autograd.grad((features * weights).sum() + features.square().sum(), wrt, create_graph=True)
    second = torch.autograd.grad(first, wrt, [value.detach() for value in wrt])
    assert all(value.dtype is torch.float32 for value in (features, *first, *second))
    results = [flat([features]), flat(first), flat(second)]
    if training:
        with torch.no_grad(), forward_ad.dual_level():
            ones = {name: torch.ones_like(value) for name, value in parameters.items()}
            duals = {name: forward_ad.make_dual(value.detach(), ones[name]) for name, value in parameters.items()}
            pushed = forward_ad.unpack_dual(encoder({**duals, **buffers}, SINGLE, training=True, keep=keep)).tangent
        assert pushed is not None
        assert pushed.dtype is torch.float32
        results += [flat([pushed]), flat([value for name, value in buffers.items() if "running" in name])]
        assert buffers["layers.0.norm.num_batches_tracked"] == 2
    return results


@pytest.mark.parametrize(("training", "dropout"), [(True, True), (False, False)])
def test_derivatives_are_those_in_float32_but_for_rounding(training: bool, dropout: bool) -> None:
    both = (derivatives(GinEncoder(LAYERS, BROAD, each), training, dropout) for each in ("bfloat16", "float32"))
    errors = [float((low - high).norm() / high.norm()) for low, high in zip(*both, strict=True)]
    assert max(errors) < 0.2, errors
    assert min(errors) > 1e-5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [True, False])
def test_layers_that_are_computed_anew_have_the_same_results(
    precision: Literal["float32", "bfloat16"], dropout: bool
) -> None:
    again, once = (derivatives(GinEncoder(LAYERS, BROAD, precision, each), True, dropout) for each in (True, False))
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(again, once, strict=True)]
    assert all(error < (1e-6 if precision == "float32" else 0.02) for error in errors), errors
