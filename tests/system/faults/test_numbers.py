"""NaN, and very small data: reported, never averaged in, and without effect on a rerun without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import TypeAdapter

from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.prepare import KEYS
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.resnet1d import load_pretrained as load_resnet
from metapt.domains.ppi.config import Arm, Network
from metapt.domains.ppi.data.graphs import Graphs, pack, save
from metapt.domains.ppi.gin import load_pretrained
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.sections import JobSettings, plain
from metapt.training.pretrained_file import save_pretrained

from .conftest import PRETRAINED, Ended, Jobs, Kind, contents


def test_nan_in_raw_data(raw: dict[str, Path], tmp_path: Path) -> None:
    altered = tmp_path / "ptbxl_database.csv"
    text = raw["ptbxl_database.csv"].read_text()
    row = text.splitlines()[1].split(",")
    altered.write_text(text.replace(f"\n{row[0]},{row[1]},", f"\n{row[0]},nan,", 1))
    outputs = {name: tmp_path / name for name in ("signals", "records")}
    with pytest.raises(DataError, match="patient_id is 'nan', and a whole number is expected"):
        prepare.run(JobSettings(), raw | {"ptbxl_database.csv": altered}, outputs, Machine())
    assert not outputs["signals"].exists()


def test_nan_in_weights(jobs: Jobs, tmp_path: Path) -> None:
    """FT of an encoder that is not a number: no AUROC is made up."""
    learned = load_resnet(jobs["FT"].inputs["pretrained"], 2, "cpu")
    for value in learned.pretrained.encoder.values():
        value.mul_(torch.nan)
    save_pretrained(learned, tmp_path / "nan.pt")
    kind = replace(jobs["FT"], inputs=jobs["FT"].inputs | {"pretrained": tmp_path / "nan.pt"})
    ended = jobs.run(kind.job(tmp_path / "run"))
    assert ended.status == 0, ended.stderr
    assert "FT diverged: in 2 of 2 epochs outputs of the network were not finite" in ended.log
    table = metrics.read(tmp_path / "run" / "out" / "metrics.csv")
    assert table.loc[table["metric"].str.contains("AUROC"), "value"].isna().all()


@pytest.mark.parametrize("name", ["PT", "meta-PT"])
@pytest.mark.parametrize("checkpoints", [("checkpoint_always",), ()], ids=["checkpoints", "no checkpoint"])
def test_nan_in_the_loss(name: str, checkpoints: tuple[str, ...], jobs: Jobs, tmp_path: Path) -> None:
    ended = jobs.run(jobs[name].job(tmp_path), faults=(*checkpoints, "nan_loss"))
    place = {"PT": "step", "meta-PT": "PT step"}[name]
    assert f"the PT loss at {place}" in ended.error
    assert "is nan: look for NaN in the PT minibatches" in ended.error
    assert "lower the PT learning rate" in ended.error
    assert not contents(tmp_path)
    assert ("goes on at" in jobs.run_well(jobs[name], tmp_path).log) == bool(checkpoints)


def test_nan_in_a_hypergradient(jobs: Jobs, tmp_path: Path) -> None:
    ended = jobs.run(jobs["meta-PT"].job(tmp_path), faults=("one_nan_hypergradient",))
    assert ended.status == 0, ended.stderr
    assert "skipped 0.167" in ended.log  # one of six
    assert all(np.isfinite(row["value"]) for row in metrics.read_series_rows(tmp_path / "out" / "series.csv"))


def test_nan_in_every_hypergradient(jobs: Jobs, tmp_path: Path) -> None:
    kind = jobs["meta-PT"]
    kind = replace(kind, config=kind.config | {"pretrain": kind.config["pretrain"] | {"epochs": 4}})
    ended = jobs.run(kind.job(tmp_path), faults=("nan_hypergradients",))
    words = "10 hypergradients in a row could not be applied; the last one, at iteration 9, was not finite"
    assert ended.error.startswith(words)
    assert "Look for NaN in the minibatches" in ended.error
    assert not contents(tmp_path)
    jobs.run_well(kind, tmp_path)


def graphs(count: int, edges: int) -> Graphs:
    """Paths of four nodes, or four nodes without an edge; a third of them of each of three species."""
    random = np.random.default_rng(0)
    return Graphs(
        node_offsets=4 * np.arange(count + 1),
        edge_offsets=edges * np.arange(count + 1),
        edges=np.tile(np.array([[0, 1], [1, 2], [2, 3]], np.uint16)[:edges], (count, 1)),
        bits=random.integers(1, 128, edges * count).astype(np.uint8),
        centre=np.zeros(count, np.uint16),
        species=np.resize(np.array([10, 20, 30], np.int32), count),
        coarse=pack(random.random((count, 10)) < 0.5),
        fine=pack(random.random((count, 5)) < 0.5),
        tasks=np.array([10, 5]),
    )


ARMS = {"PT": {"method": "supervised"}, "meta-PT": {"method": "meta", "pretrain_steps": 2, "batch_size": 16}}


def pretrained(jobs: Jobs, folder: Path, found: Graphs, arm: dict[str, Any]) -> Ended:
    """Run PT on these graphs."""
    inputs = {"graphs": folder / "graphs.npz", "tasks": folder / "tasks.csv"}
    save(found, inputs["graphs"])
    tasks = [(kind, number) for kind, count in (("coarse", 10), ("fine", 5)) for number in range(count)]
    table = pd.DataFrame(tasks, columns=["kind", "task"])
    words = {"term": [f"GO:{number:07d}" for number in range(15)], "category": "process", "description": "a term"}
    table.assign(**words, positives=1).to_csv(inputs["tasks"], index=False)
    config = {"domain": "ppi", "arm": "mine", "arm_settings": plain(TypeAdapter(Arm).validate_python(arm)), "seed": 0}
    config |= {"setting": "full_access", "network": {"layers": 2, "width": 4}, "test_species": [30]}
    config |= {"pretrain": {"epochs": 2, "batch_size": 16, "online_evaluations": 1}}
    return jobs.run(Kind("pretrain", "domains.ppi.pretrain", config, inputs, PRETRAINED).job(folder / "run"))


@pytest.mark.parametrize("name", ARMS)
def test_one_graph(name: str, jobs: Jobs, tmp_path: Path) -> None:
    ended = pretrained(jobs, tmp_path, graphs(1, edges=3), ARMS[name])
    assert "the split by species leaves a part empty: 1 graphs to learn from" in ended.error


@pytest.mark.parametrize("name", ARMS)
def test_graphs_without_edges(name: str, jobs: Jobs, tmp_path: Path) -> None:
    """Nothing to pass along an edge is still something to learn from: the run ends with an encoder of numbers."""
    ended = pretrained(jobs, tmp_path, graphs(90, edges=0), ARMS[name])
    assert ended.status == 0, ended.stderr
    learned = load_pretrained(tmp_path / "run" / "out" / "pretrained.pt", Network(layers=2, width=4), "cpu")
    for params in (*learned.pretrained, learned.meta):
        assert all(value.isfinite().all() for value in params.values())


def labelled(jobs: Jobs, folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Ended:
    """Run FT on records with other labels."""
    kind = jobs["FT"]
    table = pd.read_csv(kind.inputs["records"])
    assert list(table.columns) == [*KEYS, *CLASSES]
    change(table).to_csv(folder / "records.csv", index=False)
    return jobs.run(replace(kind, inputs=kind.inputs | {"records": folder / "records.csv"}).job(folder / "run"))


def test_a_class_without_positives(jobs: Jobs, tmp_path: Path) -> None:
    """Its AUROC is undefined: the log names it, the table has NaN for it, and the mean is over the others."""
    ended = labelled(jobs, tmp_path, lambda table: table.assign(HYP=0))
    assert ended.status == 0, ended.stderr
    assert "the AUROC on the validation ECGs leaves out" in ended.log
    assert "HYP" in ended.log
    table = metrics.read(tmp_path / "run" / "out" / "metrics.csv")
    rows = table[table["evaluation"] == "linear_evaluation"].pivot(index="replicate", columns="metric", values="value")
    of_class = rows[[f"test AUROC {name} (%)" for name in CLASSES]]
    assert of_class["test AUROC HYP (%)"].isna().all()
    assert np.allclose(rows["mean test AUROC over 5 classes (%)"], of_class.mean(axis=1, skipna=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.assign(**dict.fromkeys(CLASSES, 0)), "no class has both labels among the"),
        (lambda table: table.assign(fold=table["fold"].replace(10, 9)), "has no records of fold 10, to test on"),
    ],
    ids=["no positives", "no test records"],
)
def test_labels_that_do_not_suffice(
    change: Callable[[pd.DataFrame], pd.DataFrame], words: str, jobs: Jobs, tmp_path: Path
) -> None:
    assert words in labelled(jobs, tmp_path, change).error


def test_more_asked_than_there_is(jobs: Jobs, tmp_path: Path) -> None:
    kind = replace(jobs["FT"], config=jobs["FT"].config | {"size": 100_000})
    assert "100000 ECGs are asked for, but folds 1-9 have" in jobs.run(kind.job(tmp_path)).error
