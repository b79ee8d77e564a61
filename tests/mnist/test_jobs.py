"""The jobs of this domain: their inputs, outputs and resources."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from metapt.domains.mnist.data import FILES
from metapt.domains.mnist.domain import DOMAIN
from metapt.domains.mnist.jobs import MnistJobs
from metapt.jobs import Place

SOURCES = {"mnist": {"name": "mnist", "files": {file: {"size": 1} for file in FILES.values()}}}


def jobs(**section: Any) -> MnistJobs:
    """Return the jobs of a section of the config."""
    config: Any = DOMAIN.section().model_validate(section)
    return MnistJobs("mnist", config, Place("results/x", "data/raw", SOURCES, []))


def test_digits_are_generated_and_mnist_is_downloaded() -> None:
    generated = jobs(source="digits", rotation_mean={}).prepared()
    assert generated.inputs == {file: f"data/raw/mnist-digits/{file}" for file in FILES.values()}
    assert generated.outputs == {"data": "results/x/mnist/data/digits/images.pt"}
    made = jobs(source="mnist", rotation_mean={})
    assert made.prepared().inputs == {file: f"data/raw/mnist/{file}" for file in FILES.values()}
    downloads = [job for job in made.made.values() if job.stage == "download"]
    assert [list(job.outputs.values()) for job in downloads] == [[f"data/raw/mnist/{file}"] for file in FILES.values()]


def test_an_arm_is_a_run_of_its_study() -> None:
    job = jobs(source="digits", rotation_mean={}).study("rotation_mean", "meta-shared")
    assert (job.stage, job.name) == ("study", "mnist/rotation_mean/meta-shared")
    assert job.inputs == {"data": "results/x/mnist/data/digits/images.pt"}
    assert job.outputs["metrics"] == "results/x/mnist/rotation_mean/meta-shared/metrics.csv"
    assert job.config["checkpoint"] == "results/x/.resume/mnist/rotation_mean/meta-shared.pt"
    assert list(job.config["settings"]["arms"]) == ["meta-shared"], "a change of another arm leaves this run as it is"


def test_only_runs_that_save_their_state_are_given_a_place_for_it() -> None:
    """A job with such a place notes a signal to end, and ends when it has saved."""
    made = jobs(rotation_mean_std={}, example_weighting={}, bptt={}, fidelity={}, headroom={})
    kept = {
        (experiment, arm): "checkpoint" in made.study(experiment, arm).config
        for experiment in ("rotation_mean_std", "example_weighting", "bptt", "fidelity")
        for arm in getattr(made.config, experiment).arms
    }
    bptt = {arm for (experiment, arm), keeps in kept.items() if experiment == "bptt" and keeps}
    assert bptt == {"bptt", "bptt_limited", "bptt-shared", "bptt_limited-shared"}
    assert {experiment for (experiment, _), keeps in kept.items() if keeps and experiment != "bptt"} == {
        "rotation_mean_std",
        "example_weighting",
    }
    DOMAIN.summary(made, "headroom")
    assert not any("checkpoint" in job.config for name, job in made.made.items() if "/headroom/" in name)


def test_an_arm_with_the_budget_of_another_waits_for_it() -> None:
    made = jobs(bptt={})
    job = made.study("bptt", "bptt_limited-shared")
    assert job.inputs["budget"] == made.study("bptt", "meta-shared").outputs["metrics"]
    assert "budget" not in made.study("bptt", "bptt").inputs


@pytest.mark.parametrize(
    ("experiment", "keys", "arm", "threads", "mem_mb", "minutes"),
    [
        ("rotation_mean", {}, "meta", 1, 2000, 60),
        ("example_weighting", {"replicates": 3}, "meta", 3, 11_000, 60),
        ("example_weighting", {}, "meta", 4, 14_000, 60),
        ("bptt", {}, "meta", 1, 6000, 60),
        ("bptt", {}, "bptt", 1, 6000, 560),
        ("fidelity", {}, "head", 1, 2000, 60),
        ("fidelity", {"pretrain_steps": [1, 10, 100, 500, 611]}, "head", 1, 2000, 120),
        ("example_weighting", {"pretrain_examples": "all"}, "meta", 4, 14_000, 20 * 60),
        ("example_weighting", {"epochs": 1000}, "meta", 4, 14_000, 600),
        ("rotation_mean", {"replicates": 20, "epochs": 10}, "meta", 1, 2000, 240),
        ("bptt", {"pretrain_steps": 1500, "finetune_steps": 1500}, "bptt", 1, 14_000, 3 * 560),
    ],
)
def test_what_an_arm_asks_of_the_machine(
    experiment: str, keys: dict[str, Any], arm: str, threads: int, mem_mb: int, minutes: int
) -> None:
    job = jobs(**{experiment: keys}).study(experiment, arm)
    assert (job.threads, job.mem_mb, job.minutes) == (threads, mem_mb, minutes)
    assert job.alone == (experiment == "bptt"), "the arms whose time is a result have the machine to themselves"


@pytest.mark.parametrize("experiment", DOMAIN.experiments)
def test_a_summary_reads_every_arm(experiment: str) -> None:
    made = jobs(source="digits", **{experiment: {}})
    job = DOMAIN.summary(made, experiment)
    arms = getattr(made.config, experiment).arm_names()
    assert set(job.inputs) == {f"{experiment}/{arm}/{file}" for arm in arms for file in ("metrics", "series", "record")}
    assert job.outputs["table_csv"] == f"results/x/mnist/{experiment}/table.csv"
    assert job.code


def test_settings_jobs_and_experiments_need_no_torch() -> None:
    code = "import sys, metapt.domains.mnist.domain; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
