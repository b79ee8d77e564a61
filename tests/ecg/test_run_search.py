"""The search on ECGs with whole PT runs: its runs, and the AUROC by which it chooses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metapt.config import validate
from metapt.domains.ecg import config, cross_validation, run_search
from metapt.domains.ecg.arms import pretrain
from metapt.domains.ecg.config import EcgFinetuning, EcgPretraining, RunSearch, Simclr, Warp
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.finetune import Sets
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.quantities import FACTOR, TEMPERATURE, WARP_STRENGTH
from metapt.domains.ecg.setting import Setting
from metapt.errors import DataError
from metapt.jobs import Place
from metapt.training.checkpoint import Checkpoint
from metapt.training.pretraining import Pretrainer
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC

WARP = Warp(initial=0.2, network_width=2)
PROPOSALS = ("secants", "random")
Make = Callable[..., Setting]


def search(**keys: Any) -> RunSearch:
    return RunSearch(method="run_search", **{"warp": WARP, "rounds": 2, "factor": 4.0, "folds": 3, **keys})


@pytest.fixture
def make(dataset: Dataset, tmp_path: Path) -> Make:
    """Return a function (temperature) -> setting of eight PT steps on 24 ECGs, width 2, and an FT set of 25."""

    def setting(**changes: Any) -> Setting:
        return Setting(
            dataset,
            2,
            EcgPretraining(signals=24, epochs=2, batch_size=6, lr=1e-3, **changes),
            0,
            25,
            "patients",
            lambda part: Checkpoint(tmp_path / f"state{part}.pt", "a test"),
            finetune_settings=EcgFinetuning(epochs=2, batch_size=6, linear_epochs=3),
        )

    return setting


def test_random_candidates_lie_where_secants_can_go() -> None:
    places = run_search.random_places(search(rounds=3, propose="random"), seed=0)
    assert len(set(places)) == 6
    assert max(abs(place) for (place,) in places) <= 1.75 * math.log(4)
    assert {place > 0 for (place,) in places} == {False, True}


@pytest.mark.parametrize("propose", PROPOSALS)
def test_both_ways_to_propose_cost_as_many_whole_runs(
    make: Make, monkeypatch: pytest.MonkeyPatch, propose: str
) -> None:
    steps, folds = [], []
    step, objective = Pretrainer.step, cross_validation.linear_evaluation
    monkeypatch.setattr(Pretrainer, "step", lambda self, meta: steps.append(1) or step(self, meta))
    monkeypatch.setattr(cross_validation, "linear_evaluation", lambda *given: folds.append(1) or objective(*given))
    pretrain(search(propose=propose, evaluation="linear_evaluation"), make())
    assert len(steps) == 4 * 8, "four candidates of eight PT steps each, and no further run"
    assert len(folds) == 4 * 3


@pytest.mark.parametrize("hyperparameter", ["strength", "temperature"])
@pytest.mark.parametrize("warp", [WARP, Warp(smoothing="velocity", scale="log", initial=4.0, network_width=0)])
def test_the_result_is_plain_pt_with_the_chosen_value(make: Make, hyperparameter: str, warp: Warp) -> None:
    arm = search(hyperparameter=hyperparameter, evaluation="linear_evaluation", warp=warp)
    run = pretrain(arm, make())
    factors, aurocs = (
        [row["value"] for row in run.series if row["name"] == name] for name in (FACTOR, CROSS_VALIDATED_AUROC)
    )
    chosen = factors[int(np.argmax(aurocs[2:])) + 2]
    assert factors[:2] == pytest.approx([4, 0.25])
    setting, plain = make(), Simclr(method="simclr", warp=warp)
    before = pretrain(plain, setting)
    for checkpoint in (*run.checkpoints, *before.checkpoints):
        checkpoint.remove()
    if hyperparameter == "temperature":
        setting = make(temperature=0.5 * chosen)
        assert run.numbers[TEMPERATURE] == pytest.approx(0.5 * chosen)
        assert run.numbers[WARP_STRENGTH] == pytest.approx(before.numbers[WARP_STRENGTH])
    else:
        scale = math.sqrt(chosen) if warp.scale == "square" else chosen
        plain = Simclr(method="simclr", warp=warp.model_copy(update={"initial": warp.initial * scale}))
        assert run.numbers[TEMPERATURE] == 0.5
        assert run.numbers[WARP_STRENGTH] == pytest.approx(chosen * before.numbers[WARP_STRENGTH], rel=1e-5)
    expected = pretrain(plain, setting)
    for name, value in expected.pretrained.encoder.items():
        torch.testing.assert_close(run.pretrained.encoder[name], value, rtol=0, atol=1e-6)


def test_the_best_of_equal_runs_is_plain_pt_with_weights_and_minibatches_of_its_own(make: Make) -> None:
    arm, setting = search(hyperparameter="seed", propose="random", evaluation="linear_evaluation"), make()
    run = pretrain(arm, setting)
    aurocs = [row["value"] for row in run.series if row["name"] == CROSS_VALIDATED_AUROC]
    for checkpoint in run.checkpoints:
        checkpoint.remove()
    own = [run_search.candidate(setting, arm, (float(number),))[0] for number in range(4)]
    assert len({each.seed for each in own} | {setting.seed}) == 5
    expected = pretrain(Simclr(method="simclr", warp=WARP), own[int(np.argmax(aurocs))])
    for name, value in expected.pretrained.encoder.items():
        assert torch.equal(run.pretrained.encoder[name], value)
    assert equal_params(run.meta, expected.meta)


def equal_params(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_seeds_are_no_hyperparameter_to_follow_a_slope_of() -> None:
    with pytest.raises(ValueError, match="legal: propose: random"):
        search(hyperparameter="seed", propose="secants")


@pytest.mark.parametrize("evaluation", ["full_transfer", "linear_evaluation"])
def test_ft_of_a_candidate_leaves_out_each_fold_of_patients_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, evaluation: str
) -> None:
    given: list[Sets] = []
    original = getattr(cross_validation, evaluation)
    monkeypatch.setattr(cross_validation, evaluation, lambda *args: given.append(args[4]) or original(*args))
    setting = make()
    found = run_search.cross_validated_auroc(setting, search(evaluation=evaluation), setting.initial())
    assert 0 < found < 100
    assert found == run_search.cross_validated_auroc(setting, search(evaluation=evaluation), setting.initial())
    every = {signal.numpy().tobytes() for signal in setting.labelled().signals}
    held_out = [{signal.numpy().tobytes() for signal in sets.validation.signals} for sets in given[:3]]
    assert sorted(signal for part in held_out for signal in part) == sorted(every)
    patients = setting.dataset.records.patients[np.concatenate(setting.finetune)]
    owner = dict(zip((s.numpy().tobytes() for s in setting.labelled().signals), patients, strict=True))
    for sets, out in zip(given, held_out, strict=False):
        train = {signal.numpy().tobytes() for signal in sets.train.signals}
        assert train == every - out
        assert not {owner[signal] for signal in train} & {owner[signal] for signal in out}


def test_each_fold_has_a_head_and_minibatches_of_its_own_and_all_candidates_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    original = cross_validation.linear_evaluation
    monkeypatch.setattr(
        cross_validation, "linear_evaluation", lambda *args: seeds.append(args[6][0].initial_seed()) or original(*args)
    )
    setting, arm = make(), search(evaluation="linear_evaluation")
    for _ in range(2):
        run_search.cross_validated_auroc(setting, arm, setting.initial())
    assert len(set(seeds[:3])) == 3
    assert seeds[3:] == seeds[:3]


def test_ecgs_that_can_not_be_judged_are_refused_before_the_first_pt_step(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise DataError("no class has both labels")

    monkeypatch.setattr(cross_validation, "check", refuse)
    monkeypatch.setattr(Pretrainer, "step", lambda self, meta: pytest.fail("PT has begun"))
    with pytest.raises(DataError, match="no class has both labels"):
        pretrain(search(), make())


def test_an_encoder_that_knows_the_labels_has_the_highest_auroc(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = dataclasses.replace(make(), finetune_settings=EcgFinetuning(linear_epochs=100, batch_size=6))
    labelled = setting.labelled()
    answers = {signal.numpy().tobytes(): labels for signal, labels in zip(*labelled, strict=True)}

    def features(encoder: Any, network: Any, signals: torch.Tensor) -> torch.Tensor:
        known = torch.stack([answers[signal.numpy().tobytes()] for signal in signals])
        return torch.cat([2 * known - 1, torch.zeros(len(known), 16 - known.shape[1])], dim=1)

    monkeypatch.setattr("metapt.domains.ecg.finetune._features", features)
    arm = search(evaluation="linear_evaluation")
    assert run_search.cross_validated_auroc(setting, arm, setting.initial()) == pytest.approx(100)


def test_the_job_of_a_search_knows_how_ft_trains_and_other_jobs_do_not() -> None:
    section = validate({"ecg": {"finetune": {"epochs": 7}, "arms": {"run_search": {"finetune": {"lr": 0.5}}}}}).ecg
    jobs = EcgJobs("ecg", section, Place("results", "raw", {"ptbxl-1.0.3": {"name": "ptbxl-1.0.3"}}, [], False))
    searched, plain = jobs.pretrain("run_search", "n500", 0), jobs.pretrain("simclr", "none", 0)
    assert searched.config["finetune"]["epochs"] == 7
    assert searched.config["finetune"]["lr"] == 0.5
    assert "finetune" not in plain.config
    assert searched.minutes > 4 * plain.minutes
    assert config.access(section.arms["run_search"], 500) == "n500"
