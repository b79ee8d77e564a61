"""The encoder equals a one-dimensional ResNet-18 of torch's layers, and is a pure function of its tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.domains.ecg import resnet1d
from metapt.domains.ecg.resnet1d import Encoder, ResNet1d, initial_head, initial_pretrained, project
from metapt.twostage.heads import logits

modes = pytest.mark.parametrize("training", [True, False])


def derivatives(encoder: Any, exact: Any, training: bool, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Features, buffers, first derivatives and a product with second derivatives."""
    parameters, buffers = ({name: v.clone().to(dtype) for name, v in part.items()} for part in exact.pretrained[::2])
    wrt = [value.requires_grad_() for value in parameters.values()]
    features = encoder({**parameters, **buffers}, exact.signals.to(dtype), training=training)
    weights = torch.linspace(-1, 1, features.numel(), dtype=dtype).view_as(features)
    first = torch.autograd.grad((features * weights).sum() + features.square().sum(), wrt, create_graph=True)
    second = torch.autograd.grad(first, wrt, [value.detach().cos() for value in wrt])
    return [features.detach(), *buffers.values(), *(value.detach() for value in (*first, *second))]


@pytest.mark.parametrize(("samples", "lengths"), [(1000, [500, 250, 125, 63]), (64, [32, 16, 8, 4])])
def test_shapes(samples: int, lengths: list[int]) -> None:
    network, seen = ResNet1d(2), []
    for index in (1, 3, 5, 7):
        network.blocks[index].register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    assert network(torch.zeros(3, samples, 12)).shape == (3, 16)
    assert seen == [(3, 2 * 2**stage, 1, length) for stage, length in enumerate(lengths)]


@modes
def test_it_equals_the_same_network_of_torchs_layers_also_when_blocks_are_computed_anew(
    exact: Any, plain_encoder: Any, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = derivatives(plain_encoder(2), exact, training)
    assert theirs[0].std() > 1e-2
    for blocks in (0, 1, 8):
        monkeypatch.setattr(resnet1d, "RECOMPUTED", blocks)
        ours = derivatives(Encoder(2, recompute=blocks > 0), exact, training)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@modes
def test_bfloat16_is_float32_but_for_rounding_and_tf32_on_a_cpu_is_it_to_the_bit(exact: Any, training: bool) -> None:
    kinds: Any = ("bfloat16", "tf32", "float32")
    lower, tf32, full = (derivatives(Encoder(2, kind), exact, training, torch.float32) for kind in kinds)
    assert all(torch.equal(*values) for values in zip(tf32, full, strict=True))
    assert all(value.dtype == other.dtype for value, other in zip(lower, full, strict=True))
    assert not torch.equal(lower[0], full[0])
    torch.testing.assert_close(lower[0], full[0], rtol=0, atol=0.1 * float(full[0].abs().max()))
    with pytest.raises(ValueError, match="precision is 'float8'; legal: 'float32', 'tf32', 'bfloat16'"):
        derivatives(Encoder(2, "float8"), exact, training)  # type: ignore[arg-type]


def test_heads_are_their_formulas(exact: Any) -> None:
    inputs, head = exact.random(5, 3, 16), exact.pretrained.head
    expected = (inputs @ head["hidden"].T).clamp_min(0) @ head["weight"].T + head["bias"]
    assert expected.shape == (3, 128)
    torch.testing.assert_close(project(head, inputs), expected)
    torch.testing.assert_close(logits(exact.head, inputs), inputs @ exact.head["weight"].T + exact.head["bias"])
    assert initial_head(3, 7, torch.Generator())["weight"].shape == (7, 24)


def test_initial_weights_are_those_of_the_generator_with_he_et_als_variance() -> None:
    first, again, other = (initial_pretrained(8, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    for part, same in zip(first, again, strict=True):
        assert all(torch.equal(value, same[name]) and not value.requires_grad for name, value in part.items())
    assert not torch.equal(first.encoder["stem.weight"], other.encoder["stem.weight"])
    shapes = {"stem": (8, 12, 1, 15), "blocks.7.second": (64, 64, 1, 15), "blocks.2.shortcut.0": (16, 8, 1, 1)}
    for name, shape in shapes.items():
        weight = first.encoder[f"{name}.weight"]
        assert weight.shape == shape
        assert float(weight.std()) == pytest.approx((2 / (shape[0] * shape[-1])) ** 0.5, rel=0.15)
    assert (first.encoder["blocks.0.first_norm.weight"] == 1).all()
    for value in first.head.values():
        assert value.abs().max() <= 64**-0.5
        assert float(value.std()) == pytest.approx((3 * 64) ** -0.5, rel=0.15)
