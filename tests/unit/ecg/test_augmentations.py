"""The views that are shown are those of PT, and displacements are those of the warp."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.domains.ecg import problem
from metapt.domains.ecg.arms import typical_displacement
from metapt.domains.ecg.augment import draw
from metapt.domains.ecg.config import EcgMeta, EcgPretraining, Simclr, Warp
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.experiments.augmentations import run as augmentations
from metapt.domains.ecg.experiments.augmentations.run import displacements, strengths, views
from metapt.domains.ecg.experiments.augmentations.settings import ViewsSettings
from metapt.domains.ecg.policy import SCALE
from metapt.domains.ecg.quantities import DISPLACEMENT, ORIGINAL, label, viewed
from metapt.domains.ecg.resnet1d import initial_pretrained
from metapt.domains.ecg.setting import policy_of
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.training.pretrained_file import Learned, save_pretrained
from metapt.training.seeds import generator

STABLE = Warp(smoothing="velocity", scale="log", initial=4.0, network_width=0)
PAPER = Warp(initial=0.5, network_width=2)
SEEDS = [0, 1]
LEARNED = 0.25
"""m of the paper's warp that PT is said to have learned."""


def write(folder: Path, normal: list[int]) -> dict[str, Path]:
    """Write ten prepared ECGs, all but the first two of fold 10, without hypertrophy; `normal`: the normal ones."""
    random = np.random.default_rng(0)
    signals = np.cumsum(random.normal(0, 30, (10, 12, 1000)), axis=2).astype(np.int16)
    table = pd.DataFrame({"ecg_id": range(10), "patient_id": range(10), "fold": [1, 2] + [10] * 8})
    for name in CLASSES:
        table[name] = random.integers(0, 2, 10) if name != "HYP" else 0
    table["NORM"] = [int(index in normal) for index in range(10)]
    np.save(folder / "signals.npy", signals)
    table.to_csv(folder / "records.csv", index=False)
    return {"signals": folder / "signals.npy", "records": folder / "records.csv"}


def run(folder: Path, arms: dict[str, Any], normal: list[int]) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    inputs = write(folder, normal)
    for name, arm in arms.items():
        for seed in SEEDS:
            warp = getattr(arm, "warp", STABLE)
            meta = policy_of(warp).initial(generator("ecg warp network", seed))
            if name == "meta":
                meta[SCALE] = torch.tensor(LEARNED * (1 + seed))
            inputs[f"pretrained/{name}/{seed}"] = folder / f"{name}{seed}.pt"
            save_pretrained(Learned(initial_pretrained(2, generator("encoder")), meta), folder / f"{name}{seed}.pt")
    settings = ViewsSettings(domain="ecg", arms=arms, seeds=SEEDS, width=2, samples=1000, pretrain=EcgPretraining())
    outputs = {name: folder / f"{name}.csv" for name in ("metrics", "series")}
    augmentations.run(settings, inputs, outputs, Machine())
    series = metrics.read_series(outputs["series"])
    shown = {
        str(name): part.pivot(index="replicate", columns="step", values="value").to_numpy()
        for name, part in series.groupby("name")
    }
    return shown, metrics.read(outputs["metrics"])


def test_what_is_shown(tmp_path: Path) -> None:
    arms = {"simclr": Simclr(method="simclr", warp=STABLE), "meta": EcgMeta(warp=PAPER)}
    shown, table = run(tmp_path, arms, normal=[1, 3, 5])
    stored = np.load(tmp_path / "signals.npy")
    np.testing.assert_allclose(shown[ORIGINAL][0], stored[3, 1] / 1000, atol=1e-5)

    for name in arms:
        assert shown[viewed(name, "learned")].shape == (2, 1000)
        assert shown[viewed(name, "strength")].shape == (1, 8)
    np.testing.assert_array_equal(shown[label("NORM")][0], [0, 1, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(shown[viewed("simclr", "initial")], shown[viewed("simclr", "learned")])
    learned = shown[viewed("meta", "learned")]
    assert not np.array_equal(shown[viewed("meta", "initial")], learned)
    assert not np.array_equal(learned[0], learned[1])
    fixed = float(typical_displacement(policy_of(STABLE), torch.tensor(4.0), 1000))
    np.testing.assert_allclose(shown[viewed("simclr", "strength")], fixed, rtol=1e-5)
    strength = shown[viewed("meta", "strength")][0]
    assert len(set(strength)) == 8

    assert set(table["evaluation"]) == {"augmentations"}
    assert set(table["metric"]) == {DISPLACEMENT}
    value = metrics.select(table, experiment="ecg", arm="meta", metric=DISPLACEMENT, setting="class=MI")
    assert list(value.index) == SEEDS
    assert value[0] == pytest.approx(strength[shown[label("MI")][0] > 0].mean())
    assert value[1] > value[0]
    assert math.isnan(metrics.select(table, experiment="ecg", arm="meta", metric=DISPLACEMENT, setting="class=HYP")[0])


def test_the_first_test_ecg_is_shown_where_none_has_the_first_class(tmp_path: Path) -> None:
    shown, _ = run(tmp_path, {"simclr": Simclr(method="simclr", warp=STABLE)}, normal=[1])
    np.testing.assert_allclose(shown[ORIGINAL][0], np.load(tmp_path / "signals.npy")[2, 1] / 1000, atol=1e-5)


@pytest.mark.parametrize("warp", [STABLE, Warp(initial=0.25, network_width=0)])
def test_views_are_those_of_pretraining(warp: Warp) -> None:
    policy = policy_of(warp)
    meta = policy.initial(generator("meta"))
    signal = torch.randn(200, 12, generator=generator("signal"))
    draws = draw(2, 200, 12, "fixed", generator("draws"), crop=0.5, noise=0.1)
    ours = views(policy, strengths(policy, meta, signal.unsqueeze(0))[0], signal, draws)
    torch.testing.assert_close(ours, problem.views(policy, meta, signal.unsqueeze(0), draws))


@pytest.mark.parametrize("warp", [STABLE, Warp(initial=0.25)], ids=["stable", "paper"])
def test_displacements_between_the_points_of_the_grid(warp: Warp) -> None:
    policy, strength = policy_of(warp), torch.tensor([0.0, 0.37, 2.9, 7.3])
    exact = [float(typical_displacement(policy, each, 400)) for each in strength]
    np.testing.assert_allclose(displacements(policy, strength, 400), exact, rtol=1e-2, atol=1e-6)
    assert np.isnan(displacements(policy, torch.full((2,), math.nan), 400)).all()
