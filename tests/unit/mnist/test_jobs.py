"""The jobs of this domain: their inputs, outputs and resources."""

from __future__ import annotations

from typing import Any

import pytest

from metapt.domains.mnist.data import FILES
from metapt.domains.mnist.domain import DOMAIN
from metapt.domains.mnist.jobs import MnistJobs
from metapt.engine.jobs import Place

SOURCES = {"mnist": {"name": "mnist", "files": {file: {"size": 1} for file in FILES.values()}}}


def jobs(**section: Any) -> MnistJobs:
    """Return the jobs of a section of the config."""
    config: Any = DOMAIN.section().model_validate(section)
    return MnistJobs("mnist", config, Place("results/x", "data/raw", SOURCES, []))


@pytest.mark.parametrize(("source", "folder"), [("digits", "mnist-digits"), ("mnist", "mnist")])
def test_digits_are_generated_and_mnist_is_downloaded(source: str, folder: str) -> None:
    made = jobs(source=source, rotation_mean={})
    assert made.prepared().inputs == {file: f"data/raw/{folder}/{file}" for file in FILES.values()}
    assert made.prepared().outputs == {"data": f"results/x/mnist/data/{source}/images.pt"}
    assert {job.stage for job in made.made.values()} == {"prepare", "simulate" if source == "digits" else "download"}


def test_an_arm_is_a_run_of_its_experiment() -> None:
    job = jobs(source="digits", rotation_mean={}).study("rotation_mean", "meta-shared")
    assert (job.stage, job.name) == ("study", "mnist/rotation_mean/meta-shared")
    assert job.inputs == {"data": "results/x/mnist/data/digits/images.pt"}
    assert job.outputs["metrics"] == "results/x/mnist/rotation_mean/meta-shared/metrics.csv"
    assert job.config["checkpoint"] == "results/x/.resume/mnist/rotation_mean/meta-shared.pt"
    assert list(job.config["settings"]["arms"]) == ["meta-shared"], "a change of another arm leaves this run as it is"


def test_only_runs_that_save_their_state_are_given_a_place_for_it() -> None:
    """A job with such a place notes a signal to end, and ends when it has saved."""
    made = jobs(**{key: {} for key in DOMAIN.experiments})
    for key in DOMAIN.experiments:
        DOMAIN.summary(made, key)
    arms = {tuple(name.split("/")[1:]): job for name, job in made.made.items() if job.stage == "study"}
    kept = {arm for arm, job in arms.items() if job.config.get("checkpoint")}
    assert {experiment for experiment, _ in arms} == set(DOMAIN.experiments)
    assert {arm for experiment, arm in kept if experiment == "bptt"} == {
        f"{name}{end}" for name in ("bptt", "bptt_limited") for end in ("", "-shared")
    }
    whole = {"rotation_mean", "rotation_mean_std", "example_weighting"}
    assert {arm for arm in kept if arm[0] != "bptt"} == {arm for arm in arms if arm[0] in whole}


def test_an_arm_with_the_budget_of_another_waits_for_it() -> None:
    made = jobs(bptt={})
    job = made.study("bptt", "bptt_limited-shared")
    assert job.inputs["budget"] == made.study("bptt", "meta-shared").outputs["metrics"]
    assert "budget" not in made.study("bptt", "bptt").inputs


@pytest.mark.parametrize(
    ("experiment", "keys", "arm", "threads", "mem_mb", "minutes"),
    [
        ("rotation_mean", {}, "meta", 1, 2000, 60),
        ("rotation_mean_std", {}, "meta-curvature", 1, 2000, 240),
        ("rotation_mean", {"replicates": 20, "epochs": 10}, "meta", 1, 2000, 240),
        ("example_weighting", {"replicates": [4, 5, 6]}, "meta", 3, 11_000, 60),
        ("example_weighting", {"pretrain_examples": "all"}, "meta", 4, 14_000, 20 * 60),
        ("example_weighting", {"epochs": 1000}, "meta", 4, 14_000, 600),
        ("fidelity", {"pretrain_steps": [1, 10, 100, 500, 611]}, "head", 1, 2000, 120),
        ("bptt", {}, "meta", 1, 6000, 60),
        ("bptt", {}, "bptt", 1, 6000, 560),
        ("bptt", {"pretrain_steps": 1500, "finetune_steps": 1500}, "bptt", 1, 14_000, 3 * 560),
    ],
)
def test_what_an_arm_asks_of_the_machine(
    experiment: str, keys: dict[str, Any], arm: str, threads: int, mem_mb: int, minutes: int
) -> None:
    job = jobs(**{experiment: keys}).study(experiment, arm)
    assert (job.threads, job.mem_mb, job.minutes) == (threads, mem_mb, minutes)
    assert job.alone == (experiment == "bptt"), "the arms whose time is a result have the machine to themselves"
