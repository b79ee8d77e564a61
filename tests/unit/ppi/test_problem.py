"""Losses agree with loops over graphs and tasks, and hypergradients with reverse over reverse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.domains.ppi.data.dataset import on_device
from metapt.domains.ppi.gin import GinEncoder
from metapt.domains.ppi.problem import (
    WEIGHTS,
    BothGraphs,
    CoTrainProblem,
    LabelledGraphs,
    MultitaskProblem,
    encoder_of,
    head_of,
    initial_meta,
    project_conflicts,
    task_weights,
    whole,
)
from metapt.hypergrad import (
    SGD,
    ConjugateGradient,
    Identity,
    Neumann,
    Params,
    Pretrained,
    RidgeHead,
    Unroll,
    hypergradient,
)
from metapt.hypergrad.hybrid import Hypergradient
from metapt.hypergrad.inverse import Inverse
from metapt.hypergrad.params import Vector, leaves
from metapt.hypergrad.trial import check_second_derivatives, tried

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


def plain_losses(
    network: Params, head: Params, numbers: list[int], batch: LabelledGraphs, training: bool
) -> list[Tensor]:
    """Return each task's loss, computed with torch_geometric's layers and loops."""
    buffers = {
        name: value.clone() if "norm.r" in name or "norm.n" in name else value for name, value in network.items()
    }
    features = plain(buffers, pyg_batch(GRAPHS, numbers), training=training, keep=batch.keep)
    losses = []
    for weight, bias, labels in zip(head["weight"], head["bias"], batch.labels.T, strict=True):
        each = [bce(row @ weight + bias, label) for row, label in zip(features, labels, strict=True)]
        losses.append(torch.stack(each).mean())
    return losses


def test_task_weights_are_between_0_and_2_and_begin_at_1() -> None:
    phi = torch.tensor([-30.0, -1.0, 0.0, 1.0, 30.0], dtype=DTYPE)
    expected = 2 / (1 + (-phi).exp())
    torch.testing.assert_close(task_weights({WEIGHTS: phi}), expected, rtol=1e-15, atol=0.0)
    assert task_weights(initial_meta(4)).tolist() == [1.0] * 4


def test_the_pt_loss_is_a_loop_over_tasks() -> None:
    problem, batch = MultitaskProblem(ENCODER), labelled(PT, "coarse", dropout=True)
    start = pretrained()
    losses = plain_losses({**start.encoder, **start.buffers}, start.head, PT, batch, True)
    expected = torch.stack(
        [2 * torch.sigmoid(phi) * loss for phi, loss in zip(META[WEIGHTS], losses, strict=True)]
    ).mean()
    loss = problem.pretrain_loss(pretrained(), META, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0.0)
    split = problem.outputs_loss(problem.pretrain_outputs(pretrained(), META, batch), META, batch)
    assert torch.equal(loss, split)


def test_the_ft_loss_is_that_of_a_linear_head_on_features_in_evaluation() -> None:
    problem, batch, start = MultitaskProblem(ENCODER), labelled(FT[2]), pretrained()
    features = problem.encode({**start.encoder, **start.buffers}, batch)
    losses = plain_losses({**start.encoder, **start.buffers}, HEAD, FT[2], batch, False)
    torch.testing.assert_close(
        problem.head_loss(HEAD, features, batch), torch.stack(losses).mean(), rtol=1e-12, atol=0.0
    )
    assert problem.targets(batch) is batch.labels


def test_pt_losses_update_the_statistics_and_nothing_else_does() -> None:
    problem, batch = MultitaskProblem(ENCODER), labelled(PT, "coarse")
    start = pretrained()
    problem.encode({**start.encoder, **start.buffers}, labelled(FT[0]))
    hypergradient_of(problem, Neumann(1, 0.1), start=start)
    assert all(torch.equal(value, start.buffers[name]) for name, value in pretrained().buffers.items())
    problem.pretrain_loss(start, META, batch)
    assert not any(torch.equal(value, start.buffers[name]) for name, value in pretrained().buffers.items())


def random_vector(seed: int = 500) -> Vector:
    return [draw(seed + i, *value.shape) for i, value in enumerate(pretrained().vector())]


@pytest.mark.parametrize("dropout", [False, True])
def test_the_mixed_product_is_reverse_over_reverse(dropout: bool) -> None:
    problem, batch, vector = MultitaskProblem(ENCODER), labelled(PT, "coarse", dropout), random_vector()
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


class ReverseOnly:
    """The same problem without forward mode for its mixed derivative."""

    def __init__(self, problem: MultitaskProblem) -> None:
        for name in ("pretrain_loss", "pretrain_outputs", "outputs_loss", "encode", "head_loss", "targets"):
            setattr(self, name, getattr(problem, name))


def hypergradient_of(
    problem: Any,
    inverse: Inverse,
    curvature: Any = "hessian",
    start: Pretrained | None = None,
    finetuning: Any = None,
    keep_gradient: bool = False,
) -> Hypergradient:
    *train, validation = map(labelled, FT)
    finetuning = Unroll(2, SGD(0.3)) if finetuning is None else finetuning
    return hypergradient(
        problem, pretrained() if start is None else start, META, HEAD,
        pretrain_batch=labelled(PT, "coarse", dropout=True), train_batches=train, validation_batch=validation,
        inverse=inverse, finetuning=finetuning, curvature=curvature,
        keep_gradient=keep_gradient,
    )  # fmt: skip


CG = ConjugateGradient(rtol=1e-10, max_steps=6, relative_damping=0.5)
INVERSES = [
    pytest.param(Identity(), "hessian", id="identity"),
    pytest.param(Identity(), "gauss_newton", id="identity, Gauss-Newton"),
    pytest.param(Neumann(1, 0.1), "hessian", id="Neumann"),
    pytest.param(Neumann(3, 0.1), "gauss_newton", id="Neumann, Gauss-Newton"),
    pytest.param(CG, "gauss_newton", id="conjugate gradients, Gauss-Newton"),
]


@pytest.mark.parametrize(
    ("keep_gradient", "finetuning"),
    [(False, Unroll(2, SGD(0.3))), (True, RidgeHead(0.1, cross_fit=True, minibatches=2))],
    ids=["unroll", "ridge"],
)
@pytest.mark.parametrize(("inverse", "curvature"), INVERSES)
def test_the_hypergradient_is_the_same_in_forward_mode(
    inverse: Inverse, curvature: str, finetuning: Any, keep_gradient: bool
) -> None:
    problem = MultitaskProblem(ENCODER)
    forward = hypergradient_of(problem, inverse, curvature, finetuning=finetuning, keep_gradient=keep_gradient)
    reverse = hypergradient_of(ReverseOnly(problem), inverse, curvature, finetuning=finetuning, keep_gradient=True)
    scale = float(reverse.gradient[WEIGHTS].abs().max())
    assert scale > 1e-6
    torch.testing.assert_close(forward.gradient, reverse.gradient, rtol=1e-9, atol=1e-11 * scale)
    torch.testing.assert_close(forward.diagnostics.pretrain_loss, reverse.diagnostics.pretrain_loss)
    torch.testing.assert_close(forward.diagnostics.gradient_norm, reverse.diagnostics.gradient_norm)
    assert not forward.gradient[WEIGHTS].requires_grad
    assert (forward.pretrain_gradient is not None) is keep_gradient
    if forward.pretrain_gradient is not None and reverse.pretrain_gradient is not None:
        for ours, theirs in zip(forward.pretrain_gradient, reverse.pretrain_gradient, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_the_hypergradient_is_that_of_the_plain_network() -> None:
    """Compare with minus d/dphi of <dL/dw, a (I + (I - a H)) (g2, 0)> on torch_geometric's layers."""
    *train, validation = map(labelled, FT)
    start, step = pretrained(), 0.1
    encoder, head = leaves(start.encoder), HEAD
    for batch, numbers in zip(train, FT, strict=False):
        head = {name: value.requires_grad_() for name, value in head.items()} if head is HEAD else head
        loss = torch.stack(plain_losses({**encoder, **start.buffers}, head, numbers, batch, False)).mean()
        slopes = torch.autograd.grad(loss, list(head.values()), create_graph=True)
        head = {name: value - 0.3 * slope for (name, value), slope in zip(head.items(), slopes, strict=True)}
    held_out = torch.stack(plain_losses({**encoder, **start.buffers}, head, FT[-1], validation, False)).mean()
    g2 = torch.autograd.grad(held_out, list(encoder.values()))

    weights, phi = pretrained().leaves(), leaves(META)
    batch = labelled(PT, "coarse", dropout=True)
    losses = plain_losses({**weights.encoder, **weights.buffers}, weights.head, PT, batch, True)
    loss = torch.stack(
        [2 * torch.sigmoid(value) * loss for value, loss in zip(phi[WEIGHTS], losses, strict=True)]
    ).mean()
    gradient = torch.autograd.grad(loss, weights.vector(), create_graph=True)
    vector = [*g2, *(torch.zeros_like(value) for value in weights.head.values())]
    product = torch.autograd.grad(gradient, weights.vector(), vector, retain_graph=True)
    vector = [step * (2 * a - step * b) for a, b in zip(vector, product, strict=True)]
    (expected,) = torch.autograd.grad(gradient, [phi[WEIGHTS]], vector)
    ours = hypergradient_of(MultitaskProblem(ENCODER), Neumann(1, step)).gradient[WEIGHTS]
    torch.testing.assert_close(ours, -expected, rtol=1e-8, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("inverse", "keep_gradient", "graph"),
    [(Identity(), False, False), (Identity(), True, True), (Neumann(1, 0.1), False, True)],
)
def test_without_a_product_no_graph_of_the_pt_gradient_is_built(
    inverse: Inverse, keep_gradient: bool, graph: bool
) -> None:
    class Counted(MultitaskProblem):
        def pretrain_outputs(self, *args: Any) -> Tensor:
            result = super().pretrain_outputs(*args)
            seen.append(result.requires_grad)
            return result

    seen: list[bool] = []
    problem = Counted(ENCODER)
    hypergradient_of(problem, inverse, keep_gradient=keep_gradient)  # the first one tries the problem
    seen.clear()
    hypergradient_of(problem, inverse, keep_gradient=keep_gradient)
    assert seen == [graph]  # a single pass through the network


