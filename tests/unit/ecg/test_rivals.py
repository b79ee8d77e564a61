"""Joint training and BiSSL on ECGs, against derivatives and matrices by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg import arms, bissl, config
from metapt.domains.ecg.arms import pretrain
from metapt.domains.ecg.augment import Policy
from metapt.domains.ecg.batches import JointBatches, _EcgBatches
from metapt.domains.ecg.bissl import DAMPING, AnchoredProblem, AnchorPretraining, DampedInverse, bissl_settings
from metapt.domains.ecg.data.dataset import Labelled
from metapt.domains.ecg.problem import JointBatch, JointProblem, SimclrProblem
from metapt.domains.ecg.resnet1d import Encoder
from metapt.domains.ecg.setting import Setting
from metapt.errors import ConfigError
from metapt.hypergrad import Identity, Params, Pretrained, Status
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.twostage.heads import whole

from ..hypergrad.problems import flat
from ..twostage.whole_runs import Unsaved, equal
from .small_ecgs import ARMS, meta_of, shorten_bissl
from .test_problem import DTYPE, NETWORK, TEMPERATURE, bce, labelled, simclr_by_hand, unlabelled


@pytest.fixture
def usual(make: Callable[..., Setting]) -> Setting:
    """Return a setting whose runs keep no state."""
    return make(checkpoint=Unsaved)


def test_a_joint_pt_step_follows_the_sum_of_both_gradients(exact: Any, plain_encoder: Any) -> None:
    """With a network of torch's own layers, whose statistics are of each minibatch alone."""
    (examples,), meta, plain = labelled(exact, 1), meta_of(NETWORK), plain_encoder(2)
    leaves = exact.pretrained.leaves()
    head = {name: value.clone().requires_grad_() for name, value in exact.head.items()}
    values = [*leaves.encoder.values(), *head.values(), *leaves.head.values()]
    features = plain({**leaves.encoder, **leaves.leaves().buffers}, examples.signals, training=True)
    both = simclr_by_hand(plain, NETWORK, leaves, meta, unlabelled(exact)), bce(head, features, examples.labels)
    apart = [torch.autograd.grad(loss, values, materialize_grads=True, allow_unused=True) for loss in both]

    network = exact.pretrained._replace(encoder=whole(exact.pretrained.encoder, head=exact.head)).leaves()
    problem = JointProblem(Encoder(2), NETWORK, TEMPERATURE)
    loss = problem.pretrain_loss(network, meta, JointBatch(unlabelled(exact), examples))
    for ours, first, second in zip(torch.autograd.grad(loss, network.vector()), *apart, strict=True):
        torch.testing.assert_close(ours, first + second, rtol=1e-12, atol=1e-12)


class Linear:
    """An encoder of 36 parameters."""

    def __call__(self, parameters: Params, signals: Tensor, *, training: bool) -> Tensor:
        return torch.tanh(signals.mean(1) @ parameters["weight"].T)


@pytest.mark.parametrize("weight", [1e-3, 2.0])
def test_the_anchor_of_bissl_steps_along_its_published_gradient(exact: Any, weight: float) -> None:
    """(lambda + damping) (H + lambda + damping)^-1 dL_FT/dtheta + dL_FT/dphi, with the matrix as a whole.

    lambda is on the diagonal of the encoder's part of the matrix only.
    """
    policy = Policy("velocity", "log", 3.0, 0)
    simclr, warp, batch = SimclrProblem(Linear(), policy, TEMPERATURE), meta_of(policy), unlabelled(exact)  # type: ignore[arg-type]
    shapes = {"hidden": (4, 3), "weight": (3, 4), "bias": (3,)}
    start = Pretrained(
        {"weight": exact.random(1, 3, 12)}, {name: exact.random(2, *shape) for name, shape in shapes.items()}
    )
    head, (examples,) = {"weight": exact.random(3, 5, 3), "bias": exact.random(4, 5)}, labelled(exact, 1)
    batches: Any = SimpleNamespace(
        pretrain=lambda: batch, hypergradient=lambda: batch, train=lambda: examples, validation=lambda: examples
    )
    settings = dataclasses.replace(
        bissl_settings(config.BiSsl(method="bissl"), 20, OptimizerSpec("SGD", {"lr": 0.1})),
        inverse=DampedInverse(rtol=1e-14, max_steps=500),
        meta_optimizer=OptimizerSpec("SGD", {"lr": 1.0}),
        clip_norm=None,
    )
    problem = AnchoredProblem(simclr, warp, weight)
    loop = AnchorPretraining(problem, batches, start, head, settings, problem, warm=0)
    for _ in range(3):
        loop._pretrain_step()
    theta = loop.pretrained
    anchor = {name: value.detach().clone() for name, value in loop.meta.items()}
    super(AnchorPretraining, loop)._meta_update()

    def pretrained_loss(values: Tensor) -> Tensor:
        parts = values.split([value.numel() for value in theta.vector()])
        encoder, *own = (part.view_as(value) for part, value in zip(parts, theta.vector(), strict=True))
        moved = Pretrained({"weight": encoder}, dict(zip(shapes, own, strict=True)))
        return simclr.pretrain_loss(moved, warp, batch)

    def slope(weights: Tensor) -> Tensor:
        weights = weights.detach().clone().requires_grad_()
        scores = torch.tanh(examples.signals.mean(1) @ weights.T) @ head["weight"].T + head["bias"]
        return torch.autograd.grad(F.binary_cross_entropy_with_logits(scores, examples.labels), weights)[0].flatten()

    whole = torch.cat([flat(theta.encoder), flat(theta.head)])
    matrix = torch.autograd.functional.hessian(pretrained_loss, whole)
    assert matrix.abs().max() > 1e-3
    matrix = matrix + torch.diag(torch.full((len(matrix),), DAMPING, dtype=DTYPE))
    matrix[:36, :36] += weight * torch.eye(36, dtype=DTYPE)
    first = torch.zeros(len(matrix), dtype=DTYPE)
    first[:36] = slope(theta.encoder["weight"])
    implicit = (weight + DAMPING) * torch.linalg.solve(matrix, first)[:36]
    expected = implicit + slope(anchor["weight"])
    torch.testing.assert_close(flat(anchor) - flat(loop.meta), expected, rtol=1e-10, atol=1e-12)
    assert not equal(loop.head, head), "it learns, too"


