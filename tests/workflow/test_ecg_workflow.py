"""The ECG domain's part of the workflow, end to end on a tiny config: what runs once for several experiments, and what reruns."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from metapt.cli import main
from metapt.evaluation import metrics

from .conftest import TINY_ECG, check_that_altered_inputs_are_refused, check_that_jobs_load_their_closures, snakemake

ECG = Path("results/tiny/ecg")
NOTHING = "Nothing to be done"


def edited(folder: Path, old: str, new: str) -> Path:
    """The tiny config with a change."""
    text = TINY_ECG.read_text()
    assert old in text
    path = folder / "edited.yaml"
    path.write_text(text.replace(old, new))
    return path


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_runs_and_experiments_leave_everything(finished_ecg: Path) -> None:
    for run in ("simclr/none/seed0", "simclr/none/seed1", "meta/n30/seed0", "meta/n30/seed1"):
        folder = finished_ecg / ECG / "pretrain" / run
        assert files(folder) == {"pretrained.pt", "metrics.csv", "series.csv", "run.json", "log.txt"}
        assert json.loads((folder / "run.json").read_text())["state"] == "done"
    for cell in ("simclr/none/n30", "meta/n30/n30"):
        folder = finished_ecg / ECG / "finetune" / cell
        assert files(folder) == {"metrics.csv", "series.csv", "run.json", "log.txt"}
        assert set(metrics.read(folder / "metrics.csv")["replicate"]) == {0, 1, 1000, 1001}
    for experiment in ("full_access", "cost"):
        assert files(finished_ecg / ECG / experiment) >= {"metrics.csv", "claims.csv", "table.md", "figure.png"}
    assert not list((finished_ecg / "results/tiny/.resume").rglob("*.pt"))


def test_a_second_run_has_nothing_to_do_nor_has_one_after_a_touch(finished_ecg: Path, tmp_path: Path) -> None:
    assert NOTHING in snakemake(finished_ecg, "--dry-run", "--configfile", TINY_ECG).text
    again = shutil.copytree(finished_ecg, tmp_path / "copy")
    later = time.time() + 10
    for path in [*(again / "data/raw").rglob("*.csv"), *(again / ECG / "data").rglob("*.*"), *(again / ECG).rglob("*.pt")]:
        os.utime(path, (later, later))
    assert NOTHING in snakemake(again, "--dry-run", "--configfile", TINY_ECG).text


@pytest.mark.parametrize(
    ("old", "new", "jobs"),
    [
        ("pretrain_steps: 1", "pretrain_steps: 2", {"ecg_pretrain": 2, "ecg_finetune": 1, "ecg_summarise": 2, "collect": 1}),
        ("linear_epochs: 2", "linear_epochs: 3", {"ecg_finetune": 2, "ecg_summarise": 2, "collect": 1}),
        ("  cost:\n", "  # a comment\n  cost:\n", {}),
        (
            "finetune_sizes: [30]",
            "finetune_sizes: [30, 40]",
            {"ecg_pretrain": 2, "ecg_finetune": 2, "ecg_summarise": 1, "collect": 1},
        ),
        (
            "  cost:\n",
            "  partial_access: {arms: [meta], finetune_sizes: [30], meta_sizes: [20, 30]}\n  cost:\n",
            {"ecg_pretrain": 2, "ecg_finetune": 1, "ecg_summarise": 1, "collect": 1},
        ),
    ],
    ids=["arm", "finetune", "comment", "size", "experiment"],
)
def test_a_change_reruns_what_it_touches(old: str, new: str, jobs: dict[str, int], finished_ecg: Path, tmp_path: Path) -> None:
    outcome = snakemake(finished_ecg, "--dry-run", "--configfile", edited(tmp_path, old, new))
    assert outcome.status == 0, outcome.text
    assert outcome.jobs() == jobs, outcome.text


def test_the_other_experiments_make_a_plan(finished_ecg: Path, tmp_path: Path) -> None:
    study = "warp_study: {strengths: {paper: [1, 2]}, starts: {meta: [2]}, finetune_size: 30}"
    config = edited(tmp_path, "  cost:\n", f"  augmentations: {{arms: [simclr, meta], finetune_size: 30}}\n  {study}\n  cost:\n")
    outcome = snakemake(finished_ecg, "--dry-run", "--configfile", config)
    assert outcome.jobs() == {
        "ecg_pretrain": 6,
        "ecg_finetune": 3,
        "ecg_hypergradients": 2,
        "ecg_views": 1,
        "ecg_summarise": 2,
        "collect": 1,
    }
    only = snakemake(finished_ecg, "ecg_full_access", "--dry-run", "--configfile", config)
    assert NOTHING in only.text


def test_metapt_run_repeats_runs_to_the_bit(finished_ecg: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished_ecg)
    threads = torch.get_num_threads()
    try:
        for run, names in (
            ("pretrain/meta/n30/seed1", ("pretrained.pt", "series.csv")),
            ("finetune/meta/n30/n30", ("metrics.csv",)),
        ):
            into = tmp_path / run
            assert main(["run", str(ECG / run / "run.json"), "--into", str(into)]) == 0
            for name in names:
                assert (into / name).read_bytes() == (ECG / run / name).read_bytes()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("ecg_warp_study", "ecg_warp_study is not in the config: add `warp_study: {}` to the section ecg"),
        (ECG / "finetune/mata/none/n30/metrics.csv", "ecg has no arm 'mata' in the config; it has no_pt, simclr,"),
        (ECG / "finetune/meta/none/n30/metrics.csv", "the arm 'meta' has no run with the labels 'none'; legal: n followed by"),
        (ECG / "pretrain/simclr/n30/seed0/metrics.csv", "the arm 'simclr' has no run with the labels 'n30'; legal: none."),
    ],
)
def test_a_target_that_is_not_in_the_config_is_one_sentence(target: str | Path, sentence: str, finished_ecg: Path) -> None:
    outcome = snakemake(finished_ecg, target, "--dry-run", "--configfile", TINY_ECG)
    assert outcome.status != 0
    assert sentence in outcome.text


def test_the_public_data_and_a_gpu_make_a_plan(tmp_path: Path) -> None:
    config = edited(tmp_path, "source: simulated", "source: ptbxl-1.0.1")
    config.write_text(f"require_gpu: true\n{config.read_text()}")
    outcome = snakemake(tmp_path, "--dry-run", "--configfile", config)
    assert outcome.status == 0, outcome.text
    assert outcome.jobs() == {
        "download_ptbxl": 1,
        "prepare_ecg": 1,
        "ecg_pretrain": 4,
        "ecg_finetune": 2,
        "ecg_summarise": 2,
        "collect": 1,
    }
    assert outcome.text.count("gpu=1") == 6


def test_altered_inputs_are_refused(finished_ecg: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = Path(shutil.copytree(finished_ecg, tmp_path / "copy"))
    monkeypatch.chdir(again)
    check_that_altered_inputs_are_refused(again)


def test_jobs_load_their_closures(finished_ecg: Path, tmp_path: Path) -> None:
    check_that_jobs_load_their_closures(finished_ecg, tmp_path)
