"""The networks and losses of the studies equal plain torch modules, alone and stacked."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from metapt.domains.mnist import networks
from metapt.domains.mnist.config import Heads
from metapt.domains.mnist.problem import (
    DigitProblem,
    ExampleWeightsProblem,
    Images,
    RotationBatch,
    RotationProblem,
    WeightingProblem,
    rotate,
)
from metapt.hypergrad import SGD, Neumann, Params, Pretrained, Stacked, Unroll, hypergradient
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.hypergrad.trial import check_second_derivatives, tried

HEADS: list[Heads] = ["separate", "shared"]


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def minibatch(seed: int, size: int = 20, classes: int = 10) -> Images:
    return Images(
        torch.rand(size, 28, 28, generator=stream(seed)), torch.randint(classes, (size,), generator=stream(seed))
    )


def module(pretrained: Pretrained) -> nn.Module:
    """Return the PT network as a torch module."""
    hidden, output = nn.Linear(784, 64), nn.Linear(64, 10)
    weights = {**pretrained.encoder, **pretrained.head}
    hidden.load_state_dict({name: weights[f"hidden.{name}"] for name in ("weight", "bias")})
    output.load_state_dict({name: weights[f"output.{name}"] for name in ("weight", "bias")})
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), output)


@pytest.mark.parametrize("heads", HEADS)
def test_the_network_has_one_hidden_layer_of_64_units(heads: Heads) -> None:
    pretrained, head = networks.initial(heads, 1000, 5, stream(0), "cpu")
    encoder = {"hidden.weight": (64, 784), "hidden.bias": (64,)}
    output = {"output.weight": (1000, 64), "output.bias": (1000,)}
    shapes = [
        {name: tuple(value.shape) for name, value in part.items()}
        for part in (pretrained.encoder, pretrained.head, head)
    ]
    if heads == "separate":
        assert shapes == [encoder, output, {"output.weight": (5, 64), "output.bias": (5,)}]
    else:
        assert shapes == [encoder | output, {}, {}]


@pytest.mark.parametrize("heads", HEADS)
def test_losses_are_those_of_a_torch_module(heads: Heads) -> None:
    pretrained, _ = networks.initial(heads, 10, 10, stream(0), "cpu")
    images, labels = minibatch(1)
    noise, weights = torch.randn(20, generator=stream(2)), torch.rand(20, generator=stream(3))
    network = module(pretrained)

    rotated = rotate(images, 30 + 4 * noise)
    meta = {"mean": torch.tensor(30.0), "deviation": torch.tensor(4.0)}
    loss = RotationProblem().pretrain_loss(pretrained, meta, RotationBatch(images, labels, noise))
    torch.testing.assert_close(loss, F.cross_entropy(network(rotated), labels))

    each = F.cross_entropy(network(images), labels, reduction="none")
    loss = ExampleWeightsProblem().pretrain_loss(pretrained, {"weights": weights}, Images(images, labels))
    torch.testing.assert_close(loss, (weights * each).mean())

    cnn = networks.weighting(stream(4))
    loss = WeightingProblem().pretrain_loss(pretrained, cnn, Images(images, labels))
    torch.testing.assert_close(loss, (networks.example_weights(cnn, images) * each).mean())

    features = DigitProblem().encode(pretrained.encoder, Images(images, labels))
    loss = DigitProblem().head_loss(pretrained.head, features, Images(images, labels))
    torch.testing.assert_close(loss, each.mean())


def test_the_rotation_loss_is_its_two_halves() -> None:
    pretrained, _ = networks.initial("shared", 10, 10, stream(0), "cpu")
    batch = RotationBatch(*minibatch(1), torch.randn(20, generator=stream(2)))
    meta = {"mean": torch.tensor(30.0), "deviation": torch.tensor(4.0)}
    problem = RotationProblem()
    outputs = problem.pretrain_outputs(pretrained, meta, batch)
    assert outputs.shape == (20, 10)
    assert torch.equal(problem.outputs_loss(outputs, meta, batch), problem.pretrain_loss(pretrained, meta, batch))


def test_stacked_replicates_have_their_own_losses() -> None:
    single = [networks.initial("separate", 10, 10, stream(seed), "cpu") for seed in range(3)]
    batches = [RotationBatch(*minibatch(seed), torch.randn(20, generator=stream(seed))) for seed in range(3)]
    metas = [{"mean": torch.tensor(20.0 * seed)} for seed in range(3)]
    problem, stacked = RotationProblem(), Stacked(RotationProblem())
    pretrained, head = stack_pretrained([one for one, _ in single]), stack([one for _, one in single])
    batch = RotationBatch(*(torch.stack(parts) for parts in zip(*batches, strict=True)))

    expected = [problem.pretrain_loss(single[i][0], metas[i], batches[i]) for i in range(3)]
    torch.testing.assert_close(stacked.pretrain_losses(pretrained, stack(metas), batch), torch.stack(expected))
    expected = [
        problem.head_loss(single[i][1], problem.encode(single[i][0].encoder, batches[i]), batches[i]) for i in range(3)
    ]
    found = stacked.head_losses(head, stacked.encode(pretrained.encoder, batch), batch)
    torch.testing.assert_close(found, torch.stack(expected))


def test_the_weighting_cnn_is_the_papers() -> None:
    """Two convolutions (32 of 5 x 5, 64 of 3 x 3), each with BatchNorm, ReLU, pooling; a linear layer; 2 * sigmoid."""
    params = networks.weighting(stream(0))
    for name in (
        "norm1.weight",
        "norm1.bias",
        "norm2.weight",
        "norm2.bias",
    ):  # else BatchNorm's factor and shift are trivial
        params[name] = params[name] + 0.3 * torch.randn(params[name].shape, generator=stream(1))
    layers = [
        *(nn.Conv2d(1, 32, 5), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1600, 1)),
    ]
    for name, index in {"conv1": 0, "norm1": 1, "conv2": 4, "norm2": 5, "linear": 9}.items():
        own = {part: params[f"{name}.{part}"] for part in ("weight", "bias")}
        layers[index].load_state_dict(own, strict=not name.startswith("norm"))
    images = torch.rand(12, 28, 28, generator=stream(2))
    expected = 2 * torch.sigmoid(nn.Sequential(*layers)(images.unsqueeze(1)).squeeze(1))
    torch.testing.assert_close(networks.example_weights(params, images), expected)


def test_weights_of_examples_lie_between_0_and_2() -> None:
    params = {name: 3 * value for name, value in networks.weighting(stream(0)).items()}
    weights = networks.example_weights(params, torch.rand(50, 28, 28, generator=stream(1)))
    assert weights.shape == (50,)
    assert weights.min() > 0
    assert weights.max() < 2
    assert weights.std() > 0.05


def test_the_weighting_cnn_depends_on_its_stream_only() -> None:
    first: Params = networks.weighting(stream(0))
    torch.manual_seed(99)
    again, other = networks.weighting(stream(0)), networks.weighting(stream(1))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_the_weighting_cnn_gets_a_finite_hypergradient_through_both_stages() -> None:
    pretrained, head = networks.initial("separate", 20, 5, stream(0), "cpu")
    result = hypergradient(
        WeightingProblem(),
        pretrained,
        networks.weighting(stream(1)),
        head,
        pretrain_batch=minibatch(2, classes=20),
        train_batches=[minibatch(3, classes=5)],
        validation_batch=minibatch(4, classes=5),
        inverse=Neumann(1, 1e-3),
        finetuning=Unroll(1, SGD(0.01), network=True),
    )
    for name, value in result.gradient.items():
        assert torch.isfinite(value).all(), name
    assert all(result.gradient[name].norm() > 0 for name in ("conv1.weight", "conv2.weight", "linear.weight"))


class Rotation(RotationProblem):
    """A subclass is not taken for tested."""


class Weighting(WeightingProblem):
    """As above."""


class ExampleWeights(ExampleWeightsProblem):
    """As above."""


@pytest.mark.parametrize("problem", [Rotation(), Weighting(), ExampleWeights()], ids=lambda each: type(each).__name__)
def test_second_derivatives_are_differences_of_gradients(problem: DigitProblem) -> None:
    pretrained, head = networks.initial("separate", 10, 5, stream(0), "cpu")
    batch = minibatch(1)
    metas: dict[type, Params] = {
        Rotation: {"mean": torch.tensor(30.0), "deviation": torch.tensor(4.0)},
        Weighting: networks.weighting(stream(4)),
        ExampleWeights: {"weights": torch.rand(20, generator=stream(3))},
    }
    rotated = RotationBatch(*batch, torch.randn(20, generator=stream(2)))
    check_second_derivatives(
        problem, pretrained, metas[type(problem)], head, rotated if type(problem) is Rotation else batch,
        minibatch(2, classes=5), products=True, head_steps=True, network=True,
    )  # fmt: skip
    assert all(gap is not None and gap.agrees for gap in tried(problem).found.values())
