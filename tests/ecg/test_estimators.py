"""SimCLR as a function of all strengths of its views, and the estimates of its derivative on a few ECGs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from metapt.domains.ecg import augment
from metapt.domains.ecg.config import EcgPretraining
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.experiments.headroom import arm_of
from metapt.domains.ecg.policy import SCALE, Policy
from metapt.domains.ecg.problem import SimclrProblem, UnlabelledBatch
from metapt.domains.ecg.setting import Setting
from metapt.domains.ecg.studies import evolution
from metapt.domains.ecg.studies.estimators import RIDGE, estimate, folds, problem_of
from metapt.domains.ecg.view_strengths import STRENGTHS, ViewStrengthsProblem, crop_and_jitter
from metapt.hypergrad import Adam, Params
from metapt.training.estimators import pretrain

from .conftest import Exact

AT = {"strength": 2.0, "crop": 0.5, "noise": 0.1, "temperature": 0.3}


def exact_problem(exact: Exact, plain_encoder: Any) -> ViewStrengthsProblem:
    policy = Policy("velocity", "log", AT["strength"], 0)
    return ViewStrengthsProblem(plain_encoder(exact.width), policy, AT["temperature"], AT["crop"], AT["noise"])


def doubled(meta: Params) -> Params:
    return {name: value.double() for name, value in meta.items()}


def test_at_the_strengths_of_the_draws_it_is_simclr_with_crops_of_whole_samples(
    exact: Exact, plain_encoder: Any
) -> None:
    problem = exact_problem(exact, plain_encoder)
    whole = exact.draws._replace(crop_length=(64 * exact.draws.crop_length).round() / 64, crop_start=torch.zeros(8, 12))
    batch = UnlabelledBatch(exact.signals, whole)
    plain = SimclrProblem(problem.encoder, problem.policy, problem.temperature)
    ours = problem.pretrain_loss(exact.pretrained, doubled(problem.initial()), batch)
    theirs = plain.pretrain_loss(exact.pretrained, {SCALE: torch.tensor(math.log(AT["strength"])).double()}, batch)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_other_strengths_are_those_of_other_draws(exact: Exact, plain_encoder: Any) -> None:
    problem = exact_problem(exact, plain_encoder)
    other = dataclasses.replace(problem, crop=0.25, noise=0.4)
    draws = exact.draws._replace(crop_length=exact.draws.crop_length / 2, jitter=exact.draws.jitter * 4)
    meta = doubled(other.initial())
    scaled = problem.pretrain_loss(exact.pretrained, meta, UnlabelledBatch(exact.signals, exact.draws))
    drawn = other.pretrain_loss(exact.pretrained, meta, UnlabelledBatch(exact.signals, draws))
    torch.testing.assert_close(scaled, drawn)


@pytest.mark.parametrize("name", STRENGTHS)
def test_the_derivative_along_each_strength_is_a_finite_difference(exact: Exact, plain_encoder: Any, name: str) -> None:
    problem, batch = exact_problem(exact, plain_encoder), UnlabelledBatch(exact.signals, exact.draws)
    at, own, step = doubled(problem.initial()), STRENGTHS[name], 1e-6
    meta = {key: value.clone().requires_grad_() for key, value in at.items()}
    (slope,) = torch.autograd.grad(problem.pretrain_loss(exact.pretrained, meta, batch), [meta[own]])
    above, below = (
        float(problem.pretrain_loss(exact.pretrained, at | {own: at[own] + sign * step}, batch)) for sign in (1, -1)
    )
    assert float(slope) != 0
    assert float(slope) == pytest.approx((above - below) / (2 * step), rel=1e-4)


def test_a_crop_zeroes_whole_samples_and_shares_of_those_at_its_ends() -> None:
    signals = torch.arange(1.0, 9.0).view(1, 8, 1)
    draws = augment.Draws(
        crop_start=torch.full((1, 1), 0.5),  # in the middle: from 2.75 to 5.25
        crop_length=torch.full((1, 1), 2.5 / 8),
        jitter=torch.zeros(1),
        noise=torch.zeros(1, 8, 1),
        velocity=torch.zeros(1, 8),
    )
    kept = crop_and_jitter(signals, draws).flatten() / signals.flatten()
    assert kept.tolist() == pytest.approx([1, 1, 0.75, 0, 0, 0.75, 1, 1])


@pytest.fixture
def setting(dataset: Dataset) -> Setting:
    """The inputs of a few PT steps whose minibatches are drawn with the strengths `AT`."""
    own = EcgPretraining(batch_size=16, epochs=2, **{key: AT[key] for key in ("crop", "noise", "temperature")})
    return Setting(dataset, 2, own, 0, 40, "patients", lambda part: pytest.fail(part))


def test_all_estimators_give_a_slope_for_each_strength(setting: Setting) -> None:
    study = {"draws": 2, "horizons": [1, 3], "finetune_batch": 8, "finetune_lr": 1e-3}
    found = estimate(setting, arm_of(**AT), study)
    steps = setting.steps
    assert [each.horizon for each in found if each.estimator == "exact, ridge head"] == [1, 3, steps]
    assert len(found) == 6 + 3 + 2 + 3
    for each in found:
        assert each.gradient.keys() == set(STRENGTHS.values())
        values = torch.stack(list(each.gradient.values()))
        assert torch.isfinite(values).all()
        assert (values != 0).all()


def test_perturbed_runs_have_the_moved_strengths_and_the_minibatches_of_the_other_estimates(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a move the last loss is that of a ridge head at the end of PT."""
    given: list[Any] = []
    monkeypatch.setattr(evolution, "slope", lambda *words: given.extend(words))
    evolution.estimate(setting, arm_of(**AT), pairs=5, windows=4, size=0.5)
    trajectory, meta, moves, size = given
    assert (moves.shape, size) == ((5, 4, 4), 0.5)
    moved = meta(torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=torch.float64))
    for sign, (name, own) in zip((1, -1, 1, -1), STRENGTHS.items(), strict=True):
        assert float(moved[own]) == pytest.approx(math.log(AT[name]) + sign * 0.5, rel=1e-6)
    losses, _ = trajectory.losses([meta(torch.zeros(4))])
    problem, labelled = problem_of(setting, arm_of(**AT)), folds(setting)
    start = setting.initial(), problem.initial(), setting.initial_head()
    end = pretrain(problem, setting.batches(), *start, Adam(setting.pretrain.lr), setting.steps)
    train = [labelled.train() for _ in range(RIDGE.minibatches)]
    encoder, buffers = end.pretrained.encoder, end.pretrained.buffers
    tuned = RIDGE(problem, encoder, buffers, end.head, None, train, labelled.validation())
    assert losses.tolist() == pytest.approx([float(tuned.validation_loss)], rel=1e-5)
