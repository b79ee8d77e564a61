"""What the arms of ECGs learn, search and see, with a tiny setting; the contract suite has what all arms promise."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metapt.domains.ecg import arms
from metapt.domains.ecg.arms import meta_loop, pretrain
from metapt.domains.ecg.augment import SCALE
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.domains.ecg.stages import CANDIDATE_LOSS, CANDIDATE_STRENGTH, DISPLACEMENT, WARP_SCALE, WARP_STRENGTH
from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import Params
from metapt.training.pretraining import Pretrainer
from metapt.twostage.pretraining import PretrainRun

from ..twostage.whole_runs import Stopped, Unsaved, equal
from .small_ecgs import ARMS as SMALL
from .small_ecgs import setting_in, shorten_bissl

ARMS: dict[str, Any] = SMALL
LEARNING = ["meta", "meta-stable", "optsla"]
KEPT = ["simclr", "simclr-joint", "bissl", "bissl-start"]  # their warp is not learned
FEW: dict[str, Any] = {"signals": 12, "epochs": 1}
Make = Callable[..., Setting]


@pytest.fixture(scope="module", autouse=True)
def short_bissl() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shorten_bissl(patch)
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PretrainRun]:
    """Return an arm's run of seed 0, made once."""
    return functools.cache(
        lambda name: pretrain(ARMS[name], setting_in(tmp_path_factory.mktemp(name), checkpoint=Unsaved))
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEARNING, *KEPT, "random_search", "best_of"])
def test_a_run_tells_what_its_warp_does_and_how_it_was_learned(
    ran: Callable[[str], PretrainRun], name: str, make: Make
) -> None:
    run, policy = ran(name), policy_of(ARMS[name].warp)
    start = make().initial_meta(policy)
    assert run.numbers[WARP_SCALE] == float(run.meta[SCALE])
    assert run.numbers[WARP_STRENGTH] == pytest.approx(float(policy.global_strength(run.meta)))
    assert 0 < run.numbers[DISPLACEMENT] < 64
    assert equal(run.meta, start) == (name in KEPT) or name == "best_of"
    if name not in LEARNING:
        return
    assert all((value != start[key]).any() for key, value in run.meta.items())
    assert sorted({row["step"] for row in run.series}) == [0, 1, 2, 3, 4]
    first = next(row["value"] for row in run.series if row["name"] == WARP_STRENGTH)
    assert first == pytest.approx(float(policy.global_strength(start)), rel=1e-6)
    last = {row["name"]: row["value"] for row in run.series}
    for number in (WARP_SCALE, WARP_STRENGTH, DISPLACEMENT):
        assert last[number] == pytest.approx(run.numbers[number], rel=1e-6)
    if name != "optsla":
        assert {"moved", "swing", "hypergradient"} <= run.numbers.keys()


@pytest.mark.parametrize(
    ("name", "message"), [("simclr", "the PT loss at step"), ("random_search", "all 3 candidates have diverged")]
)
def test_pt_that_diverges_is_an_error(make: Make, name: str, message: str) -> None:
    setting = make()
    broken = dataclasses.replace(setting, dataset=dataclasses.replace(setting.dataset, mean=math.nan))
    with pytest.raises(TrainingError, match=message):
        pretrain(ARMS[name], broken)


