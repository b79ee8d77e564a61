"""Run a job to its end through kills, and again undisturbed: `python interrupted.py JOB.json`, called by test_kill.py.

The process imports torch once and forks a child for every attempt. A child checkpoints after each iteration. It is
killed with SIGKILL after a random number of iterations and a random part of one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import metapt.domains.mnist.experiments.bptt.run
import metapt.domains.mnist.experiments.example_weighting.run  # noqa: F401 - imported here once, so that no child has to
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
from metapt.training.timing import Every


def job(described: dict[str, object], folder: Path) -> Job:
    config = {**described["config"], "checkpoint": str(folder / "resume" / "state.pt")}
    return Job(
        stage="study",
        name="interrupted",
        entry=described["entry"],
        config=config,
        inputs={"data": described["data"]},
        outputs={name: str(folder / f"{name}.csv") for name in ("metrics", "series")},
        log=str(folder / "log.txt"),
        threads=described["threads"],
    )


def start(job: Job) -> int:
    child = os.fork()
    if child == 0:
        os._exit(execute(job))
    return child


def newest(folder: Path) -> frozenset[tuple[str, int]]:
    try:
        return frozenset(
            (entry.name, entry.inode())
            for entry in os.scandir(folder)
            if entry.name[0] != "." and entry.name.endswith(".pt")
        )
    except FileNotFoundError:
        return frozenset()


def killed(child: int, folder: Path, saves: int, choose: random.Random) -> bool:
    """Kills the child after so many saves. False if it has ended by itself before, which must have been well."""
    seen, last = newest(folder), time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, f"the run ended with status {status}"
            return False
        now = newest(folder)
        if now != seen:
            seen, between, last = now, time.monotonic() - last, time.monotonic()
            saves -= 1
            if saves <= 0:
                time.sleep(choose.uniform(0, min(between, 0.2)))
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return True
        time.sleep(0.0005)


def main(path: Path) -> None:
    described = json.loads(path.read_text())
    whole, cut = path.parent / "whole", path.parent / "cut"
    _, status = os.waitpid(start(job(described, whole)), 0)
    assert status == 0
    Every.__call__ = lambda self: True  # type: ignore[method-assign]
    choose = random.Random(described["seed"])
    kills, resumed = 0, []

    def saves() -> int:
        return choose.randint(*described["saves"]) if kills < described["kills"] else 10**9

    while killed(start(job(described, cut)), cut / "resume", saves(), choose):
        kills += 1
        resumed.append([line for line in (cut / "log.txt").read_text().splitlines() if "goes on at" in line])
    resumed.append([line for line in (cut / "log.txt").read_text().splitlines() if "goes on at" in line])
    print(json.dumps({"kills": kills, "resumed": resumed, "left": os.listdir(cut / "resume")}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
