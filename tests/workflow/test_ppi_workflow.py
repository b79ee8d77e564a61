"""The PPI domain's part of the workflow: which runs the paper takes, what runs once for several experiments, and what reruns."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
import yaml

from metapt.cli import main
from metapt.domains.ppi.config import ARMS, MAIN_ARMS, uses_labels
from metapt.domains.ppi.needs import EXPERIMENTS
from metapt.domains.ppi.settings import FOLDS
from metapt.evaluation import metrics

from .conftest import (
    ROOT,
    TINY_PPI,
    Outcome,
    check_that_altered_inputs_are_refused,
    check_that_jobs_load_their_closures,
    snakemake,
)

PPI = Path("results/tiny/ppi")
NOTHING = "Nothing to be done"
PAPER = ROOT / "config" / "paper.yaml"
LABEL_FREE = [arm for arm in MAIN_ARMS if not uses_labels(ARMS[arm])]
OTHERS = [arm for arm in MAIN_ARMS if arm not in LABEL_FREE]
SMALL = "results: results/tiny\nppi:\n  source: simulated\n  test_species: [900005]\n  pretrain_seeds: 2\n"


def plan(folder: Path, experiments: str, *arguments: str | Path, before: str = SMALL) -> Outcome:
    """A dry run of a small config with these experiments."""
    config = folder / "small.yaml"
    config.write_text(f"{before}{experiments}")
    return snakemake(folder, *arguments, "--dry-run", "--configfile", config)


def wildcards(outcome: Outcome, rule: str) -> list[str]:
    """Of all jobs of a rule, sorted."""
    return sorted(re.findall(rf"^rule {rule}:\n(?:    .*\n)*?    wildcards: (.*)\n", outcome.text, flags=re.M))


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A dry run of the PPI part of the paper's config."""
    folder = tmp_path_factory.mktemp("paper")
    section = yaml.safe_load(PAPER.read_text())["ppi"]
    (folder / "ppi.yaml").write_text(yaml.safe_dump({"results": "results/paper", "ppi": section}))
    return snakemake(folder, "--dry-run", "--configfile", folder / "ppi.yaml")


def test_the_paper_takes_these_jobs(paper: Outcome) -> None:
    settings = 2 + FOLDS  # all FT data, half of them, and each fold
    # Beside them: two arms with the released batching; three with permuted tasks; two on part of the tasks.
    pretrain = len(LABEL_FREE) + settings * len(OTHERS) + 2 + 3 + 2
    # Half of the FT data is nothing to an arm that sees none; on held-out tasks it has FT runs of its own.
    finetune = len(LABEL_FREE) * (1 + FOLDS) + settings * len(OTHERS) + 2 + 3 + 2
    assert paper.status == 0, paper.text
    assert paper.jobs() == {
        "download_hu2020": 1,
        "prepare_ppi": 1,
        "ppi_pretrain": pretrain,
        "ppi_finetune": finetune,
        "ppi_cka": 1,
        "ppi_summarise": len(EXPERIMENTS),
        "collect": 1,
    }


def test_no_run_of_the_paper_is_there_twice(paper: Outcome) -> None:
    for rule, number in paper.jobs().items():
        found = wildcards(paper, rule)
        assert len(set(found)) == len(found)
        assert len(found) in (0, number)  # some rules have no wildcards


def test_every_experiment_is_in_the_paper_and_has_a_target(tmp_path: Path) -> None:
    assert set(EXPERIMENTS) < set(yaml.safe_load(PAPER.read_text())["ppi"])
    rules = snakemake(tmp_path, "--list", "--configfile", PAPER).text.split()
    assert {f"ppi_{experiment}" for experiment in EXPERIMENTS} | {"ppi"} <= set(rules)


def test_an_experiment_alone(tmp_path: Path) -> None:
    outcome = plan(tmp_path, "  cost: {arms: [graph_supervised, meta]}\n")
    assert outcome.jobs() == {"simulate_ppi": 1, "prepare_ppi": 1, "ppi_pretrain": 4, "ppi_summarise": 1, "collect": 1}


def test_an_experiment_by_its_name(tmp_path: Path) -> None:
    experiments = "  full_access: {}\n  during_pretraining: {arms: [meta]}\n"
    outcome = plan(tmp_path, experiments, "ppi_during_pretraining")
    assert outcome.jobs() == {
        "simulate_ppi": 1,
        "prepare_ppi": 1,
        "ppi_pretrain": 2,
        "ppi_summarise": 1,
        "ppi_during_pretraining": 1,
    }
    assert plan(tmp_path, experiments, "ppi").jobs()["ppi_summarise"] == 2


