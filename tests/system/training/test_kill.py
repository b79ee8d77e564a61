"""A run that is killed again and again leaves, byte for byte, what an undisturbed one leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytestmark = pytest.mark.slow
KILLS = 3
DRIVER = Path(__file__).with_name("interrupted.py")
ROTATION = {"pretrain_examples": 64, "finetune_examples": 64, "batch_size": 8, "replicates": 2}


Interrupted = Callable[..., dict[str, Any]]


@pytest.fixture
def interrupted(digits: Path, tmp_path: Path) -> Interrupted:
    """Return a function that runs a job whole and in pieces, into `whole` and `cut`, and returns where it resumed."""

    def run(experiment: str, settings: dict[str, Any], saves: tuple[int, int], threads: int = 1) -> Any:
        config = {"domain": "mnist", "experiment": experiment, "arm": "a", "settings": settings}
        job = {
            "entry": f"domains.mnist.experiments.{experiment}.run",
            "config": config,
            "data": str(digits),
            "threads": threads,
        }
        described = job | {"seed": 7, "saves": saves, "kills": KILLS}
        (tmp_path / "job.json").write_text(json.dumps(described))
        command = [sys.executable, str(DRIVER), str(tmp_path / "job.json")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert report["kills"] == KILLS
        assert report["left"] == []
        return report

    return run


def went_on_at(report: dict[str, Any], run: str) -> list[int]:
    lines = [line for attempt in report["resumed"] for line in attempt]
    return [int(match[1]) for line in lines if (match := re.search(rf"{run} goes on at .* (\d+)$", line))]


def same_bytes(folder: Path, name: str) -> bool:
    whole, cut = ((folder / part / name).read_bytes() for part in ("whole", "cut"))
    assert len(whole) > 100
    return whole == cut


def test_stacked_replicates(interrupted: Interrupted, tmp_path: Path) -> None:
    arm = {
        "unroll": "head",
        "pretrain_steps": 2,
        "warmup_epochs": 0.75,
        "head_steps_between_updates": 1,
        "average_decay": 0.9,
    }
    settings = ROTATION | {"epochs": 2, "arms": {"a": {"method": "meta", **arm}}}
    report = interrupted("rotation_mean", settings, saves=(2, 6))
    steps = went_on_at(report, "meta-PT")
    assert steps == sorted(steps)
    assert len(set(steps)) >= KILLS - 1  # it got on in between
    assert same_bytes(tmp_path, "metrics.csv")
    assert same_bytes(tmp_path, "series.csv")


def test_replicates_in_threads(interrupted: Interrupted, tmp_path: Path) -> None:
    settings = {
        "replicates": 2,
        "pretrain_examples": 40,
        "classes": 11,
        "batch_size": 8,
        "epochs": 2,
        "arms": {"a": {"method": "meta", "unroll": "head", "pretrain_lr": 1e-3, "meta_lr": 1e-3}},
    }
    report = interrupted("example_weighting", settings, saves=(3, 6), threads=2)
    assert went_on_at(report, "meta-PT of seed 0")
    assert same_bytes(tmp_path, "metrics.csv")
    assert same_bytes(tmp_path, "series.csv")


def test_backpropagation_through_pt_and_ft(interrupted: Interrupted, tmp_path: Path) -> None:
    settings = {key: value for key, value in ROTATION.items() if key != "replicates"} | {
        "pretrain_steps": 3,
        "finetune_steps": 3,
        "replicates": 1,
        "evaluations": 1,
        "arms": {"a": {"method": "bptt", "outer_steps": 16}},
    }
    report = interrupted("bptt", settings, saves=(2, 5))
    assert len(set(went_on_at(report, "mnist_bptt a"))) >= KILLS - 1
    assert same_bytes(tmp_path, "series.csv")
    tables = [pd.read_csv(tmp_path / part / "metrics.csv").set_index("metric")["value"] for part in ("whole", "cut")]
    for metric in ("learned mean (degrees)", "FT test accuracy (%)", "outer steps"):
        assert tables[0][metric] == tables[1][metric]
