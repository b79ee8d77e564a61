"""Each domain's part of the workflow on a tiny config: outputs, reruns, and repetition of jobs."""

from __future__ import annotations

import itertools
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

from .conftest import NOTHING, TINY, check_that_altered_inputs_are_refused, check_that_jobs_repeat, edited, snakemake

RESULTS = Path("results/tiny")
RECORDED = {"run.json", "log.txt"}
TABLES = {"metrics.csv", "series.csv"}
PRETRAINED = TABLES | {"pretrained.pt"}

SEEDS = ("seed0", "seed1")
RUNS = {
    "mnist": {"rotation_mean/meta": TABLES, "rotation_mean/k2": TABLES},
    "ecg": {
        **{f"pretrain/{cell}/{seed}": PRETRAINED for cell in ("simclr/none", "meta/n30") for seed in SEEDS},
        **{f"finetune/{cell}/{seed}": TABLES for cell in ("simclr/none/n30", "meta/n30/n30") for seed in SEEDS},
    },
    "ppi": {
        **{f"pretrain/{arm}/full_access/seed0": PRETRAINED for arm in ("graph_supervised", "meta")},
        **{f"finetune/{arm}/full_access/seed0": TABLES for arm in ("graph_supervised", "meta")},
        "finetune/meta/half_data/seed0": TABLES,
    },
}
"""Some runs of the tiny configs -> their files."""

EXPERIMENTS = {"mnist": ("rotation_mean",), "ecg": ("full_access", "cost"), "ppi": ("full_access", "half_data", "cost")}


def end(experiments: int = 1) -> dict[str, int]:
    return {"summarise": experiments, "page": 1}


PARTIAL = "  partial_access: {arms: [meta], finetune_sizes: [30], meta_sizes: [20, 30]}\n"
NEGATIVE = "  negative_transfer: {arms: [no_pt, meta]}\n"
CHANGES = [
    ("mnist", "    epochs: 1\n", "    # a comment\n    epochs: 1\n", {}),
    ("mnist", "unroll_steps: 2", "unroll_steps: 3", {"study": 1} | end()),
    ("mnist", "batch_size: 16", "batch_size: 32", {"study": 3} | end()),
    ("ecg", "pretrain_steps: 1", "pretrain_steps: 2", {"pretrain": 2, "finetune": 2} | end(2)),
    ("ecg", "linear_epochs: 2", "linear_epochs: 3", {"finetune": 4} | end(2)),
    ("ecg", "sizes: [30]", "sizes: [30, 40]", {"pretrain": 2, "finetune": 4} | end()),
    ("ecg", "  cost:\n", f"{PARTIAL}  cost:\n", {"pretrain": 2, "finetune": 2} | end()),
    ("ppi", "pretrain_steps: 2", "pretrain_steps: 1", {"pretrain": 2, "finetune": 2} | end(3)),
    ("ppi", "linear_epochs: 2", "linear_epochs: 3", {"finetune": 3} | end(3)),
    ("ppi", "pretrain_seeds: 1", "pretrain_seeds: 2", {"pretrain": 3, "finetune": 3} | end(3)),
    ("ppi", "  cost:\n", f"{NEGATIVE}  cost:\n", {"finetune": 1} | end()),
    ("ppi", "  cost:\n", "  summary: {arms: [meta]}\n  cost:\n", end()),
]
"""Domain, old and new text of its tiny config, and the jobs that the change reruns."""


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


def test_a_second_run_after_a_touch_has_nothing_to_do(
    domain: str, finished_of: Callable[[str], Path], tmp_path: Path
) -> None:
    again = shutil.copytree(finished_of(domain), tmp_path / "copy")
    later = time.time() + 10
    data = (again / "data/raw").rglob("*.*"), (again / RESULTS / domain / "data").rglob("*.*")
    for path in itertools.chain(*data, again.rglob("*.pt")):
        os.utime(path, (later, later))
    assert NOTHING in snakemake(again, "--dry-run", "--configfile", TINY[domain]).text


@pytest.mark.parametrize(("domain", "old", "new", "jobs"), CHANGES)
def test_a_change_reruns_what_it_touches(
    domain: str, old: str, new: str, jobs: dict[str, int],
    finished_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`test_dry_run` and `test_workflow` show that Snakemake does what the plan says."""
    plan = planned(load([edited(TINY[domain], tmp_path, old, new)]))
    monkeypatch.chdir(finished_of(domain))
    assert Counter(plan.jobs[name].stage for name in due(plan, list(plan.needed("page")))) == jobs


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


def test_jobs_repeat_and_load_their_closures(domain: str, finished_of: Callable[[str], Path], tmp_path: Path) -> None:
    check_that_jobs_repeat(finished_of(domain), tmp_path)