def test_one_pretraining_of_an_arm_without_labels_serves_all_settings(tmp_path: Path) -> None:
    arms = "{arms: [graph_supervised, meta]}"
    outcome = plan(tmp_path, f"  full_access: {arms}\n  half_data: {arms}\n  held_out_tasks: {arms}\n  summary: {arms}\n")
    pretrain = wildcards(outcome, "ppi_pretrain")
    assert [run for run in pretrain if "graph_supervised" in run] == [
        "arm=graph_supervised, setting=full_access, seed=0",
        "arm=graph_supervised, setting=full_access, seed=1",
    ]
    assert len(pretrain) == 2 + 2 * (2 + FOLDS)
    settings = ["full_access", *(f"held_out_{fold}" for fold in range(FOLDS))]
    assert wildcards(outcome, "ppi_finetune") == sorted(
        [f"arm=graph_supervised, setting={setting}" for setting in settings]
        + [f"arm=meta, setting={setting}" for setting in [*settings, "half_data"]]
    )


@pytest.mark.parametrize("setting", ["full_access", "half_data", "held_out_2", "permuted_tasks"])
def test_frozen_weights_come_from_the_same_setting_and_seed(tmp_path: Path, setting: str) -> None:
    run = f"results/tiny/ppi/pretrain/meta-frozen/{setting}/seed1/pretrained.pt"
    outcome = plan(tmp_path, "  full_access: {}\n", run)
    assert wildcards(outcome, "ppi_pretrain") == [
        f"arm=meta, setting={setting}, seed=1",
        f"arm=meta-frozen, setting={setting}, seed=1",
    ]
    assert f"results/tiny/ppi/pretrain/meta/{setting}/seed1/pretrained.pt" in outcome.text


def test_string_of_any_species_and_version(tmp_path: Path) -> None:
    string = "{version: '11.5', links: physical.links.full, species: [511145, 224308]}"
    before = f"results: results/tiny\nppi:\n  source: string\n  string: {string}\n  test_species: [224308]\n"
    outcome = plan(tmp_path, "  cost: {arms: [meta]}\n", before=before)
    assert outcome.jobs() == {"download_string": 4, "prepare_ppi": 1, "ppi_pretrain": 1, "ppi_summarise": 1, "collect": 1}
    for kind in ("physical.links.full", "enrichment.terms"):
        for taxon in (511145, 224308):
            assert f"data/raw/string-11.5/{taxon}.protein.{kind}.v11.5.txt.gz" in outcome.text


def test_training_and_only_training_asks_for_a_gpu(tmp_path: Path) -> None:
    experiments = "  full_access: {arms: [meta]}\n  representations: {arms: [no_pt, meta]}\n"
    outcome = plan(tmp_path, experiments, before=f"require_gpu: true\n{SMALL}")
    assert outcome.text.count("gpu=1") == 4 + 1 + 1


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("ppi_cost", "ppi_cost is not in the config: add `cost: {}` to the section ppi"),
        ("results/tiny/ppi/finetune/mata/full_access/metrics.csv", "ppi has no arm 'mata' in the config; it has no_pt, graph_"),
        (
            "results/tiny/ppi/pretrain/graph_supervised/half_data/seed0/metrics.csv",
            "'graph_supervised' has no run in the setting 'half_data'; legal: full_access, permuted_tasks, released_centre.",
        ),
        (
            "results/tiny/ppi/finetune/meta/n500/metrics.csv",
            "the arm 'meta' has no run in the setting 'n500'; legal: full_access, half_data, held_out_0,",
        ),
        (
            "results/tiny/ppi/data/hu2020/graphs.npz",
            "ppi.source is 'simulated' in the config, so that 'hu2020' can't be prepared.",
        ),
    ],
)
def test_a_target_that_is_not_in_the_config_is_one_sentence(target: str, sentence: str, tmp_path: Path) -> None:
    outcome = plan(tmp_path, "  full_access: {}\n", target)
    assert outcome.status != 0
    assert sentence in outcome.text


def test_a_config_of_another_domain_has_no_ppi(tmp_path: Path) -> None:
    outcome = plan(tmp_path, "mnist: {bptt: {}}\n", "ppi_full_access", before="results: results/tiny\n")
    assert outcome.status != 0
    assert "ppi_full_access is not in the config: add `full_access: {}` to the section ppi" in outcome.text


