"""The command `metapt`. Modules are imported where they are needed, so that the command starts at once."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import metapt
from metapt.errors import ConfigError, DataError, MetaptError, with_extra
from metapt.files import atomic_path
from metapt.machine import find_caches, machine_name

if TYPE_CHECKING:
    import pandas as pd

    from metapt.engine.jobs import Job


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status; an error is printed as one sentence. No command prints the help."""
    options = parser().parse_args(arguments)
    if options.command is None:
        parser().print_help()
        return 0
    try:
        find_caches()
        with with_extra(f"metapt {options.command}"):
            return int(options.run(options))
    except MetaptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ended by Ctrl-C", file=sys.stderr)
        return 130  # 128 and the number of the signal, as shells have it
    except BrokenPipeError:  # as of `metapt check | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="metapt",
        description="Run, check and read the experiments of metapt. Snakemake runs them, too.",
        epilog="metapt COMMAND --help describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"metapt {metapt.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], int], does: str, example: str) -> argparse.ArgumentParser:
        """Add the command of the name of its function."""
        name, description = run.__name__[1:], f"{does[0].upper()}{does[1:]}."
        added = commands.add_parser(name, help=does, description=description, epilog=f"example: metapt {example}")
        added.set_defaults(run=run)
        return added

    def configs(command: argparse.ArgumentParser, required: bool = True) -> None:
        words = "config files; each changes keys of the ones before it. Where a config/NAME.yaml is not there, the "
        words += "package's is read"
        command.add_argument(
            "--configfile", type=_configfile, nargs="+", required=required, metavar="CONFIG.yaml", help=words
        )

    def device(command: argparse.ArgumentParser, default: str) -> None:
        words = f"device of trainings; default: {default}"
        command.add_argument("--device", choices=("cpu", "cuda"), help=words)

    def results(command: argparse.ArgumentParser, default: str) -> None:
        words = f"a results folder; default: the one in results/ {default}"
        command.add_argument("results", type=Path, nargs="?", metavar="RESULTS", help=words)

    run = command(
        _run,
        "run a config's jobs, or repeat the run that a run.json records, without Snakemake",
        "run mnist_rotation_mean --configfile config/config.yaml",
    )
    run.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="experiments (mnist_bptt), domains (mnist) or files that jobs make; default: all. With --into: the "
        "run.json. Targets stand before --configfile",
    )
    configs(run, required=False)
    run.add_argument(
        "--into", type=Path, metavar="DIR", help="repeat a run; folder for its outputs, which keep their names"
    )
    device(run, "as recorded, or cuda if require_gpu")
    run.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads of a job; default: as recorded or planned (other numbers round differently)",
    )
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="jobs at a time; they share a GPU; default: 1")

    check = command(
        _check,
        "validate config files, each laid over the ones before it; say how many jobs they have",
        "check --configfile config/paper.yaml config/ablations/neumann-terms.yaml",
    )
    configs(check)

    docs = command(_docs, "generate the config's schema and the tables of keys in config/README.md", "docs --check")
    docs.add_argument("--check", action="store_true", help="change nothing; fail if they are not up to date")

    summary = command(
        _summary, "print which claims hold, their numbers, and where tables and report are", "summary results/tour"
    )
    results(summary, "made last")

    table = command(
        _table,
        "print an experiment: its arms, paired differences to their controls, claims, and where files are",
        "table ecg_full_access --against simclr",
    )
    table.add_argument("experiment", metavar="EXPERIMENT", help="such as mnist_rotation_mean")
    results(table, "where the experiment was run last")
    table.add_argument("--against", metavar="ARM", help="print each arm's paired difference to this one, no others")

    estimate = command(
        _estimate,
        "print how many jobs and hours, and how much memory and disk, a config needs; takes minutes",
        "estimate --configfile config/paper.yaml",
    )
    configs(estimate)
    device(estimate, "cuda where torch sees a GPU")
    estimate.add_argument("--cores", type=int, metavar="N", help="CPU cores for the wall time; default: all here")
    estimate.add_argument("--gpus", type=int, metavar="N", help="GPUs for the wall time; default: all here")
    estimate.add_argument(
        "--budget", type=float, default=80.0, metavar="S", help="seconds of measured steps, about; default: 80"
    )
    estimate.add_argument("--json", type=Path, metavar="FILE", help="write the numbers of each job there")

    headroom = command(
        _headroom,
        "print what settings of hyperparameters gain, from tables of runs (table.csv of a headroom)",
        "headroom docs/results/headroom/mnist.csv",
    )
    headroom.add_argument("tables", type=Path, nargs="+", metavar="TABLE.csv", help="tables of runs, which are joined")
    headroom.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="draw gains and responses to FILE.png and FILE.svg, or to a FILE of another kind, such as gains.pdf",
    )
    return parser


def _configfile(name: str) -> Path:
    """Return the path of a config file: the package's, which wheels have, for one of `config/` that is not there."""
    here, packaged = Path(name), Path(__file__).parent / name
    if here.exists() or here.parts[:1] != ("config",) or not packaged.is_file():
        return here
    print(f"{name} is not there; the one that came with metapt is read: {packaged}", file=sys.stderr)
    return packaged


def _run(options: argparse.Namespace) -> int:
    from metapt.engine import run

    for name, number in (("threads", options.threads), ("jobs", options.jobs)):
        if number is not None and number < 1:
            raise ConfigError(f"--{name} is {number}, but must be at least 1.")
    if options.into is not None:
        if options.configfile is not None or len(options.targets) != 1:
            raise ConfigError("--into repeats the run of one run.json: name that file, and no --configfile.")
        return run.repeat(Path(options.targets[0]), options.into, options.device, options.threads)
    if options.configfile is None:
        raise ConfigError(
            "name what to run: a config (--configfile CONFIG.yaml), or a run.json and a folder (--into DIR)."
        )
    return run.run(options.configfile, options.targets, options.device, options.threads, options.jobs)


