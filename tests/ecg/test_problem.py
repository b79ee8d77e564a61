"""Hypergradients of the ECG problems against derivatives by hand, with a network of torch's own layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg.augment import Draws, crop_and_jitter, warp
from metapt.domains.ecg.policy import Policy
from metapt.domains.ecg.problem import (
    AugmentedBatch,
    LabelledBatch,
    SimclrProblem,
    SupervisedProblem,
    UnlabelledBatch,
)
from metapt.domains.ecg.resnet1d import Encoder
from metapt.hypergrad import SGD, Adam, FittedHead, Neumann, Params, Pretrained, Unroll, hypergradient
from metapt.hypergrad.curvature import gauss_newton
from metapt.hypergrad.trial import check_second_derivatives, tried

DTYPE = torch.float64
TEMPERATURE, STEP_SIZE, FINETUNE_LR, L2 = 0.5, 0.05, 0.3, 0.05


def meta_of(policy: Policy) -> Params:
    return {name: value.double() for name, value in policy.initial(torch.Generator().manual_seed(0)).items()}


POLICIES = [
    pytest.param(Policy("velocity", "log", 3.0, 2), id="velocity, log, network"),
    pytest.param(Policy("displacement", "square", 0.2, 0), id="displacement, square"),
]


def unlabelled(exact: Any) -> UnlabelledBatch:
    return UnlabelledBatch(exact.signals, exact.draws)


def labelled(exact: Any, count: int) -> list[LabelledBatch]:
    return [
        LabelledBatch(exact.random(100 + i, 6, 64, 12), (exact.random(200 + i, 6, 5) > 0).to(DTYPE))
        for i in range(count)
    ]


def nt_xent_by_hand(projections: Tensor) -> Tensor:
    units = projections / projections.norm(dim=1, keepdim=True)
    count = len(units)
    scores = (units @ units.T) / TEMPERATURE
    others = scores.exp().sum(1) - scores.diagonal().exp()
    partner = torch.arange(count).add(count // 2) % count
    return (others.log() - scores[torch.arange(count), partner]).mean()


def leaves(params: Params) -> Params:
    return {name: value.detach().clone().requires_grad_() for name, value in params.items()}


def pretrain_loss_by_hand(
    encoder: Any, policy: Policy, weights: Pretrained, meta: Params, batch: UnlabelledBatch
) -> Tensor:
    """View by view: first half of the draws for the first views."""
    strengths = policy.strength(meta, batch.signals)
    projections = []
    pairs = []
    for view in range(2):
        rows = slice(view * len(batch.signals), (view + 1) * len(batch.signals))
        draws = Draws(*(part[rows] for part in batch.draws))
        pairs.append(warp(crop_and_jitter(batch.signals, draws), policy.displacement(strengths, draws.velocity)))
    buffers = {name: value.clone() for name, value in weights.buffers.items()}
    features = encoder({**weights.encoder, **buffers}, torch.cat(pairs), training=True)
    projections = torch.relu(features @ weights.head["hidden"].T) @ weights.head["weight"].T + weights.head["bias"]
    return nt_xent_by_hand(projections)


def bce(head: Params, features: Tensor, labels: Tensor) -> Tensor:
    scores = features @ head["weight"].T + head["bias"]
    return (F.softplus(scores) - labels * scores).mean()


def unrolled_g2(encoder: Any, exact: Any, train: Sequence[LabelledBatch], validation: LabelledBatch) -> list[Tensor]:
    """Return the gradient of the validation loss after one step of gradient descent on the head per training batch."""
    parameters, head = leaves(exact.pretrained.encoder), leaves(exact.head)
    for batch in train:
        loss = bce(
            head, encoder({**parameters, **exact.pretrained.buffers}, batch.signals, training=False), batch.labels
        )
        slopes = torch.autograd.grad(loss, list(head.values()), create_graph=True)
        head = {name: value - FINETUNE_LR * slope for (name, value), slope in zip(head.items(), slopes, strict=True)}
    features = encoder({**parameters, **exact.pretrained.buffers}, validation.signals, training=False)
    return list(torch.autograd.grad(bce(head, features, validation.labels), list(parameters.values())))


def fitted_g2(encoder: Any, exact: Any, folds: Sequence[tuple[list[LabelledBatch], LabelledBatch]]) -> list[Tensor]:
    """Return the same with the head at the minimum of its ridge loss, differentiated with its dense Hessian."""
    parameters = leaves(exact.pretrained.encoder)

    def split(flat: Tensor) -> Params:
        return {"weight": flat[:80].view(5, 16), "bias": flat[80:]}

    total = [torch.zeros_like(value) for value in parameters.values()]
    for rest, held_out in folds:
        whole = {**parameters, **exact.pretrained.buffers}
        features = [encoder(whole, batch.signals, training=False) for batch in rest]
        out = encoder(whole, held_out.signals, training=False)

        def objective(
            flat: Tensor, features: Sequence[Tensor] = features, rest: Sequence[LabelledBatch] = rest
        ) -> Tensor:
            losses = [bce(split(flat), part, batch.labels) for part, batch in zip(features, rest, strict=True)]
            return torch.stack(losses).mean() + L2 / 2 * flat.square().sum()

        flat = torch.zeros(85, dtype=DTYPE)
        for _ in range(20):
            slope = torch.autograd.functional.jacobian(objective, flat)
            flat = flat - torch.linalg.solve(torch.autograd.functional.hessian(objective, flat), slope)
        flat.requires_grad_()
        loss = bce(split(flat), out, held_out.labels)
        head_slope, *direct = torch.autograd.grad(loss, [flat, *parameters.values()], retain_graph=True)
        solved = torch.linalg.solve(torch.autograd.functional.hessian(objective, flat.detach()), head_slope)
        (gradient,) = torch.autograd.grad(objective(flat), flat, create_graph=True)
        through = torch.autograd.grad(gradient @ solved, list(parameters.values()), retain_graph=True)
        total = [a + (b - c) / len(folds) for a, b, c in zip(total, direct, through, strict=True)]
    return total


def implicit(loss: Any, weights: Pretrained, meta: Params, g2: list[Tensor], terms: int) -> Params:
    """Return -d<dL/dw, v>/dphi with v = sum over i of (I - a H)^i (g2, 0), by reverse over reverse."""
    weights = Pretrained(leaves(weights.encoder), leaves(weights.head), weights.buffers)
    phi, w = leaves(meta), [*weights.encoder.values(), *weights.head.values()]
    gradient = torch.autograd.grad(loss(weights, phi), w, create_graph=True)
    term = [*g2, *(torch.zeros_like(value) for value in weights.head.values())]
    total = term
    for _ in range(terms):
        product = torch.autograd.grad(
            sum((a * b).sum() for a, b in zip(gradient, term, strict=True)), w, retain_graph=True
        )
        term = [a - STEP_SIZE * b for a, b in zip(term, product, strict=True)]
        total = [a + b for a, b in zip(total, term, strict=True)]
    scalar = sum((a * STEP_SIZE * b).sum() for a, b in zip(gradient, total, strict=True))
    return {name: -value for name, value in zip(phi, torch.autograd.grad(scalar, list(phi.values())), strict=True)}


def close(ours: Params, theirs: Params) -> None:
    scale = max(float(value.abs().max()) for value in theirs.values())
    assert scale > 1e-8
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9 * scale)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("terms", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_the_hypergradient_is_reverse_over_reverse_by_hand(
    exact: Any, plain_encoder: Any, policy: Policy, terms: int, steps: int
) -> None:
    *train, validation = labelled(exact, steps + 1)
    meta, batch, plain = meta_of(policy), unlabelled(exact), plain_encoder(2)
    result = hypergradient(
        SimclrProblem(Encoder(2), policy, TEMPERATURE), exact.pretrained, meta, exact.head,
        pretrain_batch=batch, train_batches=train, validation_batch=validation,
        inverse=Neumann(terms, STEP_SIZE), finetuning=Unroll(steps, SGD(FINETUNE_LR)),
    )  # fmt: skip
    g2 = unrolled_g2(plain, exact, train, validation)
    by_hand = implicit(
        lambda w, phi: pretrain_loss_by_hand(plain, policy, w, phi, batch), exact.pretrained, meta, g2, terms
    )
    close(result.gradient, by_hand)


@pytest.mark.parametrize("cross_fit", [False, True])
def test_the_hypergradient_through_a_fitted_head(exact: Any, plain_encoder: Any, cross_fit: bool) -> None:
    policy = Policy("velocity", "log", 3.0, 2)
    batches = labelled(exact, 3)
    meta, batch, plain = meta_of(policy), unlabelled(exact), plain_encoder(2)
    result = hypergradient(
        SimclrProblem(Encoder(2), policy, TEMPERATURE), exact.pretrained, meta, exact.head,
        pretrain_batch=batch, train_batches=batches[:2], validation_batch=batches[2],
        inverse=Neumann(1, STEP_SIZE), finetuning=FittedHead(L2, cross_fit=cross_fit, minibatches=2, tolerance=1e-12),
    )  # fmt: skip
    held_out = range(3) if cross_fit else [2]
    g2 = fitted_g2(plain, exact, [([*batches[:i], *batches[i + 1 :]], batches[i]) for i in held_out])
    by_hand = implicit(
        lambda w, phi: pretrain_loss_by_hand(plain, policy, w, phi, batch), exact.pretrained, meta, g2, 1
    )
    close(result.gradient, by_hand)


def test_adams_steps_on_the_head_are_torchs(exact: Any) -> None:
    policy = Policy("velocity", "log", 3.0, 0)
    *train, validation = labelled(exact, 4)
    result = hypergradient(
        SimclrProblem(Encoder(2), policy, TEMPERATURE), exact.pretrained, meta_of(policy), exact.head,
        pretrain_batch=unlabelled(exact), train_batches=train, validation_batch=validation,
        inverse=Neumann(0, STEP_SIZE), finetuning=Unroll(3, Adam(0.01)),
    )  # fmt: skip
    head = leaves(exact.head)
    optimizer = torch.optim.Adam(head.values(), lr=0.01)
    for batch in train:
        features = Encoder(2)({**exact.pretrained.encoder, **exact.pretrained.buffers}, batch.signals, training=False)
        optimizer.zero_grad()
        bce(head, features, batch.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.testing.assert_close(
        result.head, {name: value.detach() for name, value in head.items()}, rtol=1e-9, atol=1e-12
    )


def test_the_gauss_newton_product_is_the_dense_one(exact: Any, plain_encoder: Any) -> None:
    """J and B as matrices, from torch's layers and the formula of NT-Xent, against our products."""
    policy = Policy("velocity", "log", 3.0, 0)
    problem, batch = SimclrProblem(Encoder(2), policy, TEMPERATURE), unlabelled(exact)
    meta = meta_of(policy)
    weights = exact.pretrained.leaves()
    outputs = problem.pretrain_outputs(weights, meta, batch)
    product = gauss_newton(outputs, problem.outputs_loss(outputs, meta, batch), weights.vector())

    reference = SimclrProblem(plain_encoder(2), policy, TEMPERATURE)
    plain = exact.pretrained.leaves()
    pairs = ~torch.eye(8, dtype=torch.bool)
    scores = reference.pretrain_outputs(plain, meta, batch)[pairs]
    rows = [torch.autograd.grad(score, plain.vector(), retain_graph=True) for score in scores]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])

    def loss(scores: Tensor) -> Tensor:
        square = torch.zeros(8, 8, dtype=DTYPE).masked_scatter(pairs, scores)
        partner = torch.arange(8).add(4) % 8
        return ((square.exp() * pairs).sum(1).log() - square[torch.arange(8), partner]).mean()

    curvature = torch.autograd.functional.hessian(loss, scores.detach())
    vector = [exact.random(300 + i, *value.shape) for i, value in enumerate(plain.vector())]
    expected = jacobian.T @ (curvature @ (jacobian @ torch.cat([part.flatten() for part in vector])))
    ours = torch.cat([part.flatten() for part in product(vector)])
    torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()))
    assert expected.norm() > 1e-3


