"""What the arms of ECGs learn, search and see, with a tiny setting; the contract suite has what all arms promise."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metapt.domains.ecg import arms as pretraining
from metapt.domains.ecg import config
from metapt.domains.ecg.arms import meta_loop, pretrain
from metapt.domains.ecg.config import Warp
from metapt.domains.ecg.policy import SCALE
from metapt.domains.ecg.quantities import CANDIDATE_LOSS, CANDIDATE_STRENGTH, DISPLACEMENT, WARP_SCALE, WARP_STRENGTH
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import Params
from metapt.training.pretraining import Pretrainer
from metapt.twostage.pretraining import PretrainRun

from ..twostage.whole_runs import Stopped, Unsaved, equal
from .small_ecgs import ARMS, shorten_bissl

MILD = Warp(smoothing="velocity", scale="log", initial=4.0, network_width=0)
KEPT = ["simclr", "simclr-joint", "bissl", "bissl-start"]  # their warp is not learned
LEARNING = ["meta", "meta-stable", "meta-random_sign", "meta-permuted_labels", "optsla"]


def warp_of(name: str) -> Warp:
    arm = ARMS[name]
    assert not isinstance(arm, config.NoPretraining)
    return arm.warp


Make = Callable[..., Setting]
FEW: dict[str, Any] = {"signals": 12, "epochs": 1}


@pytest.fixture(scope="module", autouse=True)
def short_bissl() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shorten_bissl(patch)
        yield


@pytest.fixture(scope="module")
def ran(setting_in: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PretrainRun]:
    """Return an arm's run of seed 0, made once."""
    return functools.cache(
        lambda name: pretrain(ARMS[name], setting_in(tmp_path_factory.mktemp(name), checkpoint=Unsaved))
    )


@pytest.mark.parametrize("name", [name for name in ARMS if name != "no_pt"])
def test_a_run_tells_what_its_warp_does(ran: Callable[[str], PretrainRun], name: str, make: Make) -> None:
    run, policy = ran(name), policy_of(warp_of(name))
    assert run.numbers[WARP_SCALE] == float(run.meta[SCALE])
    assert run.numbers[WARP_STRENGTH] == pytest.approx(float(policy.global_strength(run.meta)))
    assert 0 < run.numbers[DISPLACEMENT] < 64
    assert equal(run.meta, make().initial_meta(policy)) == (name in KEPT) or name == "best_of"


@pytest.mark.parametrize("name", LEARNING)
def test_what_is_learned_moves_and_its_trajectory_is_recorded(
    ran: Callable[[str], PretrainRun], name: str, make: Make
) -> None:
    run = ran(name)
    start = make().initial_meta(policy_of(warp_of(name)))
    assert all((value != start[key]).any() for key, value in run.meta.items())
    assert sorted({row["step"] for row in run.series}) == [0, 1, 2, 3, 4]
    first = next(row["value"] for row in run.series if row["name"] == WARP_STRENGTH)
    assert first == pytest.approx(float(policy_of(warp_of(name)).global_strength(start)), rel=1e-6)
    by_name = {row["name"]: row["value"] for row in run.series}
    for number in (WARP_SCALE, WARP_STRENGTH, DISPLACEMENT):
        assert by_name[number] == pytest.approx(run.numbers[number], rel=1e-6)
    if name != "optsla":
        assert {"moved", "swing", "hypergradient"} <= run.numbers.keys()


SEARCHED = (CANDIDATE_STRENGTH, CANDIDATE_LOSS)


@pytest.mark.parametrize("name", ["simclr", "random_search"])
def test_pt_that_diverges_is_an_error(make: Make, name: str) -> None:
    setting = make()
    broken = dataclasses.replace(setting, dataset=dataclasses.replace(setting.dataset, mean=math.nan))
    message = "all 3 candidates have diverged" if name == "random_search" else "the PT loss at step"
    with pytest.raises(TrainingError, match=message):
        pretrain(ARMS[name], broken)


