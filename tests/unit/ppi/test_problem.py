"""Losses agree with loops over graphs and tasks, and hypergradients with reverse over reverse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.domains.ppi.cotraining import BothGraphs, CoTrainProblem
from metapt.domains.ppi.data.dataset import on_device
from metapt.domains.ppi.gin import GinEncoder
from metapt.domains.ppi.problem import WEIGHTS, LabelledGraphs, MultitaskProblem, task_weights
from metapt.hypergrad import SGD, Neumann, Params, Pretrained, Unroll, hypergradient
from metapt.hypergrad.params import Vector, leaves
from metapt.hypergrad.trial import Given, check_second_derivatives, tried
from metapt.twostage.heads import encoder_of, head_of, whole

from .graphs_helper import DTYPE, LAYERS, WIDTH, draw, exact, exact_pretrained, odd_graphs, plain, pyg_batch

ENCODER = GinEncoder(LAYERS, WIDTH)
GRAPHS = odd_graphs()
COARSE, FINE = 11, 9
META = {WEIGHTS: draw(40, COARSE)}
HEAD = {"weight": draw(41, FINE, 2 * WIDTH, scale=0.3), "bias": draw(42, FINE, scale=0.3)}
PT, FT = [7, 1, 0, 3, 4, 10, 2], [[0, 6, 8], [1, 4, 11, 7], [2, 9, 10, 5, 3]]


def labelled(numbers: list[int], kind: str = "fine", dropout: bool = False) -> LabelledGraphs:
    dataset, indices = on_device(GRAPHS, "cpu"), torch.tensor(numbers)
    batch = exact(dataset.batch(indices))
    keep = 2.0 * (draw(len(numbers), LAYERS, len(batch.graph), WIDTH) > 0) if dropout else None
    return LabelledGraphs(batch, (dataset.coarse if kind == "coarse" else dataset.fine)(indices).to(DTYPE), keep)


def pretrained() -> Pretrained:
    return exact_pretrained(tasks=COARSE)


def bce(score: Tensor, label: Tensor) -> Tensor:
    probability = 1 / (1 + (-score).exp())
    return -(label * probability.log() + (1 - label) * (1 - probability).log())


def plain_losses(network: Params, head: Params, numbers: list[int], batch: LabelledGraphs, training: bool) -> Tensor:
    """Return each task's loss [tasks], computed with torch_geometric's layers and loops."""
    buffers = {
        name: value.clone() if "norm.r" in name or "norm.n" in name else value for name, value in network.items()
    }
    features = plain(buffers, pyg_batch(GRAPHS, numbers), training=training, keep=batch.keep)
    losses = []
    for weight, bias, labels in zip(head["weight"], head["bias"], batch.labels.T, strict=True):
        each = [bce(row @ weight + bias, label) for row, label in zip(features, labels, strict=True)]
        losses.append(torch.stack(each).mean())
    return torch.stack(losses)


def test_task_weights_are_between_0_and_2_and_begin_at_1() -> None:
    phi = torch.tensor([-30.0, -1.0, 0.0, 1.0, 30.0], dtype=DTYPE)
    expected = 2 / (1 + (-phi).exp())
    torch.testing.assert_close(task_weights({WEIGHTS: phi}), expected, rtol=1e-15, atol=0.0)


def test_the_pt_loss_is_a_loop_over_tasks() -> None:
    problem, batch = MultitaskProblem(ENCODER), labelled(PT, "coarse", dropout=True)
    start = pretrained()
    losses = plain_losses({**start.encoder, **start.buffers}, start.head, PT, batch, True)
    expected = (2 * torch.sigmoid(META[WEIGHTS]) * losses).mean()
    loss = problem.pretrain_loss(pretrained(), META, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0.0)
    split = problem.outputs_loss(problem.pretrain_outputs(pretrained(), META, batch), META, batch)
    assert torch.equal(loss, split)


def test_the_ft_loss_is_that_of_a_linear_head_on_features_in_evaluation() -> None:
    problem, batch, start = MultitaskProblem(ENCODER), labelled(FT[2]), pretrained()
    features = problem.encode({**start.encoder, **start.buffers}, batch)
    losses = plain_losses({**start.encoder, **start.buffers}, HEAD, FT[2], batch, False)
    torch.testing.assert_close(problem.head_loss(HEAD, features, batch), losses.mean(), rtol=1e-12, atol=0.0)
    assert problem.targets(batch) is batch.labels


@pytest.mark.parametrize("dropout", [False, True])
def test_the_mixed_product_is_reverse_over_reverse(dropout: bool) -> None:
    problem, batch = MultitaskProblem(ENCODER), labelled(PT, "coarse", dropout)
    vector = [draw(500 + i, *value.shape) for i, value in enumerate(pretrained().vector())]
    weights, phi = pretrained().leaves(), leaves(META)
    loss = problem.pretrain_loss(weights, phi, batch)
    gradient = torch.autograd.grad(loss, weights.vector(), create_graph=True)
    (expected,) = torch.autograd.grad(gradient, [phi[WEIGHTS]], vector)
    for given in (pretrained(), pretrained().leaves()):
        product, value = problem.mixed_product(given, META, batch, vector)
        torch.testing.assert_close(product[WEIGHTS], expected, rtol=1e-12, atol=1e-13 * float(expected.abs().max()))
        torch.testing.assert_close(value, loss.detach(), rtol=1e-13, atol=0.0)
        assert product.keys() == META.keys()
        assert not product[WEIGHTS].requires_grad
        assert not value.requires_grad
    assert expected.norm() > 1e-3


def expected_hypergradient(loss: Tensor, weights: Pretrained, phi: Params, g: Vector, step: float) -> Tensor:
    """Return minus d/dphi of <dL/dw, a (I + (I - a H)) g>, by reverse mode over reverse mode."""
    gradient = torch.autograd.grad(loss, weights.vector(), create_graph=True)
    product = torch.autograd.grad(gradient, weights.vector(), g, retain_graph=True)
    vector = [step * (2 * a - step * b) for a, b in zip(g, product, strict=True)]
    (found,) = torch.autograd.grad(gradient, [phi[WEIGHTS]], vector)
    return -found


def assert_close_hypergradient(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10 * float(expected.abs().max()))


def test_the_hypergradient_is_that_of_the_plain_network() -> None:
    """Compare with torch_geometric's layers, unrolled by hand."""
    *train, validation = map(labelled, FT)
    start, step = pretrained(), 0.1
    encoder, head = leaves(start.encoder), {name: value.clone().requires_grad_() for name, value in HEAD.items()}
    for batch, numbers in zip(train, FT, strict=False):
        loss = plain_losses({**encoder, **start.buffers}, head, numbers, batch, False).mean()
        slopes = torch.autograd.grad(loss, list(head.values()), create_graph=True)
        head = {name: value - 0.3 * slope for (name, value), slope in zip(head.items(), slopes, strict=True)}
    held_out = plain_losses({**encoder, **start.buffers}, head, FT[-1], validation, False).mean()
    g2 = torch.autograd.grad(held_out, list(encoder.values()))

    weights, phi = pretrained().leaves(), leaves(META)
    pt = labelled(PT, "coarse", dropout=True)
    losses = plain_losses({**weights.encoder, **weights.buffers}, weights.head, PT, pt, True)
    loss = (2 * torch.sigmoid(phi[WEIGHTS]) * losses).mean()
    g = [*g2, *(torch.zeros_like(value) for value in weights.head.values())]
    ours = hypergradient(
        MultitaskProblem(ENCODER), pretrained(), META, HEAD,
        pretrain_batch=pt, train_batches=train, validation_batch=validation,
        inverse=Neumann(1, step), finetuning=Unroll(2, SGD(0.3)),
    )  # fmt: skip
    assert_close_hypergradient(ours.gradient[WEIGHTS], expected_hypergradient(loss, weights, phi, g, step))


