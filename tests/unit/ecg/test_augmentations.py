"""The views that are shown are those of PT, and displacements are those of the warp."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.domains.ecg.arms import typical_displacement
from metapt.domains.ecg.augment import SCALE
from metapt.domains.ecg.config import EcgMeta, EcgPretraining, Simclr, Warp
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.experiments.augmentations import run as augmentations
from metapt.domains.ecg.experiments.augmentations.run import displacements
from metapt.domains.ecg.resnet1d import initial_pretrained
from metapt.domains.ecg.setting import policy_of
from metapt.domains.ecg.stages import DISPLACEMENT, LABEL, ORIGINAL, ViewsSettings, viewed
from metapt.evaluation import metrics
from metapt.files import write_csv
from metapt.machine import Machine
from metapt.training.pretrained_file import Learned, save_pretrained
from metapt.training.seeds import generator

STABLE = Warp(smoothing="velocity", scale="log", initial=4.0, network_width=0)
PAPER = Warp(initial=0.5, network_width=2)
SEEDS, SAMPLES = [0, 1], 200
LEARNED = 0.25
"""m of the paper's warp that PT is said to have learned."""


def run(folder: Path, arms: dict[str, Any], normal: list[int]) -> tuple[dict[str, np.ndarray], Any]:
    """Show ten ECGs, all but the first two of fold 10, none with hypertrophy; `normal`: the normal ones."""
    random = np.random.default_rng(0)
    np.save(folder / "signals.npy", np.cumsum(random.normal(0, 30, (10, 12, SAMPLES)), axis=2).astype(np.int16))
    table: dict[str, Any] = {"ecg_id": range(10), "patient_id": range(10), "fold": [1, 2] + [10] * 8}
    table |= {name: random.integers(0, 2, 10) if name != "HYP" else [0] * 10 for name in CLASSES}
    write_csv(table | {"NORM": [int(index in normal) for index in range(10)]}, folder / "records.csv")
    inputs = {"signals": folder / "signals.npy", "records": folder / "records.csv"}
    for name, arm in arms.items():
        for seed in SEEDS:
            meta = policy_of(arm.warp).initial(generator("ecg warp network", seed))
            if name == "meta":
                meta[SCALE] = torch.tensor(LEARNED * (1 + seed))
            path = inputs[f"pretrained/{name}/{seed}"] = folder / f"{name}{seed}.pt"
            save_pretrained(Learned(initial_pretrained(2, generator("encoder")), meta), path)
    settings = ViewsSettings(domain="ecg", arms=arms, seeds=SEEDS, width=2, samples=SAMPLES, pretrain=EcgPretraining())
    outputs = {name: folder / f"{name}.csv" for name in ("metrics", "series")}
    augmentations.run(settings, inputs, outputs, Machine())
    shown = {
        str(name): part.pivot(index="replicate", columns="step", values="value").to_numpy()
        for name, part in pd.DataFrame(metrics.read_series_rows(outputs["series"])).groupby("name")
    }
    return shown, metrics.read(outputs["metrics"])


@pytest.mark.slow
def test_what_is_shown(tmp_path: Path) -> None:
    arms = {"simclr": Simclr(method="simclr", warp=STABLE), "meta": EcgMeta(warp=PAPER)}
    shown, table = run(tmp_path, arms, normal=[1, 3, 5])
    stored = np.load(tmp_path / "signals.npy")
    np.testing.assert_allclose(shown[ORIGINAL][0], stored[3, 1] / 1000, atol=1e-5)

    for name in arms:
        assert shown[viewed(name, "learned")].shape == (2, SAMPLES)
        assert shown[viewed(name, "strength")].shape == (1, 8)
    np.testing.assert_array_equal(shown[LABEL + "NORM"][0], [0, 1, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(shown[viewed("simclr", "initial")], shown[viewed("simclr", "learned")])
    learned = shown[viewed("meta", "learned")]
    assert not np.array_equal(shown[viewed("meta", "initial")], learned)
    assert not np.array_equal(learned[0], learned[1])
    fixed = float(typical_displacement(policy_of(STABLE), torch.tensor(4.0), SAMPLES))
    np.testing.assert_allclose(shown[viewed("simclr", "strength")], fixed, rtol=1e-5)
    strength = shown[viewed("meta", "strength")][0]
    assert len(set(strength)) == 8

    assert set(table["evaluation"]) == {"augmentations"}
    assert set(table["metric"]) == {DISPLACEMENT}
    value = metrics.select(table, experiment="ecg", arm="meta", metric=DISPLACEMENT, setting="class=MI")
    assert list(value.index) == SEEDS
    assert value[0] == pytest.approx(strength[shown[LABEL + "MI"][0] > 0].mean())
    assert value[1] > value[0]
    assert math.isnan(metrics.select(table, experiment="ecg", arm="meta", metric=DISPLACEMENT, setting="class=HYP")[0])


def test_the_first_test_ecg_is_shown_where_none_has_the_first_class(tmp_path: Path) -> None:
    shown, _ = run(tmp_path, {"simclr": Simclr(method="simclr", warp=STABLE)}, normal=[1])
    np.testing.assert_allclose(shown[ORIGINAL][0], np.load(tmp_path / "signals.npy")[2, 1] / 1000, atol=1e-5)


@pytest.mark.parametrize("warp", [STABLE, Warp(initial=0.25)], ids=["stable", "paper"])
def test_displacements_between_the_points_of_the_grid(warp: Warp) -> None:
    policy, strength = policy_of(warp), torch.tensor([0.0, 0.37, 2.9, 7.3])
    exact = [float(typical_displacement(policy, each, 400)) for each in strength]
    np.testing.assert_allclose(displacements(policy, strength, 400), exact, rtol=1e-2, atol=1e-6)
    assert np.isnan(displacements(policy, torch.full((2,), math.nan), 400)).all()