def test_random_search_costs_its_budget(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, run = [], Pretrainer.run

    def counting(self: Pretrainer, meta: Params, count: int, *others: Any) -> int:
        counts.append(count)
        return run(self, meta, count, *others)

    monkeypatch.setattr(Pretrainer, "run", counting)
    pretrain(ARMS["random_search"].model_copy(update={"candidates": 2, "budget": 1.5}), make(epochs=1))
    assert counts == [1, 1, 4]
    with pytest.raises(ConfigError, match=r"can't be dealt out to .* or at most \d+ folds"):
        pretrain(ARMS["random_search"], make(meta_size=4))
    assert len(counts) == 3, "found before PT"


def test_random_search_takes_the_strength_with_the_least_loss_and_none_that_diverges(
    make: Make, setting_in: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(run: PretrainRun) -> list[list[float]]:
        return [[row["value"] for row in run.series if row["name"] == name] for name in SEARCHED]

    found = pretrain(ARMS["random_search"], make(**FEW))
    tried, losses = of(found)
    assert len(tried) == len(losses) == 3
    assert all(0.5 <= strength <= 8 for strength in tried)
    assert found.numbers[WARP_STRENGTH] == pytest.approx(tried[int(np.argmin(losses))], rel=1e-6)
    best, run = int(np.argmin(losses)), Pretrainer.run

    def diverging(self: Pretrainer, meta: Params, count: int, label: str, *others: Any) -> int:
        if label.startswith(f"candidate {best + 1},"):
            raise TrainingError("the PT loss at step 1 is nan.")
        return run(self, meta, count, label, *others)

    monkeypatch.setattr(Pretrainer, "run", diverging)
    found = pretrain(ARMS["random_search"], setting_in(tmp_path / "other", **FEW))
    losses[best] = math.nan
    np.testing.assert_equal(of(found), [tried, losses])
    assert float(found.meta[SCALE].exp()) == pytest.approx(tried[int(np.nanargmin(losses))])


def test_a_placebo_has_the_first_hypergradient_but_for_its_sign_or_for_its_labels(make: Make) -> None:
    """Over PT seeds both signs occur; permuted labels give another direction."""

    def moved(placebo: str | None, seed: int) -> tuple[Tensor, Params]:
        arm = ARMS["meta-random_sign"].model_copy(update={"placebo": placebo, "meta_optimizer": "SGD"})
        assert isinstance(arm, config.EcgMeta)
        loop, _ = meta_loop(make(seed=seed), arm)
        before = {name: value.detach().clone() for name, value in loop.meta.items()}
        loop.iterate()
        step = torch.cat([(loop.meta[name] - value).flatten().detach() for name, value in before.items()])
        return step, {name: value.detach().clone() for name, value in loop.pretrained.encoder.items()}

    signs = set[float]()
    for seed in range(6):
        step, weights = moved(None, seed)
        flipped, others = moved("random_sign", seed)
        signs.add(1.0 if torch.equal(flipped, step) else -1.0)
        torch.testing.assert_close(flipped, step if torch.equal(flipped, step) else -step, rtol=1e-3, atol=1e-7)
        assert equal(others, weights)
        if len(signs) == 2:
            break
    permuted, others = moved("permuted_labels", seed)
    assert not torch.allclose(permuted.abs(), step.abs(), rtol=1e-3)
    assert equal(others, weights)
    assert len(signs) == 2


@pytest.mark.parametrize(("size", "folds"), [(25, 5), (14, 5), (25, 2)])
def test_a_cross_fitted_head_takes_all_labelled_ecgs_in_folds(make: Make, size: int, folds: int) -> None:
    """See the tests of minibatches for how patients are dealt out to folds."""
    setting, arm = make(meta_size=size), ARMS["meta-stable"].model_copy(update={"folds": folds})
    loop, _ = meta_loop(setting, arm)
    assert loop.settings.finetuning.minibatches == folds - 1
    parts = [loop.batches.validation(), *(loop.batches.train() for _ in range(folds - 1))]
    seen = [signal_of(signal) for part in parts for signal in part.signals]
    assert sorted(seen) == sorted(signal_of(signal) for signal in setting.labelled().signals)
    assert min(len(part.signals) for part in parts) == size // folds


def signal_of(signal: torch.Tensor) -> bytes:
    return signal.numpy().tobytes()


@pytest.mark.parametrize("name", ["meta", "optsla"])
def test_meta_updates_train_on_ft_training_ecgs_and_are_judged_by_the_others(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given: list[Any] = []

    def stop(problem: Any, batches: Any, *others: Any, **more: Any) -> None:
        given.append(batches)
        raise Stopped

    monkeypatch.setattr(pretraining, "MetaPretraining", stop)
    setting = make()
    with pytest.raises(Stopped):
        pretrain(ARMS[name], setting)
    (batches,) = given
    train, validation = ({signal_of(s) for s in setting.dataset.signals(part)} for part in setting.finetune)
    for _ in range(3):
        assert {signal_of(signal) for signal in batches.train().signals} < train
        judges = {signal_of(signal) for signal in batches.validation().signals}
        assert judges == validation if name == "optsla" else judges < validation


def test_encoders_are_evaluated_by_cross_validation_over_patients(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []
    monkeypatch.setattr(pretraining, "cross_validated_loss", lambda *args: given.append(args[2]) or 0.0)
    setting = make()
    pretraining.evaluate_encoder(setting, setting.initial(), setting.labelled(), setting.folds(4), 1e-2)
    (fold,) = given
    patients = setting.dataset.records.patients[np.concatenate(setting.finetune)]
    assert len(set(patients)) < len(patients)
    assert len(set(zip(patients, fold.tolist(), strict=True))) == len(set(patients))
    assert set(fold.tolist()) == set(range(4))


def test_bfloat16_is_of_pt_steps_and_float32_of_hypergradients(setting_in: Make, tmp_path: Path) -> None:
    for name in ("simclr", "meta"):
        usual = partial(setting_in, tmp_path, checkpoint=Unsaved, epochs=1)
        lower, plain = usual(precision="bfloat16"), usual()
        runs = [pretrain(ARMS[name], setting).pretrained.encoder["stem.weight"] for setting in (lower, plain)]
        assert not torch.equal(*runs)
        torch.testing.assert_close(*runs, rtol=0, atol=8 * 1e-3)  # four Adam steps of 1e-3
    arm = ARMS["meta"]
    assert isinstance(arm, config.EcgMeta)
    loops = [meta_loop(setting, arm)[0] for setting in (lower, plain)]
    gradients = [loop._hypergradient(loop.head, loop.head_state).gradient for loop in loops]
    assert equal(*gradients)


def test_a_run_that_computes_anew_ends_alike(make: Make, ran: Callable[[str], PretrainRun]) -> None:
    arm = ARMS["meta"].model_copy(update={"recompute": True})
    again, once = pretrain(arm, make(checkpoint=Unsaved)), ran("meta")
    torch.testing.assert_close(again.meta, once.meta)
    torch.testing.assert_close(again.pretrained.encoder, once.pretrained.encoder)


@pytest.mark.parametrize("key", ["crop", "noise", "temperature"])
def test_pt_takes_the_views_and_the_temperature_of_its_settings(key: str, setting_in: Make, tmp_path: Path) -> None:
    def encoder(place: str, **keys: float) -> Params:
        setting = setting_in(tmp_path / place, **FEW | keys)
        return pretrain(config.Simclr(method="simclr", warp=MILD), setting).pretrained.encoder

    usual, own = encoder("usual"), encoder("own", **{key: 0.3})
    assert any(not torch.equal(usual[name], own[name]) for name in usual)
