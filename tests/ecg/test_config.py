"""Sections whose keys are legal one by one but not together are refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from metapt.config import validate
from metapt.domains.ecg.config import TRAINING_RECORDS
from metapt.domains.ecg.data import simulate
from metapt.errors import ConfigError


def read(**section: Any) -> Any:
    found = validate({"ecg": section}).ecg
    assert found is not None
    return found


def sentence(**section: Any) -> str:
    with pytest.raises(ConfigError) as error:
        read(**section)
    assert "\n" not in str(error.value)
    return str(error.value)


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
@pytest.mark.parametrize("experiment", [{"full_access": {"arms": ["simclr", "meta"]}}, {"partial_access": {}}])
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
