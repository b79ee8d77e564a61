"""Each domain's part of the workflow on a tiny config: outputs, reruns, and repetition of jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from metapt.cli import main
from metapt.engine.config import load
from metapt.engine.domain import DOMAINS
from metapt.engine.plan import planned
from metapt.engine.run import due
from metapt.evaluation import metrics
from metapt.evaluation.experiment import SUMMARY
from metapt.twostage.quantities import FT_TIME

from .conftest import (
    NOTHING,
    TINY,
    check_that_altered_inputs_are_refused,
    check_that_jobs_load_their_closures,
    edited,
    snakemake,
)

pytestmark = pytest.mark.slow
RESULTS = Path("results/tiny")
RECORDED = {"run.json", "log.txt"}
TABLES = {"metrics.csv", "series.csv"}

RUNS = {
    "mnist": {"rotation_mean/meta": TABLES, "rotation_mean/k2": TABLES},
    "ecg": {
        **{
            f"pretrain/{cell}/seed{seed}": TABLES | {"pretrained.pt"}
            for cell in ("simclr/none", "meta/n30")
            for seed in (0, 1)
        },
        **{f"finetune/{cell}/seed{seed}": TABLES for cell in ("simclr/none/n30", "meta/n30/n30") for seed in (0, 1)},
    },
    "ppi": {
        **{
            f"pretrain/{cell}/full_access/seed{seed}": TABLES | {"pretrained.pt"}
            for cell in ("graph_supervised", "meta", "meta-frozen")
            for seed in (0, 1)
        },
        **{
            f"finetune/{cell}/full_access/seed{seed}": TABLES
            for cell in ("graph_supervised", "meta", "meta-frozen")
            for seed in (0, 1)
        },
        "finetune/meta/half_data/seed1": TABLES,
    },
}
"""Some runs of the tiny configs -> their files."""

EXPERIMENTS = {"mnist": ("rotation_mean",), "ecg": ("full_access", "cost"), "ppi": ("full_access", "half_data", "cost")}

END = {"summarise": 1, "collect": 1, "page": 1}
CHANGES = {
    "a comment in MNIST": ("mnist", "    epochs: 1\n", "    # a comment\n    epochs: 1\n", {}),
    "an arm of MNIST": ("mnist", "unroll_steps: 2", "unroll_steps: 3", {"study": 1} | END),
    "PT of MNIST": ("mnist", "batch_size: 16", "batch_size: 32", {"study": 3} | END),
    "a comment on ECGs": ("ecg", "  cost:\n", "  # a comment\n  cost:\n", {}),
    "an arm on ECGs": (
        "ecg",
        "pretrain_steps: 1",
        "pretrain_steps: 2",
        {"pretrain": 2, "finetune": 2, "summarise": 2, "collect": 1, "page": 1},
    ),
    "FT of ECGs": (
        "ecg",
        "linear_epochs: 2",
        "linear_epochs: 3",
        {"finetune": 4, "summarise": 2, "collect": 1, "page": 1},
    ),
    "a size on ECGs": ("ecg", "sizes: [30]", "sizes: [30, 40]", {"pretrain": 2, "finetune": 4} | END),
    "an experiment on ECGs": (
        "ecg",
        "  cost:\n",
        "  partial_access: {arms: [meta], finetune_sizes: [30], meta_sizes: [20, 30]}\n  cost:\n",
        {"pretrain": 2, "finetune": 2} | END,
    ),
    "a comment on proteins": ("ppi", "  cost:\n", "  # a comment\n  cost:\n", {}),
    "an arm on proteins": (
        "ppi",
        "pretrain_steps: 2",
        "pretrain_steps: 1",
        {"pretrain": 6, "finetune": 6, "summarise": 3, "collect": 1, "page": 1},
    ),
    "FT of proteins": (
        "ppi",
        "linear_epochs: 2",
        "linear_epochs: 3",
        {"finetune": 8, "summarise": 3, "collect": 1, "page": 1},
    ),
    "a seed on proteins": (
        "ppi",
        "pretrain_seeds: 2",
        "pretrain_seeds: 3",
        {"pretrain": 4, "finetune": 4, "summarise": 3, "collect": 1, "page": 1},
    ),
    "an experiment on proteins": (
        "ppi",
        "  cost:\n",
        "  negative_transfer: {arms: [no_pt, meta]}\n  cost:\n",
        {"finetune": 2} | END,
    ),
    "a summary on proteins": ("ppi", "  cost:\n", "  summary: {arms: [meta]}\n  cost:\n", END),
}
"""Name of a change -> domain, old and new text, and the jobs that it reruns."""

REPEATED = {
    "mnist": {"rotation_mean/k2": TABLES},
    "ecg": {"pretrain/meta/n30/seed1": {"pretrained.pt", "series.csv"}, "finetune/meta/n30/n30/seed1": {"metrics.csv"}},
    "ppi": {
        "pretrain/meta/half_data/seed1": {"pretrained.pt", "series.csv"},
        "finetune/meta/half_data/seed1": {"metrics.csv"},
    },
}
"""Runs -> those of their files that `metapt run` reproduces to the bit, but for the time of FT."""


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


@pytest.fixture(params=DOMAINS)
def domain(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_runs_and_experiments_leave_everything(domain: str, finished_of: Callable[[str], Path]) -> None:
    results = finished_of(domain) / RESULTS
    for run, left in RUNS[domain].items():
        assert files(results / domain / run) == left | RECORDED
        assert json.loads((results / domain / run / "run.json").read_text())["state"] == "done"
        if run.startswith("finetune/"):
            replicates = set(metrics.read(results / domain / run / "metrics.csv")["replicate"])
            assert replicates == ({0, 1} if run.endswith("seed0") else {1000, 1001})
    for experiment in EXPERIMENTS[domain]:
        assert files(results / domain / experiment) == {*SUMMARY.values()} | RECORDED
        assert f"{domain}_{experiment}" in set(metrics.read(results / "metrics.csv")["experiment"])
        assert f'id="{domain}_{experiment}"' in (results / "index.html").read_text()
        assert f"{domain}_{experiment}" in (results / "headline.md").read_text()
    # An arm that uses no FT labels has one PT run for all settings.
    assert not (results / "ppi/finetune/graph_supervised/half_data").exists()
    assert not list((results / ".resume").rglob("*.pt"))


def test_a_second_run_has_nothing_to_do_nor_has_one_after_a_touch(
    domain: str, finished_of: Callable[[str], Path], tmp_path: Path
) -> None:
    assert NOTHING in snakemake(finished_of(domain), "--dry-run", "--configfile", TINY[domain]).text
    again = shutil.copytree(finished_of(domain), tmp_path / "copy")
    later = time.time() + 10
    for path in [
        *(again / "data/raw").rglob("*.*"),
        *(again / RESULTS / domain / "data").rglob("*.*"),
        *again.rglob("*.pt"),
    ]:
        os.utime(path, (later, later))
    assert NOTHING in snakemake(again, "--dry-run", "--configfile", TINY[domain]).text


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reruns_what_it_touches(
    change: str, finished_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_dry_run` and `test_workflow` show that Snakemake does what the plan says."""
    domain, old, new, jobs = CHANGES[change]
    plan = planned(load([edited(TINY[domain], tmp_path, old, new)]))
    monkeypatch.chdir(finished_of(domain))
    assert Counter(plan.jobs[name].stage for name in due(plan, list(plan.needed("page")))) == jobs


