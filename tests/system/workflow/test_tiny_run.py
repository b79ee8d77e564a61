"""One tiny run of the whole workflow, from the raw files to the headline."""

from __future__ import annotations

import json
from pathlib import Path

from metapt.evaluation import metrics
from metapt.evaluation.experiment import SUMMARY

from .conftest import NOTHING, TINY, snakemake

ARMS = {"meta", "meta-shared", "k2"}


def test_a_run_leaves_everything_and_has_then_nothing_to_do(finished: Path) -> None:
    results = finished / "results/tiny"
    study = results / "mnist/rotation_mean"
    for arm in ARMS:
        record = json.loads((study / arm / "run.json").read_text())
        assert (record["state"], record["config"]["arm"]) == ("done", arm)
        assert list(record["config"]["settings"]["arms"]) == [arm]
        assert {path.name for path in (study / arm).iterdir()} == {"run.json", "metrics.csv", "series.csv", "log.txt"}
    assert {path.name for path in study.iterdir()} >= {*SUMMARY.values()}
    assert 'id="mnist_rotation_mean"' in (results / "index.html").read_text()
    assert set(metrics.read(results / "metrics.csv")["arm"]) >= ARMS
    assert "mnist_rotation_mean" in (results / "headline.md").read_text()
    assert not list((results / ".resume").rglob("*.pt"))
    assert NOTHING in snakemake(finished, "--dry-run", "--configfile", TINY["mnist"]).text
