"""The defaults of the studies are the paper's numbers (appendix "Synthetic Experiments: Further Details")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from metapt.domains.mnist import arms
from metapt.domains.mnist.config import (
    BpttArm,
    BpttStudy,
    ExampleWeighting,
    Fidelity,
    FidelityArm,
    FixedArm,
    MnistMeta,
    RotationMean,
    RotationMeanStd,
)
from metapt.domains.mnist.domain import DOMAIN
from metapt.hypergrad import SGD, ConjugateGradient, FittedHead, Identity, Neumann, Unroll
from metapt.training.optimizers import OptimizerSpec

MNIST = DOMAIN.section()

PAPER = [
    (RotationMean(), "pretrain_examples", 3000),
    (RotationMean(), "finetune_examples", 3000),
    (RotationMean(), "batch_size", 64),
    (RotationMean(), "epochs", 5),
    (RotationMean(), "replicates", 10),
    (RotationMean(), "initial_range", (45, 135)),
    (RotationMean(), "target", 90),
    (RotationMeanStd(), "pretrain_examples", 3000),
    (RotationMeanStd(), "finetune_examples", 3000),
    (RotationMeanStd(), "batch_size", 64),
    (RotationMeanStd(), "epochs", 5),
    (RotationMeanStd(), "starts", [(0, 1), (90, 1)]),
    (RotationMeanStd(), "target", (45, 15)),
    (ExampleWeighting(), "pretrain_examples", 3000),
    (ExampleWeighting(), "classes", 1000),
    (ExampleWeighting(), "batch_size", 100),
    (ExampleWeighting(), "epochs", 100),
    (ExampleWeighting(), "replicates", 10),
    (BpttStudy(), "pretrain_examples", 3000),
    (BpttStudy(), "finetune_examples", 3000),
    (BpttStudy(), "batch_size", 64),
    (BpttStudy(), "pretrain_steps", 500),
    (BpttStudy(), "finetune_steps", 500),
    (BpttStudy(), "initial", 45),
    (BpttStudy(), "target", 90),
    (BpttStudy(), "pretrain_lr", 0.01),
    (BpttStudy(), "finetune_lr", 0.01),
    (BpttStudy().arms["bptt"], "outer_steps", 500),
    (BpttStudy().arms["bptt_limited"], "budget_of", "meta"),
    (BpttStudy().arms["optimal_augmentation"], "mean", 90),
    (BpttStudy().arms["initial_augmentation"], "mean", 45),
]


@pytest.mark.parametrize(("section", "key", "value"), PAPER, ids=[f"{type(s).__name__}-{key}" for s, key, _ in PAPER])
def test_a_default_is_the_papers_number(section: Any, key: str, value: Any) -> None:
    assert getattr(section, key) == value


@pytest.mark.parametrize(
    "study", [RotationMean(), RotationMeanStd(), BpttStudy()], ids=lambda study: type(study).__name__
)
def test_the_rotation_is_learned_as_in_the_paper(study: RotationMean | RotationMeanStd | BpttStudy) -> None:
    arm = study.arms["meta"]
    assert isinstance(arm, MnistMeta)
    settings = arms.settings(arm, 100, 47)
    assert settings.pretrain_optimizer == OptimizerSpec("Adam", {"lr": 0.01})
    assert settings.meta_optimizer == OptimizerSpec("Adam", {"lr": 0.3}, {})
    assert settings.finetuning == Unroll(1, SGD(0.01), network=True)
    assert settings.inverse == Neumann(1, 0.01)
    assert (settings.warmup, settings.pretrain_steps, settings.curvature) == (0, 1, "hessian")


def test_examples_are_weighted_as_in_the_paper() -> None:
    settings = arms.settings(ExampleWeighting().arms["meta"], 100, 30)
    assert (
        settings.pretrain_optimizer.settings["lr"]
        == settings.meta_optimizer.settings["lr"]
        == 1e-3
        == default_adam_lr()
    )
    assert settings.finetuning == Unroll(1, SGD(0.01), network=True)
    assert settings.inverse == Neumann(1, 1e-3)
    assert (settings.warmup, settings.pretrain_steps) == (0, 1)


def test_a_warm_up_of_five_epochs_is_150_iterations() -> None:
    """Appendix "Meta-Parameterized Per-Example Weighting"; 3,000 images in minibatches of 100."""
    assert arms.settings(ExampleWeighting().arms["meta-warmup"], 3000, 30).warmup == 150


def leaves(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Return the keys of a section that are no sections themselves, without those that are empty or off by default."""
    for key, field in section.model_fields.items():
        structure = key in ("method", "arms") or isinstance(field.default, BaseModel)
        if not structure and field.default not in (None, False, {}, PydanticUndefined):
            yield key, field


SECTIONS = [
    MnistMeta,
    BpttArm,
    FixedArm,
    RotationMean,
    RotationMeanStd,
    ExampleWeighting,
    BpttStudy,
    FidelityArm,
    Fidelity,
]
ALGORITHM = {
    "heads",  # Section 2: an output layer each
    "curvature", "unroll",  # Section 3.1, Eq. 5
    "unroll_steps", "pretrain_steps", "warmup_epochs",  # Implementation
    "pretrain_lr", "finetune_lr", "meta_lr", "meta_optimizer",
    "head_steps_between_updates",  # Algorithm 2: none
    "accumulate",  # one hypergradient per meta-update
}  # fmt: skip
"""Keys of an arm whose values `test_the_rotation_is_learned_as_in_the_paper` holds."""


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_a_default_that_the_paper_has_not_says_so(section: type[BaseModel]) -> None:
    if "Not in the paper." in (section.__doc__ or ""):
        return
    papers = {key for held, key, _ in PAPER if isinstance(held, section)} | (
        ALGORITHM if section is MnistMeta else set()
    )
    papers |= {"heads", "outer_steps"} if section is BpttArm else {"heads"} if section is FixedArm else set()
    silent = {
        key
        for key, field in leaves(section)
        if not re.search(r"\(not in the paper; released code: .+\)", field.description or "")
    }
    assert silent == papers & {key for key, _ in leaves(section)}


