"""The command `metapt estimate`: jobs as the workflow has them, arithmetic, calibration of small configs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from metapt.estimate.calibrate import Start, Timing, calibrate
from metapt.estimate.work import OPEN, Run, Step

from metapt.cli import main
from metapt.config import Config, validate
from metapt.estimate import KEPT, KEPT_BY_THREADS, PLAIN_START, Estimate, costs_of, need, planned, wall_time
from metapt.estimate.report import against, duration, summary, text
from metapt.files import readable

ROOT = Path(__file__).parents[1]
SOURCES = yaml.safe_load((ROOT / "workflow" / "resources" / "sources.yaml").read_text())
CONFIGS = {
    "mnist": ROOT / "tests" / "workflow" / "tiny.yaml",
    "ecg": ROOT / "tests" / "workflow" / "tiny_ecg.yaml",
    "ppi": ROOT / "tests" / "workflow" / "tiny_ppi.yaml",
}
START = Start(2.0, 300e6)


def config_of(path: Path) -> Config:
    return validate(yaml.safe_load(path.read_text()))


def made_up(runs: list[Run], experiments: dict[str, list[str]], seconds: float = 1.0, device: str = "cpu") -> Estimate:
    """An estimate where each step takes `seconds` and 100 MB."""
    timings = {
        f"{run.name.split('/', 1)[0]}: {step}": Timing(seconds, 100e6, 1.0) for run in runs for step in run.steps
    }
    needs = {run.name: need(run, timings, START, device) for run in runs}
    return Estimate(
        {run.name: run for run in runs}, needs, experiments, timings, {"ecg": START}, "a machine", device, 1.0
    )


@pytest.mark.parametrize("name", ["config", "paper", "real-small"])
def test_each_config_has_a_plan_whose_steps_can_be_timed(name: str) -> None:
    config = config_of(ROOT / "config" / f"{name}.yaml")
    experiments, runs = planned(config, SOURCES)
    for domain in {experiment.split("_", 1)[0] for experiment in experiments}:
        steps = [step.name for step in costs_of(domain).steps(getattr(config, domain), "cpu")]
        assert len(set(steps)) == len(steps)
        mine = [run for run in runs.values() if run.name.startswith(f"{domain}/")]
        assert {step for run in mine for step in run.steps} <= set(steps)
    for names in experiments.values():
        assert set(names) <= set(runs)
        assert len(set(names)) == len(names)
    for run in runs.values():
        assert set(run.after) <= set(runs)
        assert sum(run.steps.values()) >= 0
        assert run.output_bytes >= 0


def test_the_jobs_are_those_of_the_workflow() -> None:
    """Every training and study job of the default, by the folder of its record."""
    snakemake = pytest.importorskip("snakemake.api")
    config = ROOT / "config" / "config.yaml"
    _, runs = planned(config_of(config), SOURCES)
    ours = {name for name, run in runs.items() if run.trains}
    assert ours == set(workflow_runs(snakemake, config))


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("config", {"digits", "simulated", "ppi-simulated"}),
        ("paper", {"mnist", "ptbxl-1.0.3", "hu2020"}),
        ("real-small", {"ptbxl-1.0.3", "string-12.0"}),
    ],
)
def test_raw_data_of_each_domain_are_a_job_of_their_own(name: str, folders: set[str]) -> None:
    _, runs = planned(config_of(ROOT / "config" / f"{name}.yaml"), SOURCES)
    assert {run.name for run in runs.values() if run.kind == "raw data"} == {f"raw/{folder}" for folder in folders}


def workflow_runs(snakemake: Any, config: Path) -> list[str]:
    """Names of the training jobs that a dry run from scratch would run."""
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--dry-run",
        "--quiet",
        "host",
        "--cores",
        "1",
        "--configfile",
        str(config),
    ]
    command += ["--forceall", "--config", "results=elsewhere", "--rerun-triggers", "mtime", "--nolock"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    names, rule = [], ""
    for line in [*done.stdout.splitlines(), *done.stderr.splitlines()]:
        if line.startswith(("rule ", "localrule ")):
            rule = line.split()[1].rstrip(":")
        if line.strip().startswith("output:") and rule.endswith(
            ("_train", "_pretrain", "_finetune", "_hypergradients", "_views", "_cka")
        ):
            first = next(each for each in line.split("output:", 1)[1].split(", ") if "run.json" in each)
            names.append(first.strip().removeprefix("elsewhere/").removesuffix("run.json").rstrip("/."))
    return names


def test_a_run_that_two_experiments_need_counts_once_in_all() -> None:
    config = validate({"ecg": {"source": "simulated", "full_access": {}, "cost": {}, "augmentations": {}}})
    experiments, runs = planned(config, SOURCES)
    shared = set(experiments["ecg_full_access"]) & set(experiments["ecg_cost"])
    assert "ecg/pretrain/meta/n500/seed0" in shared
    found = made_up(list(runs.values()), experiments)
    numbers = summary(found, 4, 0)
    each = numbers["experiments"].values()
    assert numbers["total"]["jobs"] == len(runs) < sum(row["jobs"] for row in each)
    assert numbers["total"]["core_hours"] < sum(row["core_hours"] for row in each)


def test_time_is_steps_times_their_time_and_a_start() -> None:
    run = Run("ecg/pretrain/x", "ECG PT", {OPEN: 1, "PT step": 100}, held_bytes=50e6)
    timings = {"ecg: open the data": Timing(3.0, 10e6, 1.0), "ecg: PT step": Timing(0.5, 200e6, 0.5)}
    found = need(run, timings, START, "cpu")
    assert found.seconds == found.core_seconds == 2 + 3 + 50
    assert found.work_share == pytest.approx(53 / 55)
    assert found.memory_bytes == KEPT * (300e6 + 50e6 + 200e6)
    assert (found.gpu, found.scaled) == (False, True)
    on_gpu = need(run, timings, START, "cuda")
    assert on_gpu.gpu
    assert on_gpu.gpu_memory_bytes == 250e6
    assert on_gpu.memory_bytes == KEPT * 350e6


def test_threads_share_the_work() -> None:
    run = Run("mnist/x", "MNIST", {"step": 80}, threads=4)
    found = need(run, {"mnist: step": Timing(1.0, 10e6, 1.0)}, START, "cpu")
    assert (found.seconds, found.core_seconds) == (2 + 20, 2 + 80)
    assert found.memory_bytes == KEPT * (300e6 + 4 * KEPT_BY_THREADS * 10e6)
    on_gpu = need(run, {"mnist: step": Timing(1.0, 10e6, 1.0)}, START, "cuda")
    assert on_gpu.seconds == 2 + 80
    assert on_gpu.gpu_memory_bytes == 4 * 10e6


def test_a_job_that_does_not_train_starts_sooner() -> None:
    found = need(Run("ecg/x", "tables", seconds=3, trains=False), {}, START, "cuda")
    assert (found.gpu, found.seconds) == (False, PLAIN_START + 3)


@pytest.mark.parametrize(
    ("cores", "gpus", "device", "seconds"),
    [(1, 0, "cpu", 36), (2, 0, "cpu", 24), (9, 9, "cpu", 24), (9, 1, "cuda", 36)],
)
def test_wall_time_waits_for_cores_and_for_other_jobs(cores: int, gpus: int, device: str, seconds: float) -> None:
    first = Run("ecg/first", "PT", {"step": 10})
    second = Run("ecg/second", "FT", {"step": 10}, after=("ecg/first",))
    other = Run("ecg/other", "PT", {"step": 10})
    found = made_up([first, second, other], {}, device=device)
    assert wall_time(found, found.runs, cores, gpus) == seconds


def test_the_longest_job_starts_first_and_one_that_runs_alone_has_all_cores() -> None:
    short, other, long = (
        Run(f"ecg/{name}", "PT", {"step": count}) for name, count in (("a", 10), ("b", 10), ("c", 20))
    )
    found = made_up([short, other, long], {})
    assert wall_time(found, found.runs, 2, 0) == 2 * 12
    alone = Run("ecg/alone", "PT", {"step": 10}, alone=True)
    found = made_up([short, alone], {})
    assert wall_time(found, found.runs, 8, 0) == 12 + 12


def test_a_job_does_not_wait_for_one_that_is_not_asked_for() -> None:
    found = made_up(
        [Run("ecg/first", "PT", {"step": 10}), Run("ecg/second", "FT", {"step": 10}, after=("ecg/first",))], {}
    )
    assert wall_time(found, ["ecg/second"], 1, 0) == 12


def test_opening_the_data_may_take_more_memory_than_the_steps() -> None:
    run = Run("ecg/pretrain/x", "ECG PT", {OPEN: 1, "PT step": 100}, held_bytes=50e6)
    timings = {"ecg: open the data": Timing(3.0, 900e6, 1.0), "ecg: PT step": Timing(0.5, 200e6, 1.0)}
    assert need(run, timings, START, "cpu").memory_bytes == KEPT * (300e6 + 900e6)
    assert need(run, timings, START, "cuda").gpu_memory_bytes == 900e6


def test_hours_of_the_gpu_are_no_core_hours_and_disks_add_up() -> None:
    trains = Run("ecg/x", "PT", {"step": 3598}, output_bytes=2e9)
    tables = Run("ecg/y", "tables", seconds=3600 - PLAIN_START, trains=False, output_bytes=3e9)
    total = summary(made_up([trains, tables], {}, device="cuda"), 4, 1)["total"]
    assert (total["gpu_hours"], total["core_hours"], total["disk_bytes"]) == (1.0, 1.0, 5e9)


def test_each_domain_has_a_start_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"mnist": 1000.0, "ecg": 5000.0}
    module = sys.modules["metapt.estimate"]
    monkeypatch.setattr(module, "start", lambda domain, device: Start(seconds[domain], 0.0))
    monkeypatch.setattr(module, "calibrate", lambda steps, *_: dict.fromkeys(steps, Timing(0.0, 0.0, 1.0)))
    config = validate({"mnist": {"rotation_mean": {}}, "ecg": {"source": "simulated", "cost": {}}})
    found = module.estimate(config, "cpu", SOURCES)
    training = {name: found.needs[name].seconds for name, run in found.runs.items() if run.trains}
    for domain, least in seconds.items():
        mine = [each for name, each in training.items() if name.startswith(f"{domain}/")]
        assert mine
        assert all(least <= each < least + 1000 for each in mine)


def test_what_a_whole_step_takes_lies_on_the_line_through_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5 s and 30 bytes whatever the share, and 4 s and 200 bytes for the whole."""
    module = sys.modules["metapt.estimate.calibrate"]
    monkeypatch.setattr(module, "_steady", lambda share, *_: module._Taken(0.5 + 4 * share, 30 + 200 * share))
    timing = calibrate({"step": Step("step", lambda share: share, 0.01)}, "cpu", 0.2)["step"]  # type: ignore[arg-type, return-value]
    assert 0.02 <= timing.share < 1
    assert (timing.seconds, timing.peak_bytes) == (pytest.approx(4.5), pytest.approx(230))