def edited(folder: Path, old: str, new: str) -> Path:
    """The tiny config with a change."""
    text = TINY_PPI.read_text()
    assert old in text
    path = folder / "edited.yaml"
    path.write_text(text.replace(old, new))
    return path


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_runs_and_experiments_leave_everything(finished_ppi: Path) -> None:
    pretrain = ("graph_supervised/full_access", "meta/full_access", "meta/half_data", "meta-frozen/full_access")
    for run in [f"{cell}/seed{seed}" for cell in pretrain for seed in (0, 1)]:
        folder = finished_ppi / PPI / "pretrain" / run
        assert files(folder) == {"pretrained.pt", "metrics.csv", "series.csv", "run.json", "log.txt"}
        assert json.loads((folder / "run.json").read_text())["state"] == "done"
    for cell in pretrain:
        folder = finished_ppi / PPI / "finetune" / cell
        assert files(folder) == {"metrics.csv", "series.csv", "run.json", "log.txt"}
        assert set(metrics.read(folder / "metrics.csv")["replicate"]) == {0, 1, 1000, 1001}
    assert not (finished_ppi / PPI / "finetune/graph_supervised/half_data").exists()
    for experiment in ("full_access", "half_data", "cost"):
        assert files(finished_ppi / PPI / experiment) >= {"metrics.csv", "claims.csv", "table.md", "figure.png"}
    assert not list((finished_ppi / "results/tiny/.resume").rglob("*.pt"))


def test_a_second_run_has_nothing_to_do_nor_has_one_after_a_touch(finished_ppi: Path, tmp_path: Path) -> None:
    assert NOTHING in snakemake(finished_ppi, "--dry-run", "--configfile", TINY_PPI).text
    again = shutil.copytree(finished_ppi, tmp_path / "copy")
    later = time.time() + 10
    for path in [*(again / "data/raw").rglob("*.gz"), *(again / PPI / "data").rglob("*.*"), *(again / PPI).rglob("*.pt")]:
        os.utime(path, (later, later))
    assert NOTHING in snakemake(again, "--dry-run", "--configfile", TINY_PPI).text


@pytest.mark.parametrize(
    ("old", "new", "jobs"),
    [
        ("pretrain_steps: 2", "pretrain_steps: 1", {"ppi_pretrain": 6, "ppi_finetune": 3, "ppi_summarise": 3, "collect": 1}),
        ("linear_epochs: 2", "linear_epochs: 3", {"ppi_finetune": 4, "ppi_summarise": 3, "collect": 1}),
        ("pretrain_seeds: 2", "pretrain_seeds: 3", {"ppi_pretrain": 4, "ppi_finetune": 4, "ppi_summarise": 3, "collect": 1}),
        ("  cost:\n", "  # a comment\n  cost:\n", {}),
        ("  cost:\n", "  centre_offset: {}\n  cost:\n", {"ppi_pretrain": 4, "ppi_finetune": 2, "ppi_summarise": 1, "collect": 1}),
        ("  cost:\n", "  summary: {arms: [meta]}\n  cost:\n", {"ppi_summarise": 1, "collect": 1}),
    ],
    ids=["arm", "finetune", "seed", "comment", "experiment", "summary"],
)
def test_a_change_reruns_what_it_touches(old: str, new: str, jobs: dict[str, int], finished_ppi: Path, tmp_path: Path) -> None:
    outcome = snakemake(finished_ppi, "--dry-run", "--configfile", edited(tmp_path, old, new))
    assert outcome.status == 0, outcome.text
    assert outcome.jobs() == jobs, outcome.text


def test_metapt_run_repeats_runs_to_the_bit(finished_ppi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished_ppi)
    threads = torch.get_num_threads()
    try:
        for run, names in (
            ("pretrain/meta/half_data/seed1", ("pretrained.pt", "series.csv")),
            ("finetune/meta/half_data", ("metrics.csv",)),
        ):
            into = tmp_path / run
            assert main(["run", str(PPI / run / "run.json"), "--into", str(into)]) == 0
            for name in names:
                assert (into / name).read_bytes() == (PPI / run / name).read_bytes()
    finally:
        torch.set_num_threads(threads)


def test_altered_inputs_are_refused(finished_ppi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = Path(shutil.copytree(finished_ppi, tmp_path / "copy"))
    monkeypatch.chdir(again)
    check_that_altered_inputs_are_refused(again)


def test_jobs_load_their_closures(finished_ppi: Path, tmp_path: Path) -> None:
    check_that_jobs_load_their_closures(finished_ppi, tmp_path)
