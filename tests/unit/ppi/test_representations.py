"""CKA compares every pair of arms on the same graphs and the same PT seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.data.dataset import on_device, splits
from metapt.domains.ppi.data.graphs import save
from metapt.domains.ppi.experiments.representations import FeaturesSettings
from metapt.domains.ppi.experiments.representations.run import compared, linear_cka, run
from metapt.domains.ppi.gin import GinEncoder, initial_pretrained
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.training.pretrained_file import Learned, save_pretrained

from .small_graphs import COARSE, TEST_SPECIES, small_graphs

ARMS = ("no_pt", "meta", "meta-stable")
SETTINGS = FeaturesSettings(domain="ppi", network=Network(layers=2, width=4), test_species=[TEST_SPECIES], graphs=50)


NETWORKS = {
    f"{arm}/{seed}": initial_pretrained(2, 4, COARSE, torch.Generator().manual_seed(10 * place + seed))
    for place, arm in enumerate(ARMS)
    for seed in range(2)
}


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    found = {"graphs": tmp_path / "graphs.npz"}
    save(small_graphs(), found["graphs"])
    for name, network in NETWORKS.items():
        path = found[f"pretrained/{name}"] = tmp_path / f"{name.replace('/', '')}.pt"
        save_pretrained(Learned(network, {}), path)
    return found


def outputs(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{name}.csv" for name in ("metrics", "series")}


def test_every_pair_of_arms_with_the_same_pt_seed_is_compared_on_the_same_graphs(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    run(SETTINGS, inputs, outputs(tmp_path), Machine())
    assert metrics.read_series(tmp_path / "series.csv").empty
    table = metrics.read(tmp_path / "metrics.csv")
    assert set(zip(table["experiment"], table["setting"], table["evaluation"], strict=True)) == {
        ("ppi", "full_access", "representations")
    }
    found = table.set_index(["arm", "metric", "replicate"])["value"]
    assert set(found.index) == {(a, f"CKA with {b}", seed) for a in ARMS for b in ARMS if a != b for seed in range(2)}

    dataset = on_device(small_graphs(), "cpu")
    batch = dataset.batch(compared(splits(dataset.graphs, [TEST_SPECIES]), 50))

    def features(arm: str, seed: int) -> torch.Tensor:
        encoder, _, buffers = NETWORKS[f"{arm}/{seed}"]
        return GinEncoder(2, 4)({**encoder, **buffers}, batch, training=False)

    for arm, metric, seed in found.index:
        other = metric.removeprefix("CKA with ")
        expected = linear_cka(features(arm, seed), features(other, seed))
        assert found[arm, metric, seed] == pytest.approx(expected, abs=1e-6)
        assert found[arm, metric, seed] == pytest.approx(found[other, f"CKA with {arm}", seed], abs=1e-12)


def test_the_compared_graphs_are_a_fixed_draw_of_ft_graphs() -> None:
    parts = splits(small_graphs(), [TEST_SPECIES])
    whole = {*parts.train.tolist(), *parts.validation.tolist(), *parts.hard.tolist()}
    some = compared(parts, 30)
    assert len(some.unique()) == 30
    assert set(some.tolist()) <= whole
    assert all(set(some.tolist()) & set(part.tolist()) for part in (parts.train, parts.validation, parts.hard))
    assert torch.equal(some, compared(parts, 30))
    assert set(compared(parts, 6400).tolist()) == whole
