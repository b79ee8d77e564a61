"""Cross-validation on labelled ECGs, and the best of several equal PT runs that it chooses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metapt.domains.ecg import arms, cross_validation
from metapt.domains.ecg.arms import pretrain
from metapt.domains.ecg.config import BestOf, Simclr
from metapt.domains.ecg.cross_validation import cross_validated_auroc, cross_validated_loss, ridge_logistic
from metapt.domains.ecg.finetune import EcgFinetuneProblem
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.setting import Setting
from metapt.engine.config import validate
from metapt.engine.jobs import Place
from metapt.errors import ConfigError, DataError, MetaptError, TrainingError
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import seed_of
from metapt.twostage.pretraining import PretrainRun
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC

from ..twostage.whole_runs import equal
from .small_ecgs import SQUARE, setting_in

FEW = {"signals": 12, "epochs": 1}
Make = Callable[..., Setting]


def best_of(**keys: Any) -> BestOf:
    return BestOf(
        method="best_of", **{"warp": SQUARE, "runs": 3, "folds": 3, "evaluation": "linear_evaluation", **keys}
    )


def aurocs(run: PretrainRun) -> list[float]:
    return [row["value"] for row in run.series if row["name"] == CROSS_VALIDATED_AUROC]


@pytest.mark.slow
def test_it_is_plain_pt_with_the_seed_whose_auroc_is_the_highest(make: Make, tmp_path: Path) -> None:
    own = [seed_of("ecg candidate", 0, number) for number in range(2)]
    assert len({0, *own}) == 3
    simclr = Simclr(method="simclr", warp=SQUARE)
    plain = [pretrain(simclr, setting_in(tmp_path / str(seed), seed=seed, **FEW)) for seed in own]
    expected = [cross_validated_auroc(make(), 3, "linear_evaluation", each.pretrained) for each in plain]
    run = pretrain(best_of(runs=2), make(**FEW))
    assert aurocs(run) == expected
    best = plain[int(np.argmax(expected))]
    assert all(equal(ours, others) for ours, others in zip(run.pretrained, best.pretrained, strict=True))
    assert equal(run.meta, best.meta)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_run_that_diverges_loses(make: Make, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    judged: list[float] = []

    def judge(*given: Any) -> float:
        judged.append([70.0, 60.0, 80.0][len(judged)])
        if len(judged) == lost + 1:
            raise TrainingError("FT diverged.")
        return judged[-1]

    monkeypatch.setattr(arms, "cross_validated_auroc", judge)
    run = pretrain(best_of(), make(**FEW))
    np.testing.assert_equal(aurocs(run), [math.nan if number == lost else v for number, v in enumerate(judged)])
    seed = seed_of("ecg candidate", 0, 0 if lost == 2 else 2)
    start = make(seed=seed).initial_meta(arms.policy_of(SQUARE))
    assert equal(run.meta, start)


@pytest.mark.slow
@pytest.mark.parametrize("evaluation", ["full_transfer", "linear_evaluation"])
def test_ft_leaves_out_each_fold_of_patients_once(make: Make, monkeypatch: pytest.MonkeyPatch, evaluation: str) -> None:
    """Each fold has a head and minibatches of its own, which all encoders share."""
    sets: list[Any] = []
    draws: list[int] = []
    made: list[Any] = []
    spied = "Transfer" if evaluation == "full_transfer" else evaluation
    original = getattr(cross_validation, spied)

    def watched(*given: Any) -> EcgFinetuneProblem:
        sets.append(given[1])
        return EcgFinetuneProblem(*given)

    def spy(*given: Any) -> Any:
        draws.append((given[3] if evaluation == "full_transfer" else given[2][0]).initial_seed())
        made.append(original(*given))
        return made[-1]

    monkeypatch.setattr(cross_validation, "EcgFinetuneProblem", watched)
    monkeypatch.setattr(cross_validation, spied, spy)
    setting = make()
    first, again = (cross_validated_auroc(setting, 3, evaluation, setting.initial()) for _ in range(2))
    curves = [each.curve if evaluation == "full_transfer" else each[0].validation_curve for each in made]
    assert first == again == pytest.approx(sum(map(max, curves[:3])) / 3)
    assert draws[:3] == draws[3:]
    assert len(set(draws)) == 3
    patients = setting.dataset.records.patients[np.concatenate(setting.finetune)]
    owner = dict(zip((s.numpy().tobytes() for s in setting.labelled().signals), patients, strict=True))
    seen: list[bytes] = []
    for each in sets[:3]:
        train, out = ({s.numpy().tobytes() for s in part.signals} for part in (each.train, each.validation))
        assert train == owner.keys() - out
        assert not {owner[signal] for signal in train} & {owner[signal] for signal in out}
        seen += out
    assert sorted(seen) == sorted(owner)


@pytest.mark.parametrize(
    ("folds", "labels", "error", "words"),
    [
        (30, 1, ConfigError, r"can't be dealt out to .* or at most \d+ folds"),
        (3, 0, DataError, r"no class has both labels among the \d+ .*fold 1 of"),
    ],
)
def test_labelled_ecgs_that_can_not_judge_are_found_before_pt(
    make: Make, monkeypatch: pytest.MonkeyPatch, folds: int, labels: int, error: type[MetaptError], words: str
) -> None:
    monkeypatch.setattr(Pretrainer, "step", None)
    setting = make(meta_size=20)
    records = dataclasses.replace(setting.dataset.records, labels=labels * setting.dataset.records.labels)
    setting = dataclasses.replace(setting, dataset=dataclasses.replace(setting.dataset, records=records))
    with pytest.raises(error, match=words):
        pretrain(best_of(folds=folds), setting)


def test_its_job_knows_how_ft_trains_and_takes_the_time_of_its_runs() -> None:
    section = validate({"ecg": {"finetune": {"epochs": 7}, "arms": {"best_of_4": {"finetune": {"lr": 0.5}}}}}).ecg
    assert section is not None
    jobs = EcgJobs("ecg", section, Place("results", "raw", {"ptbxl-1.0.3": {"name": "ptbxl-1.0.3"}}, []))
    best, plain = jobs.pretrain("best_of_4", "n500/n500", 0), jobs.pretrain("simclr", "n500/n500", 0)
    assert (best.config["finetune"]["epochs"], best.config["finetune"]["lr"]) == (7, 0.5)
    assert plain.config["finetune"] is None
    assert best.minutes > 4 * plain.minutes
    assert best.config["meta_size"] == 500


def data(count: int, scale: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, 4, generator=generator, dtype=torch.float64) * scale
    logits = features @ torch.randn(4, 3, generator=generator, dtype=torch.float64) / scale + 0.5
    return features, (logits + torch.randn(count, 3, generator=generator) > 0).double()


@pytest.mark.parametrize(("l2", "scale", "separable"), [(1e-3, 1.0, False), (1e-3, 30.0, False), (1e-1, 30.0, True)])
def test_the_probe_is_the_minimum_of_the_convex_loss_with_a_penalised_bias(
    l2: float, scale: float, separable: bool
) -> None:
    features, labels = data(60, scale)
    labels = (features[:, :3] > 0).double() if separable else labels
    heads = ridge_logistic(features, labels, l2).requires_grad_()
    scores = features @ heads[:-1] + heads[-1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels) + l2 / 2 * heads.square().sum()
    (slope,) = torch.autograd.grad(loss, heads)
    assert slope.abs().max() < 1e-9


def test_the_probes_loss_is_that_of_held_out_folds() -> None:
    features, labels = data(23, 1.0)
    fold, losses = torch.arange(23) * 7 % 4, []
    for held_out in range(4):
        out = fold == held_out
        heads = ridge_logistic(features[~out], labels[~out], 0.1)
        chance = torch.sigmoid(features[out] @ heads[:-1] + heads[-1])
        losses.append(-(labels[out] * chance.log() + (1 - labels[out]) * (1 - chance).log()).mean())
    expected = float(torch.stack(losses).mean())
    assert cross_validated_loss(features, labels, fold, 0.1) == pytest.approx(expected)
    assert cross_validated_loss(features.float(), labels.float(), fold, 0.1) == pytest.approx(expected, rel=1e-5)
