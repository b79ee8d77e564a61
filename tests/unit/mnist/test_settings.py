"""The settings of the studies, by default the paper's, and the jobs: their inputs, outputs and resources."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from metapt.domains.mnist import arms
from metapt.domains.mnist.config import (
    BpttArm,
    BpttStudy,
    ExampleWeighting,
    FixedArm,
    MnistMeta,
    RotationMean,
    RotationMeanStd,
    minibatches,
)
from metapt.domains.mnist.data import FILES
from metapt.domains.mnist.domain import DOMAIN
from metapt.domains.mnist.jobs import MnistJobs
from metapt.engine.jobs import Place
from metapt.hypergrad import SGD, ConjugateGradient, FittedHead, Identity, Neumann, Unroll
from metapt.training.optimizers import OptimizerSpec

IMAGES = {"pretrain_examples": 3000, "finetune_examples": 3000, "batch_size": 64}
PAPER: dict[type[BaseModel], dict[str, Any]] = {  # appendix "Synthetic Experiments: Further Details"
    RotationMean: IMAGES | {"epochs": 5, "replicates": 10, "initial_range": (45, 135), "target": 90},
    RotationMeanStd: IMAGES | {"epochs": 5, "starts": [(0, 1), (90, 1)], "target": (45, 15)},
    ExampleWeighting: {
        "pretrain_examples": 3000, "classes": 1000, "batch_size": 100, "epochs": 100, "replicates": 10
    },
    BpttStudy: IMAGES
    | {"pretrain_steps": 500, "finetune_steps": 500, "initial": 45, "target": 90}
    | {"pretrain_lr": 0.01, "finetune_lr": 0.01},
    BpttArm: {"heads": "separate", "outer_steps": 500},
    FixedArm: {"heads": "separate"},
    MnistMeta: {
        "heads": "separate",  # Section 2: an output layer each
        "curvature": "hessian", "unroll": "network",  # Section 3.1, Eq. 5
        "unroll_steps": 1, "pretrain_steps": 1, "warmup_epochs": 0,  # Implementation
        "pretrain_lr": 0.01, "finetune_lr": 0.01, "meta_lr": 0.3, "meta_optimizer": "Adam",
        "head_steps_between_updates": 0,  # Algorithm 2: none
        "accumulate": 1,  # one hypergradient per meta-update
    },
}  # fmt: skip


@pytest.mark.parametrize("section", PAPER, ids=lambda section: section.__name__)
def test_a_default_is_the_papers_number_or_says_that_the_paper_has_none(section: type[BaseModel]) -> None:
    fields = section.model_fields
    assert {key: fields[key].default for key in PAPER[section]} == PAPER[section]
    for key, field in fields.items():
        structure = key in ("method", "arms") or isinstance(field.default, BaseModel)
        if not structure and key not in PAPER[section] and field.default not in (None, False, {}, PydanticUndefined):
            assert re.search(r"\(not in the paper; released code: .+\)", field.description or ""), key


def test_the_papers_arms() -> None:
    study = BpttStudy().arms
    assert [study[f"{end}_augmentation"].mean for end in ("initial", "optimal")] == [45, 90]  # type: ignore[union-attr]
    assert study["bptt_limited"].budget_of == "meta"  # type: ignore[union-attr]
    found = arms.settings(RotationMean().arms["meta"], 100, 47)
    assert found.pretrain_optimizer == OptimizerSpec("Adam", {"lr": 0.01})
    assert found.meta_optimizer == OptimizerSpec("Adam", {"lr": 0.3}, {})
    assert (found.finetuning, found.inverse) == (Unroll(1, SGD(0.01), network=True), Neumann(1, 0.01))
    assert (found.warmup, found.clip_norm, found.normalise, found.average_decay) == (0, None, False, None)
    assert RotationMean().arms["meta"] == RotationMeanStd().arms["meta"] == study["meta"] == MnistMeta()
    weighting = arms.settings(ExampleWeighting().arms["meta"], 100, 30)
    assert weighting.pretrain_optimizer == weighting.meta_optimizer == OptimizerSpec("Adam", {"lr": 1e-3})
    assert weighting.inverse == Neumann(1, 1e-3)
    assert arms.settings(ExampleWeighting().arms["meta-warmup"], 3000, 30).warmup == 150


@pytest.mark.parametrize(
    ("keys", "name", "expected"),
    [
        ({"inverse": {"kind": "identity"}}, "inverse", Identity()),
        ({"inverse": {"kind": "neumann", "terms": 3, "step_size": 0.5}}, "inverse", Neumann(3, 0.5)),
        ({"inverse": {"kind": "neumann", "terms": 0}, "pretrain_lr": 0.2}, "inverse", Neumann(0, 0.2)),
        (
            {"inverse": {"kind": "conjugate_gradient", "max_steps": 7, "rtol": 0.1, "damping": 0.2}},
            "inverse",
            ConjugateGradient(rtol=0.1, max_steps=7, damping=0.2),
        ),
        ({"unroll": "head", "unroll_steps": 5, "finetune_lr": 0.1}, "finetuning", Unroll(5, SGD(0.1), network=False)),
        ({"unroll": "network", "unroll_steps": 0}, "finetuning", Unroll(0, SGD(0.01), network=True)),
        ({"unroll": "fitted", "l2": 0.5, "folds": 2}, "finetuning", FittedHead(l2=0.5, cross_fit=True)),
    ],
)
def test_the_solvers_of_an_arm_are_those_asked_for(keys: dict[str, Any], name: str, expected: Any) -> None:
    assert getattr(arms.settings(MnistMeta(**keys), 10, 47), name) == expected


@pytest.mark.parametrize(
    ("arm", "epochs", "batch_size", "iterations"),
    [({}, 5, 64, 235), ({}, 100, 100, 3000), ({"pretrain_steps": 5}, 5, 64, 47), ({"epochs": 20}, 5, 64, 940)],
)
def test_iterations_of_3000_images(arm: dict[str, Any], epochs: int, batch_size: int, iterations: int) -> None:
    assert MnistMeta(**arm).iterations(epochs, minibatches(3000, batch_size)) == iterations


def arms_of(experiment: str, **named: Any) -> dict[str, Any]:
    return {experiment: {"arms": named}}


BPTT = {"method": "bptt"}
META = {"method": "meta"}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (arms_of("rotation_mean", a={"heads": "shared", "unroll": "head"}), "unroll is 'head' with shared heads"),
        (arms_of("rotation_mean", a={"heads": "shared", "head_steps_between_updates": 1}), "where no FT head is kept"),
        (arms_of("rotation_mean", a={"unroll": "ridge"}), "Input should be 'network', 'head'"),
        (arms_of("rotation_mean", a={"warmup_epochs": 5}), "a.warmup_epochs is 5, which is 235 of 235 iterations"),
        (
            arms_of("rotation_mean_std", a={"warmup_epochs": 5, "pretrain_steps": 10}),
            "is 5, which is 24 of 24 iterations",
        ),
        ({"rotation_mean_std": {"starts": [(10, 1), (10, 1)]}}, "stands there twice; name it once"),
        ({"example_weighting": {"epochs": 5}}, "arms.meta-warmup.warmup_epochs is 5, which is 150 of 150 iterations"),
        ({"source": "digits", "example_weighting": {"epochs": 5, "pretrain_examples": "all"}}, "65 of 65 iterations"),
        (arms_of("example_weighting", a={"curvature": "gauss_newton"}), "which is for rotations; legal: hessian"),
        (arms_of("bptt", a=META | {"warmup_epochs": 10.6, "pretrain_steps": 100}), "is 10.6, which is 5 of 5 iter"),
        (arms_of("bptt", a=META | {"pretrain_steps": 3}), "does not divide the 500 PT steps"),
        (arms_of("bptt", a=META | {"epochs": 3}), "bptt.arms.a.epochs has no meaning"),
        (arms_of("bptt", a=BPTT | {"budget_of": "mta"}), "a.budget_of is 'mta', which is no arm; legal: a"),
        (arms_of("bptt", meta=META | {"heads": "shared"}), "bptt.arms.meta.heads is 'shared'; legal: the default"),
        (arms_of("bptt", a=BPTT, bptt_limited=BPTT | {"budget_of": "a"}), "budget_of is 'a'; legal: the default"),
        (arms_of("bptt", a=BPTT | {"budget_of": "a"}), "bptt.arms.a.budget_of runs in a circle: a -> a"),
        (arms_of("bptt", a=BPTT | {"budget_of": "b"}, b=BPTT | {"budget_of": "a"}), "in a circle: a -> b -> a"),
        ({"bptt": {"initial": 30}}, "initial_augmentation.mean is 45, and initial is 30; legal: 30"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        DOMAIN.section().model_validate(keys)


def test_a_warm_up_that_leaves_a_meta_update_is_legal() -> None:
    bptt = arms_of("bptt", meta=META | {"warmup_epochs": 8.5, "pretrain_steps": 100})
    DOMAIN.section().model_validate({"example_weighting": {"epochs": 6}} | bptt)


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
        ("fidelity", {"examples": 27_000}, "head", 1, 10_000, 5 * 60),
        ("fidelity", {"neumann_terms": [0, 176]}, "head", 1, 2000, 120),
        ("bptt", {}, "meta", 1, 6000, 60),
        ("bptt", {"batch_size": 128}, "meta", 1, 10_000, 60),
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
