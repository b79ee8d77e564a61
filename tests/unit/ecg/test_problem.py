"""NT-Xent and the ECG problems against formulas and derivatives by hand, with a network of torch's own layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg.augment import Draws, Policy, crop_and_jitter, displacement, warp
from metapt.domains.ecg.data.dataset import Labelled
from metapt.domains.ecg.problem import (
    AugmentedBatch,
    SimclrProblem,
    SupervisedProblem,
    UnlabelledBatch,
    cross_entropy,
    similarities,
)
from metapt.domains.ecg.resnet1d import Encoder
from metapt.hypergrad import SGD, Neumann, Params, Pretrained, Unroll, hypergradient
from metapt.hypergrad.curvature import gauss_newton
from metapt.hypergrad.trial import Given, check_second_derivatives, tried
from metapt.twostage.heads import whole

from ..training.problems import copied
from .small_ecgs import meta_of

DTYPE = torch.float64
TEMPERATURE, STEP_SIZE, FINETUNE_LR = 0.5, 0.05, 0.3
NETWORK = Policy("velocity", "log", 3.0, 2)
policies = pytest.mark.parametrize("policy", [NETWORK, Policy("displacement", "square", 0.2, 0)], ids=["log", "square"])


class Untested(SimclrProblem):
    """A subclass is not taken for tested."""


class UntestedToo(SupervisedProblem):
    """As above."""


def unlabelled(exact: Any) -> UnlabelledBatch:
    return UnlabelledBatch(exact.signals, exact.draws)


def labelled(exact: Any, count: int) -> list[Labelled]:
    signals = [exact.random(100 + i, 6, 64, 12) for i in range(count)]
    return [Labelled(each, (exact.random(200 + i, 6, 5) > 0).to(DTYPE)) for i, each in enumerate(signals)]


def augmented(policy: Policy, meta: Params, signals: Tensor, draws: Draws) -> Tensor:
    field = displacement(policy.strength(meta, signals), draws.velocity, policy.smoothing)
    return warp(crop_and_jitter(signals, draws), field)


def simclr_by_hand(encoder: Any, policy: Policy, weights: Pretrained, meta: Params, batch: UnlabelledBatch) -> Tensor:
    """View by view: the first half of the draws is for the first views."""
    count = len(batch.signals)
    halves = (Draws(*(part[rows] for part in batch.draws)) for rows in (slice(count), slice(count, None)))
    views = torch.cat([augmented(policy, meta, batch.signals, draws) for draws in halves])
    buffers = {name: value.clone() for name, value in weights.buffers.items()}
    features = encoder({**weights.encoder, **buffers}, views, training=True)
    z = torch.relu(features @ weights.head["hidden"].T) @ weights.head["weight"].T + weights.head["bias"]
    return cross_entropy(similarities(z, TEMPERATURE))


def bce(head: Params, features: Tensor, labels: Tensor) -> Tensor:
    scores = features @ head["weight"].T + head["bias"]
    return (F.softplus(scores) - labels * scores).mean()


def unrolled_g2(encoder: Any, exact: Any, train: Sequence[Labelled], validation: Labelled) -> list[Tensor]:
    """Return the gradient of the validation loss after one step of gradient descent on the head per training batch."""
    parameters, head = copied(exact.pretrained.encoder), copied(exact.head)

    def loss(batch: Labelled) -> Tensor:
        features = encoder({**parameters, **exact.pretrained.buffers}, batch.signals, training=False)
        return bce(head, features, batch.labels)

    for batch in train:
        slopes = torch.autograd.grad(loss(batch), list(head.values()), create_graph=True)
        head = {name: value - FINETUNE_LR * slope for (name, value), slope in zip(head.items(), slopes, strict=True)}
    return list(torch.autograd.grad(loss(validation), list(parameters.values())))


def implicit(loss: Any, weights: Pretrained, meta: Params, g2: list[Tensor]) -> Params:
    """Return -d<dL/dw, v>/dphi with v = a (1 + (I - a H)) (g2, 0), by reverse over reverse."""
    weights = Pretrained(copied(weights.encoder), copied(weights.head), weights.buffers)
    phi, w = copied(meta), [*weights.encoder.values(), *weights.head.values()]
    gradient = torch.autograd.grad(loss(weights, phi), w, create_graph=True)

    def along(vector: list[Tensor]) -> Tensor:
        return torch.stack([(a * b).sum() for a, b in zip(gradient, vector, strict=True)]).sum()

    start = [*g2, *(torch.zeros_like(value) for value in weights.head.values())]
    product = torch.autograd.grad(along(start), w, retain_graph=True)
    v = [STEP_SIZE * (2 * a - STEP_SIZE * b) for a, b in zip(start, product, strict=True)]
    return {name: -slope for name, slope in zip(phi, torch.autograd.grad(along(v), list(phi.values())), strict=True)}


@policies
@pytest.mark.parametrize("steps", [1, 5])
def test_the_hypergradient_is_reverse_over_reverse_by_hand(
    exact: Any, plain_encoder: Any, policy: Policy, steps: int
) -> None:
    *train, validation = labelled(exact, steps + 1)
    meta, batch, plain = meta_of(policy), unlabelled(exact), plain_encoder(2)
    ours = hypergradient(
        SimclrProblem(Encoder(2), policy, TEMPERATURE), exact.pretrained, meta, exact.head,
        pretrain_batch=batch, train_batches=train, validation_batch=validation,
        inverse=Neumann(1, STEP_SIZE), finetuning=Unroll(steps, SGD(FINETUNE_LR)),
    ).gradient  # fmt: skip
    theirs = implicit(
        lambda weights, phi: simclr_by_hand(plain, policy, weights, phi, batch),
        exact.pretrained, meta, unrolled_g2(plain, exact, train, validation),
    )  # fmt: skip
    scale = max(float(value.abs().max()) for value in theirs.values())
    assert scale > 1e-8
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9 * scale)


@policies
def test_the_pt_loss_is_the_formulas_and_that_of_its_outputs(exact: Any, plain_encoder: Any, policy: Policy) -> None:
    problem, batch, meta = SimclrProblem(Encoder(2), policy, TEMPERATURE), unlabelled(exact), meta_of(policy)
    loss = problem.pretrain_loss(exact.pretrained.leaves(), meta, batch)
    outputs = problem.pretrain_outputs(exact.pretrained.leaves(), meta, batch)
    assert torch.equal(loss, problem.outputs_loss(outputs, meta, batch))
    torch.testing.assert_close(loss, simclr_by_hand(plain_encoder(2), policy, exact.pretrained, meta, batch))


def test_supervised_learning_sees_augmented_ecgs_and_is_evaluated_on_the_original_ones(
    exact: Any, plain_encoder: Any
) -> None:
    problem, meta, encoder = SupervisedProblem(Encoder(2), NETWORK), meta_of(NETWORK), plain_encoder(2)
    (validation,), draws = labelled(exact, 1), Draws(*(part[:4] for part in exact.draws))
    network = Pretrained(whole(exact.pretrained.encoder, head=exact.head), {}, exact.pretrained.buffers)

    def by_hand(signals: Tensor, labels: Tensor, training: bool) -> Tensor:
        buffers = {name: value.clone() for name, value in network.buffers.items()}
        features = encoder({**exact.pretrained.encoder, **buffers}, signals, training=training)
        return bce(exact.head, features, labels)

    expected = by_hand(augmented(NETWORK, meta, exact.signals, draws), exact.labels, True)
    features = problem.encode({**network.encoder, **network.buffers}, validation)
    torch.testing.assert_close(problem.head_loss({}, features, validation), by_hand(*validation, False))
    loss = problem.pretrain_loss(network, meta, AugmentedBatch(exact.signals, exact.labels, draws))
    torch.testing.assert_close(loss, expected)


def test_the_gauss_newton_product_is_the_dense_one(exact: Any, plain_encoder: Any) -> None:
    """J and B as matrices, of torch's layers, against our products."""
    policy, batch = Policy("velocity", "log", 3.0, 0), unlabelled(exact)
    meta, weights, plain = meta_of(policy), exact.pretrained.leaves(), exact.pretrained.leaves()
    problem = SimclrProblem(Encoder(2), policy, TEMPERATURE)
    outputs = problem.pretrain_outputs(weights, meta, batch)
    vector = [exact.random(300 + i, *value.shape) for i, value in enumerate(weights.vector())]
    product = gauss_newton(outputs, problem.outputs_loss(outputs, meta, batch), weights.vector())(vector)

    pairs = ~torch.eye(8, dtype=torch.bool)
    scores = SimclrProblem(plain_encoder(2), policy, TEMPERATURE).pretrain_outputs(plain, meta, batch)[pairs]
    rows = [torch.autograd.grad(score, plain.vector(), retain_graph=True) for score in scores]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    empty = torch.full((8, 8), -torch.inf, dtype=DTYPE)
    curvature = torch.autograd.functional.hessian(
        lambda values: cross_entropy(empty.masked_scatter(pairs, values)), scores.detach()
    )
    expected = jacobian.T @ (curvature @ (jacobian @ torch.cat([part.flatten() for part in vector])))
    assert expected.norm() > 1e-3
    ours = torch.cat([part.flatten() for part in product])
    torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()))