def flat(vector: Vector) -> Tensor:
    return torch.cat([part.flatten() for part in vector])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gradients_are_projected_in_turn(count: int) -> None:
    found = 0
    for seed in range(20):
        gradients = [[draw(3 * seed + i, 2, 2), draw(100 + 3 * seed + i, 1)] for i in range(count)]
        if seed == 0 and count == 2:
            gradients[1] = [-7 * part for part in gradients[0]]  # opposite ones cancel
        originals = [flat(gradient) for gradient in gradients]
        total = torch.zeros(5, dtype=DTYPE)
        for i in range(count):
            own = originals[i].clone()
            for j in range(count):
                if j != i and own @ originals[j] < 0:
                    own = own - (own @ originals[j]) / (originals[j] @ originals[j]) * originals[j]
                    found += 1
            total += own
        result = project_conflicts(gradients)
        torch.testing.assert_close(flat(result), total)
        assert [part.shape for part in result] == [part.shape for part in gradients[0]]
    assert found >= 10 * (count - 1)


def network() -> Pretrained:
    start = pretrained()
    return Pretrained(whole(start.encoder, start.head, HEAD), {}, start.buffers)


def test_a_network_with_both_heads_comes_apart_again() -> None:
    start, joined = pretrained(), network().encoder
    assert len(joined) == len(start.encoder) + 4
    for part, expected in (
        (encoder_of(joined), start.encoder),
        (head_of(joined, "pretrain_head"), start.head),
        (head_of(joined, "finetune_head"), HEAD),
    ):
        assert list(part) == list(expected)
        assert all(torch.equal(value, expected[name]) for name, value in part.items())


