"""Hypergradients equal those of the loop, and the horizon equals plain PT with plain cross-validation."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.domains.ecg import arms as pretraining
from metapt.domains.ecg.arms import meta_loop
from metapt.domains.ecg.config import EcgMeta, EcgPretraining, Warp
from metapt.domains.ecg.data.dataset import open_dataset
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.policy import SCALE
from metapt.domains.ecg.quantities import (
    DISPLACEMENT,
    MEAN,
    NOT_FINITE,
    OLD_HEAD,
    POSITIVE,
    REFITTED_HEAD,
    STANDARD_DEVIATION,
)
from metapt.domains.ecg.setting import Setting
from metapt.domains.ecg.studies import warp_study
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.method import ConjugateGradients
from metapt.training.checkpoint import Checkpoint
from metapt.training.pretrained_file import Learned, save_pretrained
from metapt.training.pretraining import Pretrainer

pytestmark = pytest.mark.slow

WARP = Warp(smoothing="velocity", scale="log", initial=4.0, network_width=0)
FITTED: dict[str, Any] = {
    "pretrain_steps": 2,
    "unroll": "fitted",
    "folds": 2,
    "curvature": "gauss_newton",
    "inverse": ConjugateGradients(kind="conjugate_gradient", max_steps=2, damping=0.1),
}
ARMS = {
    "one step": EcgMeta(warp=WARP, pretrain_steps=2, batch_size=4),
    "no step": EcgMeta(warp=WARP, pretrain_steps=2, batch_size=4, unroll_steps=0),
    "fitted": EcgMeta(warp=WARP, **FITTED),
}
PRETRAIN = {"epochs": 2, "batch_size": 4, "lr": 1e-3}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return twenty prepared ECGs, the last two of fold 10."""
    folder = tmp_path_factory.mktemp("prepared")
    random = np.random.default_rng(0)
    signals = np.cumsum(random.normal(0, 30, (20, 12, 1000)), axis=2).astype(np.int16)
    table = pd.DataFrame({"ecg_id": range(20), "patient_id": range(20), "fold": [1] * 18 + [10] * 2})
    for name in CLASSES:
        table[name] = random.integers(0, 2, 20)
    np.save(folder / "signals.npy", signals)
    table.to_csv(folder / "records.csv", index=False)
    return {"signals": folder / "signals.npy", "records": folder / "records.csv"}


@pytest.fixture
def setting(inputs: dict[str, Path], tmp_path: Path) -> Setting:
    def checkpoint(part: str) -> Checkpoint:
        return Checkpoint(tmp_path / f"checkpoint{part}.pt", "test")

    dataset = open_dataset(inputs, 1000, "cpu")
    return Setting(dataset, 2, EcgPretraining.model_validate(PRETRAIN), 0, 10, "patients", checkpoint)


@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_draws_are_the_hypergradients_of_the_loop(setting: Setting, arm: EcgMeta) -> None:
    pretrained, initial = setting.initial(), 2.0
    ours = warp_study.hypergradients(setting, arm, pretrained, setting.initial_head(), initial, 3)
    loop, _ = meta_loop(setting, arm.model_copy(update={"warp": WARP.model_copy(update={"initial": initial})}))
    head, state = warp_study.online_head(setting, arm, loop.settings, pretrained, setting.initial_head())
    theirs = [float(loop._hypergradient(head, state).gradient[SCALE]) for _ in range(3)]
    assert ours.tolist() == theirs
    assert len(set(theirs)) == 3