def default_adam_lr() -> float:
    lr: float = torch.optim.Adam([torch.zeros(1)]).defaults["lr"]
    return lr


def test_what_the_paper_has_not_is_off() -> None:
    settings = arms.settings(MnistMeta(), 100, 47)
    assert (settings.accumulate, settings.clip_norm, settings.normalise, settings.average_decay) == (
        1,
        None,
        False,
        None,
    )
    assert settings.head_steps_between_updates == 0


@pytest.mark.parametrize(
    ("keys", "inverse"),
    [
        ({"inverse": {"kind": "identity"}}, Identity()),
        ({"inverse": {"kind": "neumann", "terms": 3, "step_size": 0.5}}, Neumann(3, 0.5)),
        ({"inverse": {"kind": "neumann", "terms": 0}, "pretrain_lr": 0.2}, Neumann(0, 0.2)),
        (
            {"inverse": {"kind": "conjugate_gradient", "max_steps": 7, "rtol": 0.1, "damping": 0.2}},
            ConjugateGradient(rtol=0.1, max_steps=7, damping=0.2),
        ),
    ],
    ids=["identity", "neumann", "neumann with the PT learning rate", "conjugate gradient"],
)
def test_the_inverse_of_an_arm_is_the_one_asked_for(keys: dict[str, Any], inverse: Any) -> None:
    assert arms.settings(MnistMeta(**keys), 10, 47).inverse == inverse


@pytest.mark.parametrize(
    ("keys", "finetuning"),
    [
        ({"unroll": "head", "unroll_steps": 5, "finetune_lr": 0.1}, Unroll(5, SGD(0.1), network=False)),
        ({"unroll": "network", "unroll_steps": 0}, Unroll(0, SGD(0.01), network=True)),
        ({"unroll": "fitted", "l2": 0.5, "folds": 2}, FittedHead(l2=0.5, cross_fit=True)),
    ],
    ids=["head", "network", "fitted"],
)
def test_the_fine_tuning_of_an_arm_is_the_one_asked_for(keys: dict[str, Any], finetuning: Any) -> None:
    assert arms.settings(MnistMeta(**keys), 10, 47).finetuning == finetuning


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"heads": "shared", "unroll": "head"}, "unroll is 'head' with shared heads.*legal: network"),
        ({"unroll": "fitted", "head_steps_between_updates": 1}, "which takes no FT steps; legal: 0"),
        ({"folds": 2}, "which fits no head; legal: leave folds out"),
        ({"unroll": "ridge"}, "Input should be 'network', 'head'"),
    ],
    ids=[
        "no head to unroll",
        "no steps of a fitted head",
        "no fitted head to cross-fit",
        "no ridge head for cross-entropy",
    ],
)
def test_settings_that_do_not_fit_together_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        MnistMeta(**keys)


@pytest.mark.parametrize(
    ("arms", "sentence"),
    [
        ({"a": {"method": "bptt", "budget_of": "mta"}}, "bptt.arms.a.budget_of is 'mta', which is no arm; legal: a"),
        ({"a": {"method": "bptt", "budget_of": "a"}}, "bptt.arms.a.budget_of runs in a circle: a -> a"),
        (
            {"a": {"method": "bptt", "budget_of": "b"}, "b": {"method": "bptt", "budget_of": "a"}},
            "bptt.arms.a.budget_of runs in a circle: a -> b -> a",
        ),
    ],
    ids=["no arm", "itself", "one another"],
)
def test_a_budget_names_another_arm(arms: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        MNIST.model_validate({"bptt": {"arms": arms}})


def test_all_arms_of_bptt_take_the_same_pt_steps() -> None:
    with pytest.raises(ValidationError, match=r"bptt\.arms\.meta\.epochs has no meaning"):
        MNIST.model_validate({"bptt": {"arms": {"meta": {"method": "meta", "epochs": 3}}}})


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"rotation_mean": {"epochs": 1, "arms": {"meta": {"warmup_epochs": 1}}}},
            "rotation_mean.arms.meta.warmup_epochs is 1, which is 47 of 47 iterations of 1 PT",
        ),
        (
            {"rotation_mean_std": {"arms": {"a": {"warmup_epochs": 5, "pretrain_steps": 10}}}},
            "arms.a.warmup_epochs is 5, which is 24 of 24 iterations of 10 PT",
        ),
        (
            {"example_weighting": {"epochs": 5}},
            "example_weighting.arms.meta-warmup.warmup_epochs is 5, which is 150 of 150 iterations",
        ),
        (
            {"source": "digits", "example_weighting": {"epochs": 5, "pretrain_examples": "all"}},
            "example_weighting.arms.meta-warmup.warmup_epochs is 5, which is 65 of 65 iterations",
        ),
        (
            {"bptt": {"arms": {"meta": {"method": "meta", "warmup_epochs": 10.6, "pretrain_steps": 100}}}},
            "bptt.arms.meta.warmup_epochs is 10.6, which is 5 of 5 iterations",
        ),
    ],
)
def test_a_warm_up_that_leaves_no_meta_update_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        MNIST.model_validate(keys)


def test_a_warm_up_that_leaves_a_meta_update_is_legal() -> None:
    MNIST.model_validate({"example_weighting": {"epochs": 6}})
    MNIST.model_validate({"bptt": {"arms": {"meta": {"method": "meta", "warmup_epochs": 8.5, "pretrain_steps": 100}}}})
