"""The command `metapt estimate`: a job of each kind takes a few steps, from which follows what all jobs take."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from metapt.cli import main
from metapt.engine import estimate as module
from metapt.engine.config import load
from metapt.engine.estimate import OTHER, Loops, Need, estimate, kind, measure, text, title
from metapt.engine.jobs import Job
from metapt.engine.plan import Plan, planned
from metapt.errors import MachineError
from metapt.hypergrad import SGD, Unroll
from metapt.training import progress
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.recorder import Recorder
from metapt.twostage import heads

from ..clock import Clock
from ..unit.training.problems import Classifier, Streams, classification

ROOT = Path(__file__).parents[2]


@cache
def plan_of(path: str) -> Plan:
    return planned(load([ROOT / path]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def loops(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Loops:
    """The loops of this process, in place of those that count all steps until the test ends."""
    places = (progress, "steps"), (heads, "in_chunks"), (heads, "minibatches")
    for place, name in (*places, (MetaPretraining, "iterations"), (Recorder, "__call__")):
        monkeypatch.setattr(place, name, getattr(place, name))
    found = Loops("cpu", 0.01)
    found.replace()
    return found


def whole(loops: Loops, clock: Clock) -> float:
    """Return the seconds that all steps would have taken."""
    return clock.seconds + sum(loops.left_out.values())


# Loops


def nested(clock: Clock) -> None:
    for _ in progress.steps(0, 20, "PT"):
        for step in progress.steps(0, 50, status={}):
            clock.work(0.1 if step == 0 else 0.003)


def threads(clock: Clock) -> None:
    def run(_: int) -> None:
        for _ in progress.steps(0, 100):
            clock.work(0.002)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(4)))


def limited(limit: float, clock: Clock) -> None:
    for _ in progress.steps(0, 20, time_limit=limit):
        clock.work(0.02)


def observed(every: int, clock: Clock) -> None:
    recorder = Recorder(lambda: {"seconds": torch.tensor(clock.work(0.03) or 0.0)}, every)
    for step in progress.steps(0, 200):
        clock.work(0.002)
        recorder(step + 1)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (nested, 20 * (0.1 + 49 * 0.003)),  # the first step is slow, and does not count for the others
        (threads, 400 * 0.002),
        (partial(limited, 0.1), 0.1),
        (partial(limited, 9.0), 20 * 0.02),
        (partial(observed, 1), 200 * 0.032),
        (partial(observed, 50), 200 * 0.002 + 4 * 0.03),
    ],
)
def test_a_few_steps_tell_what_all_take(work: Any, seconds: float, loops: Loops, clock: Clock) -> None:
    work(clock)
    assert whole(loops, clock) == pytest.approx(seconds)
    assert clock.seconds < seconds


@pytest.mark.parametrize(("first", "taken"), [(0.001, 8), (0.02, 2), (5.0, 1)])
def test_a_loop_takes_as_many_steps_as_its_allowance_has_time_for(
    first: float, taken: int, loops: Loops, clock: Clock
) -> None:
    seen = []
    for step in progress.steps(0, 1000):
        clock.work(first)
        seen.append(step)
    assert seen == list(range(taken))


def test_chunks_and_minibatches_are_left_out_and_rows_stand_for_them(loops: Loops, clock: Clock) -> None:
    def encoded(chunk: torch.Tensor) -> torch.Tensor:
        clock.work(0.02)
        return 2 * chunk

    rows = heads.in_chunks(encoded, torch.arange(30), 3)
    assert rows.tolist() == [0, 2, 4, 6, 8, 10] * 5
    assert whole(loops, clock) == pytest.approx(10 * 0.02)
    for batch in heads.minibatches(40, 4, [torch.Generator()]):
        assert batch.shape == (1, 4)
        clock.work(0.05)
    assert whole(loops, clock) == pytest.approx(10 * 0.02 + 10 * 0.05)


def test_algorithm_2_takes_iterations_before_and_after_its_warm_up(loops: Loops) -> None:
    problem = Classifier()
    settings = MetaSettings(iterations=50, warmup=40, finetuning=Unroll(1, SGD(0.1)))
    loop = MetaPretraining(problem, Streams(classification), problem.pretrained, problem.meta, problem.head, settings)
    seen: list[int] = []
    iterate = loop.iterate
    loop.iterate = lambda: (seen.append(loop.iteration), iterate())  # type: ignore[assignment,func-returns-value]
    loop.run(recorder=Recorder(lambda: loop.meta))
    assert {0, 40} <= set(seen)
    assert len(seen) <= 16


# A job


def toy(clock: Clock, config: Any, inputs: Any, outputs: dict[str, Path], machine: Any) -> None:
    """10 epochs of 100 minibatches of 8 ms and a validation; at the end 0.1 s."""
    for _ in progress.steps(0, 10, "epochs"):
        for _ in progress.steps(0, 100):
            clock.work(0.008)
        clock.work(0.05)
    clock.work(0.1)
    outputs["pretrained"].write_text("weights")


TOY_SECONDS = 10 * (100 * 0.008 + 0.05) + 0.1


@pytest.mark.parametrize(("threads", "share"), [(1, 1.0), (4, 1.0), (1, 0.25)])
def test_a_job_takes_what_its_loops_would(
    threads: int, share: float, loops: Loops, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the data stands for the whole; threads share the work."""
    entry = ModuleType("metapt.toy")
    entry.run = partial(toy, clock)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "metapt.toy", entry)
    job = Job("pretrain", "toy", "toy", outputs={"pretrained": f"{tmp_path}/pretrained.pt"}, threads=threads)
    found = module.take(job, "cpu", 0.02, share)
    assert clock.seconds < TOY_SECONDS / 30
    assert found.core_seconds == pytest.approx(TOY_SECONDS / share)
    assert found.seconds == pytest.approx(TOY_SECONDS / share / threads)
    assert found.disk == len("weights")


