"""An FT job on small files: its tables, the choice of the learning rate, and resumption after a kill."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from metapt.twostage.transfer import Transfer

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


def given(method: str, inputs: dict[str, Path]) -> dict[str, Path]:
    return inputs if method != "no_pt" else {"graphs": inputs["graphs"]}


def untimed(folder: Path) -> list[bytes]:
    """Return the lines of the tables without those of the time."""
    found = b"".join(path.read_bytes() for path in outputs(folder).values())
    return [line for line in found.splitlines() if FT_TIME.encode() not in line]


def outputs(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{name}.csv" for name in ("metrics", "series")}


def test_leaves_the_numbers_of_every_ft_seed(inputs: dict[str, Path], tmp_path: Path) -> None:
    run(config_of(tmp_path, setting="half_data"), inputs, outputs(tmp_path), Machine())
    table = metrics.read(tmp_path / "metrics.csv")
    assert set(table["experiment"]) == {"ppi"}
    assert set(table["setting"]) == {"half_data"}
    replicates = {pair(SEED, number) for number in range(FT_SEEDS)}
    series = metrics.read_series(tmp_path / "series.csv")
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
    config = config_of(tmp_path, setting=setting, evaluations=["linear_evaluation"])
    run(config, inputs, outputs(tmp_path), Machine())
    series = metrics.read_series(tmp_path / "series.csv")
    assert set(series[series["name"].str.contains("of a task")]["step"]) == tasks


def test_a_task_without_positives_in_validation_is_left_out(inputs: dict[str, Path], tmp_path: Path) -> None:
    graphs = tmp_path / "graphs.npz"
    save(small_graphs(without_positives=(2,)), graphs)
    run(config_of(tmp_path), inputs | {"graphs": graphs}, outputs(tmp_path), Machine())
    assert np.isfinite(metrics.read(tmp_path / "metrics.csv")["value"]).all()
    save(small_graphs(without_positives=tuple(range(FINE))), graphs)
    with pytest.raises(DataError, match="no class has both labels among the 12 validation graphs"):
        run(config_of(tmp_path), inputs | {"graphs": graphs}, outputs(tmp_path), Machine())


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
    config, own = config_of(tmp_path), given(method, inputs)
    run(config, own, outputs(tmp_path), Machine())
    for of_them in starts.values():
        assert len(set(of_them)) == (FT_SEEDS if method == "no_pt" else 1)
    assert set(starts["full_transfer"]) == set(starts["linear_evaluation"])
    first = untimed(tmp_path)
    run(config, own, outputs(tmp_path), Machine())
    assert untimed(tmp_path) == first
    others = {name: set(found) for name, found in starts.items()}
    run(config_of(tmp_path, seed=SEED + 1), own, outputs(tmp_path), Machine())
    assert (set(starts["full_transfer"]) > others["full_transfer"]) == (method == "no_pt")


Transfers = list[tuple[str, float]]


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Transfers:
    """Record label and learning rate of each FT run of the whole network."""
    made: Transfers = []
    real = finetuning.full_transfer

    def full_transfer(*arguments: Any) -> Transfer:
        made.append((arguments[-1].split(", learning")[0], arguments[2]))
        return real(*arguments)

    monkeypatch.setattr(finetuning, "full_transfer", full_transfer)
    return made


@pytest.mark.parametrize(("method", "survived"), [("supervised", 0), ("no_pt", 1), ("supervised", 2)])
def test_a_killed_job_repeats_one_run_at_most_and_ends_in_the_same_bytes(
    method: str,
    survived: int,
    inputs: dict[str, Path],
    tmp_path: Path,
    transfers: Transfers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, own = config_of(tmp_path), given(method, inputs)
    run(config, own, outputs(tmp_path / "whole"), Machine())
    whole, recorded = list(transfers), finetuning.full_transfer
    assert len(whole) == len(LRS) + FT_SEEDS - 1
    transfers.clear()

    def broken(*arguments: Any) -> Transfer:
        if len(transfers) == survived:
            raise KeyboardInterrupt
        return recorded(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "full_transfer", broken)
        with pytest.raises(KeyboardInterrupt):
            run(config, own, outputs(tmp_path / "resumed"), Machine())
    run(config, own, outputs(tmp_path / "resumed"), Machine())
    assert transfers == whole
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "resumed")


def test_a_checkpoint_for_another_encoder_is_passed_over(
    inputs: dict[str, Path], tmp_path: Path, transfers: Transfers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(metrics, "write", broken)
        with pytest.raises(KeyboardInterrupt):
            run(config_of(tmp_path), inputs, outputs(tmp_path), Machine())
    count = len(transfers)
    other = tmp_path / "other.pt"
    random = torch.Generator().manual_seed(SEED + 1)
    save_pretrained(Learned(initial_pretrained(2, 4, COARSE, random), {}), other)
    run(config_of(tmp_path), inputs | {"pretrained": other}, outputs(tmp_path), Machine())
    assert len(transfers) == 2 * count


def test_trials_of_learning_rates_are_the_first_epochs_of_whole_runs(
    inputs: dict[str, Path], tmp_path: Path, transfers: Transfers
) -> None:
    chosen = dict[object, object]()
    for trial in (None, 1, 2):
        run(config_of(tmp_path, finetune={"epochs": 2, "trial_epochs": trial}), inputs, outputs(tmp_path), Machine())
        chosen[trial] = untimed(tmp_path)
    assert chosen[2] == chosen[None]
    assert len(transfers) == 3 * (len(LRS) + FT_SEEDS - 1)
