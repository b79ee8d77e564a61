"""Measure the time per record of preparing PTB-XL: metapt (checks and writing included) and a loop of wfdb.rdsamp.

    python benchmarks/ecg_prepare.py --raw FOLDER [--records N] [--sample N] [--rounds N]

FOLDER holds ptbxl_database.csv, scp_statements.csv and records100/. Both take turns in each round, in one process. The
loop only reads a sample of the records. The preparation also reads the tables and writes all records. Each record is
read once before the first round, so that neither time includes the disk's speed.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import wfdb

from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.prepare import load
from metapt.machine import Machine, machine_name

MICROVOLTS = 1000  # per millivolt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True, help="the folder of ptbxl_database.csv")
    parser.add_argument("--records", type=int, help="how many are prepared (default: all)")
    parser.add_argument("--sample", type=int, default=500, help="how many rdsamp reads (default: 500)")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    raw = arguments.raw.absolute()
    with (raw / "ptbxl_database.csv").open(encoding="utf-8", newline="") as file:
        names = [row["filename_lr"] for row in csv.DictReader(file)][: arguments.records]
    sample = names[:: max(1, len(names) // arguments.sample)][: arguments.sample]

    with tempfile.TemporaryDirectory() as folder:
        # records.json belongs beside the records, so links replace the folder of the raw files.
        inputs = {name: Path(folder) / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records100")}
        for name, link in inputs.items():
            link.symlink_to(raw / name)
        inputs["records.json"] = Path(folder) / "records.json"
        inputs["records.json"].write_text(json.dumps({"version": "", "records": names}), encoding="utf-8")
        outputs = {"signals": Path(folder) / "signals.npy", "records": Path(folder) / "records.csv"}

        def ours() -> None:
            prepare.run({}, inputs, outputs, Machine())

        def loop() -> None:
            for name in sample:
                wfdb.rdsamp(str(raw / name))

        ours()
        times: dict[str, list[float]] = {"metapt": [], "wfdb.rdsamp": []}
        for round_ in range(arguments.rounds):
            turns: list[tuple[str, Callable[[], None], int]] = [
                ("metapt", ours, len(names)),
                ("wfdb.rdsamp", loop, len(sample)),
            ]
            for name, turn, number in turns if round_ % 2 == 0 else reversed(turns):
                start = time.perf_counter()
                turn()
                times[name].append((time.perf_counter() - start) / number)
        signals = load(outputs["signals"], outputs["records"]).signals
        rows = {name: row for row, name in enumerate(names)}
        equal = all(
            np.array_equal(np.rint(wfdb.rdsamp(str(raw / name))[0].T * MICROVOLTS), signals[rows[name]])
            for name in sample
        )

    ratios = [theirs / mine for mine, theirs in zip(times["metapt"], times["wfdb.rdsamp"], strict=True)]
    print(f"- command: python {shlex.join(sys.argv)}")
    print(
        f"- machine: {machine_name('cpu')}, {platform.system()}; Python {platform.python_version()}, wfdb "
        f"{version('wfdb')}"
    )
    print(f"- {len(names)} records prepared by one thread, {len(sample)} read by rdsamp; {arguments.rounds} rounds")
    print(f"- signals of the sample equal: {'yes' if equal else 'NO'}\n")
    print("| per record, ms | min | median | max |\n| --- | --- | --- | --- |")
    for name, values in times.items():
        print(
            f"| {name} | "
            f"{' | '.join(f'{1000 * each:.3f}' for each in (min(values), statistics.median(values), max(values)))} |"
        )
    print(
        "| rdsamp / ours | "
        f"{' | '.join(f'{each:.1f}' for each in (min(ratios), statistics.median(ratios), max(ratios)))} |"
    )


if __name__ == "__main__":
    main()