@pytest.mark.parametrize("policy", POLICIES)
def test_the_pt_loss_is_that_of_its_outputs_and_that_of_the_formula(
    exact: Any, plain_encoder: Any, policy: Policy
) -> None:
    problem, batch, meta = SimclrProblem(Encoder(2), policy, TEMPERATURE), unlabelled(exact), meta_of(policy)
    loss = problem.pretrain_loss(exact.pretrained.leaves(), meta, batch)
    split = problem.outputs_loss(problem.pretrain_outputs(exact.pretrained.leaves(), meta, batch), meta, batch)
    assert torch.equal(loss, split)
    torch.testing.assert_close(loss, pretrain_loss_by_hand(plain_encoder(2), policy, exact.pretrained, meta, batch))


@pytest.mark.parametrize("terms", [0, 1])
def test_the_supervised_hypergradient_is_the_one_stage_implicit_one(exact: Any, plain_encoder: Any, terms: int) -> None:
    """OptSLA trains the whole network on augmented ECGs and evaluates it on the original ones."""
    policy = Policy("velocity", "log", 3.0, 2)
    meta, plain = meta_of(policy), plain_encoder(2)
    (validation,) = labelled(exact, 1)
    draws = Draws(*(part[:4] for part in exact.draws))
    batch = AugmentedBatch(exact.signals, exact.labels, draws)
    problem = SupervisedProblem(Encoder(2), policy)
    network = Pretrained(problem.whole(exact.pretrained.encoder, exact.head), {}, exact.pretrained.buffers)
    result = hypergradient(
        problem, network, meta, {},
        pretrain_batch=batch, train_batches=[], validation_batch=validation,
        inverse=Neumann(terms, STEP_SIZE), finetuning=Unroll(0),
    )  # fmt: skip

    def loss(whole: Params, signals: Tensor, labels: Tensor, training: bool) -> Tensor:
        body = {name: value for name, value in whole.items() if not name.startswith("head.")}
        buffers = {name: value.clone() for name, value in network.buffers.items()}
        features = plain({**body, **buffers}, signals, training=training)
        return bce({"weight": whole["head.weight"], "bias": whole["head.bias"]}, features, labels)

    at = leaves(network.encoder)
    g2 = list(torch.autograd.grad(loss(at, validation.signals, validation.labels, False), list(at.values())))

    def pretrain(weights: Pretrained, phi: Params) -> Tensor:
        field = policy.displacement(policy.strength(phi, batch.signals), draws.velocity)
        return loss(weights.encoder, warp(crop_and_jitter(batch.signals, draws), field), batch.labels, True)

    close(result.gradient, implicit(pretrain, network, meta, g2, terms))


