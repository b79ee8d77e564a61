"""The command `metapt`: what is useful beside `snakemake`. It imports modules where it needs them, so that it starts at once."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import metapt
from metapt.errors import ConfigError, DataError, MetaptError
from metapt.files import atomic_path
from metapt.records import check_own_sum


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status, and prints an error as one sentence."""
    options = parser().parse_args(arguments)
    command = {"run": _run, "check": _check, "docs": _docs, "headline": _headline, "estimate": _estimate}[options.command]
    try:
        return command(options)
    except MetaptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    parser = argparse.ArgumentParser(
        prog="metapt", description="Learn how to pre-train. The workflow itself is run by snakemake."
    )
    parser.add_argument("--version", action="version", version=f"metapt {metapt.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="repeat the run that a run.json records, without Snakemake")
    run.add_argument("record", type=Path, metavar="RUN.json")
    run.add_argument("--into", type=Path, required=True, metavar="DIR", help="folder for the outputs, which keep their names")
    run.add_argument("--device", choices=("cpu", "cuda"), help="default: as recorded")
    run.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads; default: as recorded (other numbers round differently)"
    )

    check = commands.add_parser(
        "check", help="validate config files, each laid over the ones before it; print their results folder"
    )
    check.add_argument("configs", type=Path, nargs="+", metavar="CONFIG.yaml")

    docs = commands.add_parser("docs", help="generate the config's schema and the tables of keys in config/README.md")
    docs.add_argument("--check", action="store_true", help="change nothing; fail if they are not up to date")

    headline = commands.add_parser("headline", help="print the headline table and where the report is")
    headline.add_argument("results", type=Path, metavar="RESULTS", help="the config's results folder")

    estimate = commands.add_parser(
        "estimate", help="how many jobs, hours, how much memory and disk a config needs; takes minutes"
    )
    estimate.add_argument("--configfile", type=Path, nargs="+", required=True, metavar="CONFIG.yaml", help="as snakemake's")
    estimate.add_argument("--device", choices=("cpu", "cuda"), help="of trainings; default: cuda where torch sees a GPU")
    estimate.add_argument("--cores", type=int, metavar="N", help="for the wall time; default: this machine's")
    estimate.add_argument("--gpus", type=int, metavar="N", help="for the wall time; default: this machine's")
    estimate.add_argument("--budget", type=float, metavar="S", help="seconds of calibration, about; default: 80")
    estimate.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    estimate.add_argument("--against", type=Path, metavar="RESULTS", help="compare with the runs in a results folder")

    return parser


def _run(options: argparse.Namespace) -> int:
    from metapt.stages import Job, execute

    record = _read_record(options.record)
    into: Path = options.into
    outputs = {name: into / Path(path).name for name, path in record["outputs"].items()}
    if len(set(outputs.values())) < len(outputs):
        raise ConfigError(f"{options.record} records outputs of the same name in several folders, which one folder can't hold.")
    if any(outputs[name].resolve() == Path(path).resolve() for name, path in record["outputs"].items()):
        raise ConfigError(f"--into {into} is the folder of the recorded run itself; name another one.")
    config = dict(record["config"])
    if "checkpoint" in config:
        config["checkpoint"] = str(into / "checkpoint.pt")
    threads = record["machine"]["threads"] if options.threads is None else options.threads
    if threads < 1:
        raise ConfigError(f"--threads is {threads}, but must be at least 1.")
    status = execute(
        Job(
            stage=record["stage"],
            config=config,
            inputs={name: Path(path) for name, path in record["inputs"].items()},
            outputs=outputs,
            threads=threads,
            gpu=int((options.device or record["machine"]["device"]) == "cuda"),
            log=into / "log.txt",
        )
    )
    if status == 0:
        print(into)
    return status


def _read_record(path: Path) -> dict[str, Any]:
    """Return what `execute` has written. Raises DataError if the file is missing or something else."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}; name the run.json that a run has left.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}); name the run.json that a run has left.") from error
    keys = {"stage": str, "config": dict, "inputs": dict, "outputs": dict, "machine": dict}
    wrong = [key for key, kind in keys.items() if not isinstance(record, dict) or not isinstance(record.get(key), kind)]
    if wrong:
        raise DataError(f"{path} is not the record of a run: it lacks {', '.join(wrong)}; name the run.json that a run has left.")
    for key in ("inputs", "outputs"):
        if odd := [name for name, value in record[key].items() if not isinstance(value, str) or not value]:
            raise DataError(f"{path} is not the record of a run: {key}.{odd[0]} must be a path.")
    machine = record["machine"]
    missing = [key for key in ("device", "threads") if key not in machine]
    if missing:
        raise DataError(f"{path} is not the record of a run: its machine lacks {', '.join(missing)}.")
    if machine["device"] not in ("cpu", "cuda"):
        raise DataError(f"{path} is not the record of a run: machine.device must be cpu or cuda.")
    if type(machine["threads"]) is not int or machine["threads"] < 1:
        raise DataError(f"{path} is not the record of a run: machine.threads must be a whole number of at least 1.")
    if not isinstance(record["config"].get("checkpoint", ""), str):
        raise DataError(f"{path} is not the record of a run: config.checkpoint must be a path.")
    check_own_sum(record, path)
    return dict(record)


def _check(options: argparse.Namespace) -> int:
    from metapt.config import experiments, load

    config = load(options.configs)
    experiments(config)
    print(config.results)
    return 0


def _estimate(options: argparse.Namespace) -> int:
    from metapt.config import experiments, load
    from metapt.config_files import read_one

    config = load(options.configfile)
    experiments(config)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as jobs have it; read when torch is imported
    import torch

    from metapt.estimate import BUDGET, estimate
    from metapt.estimate.report import against, summary, text

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    cores = os.cpu_count() or 1 if options.cores is None else options.cores
    gpus = torch.cuda.device_count() if options.gpus is None else options.gpus
    if cores < 1 or gpus < int(device == "cuda"):
        raise ConfigError(f"--cores {cores} --gpus {gpus}: give 1 or more of what the jobs compute on.")
    sources = read_one(Path("workflow/resources/sources.yaml"))
    found = estimate(config, device, sources, BUDGET if options.budget is None else options.budget)
    numbers = summary(found, cores, gpus)
    print(text(numbers))
    if config.require_gpu and device == "cpu":
        print(
            "\nThe config says require_gpu: true; these are hours on a CPU. Calibrate where there is a GPU, with --device cuda."
        )
    if options.against is not None:
        print(f"\n{against(found, options.against)}")
    if options.json is not None:
        with atomic_path(options.json) as path:
            path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return 0


def _docs(options: argparse.Namespace) -> int:
    from metapt.config_docs import generated

    stale = {
        path: text for path, text in generated(Path()).items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    if options.check and stale:
        raise ConfigError(f"not up to date: {', '.join(map(str, stale))}; run `metapt docs` in the project's folder.")
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


def _headline(options: argparse.Namespace) -> int:
    headline = options.results / "headline.md"
    if not headline.is_file():
        raise DataError(f"{headline} is not there; the workflow makes it.")
    print(headline.read_text(encoding="utf-8"))
    report = options.results / "report.html"
    print(f"Report: {report.resolve() if report.is_file() else f'not made yet (snakemake --report {report})'}")
    return 0