@policies
@pytest.mark.parametrize("supervised", [False, True])
def test_second_derivatives_are_differences_of_gradients(exact: Any, policy: Policy, supervised: bool) -> None:
    problem: Any = Untested(Encoder(2), policy, TEMPERATURE)
    network, head, batch = exact.pretrained, exact.head, unlabelled(exact)
    if supervised:
        problem = UntestedToo(Encoder(2), policy)
        batch = AugmentedBatch(exact.signals, exact.labels, Draws(*(part[:4] for part in exact.draws)))
        network = Pretrained(whole(network.encoder, head=head), {}, network.buffers)
        head = {}
    given = Given(network, meta_of(policy), head, batch, labelled(exact, 1)[0])
    check_second_derivatives(problem, given, products=True, head_steps=not supervised, network=not supervised)
    assert all(gap is not None and gap.agrees for gap in tried(problem).values())


def projections(seed: int, count: int, size: int) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


@pytest.mark.parametrize("temperature", [0.1, 2.0])
@pytest.mark.parametrize("count", [2, 10])
def test_nt_xent_is_the_double_loop(temperature: float, count: int) -> None:
    """The mean over views i, with partner j, of -log exp(s_ij / t) / sum over k != i of exp(s_ik / t)."""
    z, total = projections(1, count, 5), 0.0

    def s(i: int, k: int) -> float:
        return float(z[i] @ z[k] / (z[i].norm() * z[k].norm()) / temperature)

    for i in range(count):
        others = sum(math.exp(s(i, k)) for k in range(count) if k != i)
        total -= s(i, (i + count // 2) % count) - math.log(others)
    expected = pytest.approx(total / count, rel=1e-12, abs=1e-12)
    assert float(cross_entropy(similarities(z, temperature))) == expected


@pytest.mark.parametrize("seed", range(2))
def test_nt_xent_is_convex_in_the_similarities(seed: int) -> None:
    for at in (3 * projections(seed, 6, 6), similarities(projections(seed, 6, 5), 0.5)):
        hessian = torch.autograd.functional.hessian(cross_entropy, at).reshape(36, 36)
        assert hessian.isfinite().all()
        assert torch.linalg.eigvalsh(hessian).min() > -1e-12
