"""Sections whose keys are legal one by one but not together are refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from metapt.config import validate
from metapt.domains.ecg.config import TRAINING_RECORDS
from metapt.domains.ecg.data import simulate
from metapt.domains.ecg.experiments.warp_study import fixed_arms, study_arms
from metapt.errors import ConfigError

STUDY: dict[str, Any] = {
    "warps": {"stable": {"smoothing": "velocity", "scale": "log"}},
    "strengths": {"stable": [1, 16]},
    "starts": {"meta-stable": [4]},
}


def read(**section: Any) -> Any:
    found = validate({"ecg": section}).ecg
    assert found is not None
    return found


def sentence(**section: Any) -> str:
    with pytest.raises(ConfigError) as error:
        read(**section)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "origin"), [("fixed-stable-1", "strengths.stable 1.0"), ("meta-stable-from-4", "starts.meta-stable 4.0")]
)
def test_an_arm_can_not_have_the_name_of_one_that_the_warp_study_makes(name: str, origin: str) -> None:
    own = {name: {"extends": "simclr"}}
    assert (
        f"warp_study.{origin} makes an arm of the name of arms.{name}, which would be run in its place; give that "
        "another name" in sentence(arms=own, warp_study=STUDY)
    )
    assert read(arms=own, full_access={}).arms[name] == read(full_access={}).arms["simclr"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"strengths": {"stable": [1, 1.0000001]}}, "fixed-stable-1"),
        ({"starts": {"meta-stable": [4, 4.0000001]}}, "meta-stable-from-4"),
        ({"warps": {"a": {}, "a-1e": {}}, "strengths": {"a": [1e-5], "a-1e": [5]}}, None),
        ({"warps": {"a": {}, "a-1e": {}}, "strengths": {"a": [1e-10], "a-1e": [10]}}, "fixed-a-1e-10"),
    ],
)
def test_two_arms_of_the_warp_study_can_not_have_one_name(change: dict[str, Any], name: str | None) -> None:
    if name is None:
        read(warp_study=STUDY | change)
        return
    assert f"both make the arm {name!r}" in sentence(warp_study=STUDY | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"starts": {}}, "warp_study.starts"),
        ({"strengths": {}}, "warp_study.strengths"),
        (
            {"starts": {"meta-released": [1]}},
            "warp_study.starts.meta-released: the arm has PT or FT settings of its own, and fixed strengths have the",
        ),
    ],
)
def test_the_warp_study_compares_arms_that_differ_in_their_warp(change: dict[str, Any], words: str) -> None:
    assert words in sentence(warp_study=STUDY | change)


def test_an_arm_without_a_warp_has_no_views_to_show() -> None:
    words = "augmentations.arms names no_pt, which has no warp; legal: arms that pre-train"
    assert words in sentence(augmentations={"arms": ["meta", "no_pt"]})


def test_partial_access_compares_arms_that_see_labels_with_one_that_does_not() -> None:
    assert "partial_access.baseline is 'meta', whose PT sees labels; legal: an arm without" in sentence(
        partial_access={"baseline": "meta"}
    )
    assert "partial_access.arms names 'simclr-mild', whose PT sees no labels; legal: arms whose PT does" in sentence(
        partial_access={"arms": ["meta", "simclr-mild"]}
    )


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"evaluations": ["linear_evaluation"] * 2}, "ecg.evaluations: linear_evaluation stands there twice"),
        ({"full_access": {"finetune_sizes": [100, 100]}}, "ecg.full_access.finetune_sizes: 100 stands there twice"),
        ({"finetune_seeds": 1001}, "ecg.finetune_seeds is 1001, but must be"),
    ],
)
def test_runs_that_would_have_one_name_are_refused(section: dict[str, Any], words: str) -> None:
    assert words in sentence(**section)


def test_the_same_strength_twice_is_one_arm() -> None:
    twice = read(warp_study=STUDY | {"strengths": {"stable": [1, 1]}})
    assert [name for name in study_arms(twice.warp_study, twice) if name.startswith("fixed")] == ["fixed-stable-1"]


def beside(study: dict[str, Any]) -> dict[float, str]:
    config = read(warp_study=study)
    return fixed_arms(config.warp_study, config, "meta-stable")


def test_an_arm_is_compared_with_one_fixed_strength_of_a_value() -> None:
    warps = STUDY["warps"] | {"narrow": {"smoothing": "velocity", "scale": "log", "network_width": 0}}
    both = STUDY | {"warps": warps, "strengths": {"stable": [1, 16], "narrow": [2, 16]}}
    with pytest.raises(ConfigError, match="strengths has 16 of 'narrow' and of another warp with smoothing velocity"):
        beside(both)
    apart = both | {"strengths": {"stable": [1, 16], "narrow": [2]}}
    assert beside(apart) == {
        1: "fixed-stable-1",
        16: "fixed-stable-16",
        2: "fixed-narrow-2",
    }


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"pretrain": {"epochs": 1}},
            (
                "warmup_epochs is 1, which is 8 iterations of 10 PT steps, "
                "and pretrain.epochs 1 of 76 PT steps each make 7"
            ),
        ),
        (
            {"pretrain": {"epochs": 2, "signals": 640, "batch_size": 64}, "arms": {"meta": {"warmup_epochs": 2}}},
            (
                "warmup_epochs is 2, which is 2 iterations of 10 PT steps, "
                "and pretrain.epochs 2 of 10 PT steps each make 2"
            ),
        ),
        (
            {"source": "simulated", "pretrain": {"epochs": 1}, "arms": {"meta": {"pretrain_steps": 5}}},
            "pretrain.epochs 1 of 8 PT steps each make 1",
        ),
        (
            {
                "source": "ptbxl-1.0.1",
                "pretrain": {"epochs": 1, "batch_size": 19634},
                "arms": {"meta": {"pretrain_steps": 1}},
            },
            "1 of 1 PT steps each make 1",
        ),
    ],
)
@pytest.mark.parametrize(
    "experiment",
    [
        {"full_access": {"arms": ["simclr", "meta"]}},
        {"warp_study": STUDY | {"starts": {"meta": [2]}}},
        {"partial_access": {}},
    ],
)
def test_a_warm_up_that_leaves_no_meta_update_is_refused(
    keys: dict[str, Any], words: str, experiment: dict[str, Any]
) -> None:
    found = sentence(**keys, **experiment)
    assert "ecg: arms.meta.warmup_epochs is" in found
    assert words in found


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (
            {"warp_of": {"of": "simclr"}},
            "arms.mine.warp_of.of is 'simclr', which learns no warp; legal: optsla, meta, ",
        ),
        ({"warp_of": {"of": "mine"}}, "arms.mine.warp_of.of is 'mine', which learns no warp"),
        ({"warp_of": {"of": "meta"}, "warp": {"initial": 2}}, "arms.mine has warp and warp_of; leave one of them out"),
        ({"pretrain": {"jiter": "uniform"}}, "ecg.arms.mine.pretrain.jiter is not a key of the config (did you mean"),
        ({"finetune": {"batch_norm": "off"}}, "ecg.arms.mine.finetune.batch_norm is 'off', but must be 'train' or"),
    ],
)
def test_an_arm_with_a_warp_or_changes_that_are_none_is_refused(mine: dict[str, Any], words: str) -> None:
    arms = {"mine": {"method": "simclr"} | mine}
    assert words in sentence(arms=arms, full_access={"arms": ["mine"]})


def test_the_warm_up_of_an_arm_with_epochs_of_its_own_fits_them() -> None:
    many = {"full_access": {"arms": ["meta"]}, "arms": {"meta": {"pretrain": {"epochs": 1}}}}
    assert "pretrain.epochs 1 of 76 PT steps each make 7" in sentence(**many)


def test_the_longest_warm_up_that_is_called_legal_is_legal() -> None:
    few = {"pretrain": {"epochs": 1}, "full_access": {"arms": ["meta"]}}
    read(**few, arms={"meta": {"warmup_epochs": 0.78}})
    assert "legal: at most 0.78" in sentence(**few, arms={"meta": {"warmup_epochs": 0.8}})


def test_a_pt_run_that_is_shorter_than_an_iteration_is_refused() -> None:
    short: dict[str, Any] = {"pretrain": {"epochs": 1}, "full_access": {"arms": ["meta"]}}
    found = sentence(**short, arms={"meta": {"pretrain_steps": 77, "warmup_epochs": 0}})
    assert "arms.meta.pretrain_steps is 77, and pretrain.epochs 1 of 76 PT steps each make 76" in found
    assert "legal: at most 76" in found
    read(**short, arms={"meta": {"pretrain_steps": 76, "warmup_epochs": 0}})


def test_the_warm_up_of_an_arm_that_no_experiment_names_is_no_matter() -> None:
    read(pretrain={"epochs": 1}, full_access={"arms": ["no_pt", "simclr"]})


def test_the_generated_source_has_as_many_training_ecgs_as_the_config_knows() -> None:
    ecgs = simulate.generate(simulate.PATIENTS, simulate.SEED)
    assert (ecgs.fold != 10).sum() == TRAINING_RECORDS["simulated"]
