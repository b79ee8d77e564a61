"""A run that is killed again and again leaves, byte for byte, what an undisturbed one leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

DRIVER = Path(__file__).with_name("interrupted.py")
ROTATION = {"pretrain_examples": 64, "finetune_examples": 64, "batch_size": 8}
STACKED = {
    "unroll": "head",
    "pretrain_steps": 2,
    "warmup_epochs": 0.75,
    "head_steps_between_updates": 1,
    "average_decay": 0.9,
}
OF_THREADS = {"unroll": "head", "pretrain_lr": 1e-3, "meta_lr": 1e-3}
RUNS: dict[str, tuple[str, dict[str, Any], list[int], int, str]] = {
    "stacked replicates": (
        "rotation_mean",
        {**ROTATION, "replicates": 2, "epochs": 2, "arms": {"a": {"method": "meta", **STACKED}}},
        [2, 3, 1],
        1,
        "meta-PT",
    ),
    "replicates in threads": (
        "example_weighting",
        {
            "replicates": 2,
            "pretrain_examples": 40,
            "classes": 11,
            "batch_size": 8,
            "epochs": 2,
            "arms": {"a": {"method": "meta", **OF_THREADS}},
        },
        [3, 5, 4],
        2,
        "meta-PT of seed 0",
    ),
    "backpropagation through PT and FT": (
        "bptt",
        {
            **ROTATION,
            "pretrain_steps": 3,
            "finetune_steps": 3,
            "replicates": 1,
            "evaluations": 1,
            "arms": {"a": {"method": "bptt", "outer_steps": 16}},
        },
        [2, 5, 3],
        1,
        "mnist_bptt a",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_ends_in_the_same_bytes(name: str, digits: Path, tmp_path: Path) -> None:
    experiment, settings, saves, threads, label = RUNS[name]
    config = {"domain": "mnist", "experiment": experiment, "arm": "a", "settings": settings}
    job = {"entry": f"domains.mnist.experiments.{experiment}.run", "config": config, "inputs": {"data": str(digits)}}
    (tmp_path / "job.json").write_text(json.dumps(job | {"saves": saves, "threads": threads}))
    done = subprocess.run([sys.executable, str(DRIVER), str(tmp_path / "job.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["left"] == []
    matches = [re.search(rf"{label} goes on at .* (\d+)$", line) for line in report["resumed"]]
    steps = [int(match[1]) for match in matches if match]
    assert steps == sorted(steps)
    assert steps, "it was resumed"
    assert threads > 1 or len(set(steps)) == len(saves), "it got on in between"
    for table in ("series", *(("metrics",) if experiment != "bptt" else ())):
        whole, cut = ((tmp_path / part / f"{table}.csv").read_bytes() for part in ("whole", "cut"))
        assert len(whole) > 100
        assert whole == cut
    if experiment == "bptt":  # its metrics have the time that it took
        tables = [
            pd.read_csv(tmp_path / part / "metrics.csv").set_index("metric")["value"] for part in ("whole", "cut")
        ]
        for metric in ("learned mean (degrees)", "FT test accuracy (%)", "outer steps"):
            assert tables[0][metric] == tables[1][metric]
