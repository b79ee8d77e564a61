"""A PT job on small files: its tables, and its use of known properties of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.domains.ppi.config import Network, PpiPretraining
from metapt.domains.ppi.data.dataset import on_device
from metapt.domains.ppi.data.graphs import save
from metapt.domains.ppi.gin import initial_pretrained, load_pretrained
from metapt.domains.ppi.pretrain import run, weight_numbers
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, task_weights
from metapt.domains.ppi.quantities import ONLINE, QUANTILES
from metapt.domains.ppi.stages import PpiPretrainSettings
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.training.pretrained_file import Learned, save_pretrained
from metapt.training.seeds import generator

from .graphs_helper import related_graphs
from .small_graphs import COARSE, FINE, TEST_SPECIES

NETWORK = Network(layers=2, width=4)
META = {"method": "meta", "pretrain_steps": 2, "warmup_epochs": 0.5, "batch_size": 16}
SUPERVISED = {"method": "supervised"}
PURPOSES = ["useful"] * 4 + ["irrelevant"] * 3 + ["noise"] * 3
DESCRIBED = [f"planted: {purpose}" for purpose in PURPOSES]
TASKS = pd.DataFrame(
    {
        "kind": ["coarse"] * COARSE + ["fine"] * FINE,
        "task": [*range(COARSE), *range(FINE)],
        "term": [f"GO:{number:07d}" for number in range(COARSE + FINE)],
        "category": "process",
        "description": [*DESCRIBED, *["planted: target"] * FINE],
        "positives": 40,
    }
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return graphs, tasks with empty or meaningless descriptions, and weights that another arm has learned."""
    folder = tmp_path_factory.mktemp("ppi")
    found = {"graphs": folder / "graphs.npz", "tasks": folder / "tasks.csv", "weights": folder / "weights.pt"}
    save(related_graphs(), found["graphs"])
    TASKS.assign(description=["", "NA"] + ["a process"] * (COARSE + FINE - 2)).to_csv(found["tasks"], index=False)
    network = initial_pretrained(2, 4, COARSE, torch.Generator().manual_seed(0))
    save_pretrained(Learned(network, {WEIGHTS: torch.linspace(-2, 2, COARSE)}), found["weights"])
    return found


def config_of(folder: Path, arm: dict[str, Any], **changes: Any) -> PpiPretrainSettings:
    settings = {
        "domain": "ppi",
        "arm": "mine",
        "arm_settings": arm,
        "setting": "full_access",
        "seed": 0,
        "network": {"layers": 2, "width": 4},
        "pretrain": {"epochs": 2, "batch_size": 16, "online_evaluations": 2},
        "test_species": [TEST_SPECIES],
        "checkpoint": str(folder / "resume" / "pt.pt"),
    }
    return PpiPretrainSettings.model_validate(settings | changes)


def run_in(folder: Path, inputs: dict[str, Path], arm: dict[str, Any], **changes: Any) -> Learned:
    """Run a job, and return what it has learned."""
    files = {"pretrained": "pretrained.pt", "metrics": "metrics.csv", "series": "series.csv"}
    run(config_of(folder, arm, **changes), inputs, {name: folder / file for name, file in files.items()}, Machine())
    return load_pretrained(folder / "pretrained.pt", NETWORK, "cpu")


def figures(folder: Path) -> dict[str, float]:
    table = metrics.read(folder / "metrics.csv")
    found = table[["experiment", "arm", "setting", "evaluation"]].drop_duplicates().to_numpy().tolist()
    assert found == [["ppi", "mine", "full_access", "pretraining"]]
    return dict(zip(table["metric"], table["value"], strict=True))


def test_a_learner_leaves_its_encoder_weights_and_tables(inputs: dict[str, Path], tmp_path: Path) -> None:
    learned = run_in(tmp_path, inputs, META, seed=3)
    weights = task_weights(learned.meta)
    assert learned.pretrained.head["bias"].shape == (COARSE,)
    assert set(metrics.read(tmp_path / "metrics.csv")["replicate"]) == {3}
    found = figures(tmp_path)
    assert {"PT wall time (s)", "PT time per step (s)", "PT peak memory (GB)"} <= found.keys()
    assert {*ONLINE.values(), "mean weight of relatives"} <= found.keys()
    assert not any("planted" in name for name in found)
    series = metrics.read_series(tmp_path / "series.csv")
    assert set(series["replicate"]) == {0}
    last = series[series["name"] == "learned weight"]
    assert last["step"].tolist() == list(range(COARSE))
    assert last["value"].tolist() == pytest.approx(weights.tolist(), rel=1e-6)
    assert set(series["name"]) == {"learned weight", *ONLINE.values(), *QUANTILES}
    assert not [path for path in (tmp_path / "resume").rglob("*") if path.is_file()]


@pytest.mark.parametrize("arm", [{"method": "no_pt"}, SUPERVISED])
def test_an_arm_that_learns_no_weights_leaves_none(
    arm: dict[str, Any], inputs: dict[str, Path], tmp_path: Path
) -> None:
    assert run_in(tmp_path, inputs, arm).meta == {}
    assert len(metrics.read_series(tmp_path / "series.csv")) == 0
    assert not any("weight" in name for name in figures(tmp_path))


def setting_of() -> PpiSetting:
    dataset, fail = on_device(related_graphs(), "cpu"), lambda: pytest.fail("no checkpoint")
    return PpiSetting(dataset, NETWORK, PpiPretraining(), [TEST_SPECIES], 0, "full_access", None, fail)


def test_weights_are_held_against_what_is_known_of_the_tasks() -> None:
    weights = np.linspace(1.9, 0.1, COARSE)  # the useful tasks, those of lowest number, weigh most
    found = weight_numbers(weights, DESCRIBED, setting_of())
    assert found["AUROC of weight against planted use"] == 1
    assert found["mean weight of relatives"] == pytest.approx(weights[3])
    assert found["mean weight of others"] == pytest.approx(np.delete(weights, 3).mean())
    assert weight_numbers(weights[::-1].copy(), DESCRIBED, setting_of())["AUROC of weight against planted use"] == 0
    for all_alike in ("", "planted: useful", "planted: noise"):
        assert "AUROC of weight against planted use" not in weight_numbers(weights, [all_alike] * COARSE, setting_of())


def test_an_arm_takes_the_weights_of_its_input(inputs: dict[str, Path], tmp_path: Path) -> None:
    frozen = {"method": "supervised", "weights": {"of": "meta"}}
    weighted, plainly = (run_in(tmp_path, inputs, arm).pretrained for arm in (frozen, SUPERVISED))
    assert not torch.equal(weighted.encoder["node"], plainly.encoder["node"])
    none = tmp_path / "none.pt"
    save_pretrained(Learned(weighted, {}), none)
    words = r"none\.pt holds no learned task weights, since its arm learns none; let `weights.of` name"
    with pytest.raises(DataError, match=words):
        run_in(tmp_path, {**inputs, "weights": none}, frozen)


def test_random_weights_are_those_of_the_seed(inputs: dict[str, Path], tmp_path: Path) -> None:
    path, contents = tmp_path / "pretrained.pt", []
    for seed in (0, 0, 1):
        found = run_in(tmp_path, inputs, {"method": "no_pt"}, seed=seed).pretrained.encoder
        contents.append(path.read_bytes())
    assert contents[0] == contents[1] != contents[2]
    expected = initial_pretrained(2, 4, COARSE, generator("ppi weights", 1))
    assert all(torch.equal(value, expected.encoder[name]) for name, value in found.items())
