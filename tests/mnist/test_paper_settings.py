"""The defaults of the studies are the paper's numbers (appendix "Synthetic Experiments: Further Details")."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from metapt.hypergrad import SGD, ConjugateGradient, FittedHead, Identity, Neumann, Unroll
from metapt.mnist import arms
from metapt.mnist.config import BpttStudy, ExampleWeighting, MetaArm, MnistConfig, RotationMean, RotationMeanStd
from metapt.training.optimizers import OptimizerSpec

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


@pytest.mark.parametrize("study", [RotationMean(), RotationMeanStd(), BpttStudy()], ids=lambda study: type(study).__name__)
def test_the_rotation_is_learned_as_in_the_paper(study: RotationMean | RotationMeanStd | BpttStudy) -> None:
    arm = study.arms["meta"]
    assert isinstance(arm, MetaArm)
    settings = arms.settings(arm, 100)
    assert settings.pretrain_optimizer == OptimizerSpec("Adam", {"lr": 0.01})
    assert settings.meta_optimizer == OptimizerSpec("Adam", {"lr": 0.3}, {})
    assert settings.unroll == Unroll(1, SGD(0.01), network=True)
    assert settings.inverse == Neumann(1, 0.01)
    assert (settings.warmup, settings.pretrain_steps, settings.curvature) == (0, 1, "hessian")


def test_examples_are_weighted_as_in_the_paper() -> None:
    settings = arms.settings(ExampleWeighting().arms["meta"], 100)
    assert settings.pretrain_optimizer.settings["lr"] == settings.meta_optimizer.settings["lr"] == 1e-3 == default_adam_lr()
    assert settings.unroll == Unroll(1, SGD(0.01), network=True)
    assert settings.inverse == Neumann(1, 1e-3)
    assert (settings.warmup, settings.pretrain_steps) == (0, 1)


def default_adam_lr() -> float:
    lr: float = torch.optim.Adam([torch.zeros(1)]).defaults["lr"]
    return lr


def test_what_the_paper_has_not_is_off() -> None:
    settings = arms.settings(MetaArm(), 100)
    assert (settings.accumulate, settings.clip_norm, settings.normalise, settings.average_decay) == (1, None, False, None)
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
    assert arms.settings(MetaArm(**keys), 10).inverse == inverse


@pytest.mark.parametrize(
    ("keys", "unroll"),
    [
        ({"unroll": "head", "unroll_steps": 5, "finetune_lr": 0.1}, Unroll(5, SGD(0.1), network=False)),
        ({"unroll": "network", "unroll_steps": 0}, Unroll(0, SGD(0.01), network=True)),
        ({"unroll": "fitted", "l2": 0.5, "cross_fit": True}, FittedHead(l2=0.5, cross_fit=True)),
    ],
    ids=["head", "network", "fitted"],
)
def test_the_fine_tuning_of_an_arm_is_the_one_asked_for(keys: dict[str, Any], unroll: Any) -> None:
    assert arms.settings(MetaArm(**keys), 10).unroll == unroll


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"heads": "shared", "unroll": "head"}, "unroll is 'head' with shared heads.*legal: network"),
        ({"unroll": "fitted", "head_steps_between_updates": 1}, "a fitted head takes none"),
    ],
    ids=["no head to unroll", "no steps of a fitted head"],
)
def test_settings_that_do_not_fit_together_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        MetaArm(**keys)


def test_a_budget_names_an_arm() -> None:
    with pytest.raises(ValidationError, match="budget_of is 'mta', which is no arm; legal: a"):
        MnistConfig(bptt=BpttStudy.model_validate({"arms": {"a": {"method": "bptt", "budget_of": "mta"}}}))
