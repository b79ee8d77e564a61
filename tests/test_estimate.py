"""The command `metapt estimate`: jobs are the plan's, a job is rehearsed once for its kind, times add up."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from metapt.cli import main
from metapt.config import load
from metapt.errors import MachineError
from metapt.estimate import rehearse as module
from metapt.estimate.rehearse import Need, rehearse
from metapt.estimate.report import against, summary, text, title
from metapt.estimate.schedule import wall_time
from metapt.estimate.trials import RUN_BYTES, SUMMARY, Requirements, Trials, kind
from metapt.jobs import Job
from metapt.plan import Plan, planned
from metapt.training.progress import steps

from .clock import Clock

ROOT = Path(__file__).parents[1]


def plan_of(name: str) -> Plan:
    return planned(load([ROOT / name]))


def some(seconds: float = 10.0, **others: Any) -> Need:
    return Need(start=2.0, work=seconds, memory=300e6, disk=1e6, **others)


def chain(names: dict[str, list[str]], **others: Any) -> Plan:
    """A plan of PT jobs, each of which reads what those in its list have left."""
    plan = Plan.__new__(Plan)
    plan.jobs = {
        name: Job(
            "pretrain",
            name,
            "toy",
            {"domain": "ecg"},
            {each: f"results/{each}/pretrained.pt" for each in before},
            {"pretrained": f"results/{name}/pretrained.pt"},
            f"results/{name}/run.json",
            **others,
        )
        for name, before in names.items()
    }
    plan.jobs["collect"] = Job("collect", "collect", "evaluation.collect", record="results/run.json")
    plan.summaries = {}
    plan._makers = {path: job for job in plan.jobs.values() for path in job.outputs.values()}
    return plan


def made_up(plan: Plan, device: str = "cpu", seconds: float = 10.0) -> Requirements:
    needs = {name: some(seconds, gpu=device == "cuda") if job.trains else SUMMARY for name, job in plan.jobs.items()}
    return Requirements(plan, needs, "a machine", device, 1.0)


# A toy stage


def toy(clock: Clock, config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Any) -> None:
    """10 epochs of 100 minibatches and a validation, 2 ms per example of a minibatch of 4; at the end 0.1 s."""
    for _ in steps(0, 10, "epochs"):
        for _ in steps(0, 400 // config["batch_size"]):
            clock.work(0.002 * config["batch_size"])
        clock.work(0.05)
    clock.work(0.1)
    if config.get("fails"):
        raise ValueError("a toy that fails")
    outputs["pretrained"].write_text("weights")


TOY_SECONDS = 10 * (400 * 0.002 + 0.05) + 0.1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of rehearsals."""
    found = Clock()
    monkeypatch.setattr("metapt.training.rehearsal.time", found)
    return found