def test_a_solve_that_meets_negative_curvature_at_once_falls_back_to_the_identity_in_the_published_scale() -> None:
    """The published factor is (1 + H / damping)^-1, so that the fall-back is b / damping before it is scaled."""
    b = [torch.tensor([1.0, -2.0], dtype=DTYPE)]
    solved = DampedInverse()(lambda v: [-2 * DAMPING * v[0]], b)
    assert solved.status is Status.INDEFINITE
    torch.testing.assert_close(solved.value[0], b[0] / DAMPING)
    assert solved.residual_norm == pytest.approx(float((b[0] + DAMPING * solved.value[0]).norm()))


@pytest.mark.slow
def test_the_anchor_at_its_start_stays_there_and_is_what_bissl_is_when_it_learns_nothing(
    usual: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Tensor]] = []
    step = Pretrainer.step

    def watched(self: Pretrainer, meta: Params) -> Tensor:
        seen.extend([[flat(self.pretrained.encoder), flat(meta)]] if "stem.weight" in meta else [])
        return step(self, meta)

    monkeypatch.setattr(Pretrainer, "step", watched)
    shorten_bissl(monkeypatch)
    unlabelled = dataclasses.replace(usual, job=usual.job.model_copy(update={"meta_size": None}))
    fixed = pretrain(ARMS["bissl-start"], unlabelled).pretrained
    assert len(seen) == 4, "half of the PT steps"
    assert all(torch.equal(anchor, seen[0][0]) for _, anchor in seen)
    still = pretrain(ARMS["bissl"].model_copy(update={"meta_lr": 1e-30}), usual).pretrained
    assert equal(still.encoder, fixed.encoder)
    assert equal(still.buffers, fixed.buffers)
    learned = pretrain(ARMS["bissl"].model_copy(update={"meta_lr": 0.1}), usual).pretrained
    assert not equal(learned.encoder, fixed.encoder)


def test_too_short_a_run_of_bissl_is_refused_before_pt(usual: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pretrainer, "run", lambda *_: pytest.fail("PT has begun"))
    with pytest.raises(ConfigError, match="pretrain_steps is 20, which is more than the 4 steps"):
        pretrain(ARMS["bissl"].model_copy(update={"pretrain_steps": 20}), usual)


@pytest.mark.slow
def test_both_see_ft_training_ecgs_alone_and_bissl_alternates_as_published(
    usual: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = {signal.numpy().tobytes() for signal in usual.dataset.signals(usual.finetune[0])}
    taken: list[str] = []
    seen: list[Labelled] = []
    draw = JointBatches._finetune
    monkeypatch.setattr(_EcgBatches, "_finetune", lambda self, name: seen.append(draw(self, name)) or seen[-1])
    assert bissl.ANCHOR_STEPS == 8
    monkeypatch.setattr(bissl, "ANCHOR_STEPS", 3)
    for name in ("_pretrain_step", "_head_step", "_apply"):
        own = partial(
            lambda name, method, *given: taken.append(name) or method(*given), name, getattr(AnchorPretraining, name)
        )
        monkeypatch.setattr(AnchorPretraining, name, partialmethod(lambda self, own, *given: own(self, *given), own))
    monkeypatch.setattr(arms, "HEAD_EPOCHS", 2)
    monkeypatch.setattr(DampedInverse, "__call__", Identity.__call__)
    pretrain(ARMS["bissl"], usual)
    warm = 2 * (len(train) // 6)
    assert taken == ["_head_step"] * warm + 2 * (["_pretrain_step"] * 2 + ["_apply", "_head_step"] * 3)
    pretrain(ARMS["simclr-joint"], usual)
    assert len(seen) == warm + 6 * 3 + 8
    assert {signal.numpy().tobytes() for batch in seen for signal in batch.signals} == train
