"""In every config, each arm that learns has a control in its experiment that differs from it in learning alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from metapt.domains.ecg import config as ecg
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ppi import config as ppi
from metapt.domains.ppi.jobs import PpiJobs
from metapt.engine import registry
from metapt.engine.config import Config, load, validate
from metapt.engine.config_files import read_one
from metapt.engine.jobs import Job, Place
from metapt.engine.plan import SOURCES
from metapt.errors import ConfigError
from metapt.evaluation import metrics
from metapt.twostage.arms import NO_PT, controls_of

ROOT = Path(__file__).parents[2]
COMPARING = ("full_access", "unroll_steps", "half_data", "held_out_tasks", "negative_transfer")
"""Experiments whose claims compare arms."""
CONFIGS: dict[str, Config] = {
    name: load([ROOT / "config" / f"{name}.yaml"]) for name in ("config", "planted", "real-small", "paper")
}
SETTINGS = {"ecg": "n500/n500", "ppi": "full_access"}
NAMES = {"arm", "checkpoint", "arm_settings"}
LEARNING = {"ecg": {"meta_size", "split"}, "ppi": {"method"}}
"""Keys of jobs with what learning sees; SimCLR with a fixed warp sees no labels."""


class Case(NamedTuple):
    """An arm that learns, in an experiment of a config."""

    config: str
    domain: str
    experiment: str
    arm: str


def learns(arm: Any) -> bool:
    meta = isinstance(arm, ecg.EcgMeta | ecg.OptSla | ppi.PpiMeta)
    return meta and getattr(arm, "placebo", None) is None and getattr(arm, "tasks", None) is None


def cases() -> Iterator[Case]:
    for name, config in CONFIGS.items():
        for domain in SETTINGS:
            section = getattr(config, domain)
            for key, experiment in section.experiments():
                if key in COMPARING:
                    yield from (
                        Case(name, domain, key, arm) for arm in experiment.arm_names() if learns(section.arms[arm])
                    )


def jobs_of(case: Case, arm: str) -> tuple[Job, Job]:
    """Return a PT job and an FT job of an arm."""
    made: Any = {"ecg": EcgJobs, "ppi": PpiJobs}[case.domain]
    jobs = made(case.domain, getattr(CONFIGS[case.config], case.domain), Place("results", "raw", read_one(SOURCES), []))
    setting = SETTINGS[case.domain]
    return jobs.pretrain(arm, setting, 0), jobs.finetune(arm, setting, 0)


@pytest.mark.parametrize("case", list(cases()), ids="-".join)
def test_a_control_differs_from_its_arm_in_learning_alone(case: Case) -> None:
    section = getattr(CONFIGS[case.config], case.domain)
    run, known = getattr(section, case.experiment).arm_names(), controls_of(section.arms[case.arm])
    pretrained = [each for each in known if each in run and section.arms[each].method != NO_PT]
    start = min(pretrained, key=lambda control: len(known[control]))
    assert set(known[start]) <= {"pretrain_lr"}
    for ours, others in zip(jobs_of(case, case.arm), jobs_of(case, start), strict=True):
        assert ours.entry == others.entry
        one, other = (
            {key: value for key, value in job.config.items() if key not in NAMES | LEARNING[case.domain]}
            for job in (ours, others)
        )
        assert one == other
    (ours, _), (others, _) = jobs_of(case, case.arm), jobs_of(case, start)
    learning, fixed = (job.config["arm_settings"] for job in (ours, others))
    shared = learning.keys() & fixed.keys() - {"method", "batch_size", *known[start]}
    assert {key: learning[key] for key in shared} == {key: fixed[key] for key in shared}
    assert "warp" in shared or case.domain == "ppi"


@pytest.mark.parametrize(
    ("controls", "words"),
    [
        ({"nobody": []}, "arms.mine.controls.nobody is no arm; legal: no_pt, simclr, "),
        (
            {"simclr-mild": []},
            "arms.mine.controls.simclr-mild: the two differ in warp; legal: arms that are equal in it",
        ),
        ({"simclr-released": ["warp"]}, "the two differ in finetune, pretrain; legal: "),
        ({"simclr": [], "simclr-mild": ["warp"], "simclr-released": None}, None),
    ],
)
def test_a_control_that_differs_in_more_than_the_claim_is_about_is_refused(
    controls: dict[str, Any], words: str | None
) -> None:
    arms = ["mine", "simclr", "simclr-mild", "simclr-released"]
    section = {"arms": {"mine": {"method": "meta", "controls": controls}}, "full_access": {"arms": arms}}
    if words is None:
        validate({"ecg": section})
        return
    with pytest.raises(ConfigError) as error:
        validate({"ecg": section})
    assert words in str(error.value)


def claims(key: str, changes: dict[str, Any]) -> set[tuple[str, str]]:
    """Return arm and control of each claim of an experiment of ECGs, with `changes` of `config/real-small.yaml`."""
    settings: Any = load([ROOT / "config/real-small.yaml"], {"ecg": changes}).ecg
    experiment, none = registry.domain("ecg").experiments[key], metrics.validate([])
    results = experiment.results(key, settings, getattr(settings, key), none, pd.DataFrame(), {}, {})
    return {(each.arm, each.control) for each in experiment.comparisons(results)}


def test_a_claim_of_the_paper_is_made_where_the_arms_differ_in_what_it_says_alone() -> None:
    """`real-small` gives `meta` a smaller warp network."""
    of_other_steps = {("meta", "meta-k0"), ("meta-k0", "simclr"), ("meta-k10", "meta")}
    assert claims("unroll_steps", {"unroll_steps": {}}) >= {("meta", "simclr")} | of_other_steps
    assert ("meta", "simclr") in claims("full_access", {})
    assert ("meta", "optsla") not in claims("full_access", {"full_access": {"arms": ["meta", "simclr"]}})
