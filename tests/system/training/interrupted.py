"""Run a job whole, and again through kills: `python interrupted.py JOB.json`, called by test_kill.py.

The process imports torch once and forks a child for every attempt. A child checkpoints after each iteration, and kills
itself with SIGKILL at a given one of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import metapt.domains.mnist.experiments.bptt.run
import metapt.domains.mnist.experiments.example_weighting.run  # noqa: F401 - imported here once, so that no child has to
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
from metapt.training.checkpoint import Checkpoint
from metapt.training.interruption import Every


def attempt(described: dict[str, Any], folder: Path, saves: int | None = None) -> int:
    """Run the job in a child that dies at its `saves`-th checkpoint; return how the child ended."""
    given = {name: described[name] for name in ("entry", "inputs", "threads")}
    config = {**described["config"], "checkpoint": str(folder / "resume" / "state.pt")}
    outputs = {name: str(folder / f"{name}.csv") for name in ("metrics", "series")}
    job = Job("study", "interrupted", config=config, outputs=outputs, log=str(folder / "log.txt"), **given)
    child = os.fork()
    if child == 0:
        whole, left = Checkpoint.save, iter(range(saves or 10**9, 0, -1))

        def save(self: Checkpoint, state: dict[str, Any], *processes: Any) -> None:
            whole(self, state, *processes)
            if next(left) == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        if saves is not None:
            Every.__call__ = lambda self: True  # type: ignore[method-assign]
            Checkpoint.save = save  # type: ignore[method-assign]
        os._exit(execute(job))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(path: Path) -> None:
    described = json.loads(path.read_text())
    whole, cut = path.parent / "whole", path.parent / "cut"
    assert attempt(described, whole) == 0
    resumed = []
    for saves in (*described["saves"], 10**9):
        assert attempt(described, cut, saves) == (0 if saves == 10**9 else -signal.SIGKILL)
        resumed += [line for line in (cut / "log.txt").read_text().splitlines() if "goes on at" in line]
    print(json.dumps({"resumed": resumed, "left": os.listdir(cut / "resume")}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
