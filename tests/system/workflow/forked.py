"""Snakemake in a process that is forked after its imports, which take longer than most dry runs."""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from pathlib import Path

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload(["snakemake.cli", "metapt.engine.plan", "metapt.engine.run", __name__])


def status_of(arguments: list[str], folder: Path, output: Path) -> int:
    """Call snakemake with `folder` as working directory and this process's environment; return its exit status."""
    process = SERVER.Process(target=_call, args=(arguments, folder, output, dict(os.environ)))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _call(arguments: list[str], folder: Path, output: Path, environment: dict[str, str]) -> None:
    from snakemake.cli import main

    imports_others = environment.get("PYTHONPATH") != os.environ.get("PYTHONPATH")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    if imports_others:
        os.execv(sys.executable, [sys.executable, "-m", "snakemake", *arguments])
    sys.argv = ["snakemake", *arguments]  # `main` reads it, too
    main()