def _check(options: argparse.Namespace) -> int:
    from metapt.engine.config import experiments, load
    from metapt.engine.plan import planned
    from metapt.engine.run import due

    config, names = load(options.configfile), " ".join(map(str, options.configfile))
    print(f"valid: {names}, experiments: {len(experiments(config))}")
    plan = planned(config)
    jobs = list(plan.needed("page"))
    left = due(plan, jobs)
    print(f"jobs: {_by_stage(jobs)}")
    print(f"to run: {_by_stage([job for job in jobs if job.name in left])}")
    print(f"hours: metapt estimate --configfile {names}")
    print(f"results: {config.results}")
    return 0


def _by_stage(jobs: list[Job]) -> str:
    """Return the number of jobs in words: in all, and of each stage."""
    counted = Counter(job.stage for job in jobs)
    stages = ", ".join(f"{count} {stage}" for stage, count in counted.items())
    return f"{len(jobs)} ({stages})" if jobs else "none"


def _estimate(options: argparse.Namespace) -> int:
    from metapt.engine.config import load
    from metapt.engine.plan import planned

    config = load(options.configfile)
    plan = planned(config)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in jobs; torch reads it when it is imported
    import torch

    from metapt.engine.estimate import estimate, text

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    cores = os.cpu_count() or 1 if options.cores is None else options.cores
    gpus = torch.cuda.device_count() if options.gpus is None else options.gpus
    if cores < 1:
        raise ConfigError(f"--cores is {cores}; legal: 1 or more.")
    if device == "cuda" and (gpus < 1 or not torch.cuda.is_available()):
        words = f"--gpus is {gpus}" if torch.cuda.is_available() else "torch sees no GPU here"
        raise ConfigError(f"{words}, and jobs on cuda need 1 or more: take --device cpu, or a machine with a GPU.")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="metapt-estimate-") as folder:
        needs = estimate(plan, Path(folder), device, options.budget)
    machine = f"{machine_name(device)}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"Measured in {time.monotonic() - begin:.0f} s on: {machine}.\n\n{text(plan, needs, cores, gpus)}", end="")
    if config.require_gpu and device == "cpu":
        print(
            "\nThe config says require_gpu: true; these are hours on a CPU. "
            "Measure where there is a GPU, with --device cuda."
        )
    if options.json is not None:
        with atomic_path(options.json) as path:
            numbers = {"machine": machine, "jobs": {name: asdict(need) for name, need in needs.items()}}
            path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return 0


def _docs(options: argparse.Namespace) -> int:
    from metapt.engine.config_docs import generated

    stale = {
        path: text
        for path, text in generated(Path()).items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    if options.check and stale:
        raise ConfigError(f"not up to date: {', '.join(map(str, stale))}; run `metapt docs` in the project's folder.")
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


def _summary(options: argparse.Namespace) -> int:
    from metapt.evaluation.summary import newest, summary

    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(summary(options.results or newest(Path("results")), colours))
    return 0


def _table(options: argparse.Namespace) -> int:
    from metapt.evaluation.summary import experiment_text, find

    folder = find(options.experiment, options.results)
    print(experiment_text(folder, None if options.against is None else _against(options.against, folder)))
    return 0


def _against(control: str, folder: Path) -> pd.DataFrame:
    """Return the paired differences of each arm of the experiment in a folder to one of them.

    Raises ConfigError if it has no such arm, and DataError if its record or its results can't be read.
    """
    from pydantic import ValidationError

    from metapt.engine import records
    from metapt.engine.domain import domain
    from metapt.engine.schema import did_you_mean
    from metapt.evaluation.results import differences
    from metapt.sections import SummarySettings

    record = records.read(folder / "run.json")
    before, now = Path(record["outputs"]["metrics"]).parents[2], folder.parents[1]  # the results may have moved
    inputs = {name: Path(path) for name, path in record["inputs"].items()}
    inputs |= {name: now / path.relative_to(before) for name, path in inputs.items() if path.is_relative_to(before)}
    for name, known in record["sha256"]["inputs"].items():
        if not inputs[name].is_file() or records.known_by(inputs[name]) != known:
            raise DataError(
                f"{inputs[name]} is not what {folder} was made from: run the experiment again, or leave --against out."
            )
    unreadable = DataError(
        f"{folder}/run.json is from another version of metapt, whose settings this one can't read: run the experiment "
        "again, or leave --against out."
    )
    try:
        settings = SummarySettings.model_validate(record["config"])
        experiment = domain(settings.domain).experiments.get(settings.experiment)
        if experiment is None:
            raise unreadable
        results = experiment.results.read(experiment.section, settings, inputs)
    except ValidationError:
        raise unreadable from None
    arms = list(dict.fromkeys(results.metrics["arm"]))
    if control not in arms:
        raise ConfigError(f"{control} is no arm of {folder}{did_you_mean(control, arms)}; legal: {', '.join(arms)}.")
    return differences(results, {(arm, control): "" for arm in arms if arm != control})


def _headroom(options: argparse.Namespace) -> int:
    from metapt.evaluation.headroom_report import figure, read, text

    runs = read(options.tables)
    print(text(runs))
    if options.figure is not None:
        from metapt.evaluation import figures
        from metapt.twostage.quantities import EVALUATIONS

        figures.save_as(figure(runs, EVALUATIONS, "test result (%)"), options.figure)
    return 0
