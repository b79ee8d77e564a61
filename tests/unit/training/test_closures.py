"""What a function of a `ModuleProblem` uses by a closure, without being given it, is refused or told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from . import toys
from .kinds import heard, refused, warned
from .problems import DTYPE

OTHERS = "the encoder or the PT head, called or read by a closure in FT"


@pytest.mark.parametrize("graph", [True, False])
@refused(OTHERS, "encode calls or reads a module that it is not given")
def test_features_of_a_pt_head_by_a_closure(graph: bool) -> None:
    modules = toys.modules()
    toy = toys.problem(**modules, encode=lambda encoder, batch: modules["head"](encoder(batch[0])))
    with torch.set_grad_enabled(graph):
        toy.encode(toy.pretrained.encoder, (toys.X, toys.Y))


@refused(OTHERS, "finetune_loss calls or reads", "encode returns")
def test_prototypes_of_the_encoder_by_a_closure() -> None:
    modules = toys.modules()

    def loss(head: nn.Module, features: Tensor, batch: Any) -> Tensor:
        with torch.no_grad():
            prototype = modules["encoder"](toys.X).mean(0)
        return (head(features - prototype) - 1).square().mean()

    toys.gradient(toys.problem(**modules, finetune_loss=loss))


@pytest.mark.parametrize("read", [lambda head: head.weight.svd()[1], lambda head: torch.cat([head.bias, head.scale])])
@refused(OTHERS, "finetune_loss calls or reads", "encode returns")
def test_tensors_of_a_pt_head_by_a_closure(read: Callable[[nn.Module], Tensor]) -> None:
    modules, device = toys.modules(), torch.device("cpu")
    modules["head"].register_buffer("scale", torch.ones(2, dtype=DTYPE))

    def loss(use: Callable[[nn.Module], Any]) -> Any:
        def finetune_loss(head: nn.Module, features: Tensor, batch: Any) -> Tensor:
            with torch.no_grad():
                prototypes = use(modules["head"])
            return (head(features) * prototypes.mean() - 1).square().mean()

        return toys.problem(**modules, finetune_loss=finetune_loss)

    toys.gradient(loss(lambda head: torch.ones(head.weight.shape, dtype=head.weight.dtype, device=device)))
    toys.gradient(loss(read))


@warned("a trainable module that is none of the three", "pretrain_loss depends on a parameter", "[3, 3]", "not trained")
def test_a_module_that_is_forgotten_is_told() -> None:
    predictor, whole = toys.linear(7, 3, 3), toys.FUNCTIONS["pretrain_loss"]

    def forgetful(*given: Any) -> Tensor:
        return whole(*given) + predictor(toys.X).square().mean()

    predictor.requires_grad_(False)
    with heard() as messages:
        toys.gradient(toys.problem(pretrain_loss=forgetful))
    assert not messages, "it is frozen"
    predictor.requires_grad_()
    toys.gradient(toys.problem(pretrain_loss=forgetful))


@pytest.mark.parametrize("function", toys.FUNCTIONS)
@warned("a tensor with `requires_grad=True` that none of the functions is given", "depends on a parameter", "[2]")
def test_a_tensor_that_is_forgotten_is_told(function: str) -> None:
    prototypes, whole = torch.zeros(2, dtype=DTYPE, requires_grad=True), toys.FUNCTIONS[function]
    toys.loop(toys.problem(**{function: lambda *given: whole(*given) * prototypes.exp().sum()})).run()


def test_features_that_are_derivatives_and_tensors_that_are_parameters() -> None:
    def forces(encoder: Any, batch: Any) -> Tensor:
        with torch.enable_grad():
            x = batch[0].detach().requires_grad_()
            return torch.autograd.grad(encoder(x).square().sum(), x)[0]

    toy, encoder = toys.problem(encode=forces), toys.body()
    state = torch.get_rng_state()
    with heard() as messages, torch.no_grad():
        features = toy.encode(dict(encoder.named_parameters()), (toys.X, toys.Y))
        own = toy.encode(dict(toy.modules[0].named_parameters()), (toys.X, toys.Y))
        toy.head_loss({name: nn.Parameter(value) for name, value in toy.head.items()}, features, (toys.X, toys.Y))
    toy.pretrain_loss(toy.pretrained.leaves(), {"w": nn.Parameter(toys.META["w"])}, (toys.X, toys.Y))
    assert not messages
    assert torch.equal(features, own)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_first_call_without_gradients_returns_what_later_ones_do() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    toy = toys.problem(nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Flatten()), encode=toys.encode)
    batch = torch.randn(6, 5, 4), toys.Y
    with torch.no_grad():
        first, second = (toy.encode(toy.pretrained.leaves().encoder, batch) for _ in range(2))
    assert torch.equal(first, second)


def test_a_forgotten_module_is_told_after_a_first_call_in_inference_mode() -> None:
    forgotten = toys.linear(7)
    toy = toys.problem(encode=lambda encoder, batch: forgotten(encoder(batch[0])))
    with torch.inference_mode():
        toy.encode(toy.pretrained.encoder, (toys.X, toys.Y))
    with heard() as messages:
        toys.gradient(toy)
    assert any("encode depends on a parameter" in message for message in messages)