def test_the_loss_of_co_training_is_a_loop_over_both_data_sets_tasks() -> None:
    problem, start = CoTrainProblem(ENCODER), pretrained()
    both = BothGraphs(labelled(PT, "coarse", dropout=True), labelled(FT[1], dropout=True))
    parameters = {**start.encoder, **start.buffers}
    pretrain = torch.stack(plain_losses(parameters, start.head, PT, both.pretrain, True))
    finetune = torch.stack(plain_losses(parameters, HEAD, FT[1], both.finetune, True))
    for ours, theirs in zip(problem.losses(network(), both), (pretrain, finetune), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0.0)
    meta = {WEIGHTS: draw(50, COARSE + FINE)}
    weights = 2 * torch.sigmoid(meta[WEIGHTS])
    expected = (weights[:COARSE] * pretrain).sum() / COARSE + (weights[COARSE:] * finetune).sum() / FINE
    torch.testing.assert_close(problem.pretrain_loss(network(), meta, both), expected, rtol=1e-12, atol=0.0)


def test_the_weights_of_co_training_are_evaluated_by_the_ft_head_as_it_is() -> None:
    """Compare with minus d/dphi of <dL/dw, a (I + (I - a H)) g>, g of the validation loss (Lorraine et al. 2020)."""
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
    g = torch.autograd.grad(torch.stack(held_out).mean(), weights.vector(), allow_unused=True, materialize_grads=True)
    loss = problem.pretrain_loss(weights, phi, both)
    gradient = torch.autograd.grad(loss, weights.vector(), create_graph=True)
    product = torch.autograd.grad(gradient, weights.vector(), g, retain_graph=True)
    vector = [step * (2 * a - step * b) for a, b in zip(g, product, strict=True)]
    (expected,) = torch.autograd.grad(gradient, [phi[WEIGHTS]], vector)
    torch.testing.assert_close(result.gradient[WEIGHTS], -expected, rtol=1e-8, atol=1e-10 * float(expected.abs().max()))
    assert expected[COARSE:].norm() > 1e-6


class Untested(MultitaskProblem):
    """A subclass is not taken for tested."""


class UntestedToo(CoTrainProblem):
    """As above."""


BOTH = labelled(PT, "coarse", dropout=True), labelled(FT[1], dropout=True)


@pytest.mark.parametrize(
    ("problem", "given", "of_the_head"),
    [
        (Untested(ENCODER), (pretrained(), META, HEAD, BOTH[0]), True),
        (UntestedToo(ENCODER), (network(), {WEIGHTS: draw(50, COARSE + FINE)}, {}, BothGraphs(*BOTH)), False),
    ],
    ids=["multitask", "co-training"],
)
def test_second_derivatives_are_differences_of_gradients(problem: Any, given: Any, of_the_head: bool) -> None:
    words = {"products": True, "head_steps": of_the_head, "network": of_the_head}
    check_second_derivatives(problem, *given, labelled(FT[0]), **words)
    assert all(gap is not None and gap.agrees for gap in tried(problem).found.values())