def test_a_step_that_takes_too_long_is_timed_on_a_part() -> None:
    shares: list[float] = []

    def slow(share: float) -> Callable[[], object]:
        shares.append(share)
        return lambda: sum(range(int(4e7 * share)))

    def quick(share: float) -> Callable[[], object]:
        return lambda: sum(range(1000))

    timings = calibrate({"slow": Step("slow", slow, 0.01), "quick": Step("quick", quick)}, "cpu", 0.1)
    assert timings["slow"].share < 1
    assert max(shares) < 1
    assert timings["quick"].share == 1
    assert list(timings) == ["slow", "quick"]


def test_memory_is_given_back_before_the_warm_up_and_not_between_the_timed_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between them it would have to be had anew in each, which a training loop needn't do."""
    done: list[str] = []
    monkeypatch.setattr(sys.modules["metapt.estimate.calibrate"], "_give_back", lambda: done.append("given back"))
    calibrate({"step": Step("step", lambda share: lambda: done.append("work"))}, "cpu", 1.0)
    assert done[0] == "given back"
    assert len(done) > 2
    assert set(done[1:]) == {"work"}


@pytest.mark.parametrize("domain", list(CONFIGS))
def test_a_small_config_is_calibrated(
    domain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "estimate.json"
    command = ["estimate", "--configfile", str(CONFIGS[domain]), "--device", "cpu", "--cores", "2", "--budget", "1"]
    assert main([*command, "--json", str(out)]) == 0
    numbers = json.loads(out.read_text())
    printed = capsys.readouterr().out
    assert "| in all, data included" in printed
    for name, each in numbers["experiments"].items():
        assert name.startswith(domain)
        assert name in printed
        assert each["core_hours"] > 0
        assert each["jobs"] > 1
    assert numbers["total"]["wall_hours"] <= numbers["total"]["core_hours"] * 1.001
    assert numbers["total"]["memory_bytes"] > 100e6
    assert all(step["seconds"] > 0 for step in numbers["steps"].values())


def test_tables_name_every_kind_of_job() -> None:
    run = Run("ecg/x", "ECG PT", {"step": 36000}, output_bytes=2e9)
    numbers = summary(made_up([run], {"ecg_cost": ["ecg/x"]}, device="cuda"), 4, 1)
    shown = text(numbers)
    assert "| ecg_cost" in shown
    assert "1 ECG PT" in shown
    assert "GPU-hours" in shown
    assert duration(10) in shown
    assert readable(round(2e9)) in shown


def test_an_estimate_beside_what_runs_took(tmp_path: Path) -> None:
    runs = [Run("ecg/a", "PT", {"step": 10}), Run("ecg/b", "FT", {"step": 10}), Run("ecg/c", "FT", {"step": 10})]
    found = made_up(runs, {})
    assert "nothing to compare" in against(found, tmp_path)
    memory = found.needs["ecg/a"].memory_bytes
    for name, seconds, part, state in (
        ("a", 10.0, 0.5, "done"),
        ("b", 24.0, 1, "done"),
        ("c", 1.0, 1, "error: no room"),
    ):
        folder = tmp_path / "ecg" / name
        folder.mkdir(parents=True)
        record = {"wall_time_s": 99.0, "cpu_time_s": seconds, "peak_memory_bytes": round(part * memory), "state": state}
        (folder / "run.json").write_text(json.dumps(record))
    rows = [[cell.strip() for cell in line.split("|")] for line in against(found, tmp_path).splitlines()[2:]]
    assert [row[5] for row in rows] == ["1.20", "0.50", "0.71"]
    assert [row[8] for row in rows] == ["2.00", "1.00", "1.00"]


def test_what_ran_on_a_gpu_is_compared_by_its_wall_time(tmp_path: Path) -> None:
    found = made_up([Run("ecg/a", "PT", {"step": 10})], {}, device="cuda")
    (tmp_path / "ecg" / "a").mkdir(parents=True)
    record = {"wall_time_s": 6.0, "cpu_time_s": 1.0, "peak_memory_bytes": 1, "state": "done"}
    (tmp_path / "ecg" / "a" / "run.json").write_text(json.dumps(record))
    assert against(found, tmp_path).splitlines()[2].split("|")[5].strip() == "2.00"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--configfile", "config/paper.yaml", "--cores", "0", "--device", "cpu"], "--cores 0"),
        (["--configfile", "config/none.yaml"], "config/none.yaml can't be read"),
    ],
)
def test_wrong_words(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["estimate", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_outside_the_project_it_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["estimate", "--configfile", str(CONFIGS["mnist"]), "--device", "cpu"]) == 1
    assert "sources.yaml can't be read" in capsys.readouterr().err