def network() -> Pretrained:
    start = pretrained()
    return Pretrained(whole(start.encoder, pretrain_head=start.head, finetune_head=HEAD), {}, start.buffers)


def test_the_loss_of_co_training_is_a_loop_over_both_data_sets_tasks() -> None:
    problem, start = CoTrainProblem(ENCODER), pretrained()
    both = BothGraphs(labelled(PT, "coarse", dropout=True), labelled(FT[1], dropout=True))
    parameters = {**start.encoder, **start.buffers}
    pretrain = plain_losses(parameters, start.head, PT, both.pretrain, True)
    finetune = plain_losses(parameters, HEAD, FT[1], both.finetune, True)
    for ours, theirs in zip(problem.losses(network(), both), (pretrain, finetune), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0.0)
    meta = {WEIGHTS: draw(50, COARSE + FINE)}
    weights = 2 * torch.sigmoid(meta[WEIGHTS])
    expected = (weights[:COARSE] * pretrain).sum() / COARSE + (weights[COARSE:] * finetune).sum() / FINE
    torch.testing.assert_close(problem.pretrain_loss(network(), meta, both), expected, rtol=1e-12, atol=0.0)


def test_the_weights_of_co_training_are_evaluated_by_the_ft_head_as_it_is() -> None:
    """The hypergradient takes the slope of the validation loss (Lorraine et al. 2020)."""
    problem, step, validation = CoTrainProblem(ENCODER), 0.1, labelled(FT[2])
    both = BothGraphs(labelled(PT, "coarse", dropout=True), labelled(FT[1], dropout=True))
    meta = {WEIGHTS: draw(50, COARSE + FINE)}
    result = hypergradient(
        problem, network(), meta, {}, pretrain_batch=both, train_batches=[], validation_batch=validation,
        inverse=Neumann(1, step), finetuning=Unroll(0),
    )  # fmt: skip
    weights, phi = network().leaves(), leaves(meta)
    parameters = {**encoder_of(weights.encoder), **weights.buffers}
    held_out = plain_losses(parameters, head_of(weights.encoder, "finetune_head"), FT[2], validation, False)
    g = torch.autograd.grad(held_out.mean(), weights.vector(), allow_unused=True, materialize_grads=True)
    expected = expected_hypergradient(problem.pretrain_loss(weights, phi, both), weights, phi, list(g), step)
    assert_close_hypergradient(result.gradient[WEIGHTS], expected)
    assert expected[COARSE:].norm() > 1e-6


BOTH = labelled(PT, "coarse", dropout=True), labelled(FT[1], dropout=True)


@pytest.mark.parametrize(
    ("kind", "given", "of_the_head"),
    [
        (MultitaskProblem, (pretrained(), META, HEAD, BOTH[0]), True),
        (CoTrainProblem, (network(), {WEIGHTS: draw(50, COARSE + FINE)}, {}, BothGraphs(*BOTH)), False),
    ],
)
def test_second_derivatives_are_differences_of_gradients(kind: Any, given: Any, of_the_head: bool) -> None:
    problem = type("Untested", (kind,), {})(ENCODER)  # a subclass is not taken for tested
    words = {"products": True, "head_steps": of_the_head, "network": of_the_head}
    check_second_derivatives(problem, Given(*given, labelled(FT[0])), **words)
    assert all(gap is not None and gap.agrees for gap in tried(problem).values())