def test_draws_change_nothing_that_they_are_given(setting: Setting) -> None:
    pretrained, head = setting.initial(), setting.initial_head()
    before = [{name: value.clone() for name, value in part.items()} for part in (*pretrained, head)]
    warp_study.hypergradients(setting, ARMS["one step"], pretrained, head, 4.0, 1)
    for part, kept in zip((*pretrained, head), before, strict=True):
        assert all(torch.equal(value, kept[name]) for name, value in part.items())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_head_is_where_the_online_head_would_be(setting: Setting, accumulate: int) -> None:
    """One minibatch is the whole FT training set, so that its order does not matter."""
    arm = EcgMeta(warp=WARP, pretrain_steps=1, warmup_epochs=1, head_steps_between_updates=2, accumulate=accumulate)
    loop, _ = meta_loop(setting, arm)
    head, state = warp_study.online_head(setting, arm, loop.settings, setting.initial(), setting.initial_head())
    assert (setting.steps, loop.settings.warmup) == (8, 4)
    assert int(state["step"]) == 4 * accumulate + 4 * 2
    for _ in range(4 * accumulate + 8):
        loop._head_step()
    torch.testing.assert_close(head, loop.head, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["no step", "fitted"])
def test_a_head_that_the_loop_does_not_train_stays(setting: Setting, name: str) -> None:
    start = setting.initial_head()
    settings = pretraining.meta_settings(ARMS[name], setting)
    head, _ = warp_study.online_head(setting, ARMS[name], settings, setting.initial(), start)
    assert all(torch.equal(head[key], start[key]) for key in start)


def test_without_further_steps_old_and_refitted_heads_are_one(setting: Setting) -> None:
    found = warp_study.horizon(setting, setting.initial(), WARP, [1.0, 8.0], [0, 1], 1e-2, 2)
    assert [(row.initial, row.steps) for row in found] == [(1.0, 0), (1.0, 1), (8.0, 0), (8.0, 1)]
    start = pretraining.evaluate_encoder(setting, setting.initial(), setting.labelled(), setting.folds(2), 1e-2)
    for row in (found[0], found[2]):
        assert row.old_head == pytest.approx(row.refitted_head, abs=1e-12)
        assert row.refitted_head == pytest.approx(start, abs=1e-12)
    assert found[1][2:] != found[3][2:]
    assert found[1].old_head != found[1].refitted_head


def test_the_horizon_is_pretraining_that_goes_on(setting: Setting) -> None:
    """Steps are counted from the checkpoint, and all strengths share the minibatches."""
    found = warp_study.horizon(setting, setting.initial(), WARP, [2.0], [3, 1], 1e-2, 2)
    alone = warp_study.horizon(setting, setting.initial(), WARP, [4.0, 2.0], [3], 1e-2, 2)
    assert [row.steps for row in found] == [1, 3]
    assert alone[1] == found[1]
    policy, meta = warp_study.warp_at(setting, WARP, 2.0)
    trainer = Pretrainer(setting.problem(policy), setting.batches(), setting.initial(), setting.optimizer)
    trainer.run(meta, 3)
    assert found[1].refitted_head == pretraining.evaluate_encoder(
        setting, trainer.pretrained, setting.labelled(), setting.folds(2), 1e-2
    )


def test_features_that_are_no_numbers_have_no_loss(setting: Setting) -> None:
    start = setting.initial()
    broken = start._replace(
        buffers={
            name: value * math.nan if value.is_floating_point() else value for name, value in start.buffers.items()
        }
    )
    losses = warp_study.horizon(setting, broken, WARP, [2.0], [0], 1e-2, 2)[0][2:]
    assert all(map(math.isnan, losses))


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    numbers = warp_study.summary(torch.tensor([1.0, math.nan, -3.0, math.inf, 5.0], dtype=torch.float64))
    assert numbers == {
        MEAN: 1.0,
        STANDARD_DEVIATION: 4.0,
        POSITIVE: pytest.approx(2 / 3),
        NOT_FINITE: pytest.approx(0.4),
    }
    nothing = warp_study.summary(torch.full((2,), math.nan))
    assert nothing[NOT_FINITE] == 1
    assert all(math.isnan(nothing[name]) for name in (MEAN, STANDARD_DEVIATION, POSITIVE))
    assert math.isnan(warp_study.summary(torch.ones(1))[STANDARD_DEVIATION])


