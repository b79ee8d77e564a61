"""Repeat jobs, each in its own process, and print the modules that it loads: `loaded.py FOLDER INTO RUN.json…`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import matplotlib.figure
import pandas
import torch

for library in (matplotlib, pandas, torch):  # imported once for all jobs
    assert library


def repeat(record: Path, into: Path) -> int:
    from metapt.engine.execute import execute
    from metapt.engine.jobs import Job

    found = json.loads(record.read_text())
    config = found["config"] | ({"checkpoint": str(into / "state.pt")} if "checkpoint" in found["config"] else {})
    outputs = {name: str(into / Path(path).name) for name, path in found["outputs"].items()}
    described = (found["stage"], found["name"], found["entry"], config, found["inputs"], outputs)
    threads = found["machine"]["threads"]
    return execute(Job(*described, record=str(into / "run.json"), log=str(into / "log.txt"), threads=threads))


def main(folder: Path, into: Path, records: list[Path]) -> None:
    os.chdir(folder)
    for number, record in enumerate(records):
        if os.fork() == 0:
            status = repeat(record, into / str(number))
            loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "metapt")
            slow = [name for name in ("torch._dynamo",) if name in sys.modules]
            print(json.dumps({"record": str(record), "status": status, "loaded": loaded, "slow": slow}), flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