@pytest.mark.slow
def test_random_search_takes_the_strength_with_the_least_loss_and_costs_its_budget(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, lost, run = [], set[str](), Pretrainer.run

    def watched(self: Pretrainer, meta: Params, count: int, label: str, *others: Any, **words: Any) -> int:
        counts.append(count)
        if label.partition(",")[0] in lost:
            raise TrainingError("the PT loss at step 1 is nan.")
        return run(self, meta, count, label, *others, **words)

    def search(setting: Setting) -> tuple[PretrainRun, list[float], list[float]]:
        found = pretrain(ARMS["random_search"].model_copy(update={"budget": 2.5}), setting)
        tried, losses = (
            [row["value"] for row in found.series if row["name"] == name]
            for name in (CANDIDATE_STRENGTH, CANDIDATE_LOSS)
        )
        return found, tried, losses

    monkeypatch.setattr(Pretrainer, "run", watched)
    found, tried, losses = search(make(epochs=1))
    assert counts == [2, 2, 2, 4]
    assert len(tried) == len(losses) == 3
    assert all(0.5 <= strength <= 8 for strength in tried)
    best = int(np.argmin(losses))
    assert found.numbers[WARP_STRENGTH] == pytest.approx(tried[best], rel=1e-6)

    lost.add(f"candidate {best + 1}")
    found, again, others = search(setting_in(tmp_path / "other", epochs=1))
    losses[best] = math.nan
    np.testing.assert_equal([again, others], [tried, losses])
    assert float(found.meta[SCALE].exp()) == pytest.approx(tried[int(np.nanargmin(losses))])
    counts.clear()
    with pytest.raises(ConfigError, match=r"can't be dealt out to .* or at most \d+ folds"):
        search(make(meta_size=4))
    assert not counts, "found before PT"


@pytest.mark.slow
def test_a_placebo_has_the_first_hypergradient_but_for_its_sign_or_for_its_labels(make: Make) -> None:
    """Over PT seeds both signs occur; permuted labels give another direction."""

    def moved(placebo: str | None, seed: int) -> tuple[Tensor, Params]:
        arm = ARMS["meta-random_sign"].model_copy(update={"placebo": placebo, "meta_optimizer": "SGD"})
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


def signals_of(signals: Tensor) -> list[bytes]:
    return [signal.numpy().tobytes() for signal in signals]


@pytest.mark.parametrize(("size", "folds"), [(14, 5), (25, 2)])
def test_a_cross_fitted_head_takes_all_labelled_ecgs_in_folds(make: Make, size: int, folds: int) -> None:
    """See the tests of minibatches for how patients are dealt out to folds."""
    setting, arm = make(meta_size=size), ARMS["meta-stable"].model_copy(update={"folds": folds})
    loop, _ = meta_loop(setting, arm)
    assert loop.settings.finetuning.minibatches == folds - 1
    parts = [loop.batches.validation(), *(loop.batches.train() for _ in range(folds - 1))]
    seen = [signal for part in parts for signal in signals_of(part.signals)]
    assert sorted(seen) == sorted(signals_of(setting.labelled().signals))
    assert min(len(part.signals) for part in parts) == size // folds
    patients = setting.dataset.records.patients[np.concatenate(setting.finetune)]
    fold = setting.folds(folds).tolist()
    assert len(set(patients)) == len(set(zip(patients, fold, strict=True))) < len(patients)
    assert set(fold) == set(range(folds))


@pytest.mark.parametrize("name", ["meta", "optsla"])
def test_meta_updates_train_on_ft_training_ecgs_and_are_judged_by_the_others(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given: list[Any] = []

    def stop(problem: Any, batches: Any, *others: Any, **more: Any) -> None:
        given.append(batches)
        raise Stopped

    monkeypatch.setattr(arms, "MetaPretraining", stop)
    setting = make()
    with pytest.raises(Stopped):
        pretrain(ARMS[name], setting)
    (batches,) = given
    train, validation = ({*signals_of(setting.dataset.signals(part))} for part in setting.finetune)
    for _ in range(3):
        assert {*signals_of(batches.train().signals)} < train
        judges = {*signals_of(batches.validation().signals)}
        assert judges == validation if name == "optsla" else judges < validation


@pytest.mark.slow
def test_bfloat16_is_of_pt_steps_and_float32_of_hypergradients(tmp_path: Path) -> None:
    for name, keys in (("simclr", FEW), ("meta", {"epochs": 1})):
        lower, plain = (
            setting_in(tmp_path, checkpoint=Unsaved, precision=kind, **keys) for kind in ("bfloat16", "float32")
        )
        runs = [pretrain(ARMS[name], setting).pretrained.encoder["stem.weight"] for setting in (lower, plain)]
        assert not torch.equal(*runs)
        torch.testing.assert_close(*runs, rtol=0, atol=8 * 1e-3)  # four Adam steps of 1e-3
    loops = [meta_loop(setting, ARMS["meta"])[0] for setting in (lower, plain)]
    assert equal(*(loop._hypergradient(loop.head, loop.head_state).gradient for loop in loops))


@pytest.mark.slow
def test_a_run_that_computes_anew_ends_alike(make: Make, ran: Callable[[str], PretrainRun]) -> None:
    arm = ARMS["meta"].model_copy(update={"recompute": True})
    again, once = pretrain(arm, make(checkpoint=Unsaved)), ran("meta")
    torch.testing.assert_close(again.meta, once.meta)
    torch.testing.assert_close(again.pretrained.encoder, once.pretrained.encoder)


def test_pt_takes_the_views_and_the_temperature_of_its_settings(tmp_path: Path) -> None:
    settings = [{}, *({key: 0.3} for key in ("crop", "noise", "temperature"))]
    made = [setting_in(tmp_path, checkpoint=Unsaved, **FEW | keys) for keys in settings]
    usual, *own = (pretrain(ARMS["simclr"], setting).pretrained.encoder["stem.weight"] for setting in made)
    assert not any(torch.equal(usual, each) for each in own)
