"""Very small data: no graph, one graph, graphs without edges, no positives. Reported, never averaged in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter

from metapt.domains.ecg.data.prepare import KEYS
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ppi.config import Arm, Network
from metapt.domains.ppi.data.graphs import Graphs, check, load, pack, save
from metapt.domains.ppi.gin import load_pretrained
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.sections import plain

from .conftest import PRETRAINED, Jobs, Kind

pytestmark = pytest.mark.slow
COARSE, FINE, TEST_SPECIES = 10, 5, 30


def graphs(count: int, edges: bool) -> Graphs:
    """Paths of four nodes, or four nodes without an edge; a third of them of each of three species."""
    random = np.random.default_rng(0)
    each = 3 if edges else 0
    path = np.array([[0, 1], [1, 2], [2, 3]], np.uint16)[:each]
    return Graphs(
        node_offsets=4 * np.arange(count + 1),
        edge_offsets=each * np.arange(count + 1),
        edges=np.tile(path, (count, 1)),
        bits=random.integers(1, 128, each * count).astype(np.uint8),
        centre=np.zeros(count, np.uint16),
        species=np.resize(np.array([10, 20, TEST_SPECIES], np.int32), count),
        coarse=pack(random.random((count, COARSE)) < 0.5),
        fine=pack(random.random((count, FINE)) < 0.5),
        tasks=np.array([COARSE, FINE]),
    )


def pretraining(folder: Path, found: Graphs, arm: dict[str, Any]) -> Kind:
    """PT on these graphs."""
    inputs = {"graphs": folder / "graphs.npz", "tasks": folder / "tasks.csv"}
    save(found, inputs["graphs"])
    kinds = ["coarse"] * COARSE + ["fine"] * FINE
    numbers = [*range(COARSE), *range(FINE)]
    words = {
        "term": [f"GO:{number:07d}" for number in range(COARSE + FINE)],
        "category": "process",
        "description": "a term",
    }
    pd.DataFrame({"kind": kinds, "task": numbers, **words, "positives": 1}).to_csv(inputs["tasks"], index=False)
    config = {"domain": "ppi", "arm": "mine", "arm_settings": plain(TypeAdapter(Arm).validate_python(arm)), "seed": 0}
    config |= {"setting": "full_access", "network": {"layers": 2, "width": 4}, "test_species": [TEST_SPECIES]}
    config |= {"pretrain": {"epochs": 2, "batch_size": 16, "online_evaluations": 1}}
    return Kind("pretrain", "domains.ppi.pretrain", config, inputs, PRETRAINED)


ARMS = {"PT": {"method": "supervised"}, "meta-PT": {"method": "meta", "pretrain_steps": 2, "batch_size": 16}}


def test_no_graphs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no graphs"):
        check(graphs(0, edges=True))
    save(graphs(0, edges=True), tmp_path / "graphs.npz")
    with pytest.raises(DataError, match=r"does not hold prepared graphs \(there are no graphs\)"):
        load(tmp_path / "graphs.npz")


@pytest.mark.parametrize("name", ARMS)
def test_one_graph(name: str, jobs: Jobs, tmp_path: Path) -> None:
    ended = jobs.run(pretraining(tmp_path, graphs(1, edges=True), ARMS[name]).job(tmp_path / "run"))
    assert "the split by species leaves a part empty: 1 graphs to learn from" in ended.error


@pytest.mark.parametrize("name", ARMS)
def test_graphs_without_edges(name: str, jobs: Jobs, tmp_path: Path) -> None:
    """Nothing to pass along an edge is still something to learn from: the run ends with an encoder of numbers."""
    ended = jobs.run(pretraining(tmp_path, graphs(90, edges=False), ARMS[name]).job(tmp_path / "run"))
    assert ended.status == 0, ended.stderr
    learned = load_pretrained(tmp_path / "run" / "out" / "pretrained.pt", Network(layers=2, width=4), "cpu")
    for params in (*learned.pretrained, learned.meta):
        assert all(value.isfinite().all() for value in params.values())


def labelled(kind: Kind, folder: Path, change: Callable[[pd.DataFrame], None]) -> Kind:
    """The same job on records with other labels."""
    table = pd.read_csv(kind.inputs["records"])
    assert list(table.columns) == [*KEYS, *CLASSES]
    change(table)
    table.to_csv(folder / "records.csv", index=False)
    return replace(kind, inputs=kind.inputs | {"records": folder / "records.csv"})


def test_a_class_without_positives(jobs: Jobs, tmp_path: Path) -> None:
    """Its AUROC is undefined: the log names it, the table has NaN for it, and the mean is over the others."""

    def nobody(table: pd.DataFrame) -> None:
        table["HYP"] = 0

    ended = jobs.run(labelled(jobs["FT"], tmp_path, nobody).job(tmp_path / "run"))
    assert ended.status == 0, ended.stderr
    assert "the AUROC on the validation ECGs leaves out" in ended.log
    assert "HYP" in ended.log
    table = metrics.read(tmp_path / "run" / "out" / "metrics.csv")
    rows = table[table["evaluation"] == "linear_evaluation"].pivot(index="replicate", columns="metric", values="value")
    of_class = rows[[f"test AUROC {name} (%)" for name in CLASSES]]
    assert of_class["test AUROC HYP (%)"].isna().all()
    assert np.allclose(rows["mean test AUROC over 5 classes (%)"], of_class.mean(axis=1, skipna=True))


def test_no_class_with_positives(jobs: Jobs, tmp_path: Path) -> None:
    def nobody(table: pd.DataFrame) -> None:
        table[list(CLASSES)] = 0

    ended = jobs.run(labelled(jobs["FT"], tmp_path, nobody).job(tmp_path / "run"))
    assert "no class has both labels among the" in ended.error


def test_no_test_records(jobs: Jobs, tmp_path: Path) -> None:
    def untested(table: pd.DataFrame) -> None:
        table.loc[table["fold"] == 10, "fold"] = 9

    ended = jobs.run(labelled(jobs["FT"], tmp_path, untested).job(tmp_path / "run"))
    assert "has no records of fold 10, to test on" in ended.error


def test_more_asked_than_there_is(jobs: Jobs, tmp_path: Path) -> None:
    kind = replace(jobs["FT"], config=jobs["FT"].config | {"size": 100_000})
    ended = jobs.run(kind.job(tmp_path / "run"))
    assert "100000 ECGs are asked for, but folds 1-9 have" in ended.error
