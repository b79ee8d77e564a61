"""A run that is told to end saves its state and ends; resumed, it leaves the bytes of an undisturbed run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from metapt.training.checkpoint import Checkpoint
from metapt.training.interruption import SIGNALS, Every, Interrupted, noticed, told_to_end
from metapt.twostage.finetuning import Score, Scores

from .conftest import Jobs


@pytest.mark.parametrize("number", SIGNALS)
def test_a_state_is_saved_once_more_and_then_the_run_ends(number: signal.Signals, tmp_path: Path) -> None:
    checkpoint, due = Checkpoint(tmp_path / "state.pt", "same"), Every(3600)
    with noticed():
        checkpoint.save({"step": 1})
        assert not due()
        os.kill(os.getpid(), number)
        assert due()
        with pytest.raises(Interrupted, match=f"{number.name} told this job to end"):
            checkpoint.save({"step": 2})
    assert Checkpoint(tmp_path / "state.pt", "same").load() == {"step": 2}


def test_fine_tuning_ends_after_the_part_that_was_running(tmp_path: Path) -> None:
    score = Score(90.0, [90.0], 91.0, 1, 1e-3, [91.0])
    with noticed():
        scores = Scores(Checkpoint(tmp_path / "state.pt", "same"))
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            scores.add({("linear_evaluation", 0, 0): score})
    assert Scores(Checkpoint(tmp_path / "state.pt", "same"))[("linear_evaluation", 0, 0)] == score


def test_afterwards_signals_are_what_they_were() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with noticed():
        os.kill(os.getpid(), signal.SIGTERM)
        assert told_to_end()
    assert not told_to_end()
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("stage", ["PT", "meta-PT"])
def test_a_run_that_is_told_to_end_twice_ends_in_the_same_bits(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    for number in SIGNALS:
        ended = jobs.run(jobs[stage].job(tmp_path), told=(number, 2), faults=())
        assert ended.error.startswith(f"{number.name} told this job to end: its state is saved")
        assert (tmp_path / "resume" / "state.pt").is_file()
    assert "goes on" in jobs.run_well(jobs[stage], tmp_path).log