def test_metapt_run_repeats_runs_to_the_bit(
    domain: str, finished_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished_of(domain))
    for run, names in REPEATED[domain].items():
        assert main(["run", str(RESULTS / domain / run / "run.json"), "--into", str(tmp_path / run)]) == 0
        for name in names:
            again, first = ((folder / run / name).read_bytes() for folder in (tmp_path, RESULTS / domain))
            timed = FT_TIME.encode()
            assert [each for each in again.splitlines() if timed not in each] == [
                each for each in first.splitlines() if timed not in each
            ]


def test_metapt_run_finds_what_snakemake_has_run_up_to_date(
    domain: str, finished_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished_of(domain))
    assert main(["run", "--configfile", str(TINY[domain])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.endswith(": up to date") for line in lines), lines


def test_table_prints_differences_to_any_arm(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    assert main(["table", "mnist_rotation_mean"]) == 0
    own = capsys.readouterr().out
    assert main(["table", "mnist_rotation_mean", "--against", "k2"]) == 0
    printed = capsys.readouterr().out
    assert (own.count("minus meta:"), own.count("minus k2:")) == (1, 0)
    assert (printed.count("minus meta:"), printed.count("minus k2:")) == (0, 2)
    values = [
        float(re.search(pattern, text)[1])
        for pattern, text in ((r"minus meta: (\S+)", own), (r"meta  .*\n +minus k2: (\S+)", printed))
    ]
    assert values[0] == -values[1]
    assert main(["table", "mnist_rotation_mean", "--against", "mta"]) == 1
    assert "mta is no arm of results/tiny/mnist/rotation_mean (did you mean 'meta'?)" in capsys.readouterr().err


def test_altered_inputs_are_refused(
    domain: str, finished_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Path(shutil.copytree(finished_of(domain), tmp_path / "copy"))
    monkeypatch.chdir(again)
    check_that_altered_inputs_are_refused(again)


def test_jobs_load_their_closures(domain: str, finished_of: Callable[[str], Path], tmp_path: Path) -> None:
    check_that_jobs_load_their_closures(finished_of(domain), tmp_path)
