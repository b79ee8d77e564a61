"""The encoder equals a one-dimensional ResNet-18 of torch's layers, and is a pure function of its tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metapt.domains.ecg.resnet1d import Encoder, ResNet1d, features, initial_head, initial_pretrained, logits, project
from metapt.hypergrad import Params


def clones(params: Params) -> Params:
    return {name: value.clone() for name, value in params.items()}


@pytest.mark.parametrize(
    ("samples", "lengths"), [(1000, [500, 250, 125, 63]), (1024, [512, 256, 128, 64]), (64, [32, 16, 8, 4])]
)
def test_shapes(samples: int, lengths: list[int]) -> None:
    network = ResNet1d(2)
    seen = []
    for index in (1, 3, 5, 7):
        network.blocks[index].register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    result = network(torch.zeros(3, samples, 12))
    assert seen == [(3, 2 * 2**stage, 1, length) for stage, length in enumerate(lengths)]
    assert result.shape == (3, 16)


@pytest.mark.parametrize("width", [2, 3, 32])
def test_features_are_eight_times_the_width(width: int) -> None:
    assert features(width) == 8 * width
    pretrained = initial_pretrained(width, torch.Generator())
    assert pretrained.encoder["blocks.7.second.weight"].shape == (8 * width, 8 * width, 1, 15)
    projection = project(pretrained.head, torch.zeros(3, 8 * width))
    assert projection.shape == (3, 128)
    assert logits(initial_head(width, torch.Generator()), torch.zeros(3, 8 * width)).shape == (3, 5)
    assert {name: tuple(value.shape) for name, value in pretrained.head.items()} == {
        "hidden": (8 * width, 8 * width),
        "weight": (128, 8 * width),
        "bias": (128,),
    }


@pytest.mark.parametrize("width", [2, 32])
def test_the_number_of_parameters_is_that_of_resnet_18(width: int) -> None:
    """A stem and sixteen convolutions of 15 taps in four stages, three with a shortcut; biases in BatchNorm only."""
    convolutions = 12 * width * 15
    norms = 2 * width
    for stage in range(4):
        c = width * 2**stage
        before = c // 2 if stage else c
        convolutions += 15 * (before * c + 3 * c * c) + (before * c if stage else 0)
        norms += 4 * 2 * c + (2 * c if stage else 0)
    counted = sum(value.numel() for value in initial_pretrained(width, torch.Generator()).encoder.values())
    assert counted == convolutions + norms


@pytest.mark.parametrize("training", [True, False])
def test_it_equals_the_same_network_of_torchs_layers(exact: Any, plain_encoder: Any, training: bool) -> None:
    results = []
    for encoder in (Encoder(2), plain_encoder(2)):
        parameters = {name: value.clone().requires_grad_() for name, value in exact.pretrained.encoder.items()}
        buffers = clones(exact.pretrained.buffers)
        output = encoder({**parameters, **buffers}, exact.signals, training=training)
        slopes = torch.autograd.grad(output.square().sum(), list(parameters.values()))
        results.append([output, *slopes, *buffers.values()])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert results[0][0].std() > 1e-2


def test_in_evaluation_it_changes_nothing_and_in_training_the_statistics_alone(exact: Any) -> None:
    encoder, buffers = Encoder(2), clones(exact.pretrained.buffers)
    before = clones(exact.pretrained.encoder)
    outputs = [encoder({**exact.pretrained.encoder, **buffers}, exact.signals, training=False) for _ in range(2)]
    assert torch.equal(*outputs)
    assert all(torch.equal(value, exact.pretrained.buffers[name]) for name, value in buffers.items())
    signals = exact.signals.clone()
    encoder({**exact.pretrained.encoder, **buffers}, signals, training=True)
    assert not any(torch.equal(value, exact.pretrained.buffers[name]) for name, value in buffers.items())
    assert all(buffers[name] == 1 for name in buffers if name.endswith("num_batches_tracked"))
    assert all(torch.equal(before[name], value) for name, value in exact.pretrained.encoder.items())
    assert torch.equal(signals, exact.signals)


def test_an_ecgs_features_depend_on_its_neighbours_in_training_alone(exact: Any) -> None:
    encoder = Encoder(2)
    for training in (True, False):
        alone = encoder(
            {**exact.pretrained.encoder, **clones(exact.pretrained.buffers)}, exact.signals[:2], training=training
        )
        among = encoder(
            {**exact.pretrained.encoder, **clones(exact.pretrained.buffers)}, exact.signals, training=training
        )[:2]
        assert torch.allclose(alone, among, rtol=1e-10, atol=1e-12) is not training


def test_heads_are_their_formulas(exact: Any) -> None:
    inputs = exact.random(5, 3, 16)
    head = exact.pretrained.head
    expected = (inputs @ head["hidden"].T).clamp_min(0) @ head["weight"].T + head["bias"]
    torch.testing.assert_close(project(head, inputs), expected)
    torch.testing.assert_close(logits(exact.head, inputs), inputs @ exact.head["weight"].T + exact.head["bias"])


def test_initial_weights_are_those_of_the_generator_with_he_et_als_variance() -> None:
    torch.manual_seed(0)
    first = initial_pretrained(8, torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    again, other = (initial_pretrained(8, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    for part, same in zip(first, again, strict=True):
        assert all(torch.equal(value, same[name]) for name, value in part.items())
    assert not torch.equal(first.encoder["stem.weight"], other.encoder["stem.weight"])
    assert not any(value.requires_grad for part in first for value in part.values())
    for name, inputs, outputs, kernel in (
        ("stem", 12, 8, 15),
        ("blocks.7.second", 64, 64, 15),
        ("blocks.2.shortcut.0", 8, 16, 1),
    ):
        weight = first.encoder[f"{name}.weight"]
        assert weight.shape == (outputs, inputs, 1, kernel)
        assert float(weight.std()) == pytest.approx((2 / (outputs * kernel)) ** 0.5, rel=0.15)
    assert (first.encoder["blocks.0.first_norm.weight"] == 1).all()
    bound = 64**-0.5
    for value in first.head.values():
        assert value.abs().max() <= bound
        assert float(value.std()) == pytest.approx(bound / 3**0.5, rel=0.15)


def test_signals_with_leads_innermost_run_without_a_copy(exact: Any) -> None:
    seen = []
    network = ResNet1d(2).double()
    network.stem.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    network(exact.signals)
    assert seen[0].data_ptr() == exact.signals.data_ptr()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
