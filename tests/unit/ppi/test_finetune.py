"""FT jobs on protein graphs: FT tasks by their numbers, encoders without PT, and trials of learning rates."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.domains.ppi.data.dataset import on_device, splits
from metapt.domains.ppi.data.graphs import save
from metapt.domains.ppi.features import head_aurocs
from metapt.domains.ppi.finetune import finetune_tasks, sets_of
from metapt.domains.ppi.gin import GinEncoder, initial_head, initial_pretrained, logits
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.auroc import mean_auroc
from metapt.training.pretrained_file import Learned, save_pretrained
from metapt.training.seeds import generator
from metapt.twostage import finetuning
from metapt.twostage.quantities import FT_TIME

from ...contract.domain_cases import CASES
from .small_graphs import COARSE, FINE, TEST_SPECIES, small_graphs

PPI = CASES["ppi"]
FT: dict[str, Any] = PPI.section["finetune"] | {"linear_lrs": [1e-3, 3e-2]}
RATES = {"full_transfer": FT["lrs"], "linear_evaluation": FT["linear_lrs"]}
START = initial_pretrained(2, 4, COARSE, torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ppi")
    save_pretrained(Learned(START, {}), folder / "pretrained.pt")
    return PPI.prepare(folder) | {"pretrained": folder / "pretrained.pt"}


def run(
    folder: Path, prepared: dict[str, Path], setting: str = "full_access", arm: str = "graph_supervised", seed: int = 1,
    evaluations: tuple[str, ...] = tuple(RATES), **changes: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """Do an FT job, and return its tables, without times."""
    jobs = PPI.jobs(folder, evaluations=list(evaluations), finetune=FT | changes)
    made = PPI.work(jobs.finetune(arm, setting, seed), prepared)
    table = metrics.read(made["metrics"])
    return table[table["metric"] != FT_TIME], metrics.read_series(made["series"])


@pytest.mark.parametrize(
    ("setting", "tasks", "evaluations"),
    [
        ("full_access", list(range(FINE)), tuple(RATES)),
        ("held_out_0", [0], ("linear_evaluation",)),
        ("held_out_3", [3, 4], ("linear_evaluation",)),
    ],
)
def test_the_tasks_of_the_setting_are_tested_by_their_numbers(
    setting: str, tasks: list[int], evaluations: tuple[str, ...], prepared: dict[str, Path], tmp_path: Path
) -> None:
    table, series = run(tmp_path, prepared, setting, evaluations=evaluations)
    for (evaluation, replicate), part in table.groupby(["evaluation", "replicate"]):
        cell = part.set_index("metric")["value"]
        own = series[(series["replicate"] == replicate) & (series["name"] == f"{evaluation}, test AUROC of a task (%)")]
        assert own["step"].tolist() == tasks
        assert cell["mean test AUROC over FT tasks (%)"] == pytest.approx(own["value"].mean())
        assert cell["learning rate"] in RATES[str(evaluation)]


def test_a_task_without_positives_in_validation_is_left_out(prepared: dict[str, Path], tmp_path: Path) -> None:
    graphs = {"graphs": tmp_path / "graphs.npz"}
    save(small_graphs(without_positives=(2,)), graphs["graphs"])
    assert np.isfinite(run(tmp_path, prepared | graphs)[0]["value"]).all()
    save(small_graphs(without_positives=tuple(range(FINE))), graphs["graphs"])
    with pytest.raises(DataError, match="no class has both labels among the 12 validation graphs"):
        run(tmp_path, prepared | graphs)


@pytest.mark.parametrize("arm", ["graph_supervised", "no_pt"])
def test_without_pt_each_ft_seed_has_an_encoder_of_its_own_and_else_pts(
    arm: str, prepared: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: dict[str, list[tuple[Any, ...]]] = {name: [] for name in RATES}

    def spied(name: str, real: Any, *given: Any) -> Any:
        starts[name].append(tuple(given[1].encoder["node"].tolist()))
        return real(*given)

    for name in RATES:
        monkeypatch.setattr(finetuning, name, partial(spied, name, getattr(finetuning, name)))
    run(tmp_path, prepared, arm=arm)
    before = set(starts["full_transfer"])
    assert before == set(starts["linear_evaluation"])
    assert before == {tuple(START.encoder["node"].tolist())} if arm != "no_pt" else len(before) == 2
    run(tmp_path, prepared, arm=arm, seed=2, evaluations=("full_transfer",))
    assert len(set(starts["full_transfer"])) == (4 if arm == "no_pt" else 1)


def test_trials_of_learning_rates_are_the_first_epochs_of_whole_runs(prepared: dict[str, Path], tmp_path: Path) -> None:
    whole, trials = (
        run(tmp_path, prepared, evaluations=("full_transfer",), trial_epochs=epochs)[0] for epochs in (None, 2)
    )
    assert trials.equals(whole)


@pytest.mark.parametrize("count", [4, 6, 10, 40])
def test_held_out_parts_of_the_tasks_are_equal_disjoint_and_all(count: int) -> None:
    folds = [finetune_tasks(f"held_out_{fold}", count) for fold in range(4)]
    assert torch.equal(torch.cat(folds), torch.arange(count))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    with pytest.raises(DataError, match="3 FT tasks don't make the 4 parts"):
        finetune_tasks("held_out_0", 3)


def test_the_auroc_of_a_head_is_that_of_its_logits_on_its_tasks() -> None:
    dataset, encoder, tasks = on_device(small_graphs(), "cpu"), GinEncoder(2, 4), torch.tensor([4, 0])
    test, network = sets_of(dataset, splits(dataset.graphs, [TEST_SPECIES]), tasks).test, START.encoder | START.buffers
    head = initial_head(4, 2, generator("head"))
    outputs = logits(head, encoder(network, dataset.batch(test), training=False))
    expected = 100 * float(mean_auroc(outputs, dataset.fine(test)[:, tasks]))
    assert head_aurocs(encoder, network, head, dataset, test, tasks) == pytest.approx(expected, abs=1e-9)