@pytest.fixture
def in_process(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Rehearsals run in this process, where the entry module `toy` is; the jobs that ran."""
    entry = ModuleType("metapt.toy")
    entry.run = partial(toy, clock)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "metapt.toy", entry)
    monkeypatch.setattr(Job, "code", None)
    monkeypatch.setattr("metapt.execute._revision", lambda: None)
    ran: list[Job] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        request = json.loads(options["input"])
        ran.append(Job(**request[0]))
        try:
            return subprocess.CompletedProcess(command, 0, json.dumps(module._main(ran[-1], *request[1:])), "")
        except SystemExit:
            return subprocess.CompletedProcess(command, 1, "", Path(ran[-1].log).read_text())

    monkeypatch.setattr(module.subprocess, "run", run)
    return ran


def toy_job(**config: Any) -> Job:
    return Job(
        "pretrain", "toy/pretrain", "toy", {"batch_size": 4} | config, {}, {"pretrained": "results/pretrained.pt"}
    )


def test_a_job_takes_what_its_loops_would(in_process: list[Job], clock: Clock, tmp_path: Path) -> None:
    found = rehearse(toy_job(), {}, tmp_path, "cpu", 0.02)
    assert clock.seconds < TOY_SECONDS / 30
    assert found.work == pytest.approx(TOY_SECONDS)
    assert Path(found.outputs["pretrained"]).read_text() == "weights"
    assert found.disk > len("weights")
    assert not found.extrapolated
    assert found.loops[-1]["label"] == "epochs"
    assert found.loops[-1]["taken"] + found.loops[-1]["left_out"] == 10


def test_a_part_of_the_data_stands_for_the_whole(in_process: list[Job], tmp_path: Path) -> None:
    found = rehearse(toy_job(), {}, tmp_path, "cpu", 0.02, share=0.25)
    assert found.work == pytest.approx(4 * TOY_SECONDS)
    assert found.extrapolated


def test_slow_steps_are_measured_on_smaller_minibatches(
    in_process: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many times more of them take as long; a config without the size of each minibatch is left as it is."""
    monkeypatch.setattr(module, "SLOW", 0.005)
    monkeypatch.setattr(module, "SMALLEST", 2)
    found = rehearse(toy_job(), {}, tmp_path, "cpu", 0.02)
    assert [job.config["batch_size"] for job in in_process] == [4, 2]
    assert found.work == pytest.approx(TOY_SECONDS)
    assert found.extrapolated
    in_process.clear()
    assert not rehearse(toy_job(arm={"batch_size": None}), {}, tmp_path, "cpu", 0.02).extrapolated
    assert [job.config["batch_size"] for job in in_process] == [4]
    study = dataclasses.replace(toy_job(), stage="study")
    assert rehearse(study, {}, tmp_path, "cpu", 0.02, small=True).work == pytest.approx(2 * TOY_SECONDS)


@pytest.mark.parametrize(("size", "smaller"), [(500, 50), (2000, 125), (100, 50), (40, 40)])
def test_folds_keep_enough_labelled_examples_where_minibatches_are_smaller(size: int, smaller: int) -> None:
    config = json.dumps({"batch_size": 64, "meta_size": size, "arm": {"folds": 5}})
    assert json.loads(module._divided(config, 16)) == {"batch_size": 4, "meta_size": smaller, "arm": {"folds": 5}}


def test_a_job_that_breaks_off_is_named(in_process: list[Job], tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"toy/pretrain breaks off .*a toy that fails"):
        rehearse(toy_job(fails=True), {}, tmp_path, "cpu", 0.02)


def test_memory_grows_with_the_data_and_with_the_minibatches() -> None:
    seen = {"start": 100, "opened": 150, "opening_peak": 180, "peak": 170}
    assert module._peak(seen, 1.0, 1) == 180
    assert module._peak(seen, 0.5, 1) == 100 + 2 * 80
    assert module._peak(seen, 1.0, 8) == 150 + 8 * 20


def test_threads_share_the_work_and_a_gpu_has_its_own_hours() -> None:
    assert (some(80, threads=4).seconds, some(80, threads=4).core_seconds) == (22, 82)
    assert some(80, threads=4, gpu=True).core_seconds == 22


# Kinds and their measurements


@pytest.mark.parametrize("name", ["config", "paper", "real-small"])
def test_jobs_of_a_kind_differ_in_what_does_not_matter(name: str) -> None:
    trainings = [job for job in plan_of(f"config/{name}.yaml").jobs.values() if job.trains]
    kinds = {kind(job): job for job in trainings}
    assert len(kinds) < len(trainings) / 2
    for job in trainings:
        like = kinds[kind(job)]
        assert (like.entry, like.threads, like.outputs.keys()) == (job.entry, job.threads, job.outputs.keys())
        assert like.config.get("size") == job.config.get("size")
        if "arm_settings" in job.config:
            assert like.config["arm_settings"]["method"] == job.config["arm_settings"]["method"]


def test_what_takes_other_steps_is_of_another_kind() -> None:
    jobs = plan_of("config/planted.yaml").jobs
    assert kind(jobs["ecg/pretrain/meta/n500/seed0"]) == kind(jobs["ecg/pretrain/meta/n500/seed1"])
    assert kind(jobs["ecg/pretrain/meta/n500/seed0"]) != kind(jobs["ecg/pretrain/meta-stable/n500/seed0"])
    assert kind(jobs["mnist/rotation_mean/meta"]) != kind(jobs["mnist/rotation_mean_std/meta"])


def trials(
    plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Trials, dict[str, tuple[Job, dict[str, str], float]]]:
    """Trials whose rehearsals are made up, and those that were asked for: job, inputs, share of the data."""
    asked: dict[str, tuple[Job, dict[str, str], float]] = {}

    def made(
        job: Job, inputs: dict[str, str], into: Path, device: str, allowance: float, share: float, small: bool
    ) -> Need:
        asked[job.name] = (job, inputs, share)
        return some(outputs={name: f"{into}/{name}" for name in job.outputs})

    monkeypatch.setattr(sys.modules["metapt.estimate.trials"], "rehearse", made)
    return Trials(plan, folder, "cpu", 80), asked


@pytest.mark.parametrize("name", ["config", "paper", "real-small"])
def test_every_job_has_a_need_and_a_kind_is_measured_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of(f"config/{name}.yaml")
    tried, asked = trials(plan, tmp_path, monkeypatch)
    needs = {job.name: tried.need(job) for job in plan.jobs.values()}
    assert needs.keys() == plan.jobs.keys()
    measured = [job for job, _, _ in asked.values() if job.trains]
    assert (
        len({kind(job) for job in measured}) == len(measured) == len({kind(j) for j in plan.jobs.values() if j.trains})
    )
    for job, inputs, share in asked.values():
        assert all(path.startswith(str(tmp_path)) for path in inputs.values())
        if name != "config" and job.stage == "prepare":
            assert job.entry.endswith("data.standin")
        assert share == 1 or job.name.startswith("ppi/")
    assert all(need.disk >= RUN_BYTES for job_name, need in needs.items() if plan.jobs[job_name].trains)


def test_the_archive_is_measured_on_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of("config/paper.yaml")
    tried, asked = trials(plan, tmp_path, monkeypatch)
    prepared = tried.need(plan.jobs["ppi/data/hu2020"])
    tried.need(plan.jobs["ppi/pretrain/meta/full_access/seed0"])
    pretrain = next(each for name, each in asked.items() if name.startswith("ppi/pretrain"))
    assert pretrain[2] == pytest.approx(8000 / 88000)
    assert prepared.disk == pytest.approx(1e6 * 11)
    assert tried.need(plan.jobs["raw/hu2020/bio_dataset.zip"]).disk == 2e9
    assert sum(tried.need(job).disk for name, job in plan.jobs.items() if name.startswith("raw/mnist")) == 11594722


def test_prepared_data_that_are_there_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("config/paper.yaml")
    tried, asked = trials(plan, tmp_path, monkeypatch)
    monkeypatch.setattr("metapt.records.stale", lambda path, *_: None if "ecg/data" in str(path) else "not there")
    tried.need(plan.jobs["ecg/pretrain/simclr/none/seed0"])
    ((job, inputs, _),) = asked.values()
    assert inputs == job.inputs


# Wall time


@pytest.mark.parametrize(
    ("cores", "gpus", "device", "seconds"),
    [(1, 0, "cpu", 36), (2, 0, "cpu", 24), (9, 9, "cpu", 24), (9, 1, "cuda", 36)],
)
def test_wall_time_waits_for_cores_and_for_other_jobs(cores: int, gpus: int, device: str, seconds: float) -> None:
    found = made_up(chain({"first": [], "second": ["first"], "other": []}), device)
    assert wall_time(found.plan, found.needs, ["first", "second", "other"], cores, gpus) == seconds


def test_the_longest_job_starts_first_and_one_that_runs_alone_has_all_cores() -> None:
    plan = chain({"a": [], "b": [], "c": []})
    needs = {"a": some(10), "b": some(10), "c": some(22)}
    assert wall_time(plan, needs, needs, 2, 0) == 24
    alone = chain({"a": [], "b": []}, alone=True)
    assert wall_time(alone, needs, ["a", "b"], 8, 0) == 12 + 12


def test_a_job_does_not_wait_for_one_that_is_not_asked_for() -> None:
    found = made_up(chain({"first": [], "second": ["first"]}))
    assert wall_time(found.plan, found.needs, ["second"], 1, 0) == 12


# Report


@pytest.mark.parametrize("name", ["planted", "paper"])
def test_a_job_counts_once_in_all_and_in_each_experiment_that_needs_it(name: str) -> None:
    found = made_up(plan_of(f"config/{name}.yaml"))
    numbers = summary(found, 4, 0)
    shared = set(found.experiment("ecg_full_access")) & set(found.experiment("ecg_cost"))
    assert "ecg/pretrain/meta/n500/seed0" in shared
    each = numbers["experiments"].values()
    assert numbers["total"]["jobs"] == len(found.plan.jobs) == sum(row["jobs"] for row in numbers["kinds"].values())
    assert numbers["total"]["core_hours"] < sum(row["core_hours"] for row in each)
    assert not any("data" in word for row in each for word in row["jobs_by_kind"])


def test_hours_of_the_gpu_are_no_core_hours_and_disks_add_up() -> None:
    total = summary(made_up(chain({"a": []}), "cuda", 3598), 4, 1)["total"]
    assert total["gpu_hours"] == 1
    assert total["core_hours"] == pytest.approx(SUMMARY.core_seconds / 3600)
    assert total["disk_bytes"] == 1e6 + SUMMARY.disk


def test_tables_name_every_kind_of_job() -> None:
    found = made_up(plan_of("config/planted.yaml"), "cuda")
    shown = text(summary(found, 4, 1))
    assert {title(job) for job in found.plan.jobs.values()} <= {
        line.split("|")[1].strip() for line in shown.splitlines() if "|" in line
    }
    assert "| ecg_cost" in shown
    assert "30 ECG PT, 30 ECG FT" in shown
    assert "GPU-hours" in shown
    assert "0:00:12" in shown
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1


def test_an_estimate_beside_what_runs_took(tmp_path: Path) -> None:
    found = made_up(chain({"a": [], "b": [], "c": []}))
    found.plan.jobs["b"] = dataclasses.replace(found.plan.jobs["b"], stage="finetune")
    assert "nothing to compare" in against(found, tmp_path)
    for name, seconds, part, state in (
        ("a", 10.0, 0.5, "done"),
        ("b", 24.0, 1, "done"),
        ("c", 1.0, 1, "error: no room"),
    ):
        (tmp_path / name).mkdir()
        record = {"wall_time_s": 99.0, "cpu_time_s": seconds, "peak_memory_bytes": round(part * 300e6), "state": state}
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    rows = [[cell.strip() for cell in line.split("|")] for line in against(found, tmp_path).splitlines()[2:]]
    assert [row[1] for row in rows] == ["ECG PT", "ECG FT", "all"]
    assert [row[5] for row in rows] == ["1.20", "0.50", "0.71"]
    assert [row[8] for row in rows] == ["2.00", "1.00", "1.00"]


def test_what_ran_on_a_gpu_is_compared_by_its_wall_time(tmp_path: Path) -> None:
    found = made_up(chain({"a": []}), "cuda")
    (tmp_path / "a").mkdir()
    record = {"wall_time_s": 6.0, "cpu_time_s": 1.0, "peak_memory_bytes": 1, "state": "done"}
    (tmp_path / "a" / "run.json").write_text(json.dumps(record))
    assert against(found, tmp_path).splitlines()[2].split("|")[5].strip() == "2.00"


# The command


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["tiny", "tiny_ecg", "tiny_ppi"])
def test_a_small_config_is_measured(
    domain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, config = tmp_path / "estimate.json", ROOT / "tests" / "workflow" / f"{domain}.yaml"
    command = ["estimate", "--configfile", str(config), "--device", "cpu", "--cores", "2", "--budget", "0.1"]
    assert main([*command, "--json", str(out)]) == 0
    numbers = json.loads(out.read_text())
    printed = capsys.readouterr().out
    assert "| in all, data included" in printed
    for name, each in numbers["experiments"].items():
        assert name in printed
        assert each["core_hours"] > 0
        assert each["jobs"] > 1
    assert numbers["jobs"].keys() == plan_of(str(config)).jobs.keys()
    assert numbers["total"]["wall_hours"] <= numbers["total"]["core_hours"] * 1.001
    assert numbers["total"]["memory_bytes"] > 100e6
    assert any(loop["left_out"] for job in numbers["jobs"].values() for loop in job["loops"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--configfile", "config/paper.yaml", "--cores", "0", "--device", "cpu"], "--cores is 0; legal: 1 or more"),
        (["--configfile", "config/none.yaml"], "config/none.yaml can't be read"),
    ],
)
def test_wrong_words(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["estimate", *arguments]) == 1
    assert sentence in capsys.readouterr().err
