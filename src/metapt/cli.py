"""The command `metapt`: what is useful beside `snakemake`. It imports modules where it needs them, so that it starts at once."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import metapt
from metapt.errors import ConfigError, DataError, MetaptError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status, and prints an error as one sentence."""
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

    options = parser.parse_args(arguments)
    command = {"run": _run, "check": _check, "docs": _docs, "headline": _headline}[options.command]
    try:
        return command(options)
    except MetaptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


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
    """Raises DataError if the file is missing or not what `execute` writes."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}; name the run.json that a run has left.") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); name the run.json that a run has left.") from error
    keys = {"stage": str, "config": dict, "inputs": dict, "outputs": dict, "machine": dict}
    wrong = [key for key, kind in keys.items() if not isinstance(record, dict) or not isinstance(record.get(key), kind)]
    if wrong:
        raise DataError(f"{path} is not the record of a run: it lacks {', '.join(wrong)}; name the run.json that a run has left.")
    missing = [key for key in ("device", "threads") if key not in record["machine"]]
    if missing:
        raise DataError(f"{path} is not the record of a run: its machine lacks {', '.join(missing)}.")
    return dict(record)


def _check(options: argparse.Namespace) -> int:
    import yaml

    from metapt.config import validate

    merged: dict[str, Any] = {}
    for path in options.configs:
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror}.") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path} must be a section (keys with values), as config/README.md shows.")
        _overlay(merged, content)
    print(validate(merged).results)
    return 0


def _overlay(base: dict[str, Any], change: dict[str, Any]) -> None:
    """Lay `change` over `base` in place, key by key, as `snakemake --configfile` does."""
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _overlay(base[key], value)
        else:
            base[key] = value


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
