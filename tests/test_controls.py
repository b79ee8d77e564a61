"""In every config, each arm that learns has a control in its experiment that differs from it in learning alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from metapt import registry
from metapt.config import Config, load
from metapt.config_files import read_one
from metapt.domains.ecg import config as ecg
from metapt.domains.ecg import controls as ecg_controls
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.results import EcgResults
from metapt.domains.ppi import config as ppi
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults
from metapt.evaluation.differences import pairs
from metapt.jobs import Job, Place
from metapt.plan import SOURCES
from metapt.twostage.results import TwoStageResults

ROOT = Path(__file__).parents[1]
COMPARING = ("full_access", "unroll_steps", "half_data", "held_out_tasks", "negative_transfer")
"""Experiments whose claims compare arms."""
NAMES = {"arm", "checkpoint"}
LABELS = {"meta_size", "split"}
"""Keys of jobs on ECGs with what learning sees; SimCLR with a fixed warp sees no labels."""


class Case(NamedTuple):
    """An arm that learns, in an experiment of a config."""

    config: str
    domain: str
    experiment: str
    arm: str


CONFIGS: dict[str, Config] = {
    name: load([ROOT / "config" / f"{name}.yaml"]) for name in ("config", "planted", "real-small", "paper")
}
PLACE = Place("results", "raw", read_one(SOURCES), [])


def cases() -> Iterator[Case]:
    for name, config in CONFIGS.items():
        for domain, learns in (("ecg", learns_ecg), ("ppi", lambda arm: isinstance(arm, ppi.PpiMeta))):
            section = getattr(config, domain)
            for key, experiment in section.experiments():
                if key in COMPARING:
                    yield from (
                        Case(name, domain, key, arm) for arm in experiment.arm_names() if learns(section.arms[arm])
                    )


def learns_ecg(arm: ecg.Arm) -> bool:
    return ecg.learns_warp(arm) and ecg_controls.learns(arm)


def controls(case: Case) -> list[str]:
    """Return the controls of an arm in its experiment, the start first."""
    section = getattr(CONFIGS[case.config], case.domain)
    run = {name: section.arms[name] for name in getattr(section, case.experiment).arm_names()}
    module: Any = {"ecg": ecg_controls, "ppi": ppi}[case.domain]
    found: list[str] = module.controls(case.arm, run)
    return found


def jobs_of(case: Case, arm: str) -> tuple[Job, Job]:
    """Return a PT job and an FT job of an arm."""
    made: Any = {"ecg": EcgJobs, "ppi": PpiJobs}[case.domain]
    jobs = made(case.domain, getattr(CONFIGS[case.config], case.domain), PLACE)
    if case.domain == "ppi":
        return jobs.pretrain(arm, "full_access", 0), jobs.finetune(arm, "full_access", 0)
    seen = ecg.access(jobs.config.arms[arm], 500)
    return jobs.pretrain(arm, seen, 0), jobs.finetune(arm, seen, 500, 0)


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in {*NAMES, *keys}}


@pytest.mark.parametrize("case", list(cases()), ids="-".join)
def test_a_control_differs_from_its_arm_in_learning_alone(case: Case) -> None:
    start = controls(case)[0]
    for ours, others in zip(jobs_of(case, case.arm), jobs_of(case, start), strict=True):
        more = LABELS if case.domain == "ecg" else {"method"}
        assert without(ours.config, "arm_settings", *more) == without(others.config, "arm_settings", *more)
        assert ours.entry == others.entry
    (ours, _), (others, _) = jobs_of(case, case.arm), jobs_of(case, start)
    learning, fixed = (without(job.config["arm_settings"], "method", "batch_size") for job in (ours, others))
    shared = learning.keys() & fixed.keys()
    assert {key: learning[key] for key in shared} == {key: fixed[key] for key in shared}
    assert shared >= ({"warp"} if case.domain == "ecg" else {"pretrain_lr"})
    assert not any(fixed[key] for key in fixed.keys() - shared if key != "tasks"), "no weights, no learned warp"


def test_the_paper_has_every_kind_of_control() -> None:
    named = CONFIGS["paper"].ecg.full_access.arms
    found = {arm: controls(Case("paper", "ecg", "full_access", arm)) for arm in named}
    assert found["meta"] == ["simclr", "meta-frozen"], "placebos only if they are named"
    found |= {arm: ecg_controls.controls(arm, ecg.ARMS) for arm in ecg.ARMS if arm not in named}
    placebos = ["meta-permuted_labels", "meta-random_sign"]
    assert ecg_controls.controls("meta", ecg.ARMS) == ["simclr", "meta-frozen", *placebos]
    assert found["meta-permuted_labels"] == found["meta-random_sign"] == []
    assert found["meta-stable"] == ["meta-stable-start", "meta-stable-frozen", "random_search"]
    assert found["meta-released"] == ["simclr-released"]
    assert found["optsla"] == ["simclr"]
    assert found["simclr"] == found["no_pt"] == found["random_search"] == found["best_of_4"] == []
    found = {arm: controls(Case("paper", "ppi", "full_access", arm)) for arm in ppi.MAIN_ARMS}
    assert found["meta"] == ["graph_supervised-slow", "meta-frozen", "meta-permuted"]
    assert found["meta-fast"] == ["graph_supervised"]
    assert found["meta-stable"] == ["graph_supervised", "meta-stable-frozen", "meta-stable-permuted"]
    assert found["meta-released"] == ["graph_supervised-released"]
    assert found["meta-frozen"] == ["meta-permuted"]
    assert found["graph_supervised"] == found["cotrain"] == found["meta-permuted"] == []


def test_a_control_with_another_learning_rate_is_none() -> None:
    arms = {name: ppi.ARMS[name] for name in ("graph_supervised", "meta")}
    assert ppi.controls("meta", arms) == []
    assert ppi.controls("meta", arms | {"meta": ppi.PpiMeta(pretrain_lr=1e-3)}) == ["graph_supervised"]
    warmer = ecg.EcgMeta(pretrain=ecg.EcgPretraining(temperature=1.0))
    assert ecg_controls.controls("mine", {"simclr": ecg.ARMS["simclr"], "mine": warmer}) == []


@pytest.mark.parametrize(("use", "start"), [("top_quarter", "graph_supervised-slow"), ("as_learned", None)])
def test_a_start_is_known_only_where_the_learning_rate_is(use: Any, start: str | None) -> None:
    """The PT learning rate of an arm with weights is that of the arm they are of."""
    mine = ppi.Supervised(method="supervised", weights=ppi.TaskWeights(of="meta-stable", use=use))
    arms = {"mine": mine, "graph_supervised": ppi.ARMS["graph_supervised"]}
    arms |= {"graph_supervised-slow": ppi.ARMS["graph_supervised-slow"]}
    arms |= {"meta-stable": ppi.ARMS["meta-stable"]} if start else {}
    assert ppi.start_of("mine", arms) == start


@pytest.mark.parametrize(("domain", "results"), [("ecg", EcgResults), ("ppi", PpiResults)])
def test_arms_with_what_different_learners_found_differ_in_more_than_one_setting(
    domain: str, results: type[TwoStageResults]
) -> None:
    settings = getattr(CONFIGS["paper"], domain)
    empty = pd.DataFrame()
    of_them = results("full_access", settings, settings.full_access, {}, empty, empty, {}, {})
    found = pairs(of_them.arm_settings(), [])
    assert {"meta-frozen", "meta-stable-frozen"} <= of_them.arm_settings().keys()
    assert ("meta-stable-frozen", "meta-frozen") not in found
    if domain == "ppi":
        assert found["meta-stable-permuted", "meta-stable-frozen"] == "weights.use: permuted, not as_learned"


def claims(key: str, changes: dict[str, Any]) -> set[tuple[str, str]]:
    """Return arm and control of each claim of an experiment of ECGs, with `changes` of `config/real-small.yaml`."""
    settings = load([ROOT / "config/real-small.yaml"], {"ecg": changes}).ecg
    assert settings is not None
    experiment, empty = registry.domain("ecg").experiments[key], pd.DataFrame()
    results = experiment.results(key, settings, getattr(settings, key), {}, empty, empty, {}, {})
    return {(each.arm, each.control) for each in experiment.comparisons(results)}


def test_a_claim_of_the_paper_is_made_where_the_arms_differ_in_what_it_says_alone() -> None:
    """`real-small` gives `meta` a smaller warp network, which the default arms of other K do not have."""
    of_other_steps = {("meta", "meta-k0"), ("meta-k0", "simclr"), ("meta-k10", "meta")}
    assert claims("unroll_steps", {"unroll_steps": {}}) == {("meta", "simclr")}
    arms = {f"meta-k{steps}": {"extends": "meta", "unroll_steps": steps} for steps in (0, 5, 10)}
    assert claims("unroll_steps", {"unroll_steps": {}, "arms": arms}) >= {("meta", "simclr")} | of_other_steps
    assert ("meta", "simclr") in claims("full_access", {})
    assert ("meta", "simclr") not in claims("full_access", {"arms": {"meta": {"finetune": {"lr": 0.01}}}})