@pytest.mark.parametrize("warp", [Warp(network_width=2), WARP], ids=["paper", "stable"])
def test_the_tables(setting: Setting, inputs: dict[str, Path], tmp_path: Path, warp: Warp) -> None:
    arm = EcgMeta(warp=warp, **FITTED)
    _, meta = warp_study.warp_at(setting, warp, 1.0)
    save_pretrained(Learned(setting.initial(), meta), tmp_path / "pretrained.pt")
    config = {
        "domain": "ecg",
        "arm": "meta-stable",
        "arm_settings": arm.model_dump(),
        "seed": 0,
        "meta_size": 10,
        "split": "patients",
        "width": 2,
        "samples": 1000,
        "pretrain": PRETRAIN,
        "study": {"draws": 2, "horizon": [1], "strengths": [1.0, 0.125]},
    }
    fixed = {f"fixed/{initial}": tmp_path / "pretrained.pt" for initial in ("0.125", "1")}
    outputs = {name: tmp_path / f"{name}.csv" for name in ("metrics", "series")}
    warp_study.run(config, inputs | fixed, outputs, Machine())

    table = metrics.read(outputs["metrics"])
    assert set(table["experiment"] + "/" + table["arm"]) == {"ecg/meta-stable"}
    assert set(table["replicate"]) == {0}
    drawn = table[table["evaluation"] == "hypergradient"]
    assert list(drawn["setting"].unique()) == ["initial=0.125", "initial=1"]
    assert set(drawn["metric"]) == {MEAN, STANDARD_DEVIATION, POSITIVE, NOT_FINITE, DISPLACEMENT}
    ahead = table[table["evaluation"] == "horizon"]
    assert list(ahead["setting"].unique()) == ["initial=0.125 steps=1", "initial=1 steps=1"]
    assert set(ahead["metric"]) == {OLD_HEAD, REFITTED_HEAD, DISPLACEMENT}
    series = metrics.read_series(outputs["series"])
    values = series[series["name"] == "hypergradient at 1"].set_index("step")["value"]
    assert list(values.index) == [0, 1]
    mean = drawn[(drawn["setting"] == "initial=1") & (drawn["metric"] == MEAN)]["value"].item()
    assert mean == pytest.approx(values.mean())
    ours = warp_study.hypergradients(setting, arm, setting.initial(), setting.initial_head(), 1.0, 2)
    assert values.tolist() == ours.tolist()


def test_each_strength_is_drawn_at_its_own_encoder_and_the_horizon_begins_at_the_middle_one(
    setting: Setting, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, meta = warp_study.warp_at(setting, WARP, 1.0)
    fixed = {}
    for seed, initial in enumerate(("0.125", "1", "4")):
        fixed[f"fixed/{initial}"] = tmp_path / f"{initial}.pt"
        save_pretrained(Learned(dataclasses.replace(setting, seed=seed).initial(), meta), fixed[f"fixed/{initial}"])
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(warp_study, "hypergradients", lambda *args: given.append(args) or torch.zeros(2))
    monkeypatch.setattr(warp_study, "horizon", lambda *args: given.append(args) or [])
    config = {"domain": "ecg", "arm": "meta-stable", "arm_settings": ARMS["one step"].model_dump(), "seed": 0}
    config |= {"meta_size": 10, "split": "patients", "width": 2, "samples": 1000, "pretrain": PRETRAIN}
    study = {"draws": 2, "horizon": [1], "strengths": [4.0, 0.125, 1.0]}
    outputs = {name: tmp_path / f"{name}.csv" for name in ("metrics", "series")}
    warp_study.run(config | {"study": study}, inputs | fixed, outputs, Machine())
    *drawn, (_, middle, *_) = given
    assert [arguments[4] for arguments in drawn] == [0.125, 1.0, 4.0]
    stems = [dataclasses.replace(setting, seed=seed).initial().encoder["stem.weight"] for seed in range(3)]
    assert all(
        torch.equal(arguments[2].encoder["stem.weight"], stem) for arguments, stem in zip(drawn, stems, strict=True)
    )
    assert torch.equal(middle.encoder["stem.weight"], stems[1])
