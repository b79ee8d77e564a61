"""The FT job: its runs, the choice of a learning rate, and resuming a killed job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from metapt.evaluation import metrics
from metapt.training.checkpoint import Checkpoint
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Part, Scores, Start, finetune, parts, write
from metapt.twostage.heads import Score
from metapt.twostage.transfer import Transfer

CONFIG: dict[str, Any] = {
    "domain": "toy",
    "arm": "plain",
    "evaluations": ["full_transfer", "linear_evaluation"],
    "seed": 1,
    "finetune_seeds": 2,
}
RATES = {1e-4: 60.0, 1e-3: 70.0, 1e-2: 65.0}
"""Validation AUROC by learning rate."""
EARLY = {1e-4: 55.0, 1e-3: 50.0, 1e-2: 65.0}
"""The same after the first epoch."""


class Runs:
    """FT runs that record their names; `stop` is the number of the run that is interrupted."""

    def __init__(self, stop: int = 1000) -> None:
        self.stop = stop
        self.taken: list[str] = []
        self.streams: dict[str, float] = {}

    def take(self, name: str, stream: torch.Generator, lr: float) -> Score:
        if len(self.taken) == self.stop:
            raise KeyboardInterrupt
        self.taken.append(name)
        self.streams[name] = float(torch.rand((), generator=stream))
        return Score(50.0 + len(self.taken), [50.0], RATES[lr], 1, lr, [40.0, RATES[lr]])

    def starts(self, todo: list[Part]) -> Iterator[Start]:
        yield Start(
            todo,
            lambda streams: [self.take(f"linear {n}", stream, 1e-3) for n, stream in enumerate(streams)],
            lambda lr, stream, label: cast(Transfer, Run(self, label, stream, lr)),
        )


class Run:
    """An FT run of two epochs, whose validation AUROC goes from `EARLY` to `RATES`."""

    def __init__(self, runs: Runs, label: str, stream: torch.Generator, lr: float) -> None:
        self.runs, self.lr, self.curve = runs, lr, list[float]()
        self.score = partial(runs.take, label, stream, lr)

    def train(self, epochs: int) -> None:
        self.curve = [EARLY[self.lr], RATES[self.lr]][:epochs]


def test_the_first_ft_seed_tries_all_learning_rates_and_the_best_serves_the_others(tmp_path: Path) -> None:
    runs = Runs()
    scores = finetune(CONFIG, Checkpoint(tmp_path / "ft.pt", "mine"), runs.starts, list(RATES))
    rates = [label.rpartition(" ")[2] for label in runs.taken if label.startswith("FT of plain, seeds 1 and")]
    assert rates == ["0.0001", "0.001", "0.01", "0.001"]
    assert {scores[part].learning_rate for part in parts(CONFIG)} == {1e-3}
    assert len(runs.taken) == 2 + 3 + 1


@pytest.mark.parametrize(("epochs", "best"), [(1, 1e-2), (2, 1e-3)])
def test_after_trials_of_some_epochs_only_the_best_learning_rate_goes_on(
    epochs: int, best: float, tmp_path: Path
) -> None:
    runs = Runs()
    scores = finetune(CONFIG, Checkpoint(tmp_path / "ft.pt", "mine"), runs.starts, list(RATES), trial_epochs=epochs)
    assert {scores[part].learning_rate for part in parts(CONFIG) if part[0] == "full_transfer"} == {best}
    assert len(runs.taken) == 2 + 2


def test_a_killed_job_repeats_one_run_at_most_and_ends_with_the_same_streams(tmp_path: Path) -> None:
    whole = Runs()
    finetune(CONFIG, Checkpoint(tmp_path / "whole.pt", "mine"), whole.starts, list(RATES))
    first, second = Runs(stop=4), Runs()
    checkpoint = Checkpoint(tmp_path / "ft.pt", "mine")
    with pytest.raises(KeyboardInterrupt):
        finetune(CONFIG, checkpoint, first.starts, list(RATES))
    finetune(CONFIG, checkpoint, second.starts, list(RATES))
    assert first.taken + second.taken == whole.taken
    assert first.streams | second.streams == whole.streams


def test_a_run_has_its_own_random_stream(tmp_path: Path) -> None:
    runs = Runs()
    finetune(CONFIG, Checkpoint(tmp_path / "ft.pt", "mine"), runs.starts, [1e-3])
    label = "FT of plain, seeds 1 and 0, learning rate 0.001"
    assert runs.streams[label] == float(torch.rand((), generator=generator("toy finetune", "full_transfer", 1, 0)))
    finetune(CONFIG | {"seed": 2}, Checkpoint(tmp_path / "other.pt", "mine"), runs.starts, [1e-3])
    whole = [value for name, value in runs.streams.items() if name.startswith("FT of plain")]
    assert len(set(whole)) == 2 * 2, "each PT seed has its own, too"


def test_the_tables_hold_each_run_once_in_the_order_of_the_config(tmp_path: Path) -> None:
    scores = finetune(CONFIG, Checkpoint(tmp_path / "ft.pt", "mine"), Runs().starts, [1e-3])
    outputs = {name: tmp_path / f"{name}.csv" for name in ("metrics", "series")}
    write(
        scores,
        CONFIG,
        "n5",
        lambda score: {"AUROC": score.test_auroc},
        outputs,
        lambda score: iter([("task", [3], [1.0])]),
    )
    table = metrics.read(outputs["metrics"])
    assert table[table["metric"] == "AUROC"]["replicate"].tolist() == [1000, 1001] * 2
    assert (table["experiment"].unique(), table["setting"].unique()) == (["toy"], ["n5"])
    series = metrics.read_series(outputs["series"])
    names = [
        f"{evaluation}, {name}" for evaluation in CONFIG["evaluations"] for name in ("task", "validation AUROC (%)")
    ]
    assert series["name"].drop_duplicates().tolist() == names
    assert series[series["name"] == names[1]]["value"].tolist() == [40.0, 70.0] * 2
    assert not (tmp_path / "ft.pt").exists()


def test_parts_are_in_the_order_of_the_config() -> None:
    names = ["linear_evaluation", "full_transfer"]
    assert parts({"evaluations": names, "finetune_seeds": 2}) == [(name, number) for name in names for number in (0, 1)]


def test_scores_are_kept_for_the_same_run_only(tmp_path: Path) -> None:
    score = Score(70.0, [60.0, math.inf], 65.0, 2, 1e-3, [64.0, 65.0])
    path = tmp_path / "ft.pt"
    Scores(Checkpoint(path, "mine")).add({("full_transfer", 2): score})
    kept = Scores(Checkpoint(path, "mine"))
    assert ("full_transfer", 2) in kept
    assert kept["full_transfer", 2] == score
    assert ("full_transfer", 2) not in Scores(Checkpoint(path, "another"))
    kept.remove()
    assert not path.exists()
