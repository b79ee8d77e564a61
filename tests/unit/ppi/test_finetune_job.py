"""An FT job on small files: its tables, the choice of the learning rate, and what it starts from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.domains.ppi.data.graphs import save
from metapt.domains.ppi.finetune import run
from metapt.domains.ppi.gin import initial_pretrained
from metapt.domains.ppi.stages import PpiFinetuneSettings
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.training.pretrained_file import Learned, save_pretrained
from metapt.twostage import finetuning
from metapt.twostage.quantities import FT_TIME
from metapt.twostage.replicates import pair

from .small_graphs import COARSE, FINE, TEST_SPECIES, small_graphs

SEED, FT_SEEDS = 1, 2
LRS, LINEAR_LRS = [1e-4, 1e-2], [1e-3, 3e-2]
EVALUATIONS = ["full_transfer", "linear_evaluation"]
MEAN = "mean test AUROC over FT tasks (%)"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return graphs and pretrained.pt."""
    folder = tmp_path_factory.mktemp("ppi")
    found = {"graphs": folder / "graphs.npz", "pretrained": folder / "pretrained.pt"}
    save(small_graphs(), found["graphs"])
    random = torch.Generator().manual_seed(SEED)
    save_pretrained(Learned(initial_pretrained(2, 4, COARSE, random), {}), found["pretrained"])
    return found


def config_of(folder: Path, **changes: Any) -> PpiFinetuneSettings:
    section = {"epochs": 2, "linear_epochs": 3, "batch_size": 16, "lrs": LRS, "linear_lrs": LINEAR_LRS}
    settings = {
        "domain": "ppi",
        "arm": "mine",
        "setting": "full_access",
        "seed": SEED,
        "finetune_seeds": FT_SEEDS,
        "evaluations": EVALUATIONS,
        "network": {"layers": 2, "width": 4},
        "finetune": section | changes.pop("finetune", {}),
        "test_species": [TEST_SPECIES],
        "checkpoint": str(folder / "resume" / "ft.pt"),
    }
    return PpiFinetuneSettings.model_validate(settings | changes)


def run_in(folder: Path, inputs: dict[str, Path], **changes: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run a job, and return its tables."""
    paths = {name: folder / f"{name}.csv" for name in ("metrics", "series")}
    run(config_of(folder, **changes), inputs, paths, Machine())
    return metrics.read(paths["metrics"]), metrics.read_series(paths["series"])


def test_leaves_the_numbers_of_every_ft_seed(inputs: dict[str, Path], tmp_path: Path) -> None:
    table, series = run_in(tmp_path, inputs, setting="half_data")
    assert set(table["experiment"]) == {"ppi"}
    assert set(table["setting"]) == {"half_data"}
    replicates = {pair(SEED, number) for number in range(FT_SEEDS)}
    for evaluation, lrs in zip(EVALUATIONS, (LRS, LINEAR_LRS), strict=True):
        cells = table[table["evaluation"] == evaluation].pivot(index="replicate", columns="metric", values="value")
        assert set(cells.index) == replicates
        assert set(cells.columns) == {MEAN, "validation AUROC (%)", "best epoch", "learning rate", FT_TIME}
        assert (cells[FT_TIME] > 0).all()
        assert set(cells["learning rate"]) <= set(lrs)
        for replicate, cell in cells.iterrows():
            own = series[series["replicate"] == replicate]
            tasks = own[own["name"] == f"{evaluation}, test AUROC of a task (%)"].set_index("step")["value"]
            assert list(tasks.index) == list(range(FINE))
            assert cell[MEAN] == pytest.approx(tasks.mean())
            curve = own[own["name"] == f"{evaluation}, validation AUROC (%)"].set_index("step")["value"]
            assert curve[cell["best epoch"]] == cell["validation AUROC (%)"] == curve.max()
    assert table[table["metric"] == MEAN]["value"].nunique() > FT_SEEDS
    assert not [path for path in (tmp_path / "resume").rglob("*") if path.is_file()]


@pytest.mark.parametrize(("setting", "tasks"), [("held_out_0", {0}), ("held_out_3", {3, 4})])
def test_is_on_the_tasks_of_the_held_out_part_by_their_numbers(
    setting: str, tasks: set[int], inputs: dict[str, Path], tmp_path: Path
) -> None:
    _, series = run_in(tmp_path, inputs, setting=setting, evaluations=["linear_evaluation"])
    assert set(series[series["name"].str.contains("of a task")]["step"]) == tasks


def test_a_task_without_positives_in_validation_is_left_out(inputs: dict[str, Path], tmp_path: Path) -> None:
    inputs = inputs | {"graphs": tmp_path / "graphs.npz"}
    save(small_graphs(without_positives=(2,)), inputs["graphs"])
    assert np.isfinite(run_in(tmp_path, inputs)[0]["value"]).all()
    save(small_graphs(without_positives=tuple(range(FINE))), inputs["graphs"])
    with pytest.raises(DataError, match="no class has both labels among the 12 validation graphs"):
        run_in(tmp_path, inputs)


@pytest.mark.parametrize("method", ["supervised", "no_pt"])
def test_without_pt_each_ft_seed_has_an_encoder_of_its_own_and_else_pts(
    method: str, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: dict[str, list[tuple[Any, ...]]] = {name: [] for name in EVALUATIONS}

    def spied(name: str, real: Any, *arguments: Any) -> Any:
        starts[name].append(tuple(arguments[1].encoder["node"].tolist()))
        return real(*arguments)

    for name in EVALUATIONS:
        monkeypatch.setattr(finetuning, name, partial(spied, name, getattr(finetuning, name)))
    own = inputs if method != "no_pt" else {"graphs": inputs["graphs"]}
    first, again = (run_in(tmp_path, own)[0].query("metric != @FT_TIME") for _ in range(2))
    assert again.equals(first)
    for of_them in starts.values():
        assert len(set(of_them)) == (FT_SEEDS if method == "no_pt" else 1)
    assert set(starts["full_transfer"]) == set(starts["linear_evaluation"])
    before = set(starts["full_transfer"])
    run_in(tmp_path, own, seed=SEED + 1, evaluations=["full_transfer"])
    assert (set(starts["full_transfer"]) > before) == (method == "no_pt")


def test_trials_of_learning_rates_are_the_first_epochs_of_whole_runs(inputs: dict[str, Path], tmp_path: Path) -> None:
    whole, trials = (
        run_in(tmp_path, inputs, finetune={"trial_epochs": epochs}, evaluations=["full_transfer"])[0]
        for epochs in (None, 2)
    )
    assert trials.query("metric != @FT_TIME").equals(whole.query("metric != @FT_TIME"))
