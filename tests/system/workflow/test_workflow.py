"""The workflow on a tiny config: its reruns, and its errors for bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml

from metapt.engine import records
from metapt.engine.config import load, validate
from metapt.engine.digest import PACKAGE
from metapt.engine.plan import planned
from metapt.files import sha256

from .conftest import NOTHING, ROOT, Outcome, edited, snakemake
from .conftest import TINY as CONFIG_OF

TINY = CONFIG_OF["mnist"]
RUN = Path("results/tiny/mnist/rotation_mean")
OVERLAYS = sorted((ROOT / "config" / "ablations").glob("*.yaml"))
ARMS = list(validate(yaml.safe_load(TINY.read_text())).mnist.rotation_mean.arms)
END = {"summarise": 1, "page": 1}
K5 = "mnist:\n  rotation_mean:\n    arms: {k5: {extends: meta, unroll_steps: 5}}\n"


def dry_run(folder: Path, config: Path = TINY, *arguments: str | Path) -> Outcome:
    return snakemake(folder, *arguments, "--dry-run", "--configfile", config)


def test_another_order_comment_mirror_or_way_to_write_a_number_reruns_nothing(finished: Path, tmp_path: Path) -> None:
    raw = yaml.safe_load(TINY.read_text()) | {"data": {"mirrors": ["/somewhere"]}}
    raw["mnist"]["rotation_mean"] = dict(reversed(raw["mnist"]["rotation_mean"].items())) | {"target": 90}
    config = tmp_path / "reordered.yaml"
    config.write_text("# another comment\n" + yaml.safe_dump(dict(reversed(raw.items())), sort_keys=False))
    assert NOTHING in dry_run(finished, config).text


def test_a_changed_value_reruns_what_it_touches(finished: Path, tmp_path: Path) -> None:
    outcome = dry_run(finished, edited(TINY, tmp_path, "unroll_steps: 2", "unroll_steps: 3"))
    assert outcome.jobs() == {"study": 1} | END
    assert "study=k2" in outcome.text


def test_results_that_have_moved_or_lost_snakemakes_notes_are_taken_as_they_are(again: Path, tmp_path: Path) -> None:
    shutil.rmtree(again / ".snakemake")
    (again / "results/tiny").rename(again / "results/moved")
    assert NOTHING in dry_run(again, edited(TINY, tmp_path, "results/tiny", "results/moved")).text


def test_without_snakemakes_notes_a_changed_value_reruns_what_it_touches(again: Path, tmp_path: Path) -> None:
    shutil.rmtree(again / ".snakemake")
    config = edited(TINY, tmp_path, "unroll_steps: 2", "unroll_steps: 3")
    outcome = snakemake(again, "--configfile", config)
    assert outcome.status == 0, outcome.text
    assert f"The job of {RUN}/k2/run.json is run again: its settings have changed." in outcome.text
    done = re.findall(r"^\d/4 (\S+): \d+ s", outcome.text, flags=re.M)
    assert done == ["mnist/rotation_mean/k2", "mnist/rotation_mean", "page"]
    log = (again / RUN / "k2/log.txt").read_text()
    assert re.search(r"meta-PT: step (\d+) of \1, loss \S+, \|phi\| \S+$", log, re.M)
    assert NOTHING in dry_run(again, config).text


@pytest.mark.parametrize(
    ("modules", "notes", "jobs"),
    [
        (["domains/mnist/problem.py", "domains/ecg/augment.py"], True, {"study": len(ARMS)} | END),
        (["evaluation/figures.py"], False, END),
    ],
    ids=["of training, with Snakemake's notes", "of figures, without"],
)
def test_a_changed_module_reruns_what_it_touches(
    modules: list[str], notes: bool, jobs: dict[str, int], again: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "source/metapt", ignore=shutil.ignore_patterns("*.pyc.*"))
    for module in modules:
        with (tmp_path / "source/metapt" / module).open("a") as file:
            file.write("\nCHANGED = True\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "source"))
    if not notes:
        shutil.rmtree(again / ".snakemake")
    assert dry_run(again).jobs() == jobs


def test_a_run_whose_record_is_altered_is_made_again(again: Path) -> None:
    record = again / RUN / "k2" / "run.json"
    record.write_text(record.read_text().replace('"unroll_steps": 2', '"unroll_steps": 4'))
    outcome = dry_run(again)
    assert outcome.jobs() == {"study": 1} | END
    assert f"{RUN}/k2/run.json has been altered since its job wrote it" in outcome.text


def test_what_was_made_of_other_inputs_is_made_again(again: Path) -> None:
    """Tables of old numbers are made again after an arm was run outside of the workflow."""
    run = again / RUN / "k2"
    record = json.loads((run / "run.json").read_text())
    del record["sha256_of_record"]
    (run / "metrics.csv").write_text((run / "metrics.csv").read_text().replace("1", "2"))
    record["sha256"]["outputs"]["metrics"] = sha256(run / "metrics.csv")
    records.write(run / "run.json", record)
    shutil.rmtree(again / ".snakemake")
    for later, folder in ((10, again / RUN), (20, again / "results/tiny")):
        for path in filter(Path.is_file, folder.iterdir()):
            os.utime(path, (time.time() + later, time.time() + later))
    assert dry_run(again).jobs() == END


def test_changed_data_rerun_what_hangs_on_them(again: Path) -> None:
    with (again / "data/raw/mnist-digits/train-labels-idx1-ubyte.gz").open("ab") as file:
        file.write(b"\0")
    assert dry_run(again).jobs() == {"prepare_mnist": 1, "study": len(ARMS)} | END


def test_an_overlay_of_three_lines_adds_an_arm(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "k5.yaml").write_text(K5)
    outcome = snakemake(finished, "mnist_rotation_mean", "--dry-run", "--configfile", TINY, tmp_path / "k5.yaml")
    assert outcome.jobs() == {"study": 1, "summarise": 1}
    assert "study=k5" in outcome.text


@pytest.mark.parametrize(
    ("content", "arguments", "sentence"),
    [
        ("results: a\nmnist: {}\nresults: b\n", (), "line 3: the key results is there twice (line 1 has it too)"),
        (K5, ("--config", "results=/"), "error: --config: results: '/' is /, which holds the project"),
    ],
    ids=["a key twice", "a folder that holds the project"],
)
def test_a_config_that_cannot_be_used_is_one_sentence(
    content: str, arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(content)
    outcome = snakemake(tmp_path, "--dry-run", "--configfile", "config.yaml", *arguments)
    assert outcome.status == 1
    assert outcome.text.splitlines()[-1].startswith("error: ")
    assert sentence in outcome.text.splitlines()[-1]
    assert "common.smk" not in outcome.text
    assert "Traceback" not in outcome.text


def test_snakemake_does_not_hide_it_without_the_profile(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(K5)
    outcome = snakemake(tmp_path, "--dry-run", "--workflow-profile", "none", "--configfile", "config.yaml")
    assert outcome.status == 1
    sentence = "name that one first, as in `--configfile config/config.yaml config.yaml`"
    assert sentence in outcome.text.splitlines()[-1]


def test_the_command_line_completes_an_overlay_and_cores_are_those_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "bptt.yaml").write_text("mnist: {source: digits, bptt: {}}")
    outcome = snakemake(tmp_path, "--dry-run", "--configfile", "bptt.yaml", "--config", "results=here", cores=())
    assert outcome.status == 0, outcome.text
    threads = {int(number) for number in re.findall(r"^    threads: (\d+)$", outcome.text, flags=re.M)}
    assert threads == {os.cpu_count()}


def test_an_unknown_target_is_one_sentence(tmp_path: Path) -> None:
    outcome = dry_run(tmp_path, TINY, "mnist_rotation_maen")
    assert outcome.status == 1
    assert "No rule to produce mnist_rotation_maen" in outcome.text.splitlines()[-1]
    assert "Traceback" not in outcome.text


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("mnist_bptt", "mnist_bptt is not in the config: add `bptt: {}` to the section mnist"),
        (f"{RUN}/k7/metrics.csv", f"no job of this config makes the file {RUN}/k7/run.json (did you mean "),
    ],
)
def test_an_experiment_or_run_that_is_not_in_the_config_is_named(target: str, sentence: str, tmp_path: Path) -> None:
    outcome = dry_run(tmp_path, TINY, target)
    assert outcome.status != 0
    assert sentence in outcome.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "error: this job was given a GPU, but torch sees none here"),
        (("--resources", "gpu=0"), "error: the config says require_gpu: true, but this job was given no GPU"),
        (("--config", "require_gpu=false"), ""),  # Snakemake takes `false` for a text, which is true in Python
    ],
)
def test_only_training_requires_a_gpu_and_its_absence_is_one_sentence(
    arguments: tuple[str, ...], error: str, again: Path
) -> None:
    data, run = again / "results/tiny/mnist/data/digits/images.pt", RUN / "k2" / "run.json"
    data.unlink()
    config = edited(TINY, again, "mnist:\n", "require_gpu: true\nmnist:\n")
    outcome = snakemake(again, run, "--forcerun", run, "--configfile", config, *arguments)
    assert (outcome.status == 0) == (error == ""), outcome.text
    assert error in outcome.text
    assert data.is_file(), "preparation needs no GPU"


def test_a_cut_file_is_one_sentence(again: Path) -> None:
    raw = again / "data/raw/mnist-digits/train-images-idx3-ubyte.gz"
    raw.write_bytes(raw.read_bytes()[:1000])
    outcome = snakemake(again, "--configfile", TINY)
    assert outcome.status != 0
    assert "error: data/raw/mnist-digits/train-images-idx3-ubyte.gz is not what its job left" in outcome.text
    logs = re.findall(r"^Logfile (\S+):$", outcome.text, flags=re.M)
    assert logs[-1] == "results/tiny/mnist/data/digits/log.txt"  # whose last line is the sentence
    assert not (again / "results/tiny/mnist/data/digits/images.pt").exists()


def test_a_named_config_stands_alone(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    default = "results: here\nrequire_gpu: true\nmnist: {source: digits, rotation_mean: {}, bptt: {}}"
    (tmp_path / "config/config.yaml").write_text(default)
    outcome = snakemake(tmp_path, "--dry-run")
    assert outcome.jobs()["summarise"] == 2
    assert "gpu=1" in outcome.text
    named = dry_run(tmp_path)
    assert named.jobs() == {"simulate_mnist_digits": 1, "prepare_mnist": 1, "study": len(ARMS)} | END
    assert "gpu=1" not in named.text


@pytest.mark.parametrize(
    "overlay", [each for each in OVERLAYS if "further-seeds" not in each.stem], ids=lambda path: path.name
)
def test_every_overlay_changes_the_runs_of_the_config_that_its_comment_names(overlay: Path) -> None:
    named = re.search(r"--configfile (\S+) config/ablations/(\S+)", overlay.read_text())
    assert named
    assert named[2] == overlay.name
    before, after = (
        Counter(job.stage for job in planned(load(configs)).jobs.values())
        for configs in ([ROOT / named[1]], [ROOT / named[1], overlay])
    )
    assert before.keys() == after.keys()
    changed = {stage for stage in after if after[stage] != before[stage]}
    assert changed
    assert changed <= {"pretrain", "finetune", "study"}
    fewer = overlay.stem in ("paper-seeds", "placebo", "rivals")
    assert all((after[stage] < before[stage]) == fewer for stage in changed)


def test_the_report_holds_tables_and_figures(finished: Path, tmp_path: Path) -> None:
    outcome = snakemake(finished, "--configfile", TINY, "--report", tmp_path / "report.html")
    assert outcome.status == 0, outcome.text
    report = (tmp_path / "report.html").read_text()
    for word in ("rotation_mean", "The mean of the pre-training rotation while it is learned", "Headline"):
        assert word in report


def test_snakemake_has_nothing_to_say_against_the_workflow(tmp_path: Path) -> None:
    outcome = snakemake(tmp_path, "--lint", "--configfile", TINY)
    assert outcome.status == 0, outcome.text
