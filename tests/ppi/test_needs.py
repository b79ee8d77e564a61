"""Which runs the experiments need, and which of them serve several settings."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from metapt.domains.ppi.needs import FinetuneKey, PretrainKey, finetune_setting, pretrain_setting

from metapt.domains.ppi import needs
from metapt.domains.ppi.config import ARMS, PpiConfig
from metapt.errors import ConfigError


def config(**settings: Any) -> PpiConfig:
    return PpiConfig.model_validate({"pretrain_seeds": 2, **settings})


@pytest.mark.parametrize("arm", ["no_pt", "graph_supervised"])
def test_pt_without_ft_data_is_one_run_for_all_that_is_done_to_them(arm: str) -> None:
    assert {pretrain_setting(ARMS[arm], setting) for setting in ("full_access", "half_data", *needs.HELD_OUT)} == {"full_access"}
    assert pretrain_setting(ARMS[arm], "permuted_tasks") == "permuted_tasks"
    assert pretrain_setting(ARMS[arm], "released_centre") == "released_centre"


@pytest.mark.parametrize("arm", ["cotrain", "cotrain_learned_weights", "meta", "meta-frozen", "related_only"])
def test_pt_that_uses_ft_data_has_a_run_in_each_setting(arm: str) -> None:
    assert [pretrain_setting(ARMS[arm], setting) for setting in needs.SETTINGS] == list(needs.SETTINGS)


def test_ft_under_half_data_is_on_all_of_them() -> None:
    assert finetune_setting(ARMS["graph_supervised"], "half_data") == "full_access"
    assert finetune_setting(ARMS["meta"], "half_data") == "half_data"
    assert finetune_setting(ARMS["graph_supervised"], "held_out_2") == "held_out_2"


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'quarter_data'; legal: full_access, half_data, held_out_0"):
        pretrain_setting(ARMS["meta"], "quarter_data")


def test_auroc_experiments_need_ft_runs() -> None:
    arms = ["graph_supervised", "meta"]
    found = config(full_access={"arms": arms}, half_data={"arms": arms}, held_out_tasks={"arms": arms})
    assert needs.needs(found, "full_access") == needs.Needs([], [FinetuneKey(arm, "full_access") for arm in arms], [])
    half = [FinetuneKey("graph_supervised", "full_access"), FinetuneKey("meta", "half_data")]
    assert needs.needs(found, "half_data").finetune == half
    folds = [FinetuneKey(arm, f"held_out_{fold}") for arm in arms for fold in range(4)]
    assert needs.needs(found, "held_out_tasks").finetune == folds


def test_the_summary_makes_no_run_of_its_own_beside_full_access() -> None:
    summary = {"arms": ["graph_supervised", "meta", "cotrain"]}
    assert {key.setting for key in needs.needs(config(summary=summary), "summary").finetune} == {"full_access"}
    found = config(summary=summary, half_data={"arms": ["graph_supervised", "meta"]}, held_out_tasks={"arms": ["meta"]})
    cells = needs.needs(found, "summary").finetune
    assert len(cells) == len(set(cells)) == 3 + 1 + 4
    assert FinetuneKey("meta", "half_data") in cells
    assert FinetuneKey("cotrain", "half_data") not in cells


def test_experiments_on_pt_need_each_seed() -> None:
    found = config(learned_weights={"arms": ["meta"]}, cost={"arms": ["graph_supervised", "meta"]})
    assert needs.needs(found, "learned_weights").pretrain == [PretrainKey("meta", "full_access", seed) for seed in range(2)]
    assert len(needs.needs(found, "cost").pretrain) == 4


def test_representations_are_a_study_of_pt_runs() -> None:
    found = needs.needs(config(representations={"arms": ["no_pt", "meta"]}), "representations")
    assert (len(found.pretrain), found.finetune, found.study) == (4, [], ["representations"])


def test_negative_transfer_compares_with_no_pt() -> None:
    found = config(negative_transfer={"arms": ["meta"]})
    assert needs.arms_of(found, "negative_transfer") == ["no_pt", "meta"]
    assert needs.needs(found, "negative_transfer").finetune == [FinetuneKey(arm, "full_access") for arm in ("no_pt", "meta")]


def test_ft_starts_from_every_pt_seed_and_without_pt_from_none() -> None:
    found = config(full_access={"arms": ["no_pt", "graph_supervised"]})
    assert needs.encoders(found, FinetuneKey("no_pt", "full_access")) == []
    seeds = [PretrainKey("graph_supervised", "full_access", seed) for seed in range(2)]
    assert needs.encoders(found, FinetuneKey("graph_supervised", "held_out_1")) == seeds


def test_the_known_answer() -> None:
    found = needs.needs(config(known_answer={"arms": ["graph_supervised", "meta"], "quarters": ["meta-top"]}), "known_answer")
    assert set(found.pretrain) == {
        PretrainKey(arm, setting, seed)
        for arm, setting in (("graph_supervised", "permuted_tasks"), ("meta", "permuted_tasks"), ("meta", "full_access"))
        for seed in range(2)
    }
    both = [FinetuneKey(arm, setting) for arm in ("graph_supervised", "meta") for setting in ("full_access", "permuted_tasks")]
    assert found.finetune == [*both, FinetuneKey("meta-top", "full_access")]


def test_a_config_of_one_experiment_holds_the_arms_that_weights_come_from() -> None:
    found = config(full_access={"arms": ["meta-frozen"]})
    assert needs.arms_and_sources(found, "full_access") == ["meta-frozen", "meta"]


def test_an_experiment_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"add `cost: \{\}` to the section ppi"):
        needs.needs(config(), "cost")
    with pytest.raises(ConfigError, match=r"ppi\.cots is no experiment"):
        needs.needs(config(), "cots")


def test_every_key_of_the_config_is_an_experiment() -> None:
    for experiment in needs.EXPERIMENTS:
        needs.needs(config(**{experiment: {}}), experiment)


def test_keys_name_inputs() -> None:
    assert PretrainKey("meta", "half_data", 3).name == "pretrain/meta/half_data/3"
    assert FinetuneKey("meta", "held_out_1").name == "finetune/meta/held_out_1"


def test_the_workflow_does_not_wait_for_torch() -> None:
    code = "import sys, metapt.domains.ppi.needs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