def test_statistics_are_updated_by_pt_losses_and_read_by_ft(exact: Any) -> None:
    policy = Policy("velocity", "log", 3.0, 0)
    problem = SimclrProblem(Encoder(2), policy, TEMPERATURE)
    (batch,) = labelled(exact, 1)
    buffers = {name: value.clone() for name, value in exact.pretrained.buffers.items()}
    problem.encode({**exact.pretrained.encoder, **buffers}, batch)
    assert all(torch.equal(value, exact.pretrained.buffers[name]) for name, value in buffers.items())
    problem.pretrain_loss(exact.pretrained._replace(buffers=buffers), meta_of(policy), unlabelled(exact))
    assert not any(torch.equal(value, exact.pretrained.buffers[name]) for name, value in buffers.items())


class Untested(SimclrProblem):
    """A subclass is not taken for tested."""


class UntestedToo(SupervisedProblem):
    """As above."""


@pytest.mark.parametrize("policy", POLICIES)
def test_second_derivatives_are_differences_of_gradients(exact: Any, policy: Policy) -> None:
    problem = Untested(Encoder(2), policy, TEMPERATURE)
    check_second_derivatives(
        problem, exact.pretrained, meta_of(policy), exact.head, unlabelled(exact), labelled(exact, 1)[0],
        products=True, head_steps=True, network=True,
    )  # fmt: skip
    assert all(gap is not None and gap.agrees for gap in tried(problem).found.values())


def test_second_derivatives_of_supervised_learning_are_differences_of_gradients(exact: Any) -> None:
    policy = Policy("velocity", "log", 3.0, 2)
    problem = UntestedToo(Encoder(2), policy)
    batch = AugmentedBatch(exact.signals, exact.labels, Draws(*(part[:4] for part in exact.draws)))
    network = Pretrained(problem.whole(exact.pretrained.encoder, exact.head), {}, exact.pretrained.buffers)
    check_second_derivatives(
        problem, network, meta_of(policy), {}, batch, labelled(exact, 1)[0],
        products=True, head_steps=False, network=False,
    )  # fmt: skip
    assert all(gap is not None and gap.agrees for gap in tried(problem).found.values())