@pytest.mark.slow
def test_a_job_that_breaks_off_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"toy/pretrain breaks off .*No module named 'metapt.nowhere'"):
        measure(Job("prepare", "toy/pretrain", "nowhere"), {}, tmp_path, "cpu", 0.0)


# The jobs of a plan


def test_what_takes_other_steps_is_of_another_kind() -> None:
    jobs = plan_of("config/planted.yaml").jobs
    assert kind(jobs["ecg/pretrain/meta/n500/seed0"]) == kind(jobs["ecg/pretrain/meta/n500/seed1"])
    assert kind(jobs["ecg/pretrain/meta/n500/seed0"]) != kind(jobs["ecg/pretrain/meta-stable/n500/seed0"])
    assert kind(jobs["mnist/rotation_mean/meta"]) != kind(jobs["mnist/rotation_mean_std/meta"])


Asked = dict[str, tuple[Job, dict[str, str], float]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The jobs that were measured, with inputs and share of the data; what they need is made up."""
    found: Asked = {}

    def made(job: Job, inputs: dict[str, str], into: Path, device: str, allowance: float, share: float = 1.0) -> Need:
        found[job.name] = (job, inputs, share)
        return Need(12.0, 12.0, 300e6, 1e6)

    monkeypatch.setattr(module, "measure", made)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "paper", "real-small"])
def test_every_job_has_a_need_and_a_kind_is_measured_once(
    name: str, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of(f"config/{name}.yaml")
    needs = estimate(plan, tmp_path, "cpu", 80)
    assert needs.keys() == plan.jobs.keys()
    trainings = [job for job in plan.jobs.values() if job.trains]
    measured = {kind(job): job for job, _, _ in asked.values() if job.trains}
    assert len(measured) == len({kind(job) for job in trainings}) == sum(job.trains for job, _, _ in asked.values())
    assert len(measured) < len(trainings) / 2
    for job in trainings:
        like = measured[kind(job)]
        assert (like.entry, like.threads, like.outputs.keys()) == (job.entry, job.threads, job.outputs.keys())
        if "arm_settings" in job.config:
            assert like.config["arm_settings"]["method"] == job.config["arm_settings"]["method"]
    for job, inputs, share in asked.values():
        assert all(path.startswith(str(tmp_path)) for path in inputs.values())
        assert share == 1 or job.name.startswith("ppi/")
        if name != "config" and job.stage == "prepare":
            assert job.entry.endswith("data.standin")
    if name == "paper":  # its archive is measured on a part
        assert {share for key, (_, _, share) in asked.items() if key.startswith("ppi/pretrain")} == {8000 / 88000}
        assert needs["ppi/data/hu2020"].disk == pytest.approx(1e6 * 11 + 2e9)
        assert needs["ppi/data/hu2020"].seconds == 88


def test_prepared_data_that_are_there_are_read(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "metapt.engine.records.stale", lambda path, *_: None if "ecg/data" in str(path) else "not there"
    )
    plan = plan_of("config/paper.yaml")
    for there in (False, True):  # a record alone is not enough
        asked.clear()
        estimate(plan, tmp_path, "cpu", 80)
        job, inputs, _ = next(each for name, each in asked.items() if name.startswith("ecg/pretrain/simclr"))
        assert (inputs == job.inputs) == there
        for path in map(Path, job.inputs.values()):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


# Tables


def cells(plan: Plan, needs: dict[str, Need], cores: int, gpus: int) -> dict[str, dict[str, str]]:
    """Return the cells of both tables, by row and column."""
    found = {}
    for table in text(plan, needs, cores, gpus).strip().split("\n\n")[1::2]:
        head, *rows = [re.split("  +", line.strip()) for line in table.splitlines()]
        assert max(map(len, table.splitlines())) <= 80
        found |= {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    return found


@pytest.mark.parametrize(
    ("cores", "gpus", "device", "alone", "seconds"),
    [
        (1, 0, "cpu", False, 360),
        (2, 0, "cpu", False, 180),
        (8, 0, "cpu", False, 100),
        (8, 0, "cpu", True, 360),
        (9, 1, "cuda", False, 360),
        (9, 2, "cuda", False, 180),
    ],
)
def test_tables_say_how_long_jobs_take_that_fill_the_machine(
    cores: int, gpus: int, device: str, alone: bool, seconds: int
) -> None:
    """Four jobs of 100, 100, 100 and 60 seconds."""
    plan = Plan.__new__(Plan)
    named = {name: Job("pretrain", name, "toy", {"domain": "ecg"}, alone=alone) for name in "abcd"}
    plan.jobs, plan.summaries, plan._makers = named, {}, {}
    on_gpu = {"core_seconds": 0.0, "gpu_memory": 2e9} if device == "cuda" else {}
    needs = {name: replace(Need(60 if name == "d" else 100, 90, 3e8, 1e6), **on_gpu) for name in named}
    row = cells(plan, needs, cores, gpus)["in all, data included"]
    assert row["wall h"] == f"{seconds / 3600:.2f}"
    assert (row["jobs"], row["memory"], row["disk"]) == ("4", "300.0 MB", "4.0 MB")
    assert row["core h"] == ("0.00" if device == "cuda" else "0.10")
    assert (row.get("GPU h"), row.get("of a GPU")) == (("0.10", "2.0 GB") if device == "cuda" else (None, None))
    assert cells(plan, needs, cores, gpus)["ECG PT"]["longest h"] == "0.03"


@pytest.mark.parametrize("name", ["planted", "paper"])
def test_a_job_counts_once_in_all_and_in_each_experiment_that_needs_it(name: str) -> None:
    plan = plan_of(f"config/{name}.yaml")
    found = cells(plan, dict.fromkeys(plan.jobs, OTHER), 4, 0)
    counted = {key: int(row["jobs"].replace(",", "")) for key, row in found.items()}
    whole, kinds = counted.pop("in all, data included"), {title(job) for job in plan.jobs.values()}
    assert counted.keys() == plan.summaries.keys() | kinds
    assert whole == len(plan.jobs) == sum(counted[key] for key in kinds)
    assert whole < sum(counted[key] for key in plan.summaries)


# The command


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "experiment", "changes"),
    [
        ("tiny", "rotation_mean", {"arms": {"meta-shared": False}}),
        ("tiny_ecg", "full_access", {"arms": ["meta"]}),
        ("tiny_ppi", "full_access", {"arms": ["meta"]}),
    ],
)
def test_a_small_config_is_measured(
    name: str,
    experiment: str,
    changes: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = yaml.safe_load((ROOT / "tests" / "system" / "workflow" / f"{name}.yaml").read_text())
    (domain,) = tiny.keys() - {"results"}
    kept = {key: value for key, value in tiny[domain].items() if key not in ("half_data", "cost")}
    out, config = tmp_path / "estimate.json", tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(tiny | {domain: kept | {experiment: kept[experiment] | changes}}))
    command = ["estimate", "--configfile", str(config), "--device", "cpu", "--cores", "2", "--budget", "0.1"]
    assert main([*command, "--json", str(out)]) == 0
    plan, jobs, printed = plan_of(str(config)), json.loads(out.read_text())["jobs"], capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in (*plan.summaries, "in all, data included"))
    assert jobs.keys() == plan.jobs.keys()
    for name, job in plan.jobs.items():
        if job.trains:
            assert 1 < jobs[name]["core_seconds"] < 300
            assert 100e6 < jobs[name]["memory"] < 5e9


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
