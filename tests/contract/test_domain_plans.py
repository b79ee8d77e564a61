"""Every domain's jobs: which ones experiments need, what they are told and ask of the machine; controls of arms."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from metapt.domains.ecg import config as ecg
from metapt.domains.ppi import config as ppi
from metapt.engine.config import Config, load, validate
from metapt.engine.jobs import Job, Place
from metapt.errors import ConfigError
from metapt.evaluation import metrics
from metapt.evaluation.experiment import SUMMARY
from metapt.twostage.arms import NO_PT, controls_of

from ..unit.twostage.synthetic_runs import SOURCES_READ
from .domain_cases import CASES, STAGED, Case, named

FOLDER = Path("results/x")
EXPERIMENTS = [(case, key) for case in CASES.values() for key in case.domain.experiments]


def jobs(case: Case, *, gpu: bool = False, **section: Any) -> Any:
    """Return the jobs of a domain with its own sizes and default arms."""
    config: Any = {"source": case.section["source"]} if "source" in case.section else {}
    plain = Case(case.name, config, {}, case.prepare, study="none")
    return plain.jobs(FOLDER, gpu=gpu, **section)


@pytest.mark.parametrize(("case", "key"), EXPERIMENTS, ids=lambda value: named(value) or str(value))
def test_every_experiment_has_its_runs(case: Case, key: str) -> None:
    """A summary is told the arms and settings that it reads, and all its inputs are outputs of the plan."""
    made = jobs(case, **{name: {} for name in {key, next(iter(case.domain.experiments))}})
    job = case.domain.summary(made, key)
    assert job.inputs
    assert job.outputs == {name: f"{FOLDER}/{case.name}/{key}/{file}" for name, file in SUMMARY.items()}
    files = [path for each in made.made.values() for path in (*each.outputs.values(), each.record, each.log)]
    assert not [path for path, count in Counter(files).items() if count > 1], "each file has one maker"
    for each in made.made.values():
        assert set(each.inputs.values()) <= set(files), each.name
        assert each.mem_mb >= 500
        assert each.minutes >= 10
        assert each.threads >= 1
        kept = each.config.get("checkpoint", "")
        assert kept in ("", f"{FOLDER}/.resume/{each.name}.pt")
        assert each.stage not in ("pretrain", "finetune") or kept
        assert {"metrics", "series"} <= each.outputs.keys() or not each.trains
        assert (each.stage == "pretrain") == ("pretrained" in each.outputs)
    settings, section = job.config["settings"], getattr(made.config, key)
    assert not set(case.domain.experiments) & set(settings), "the settings of other experiments"
    assert case.study or set(settings["arms"]) >= set(section.arm_names())
    runs = {name.rpartition("/")[0] for name in job.inputs if "/" in name}
    assert {f"{run}/{what}" for run in runs for what in ("metrics", "series", "record")} <= set(job.inputs)


@pytest.mark.parametrize("case", STAGED, ids=named)
def test_pt_seeds_can_be_listed_and_other_seeds_are_no_matter(case: Case) -> None:
    key = next(iter(case.domain.experiments))
    found = {}
    for seeds, numbers in ((2, (0, 1)), ([100, 1], (100, 1))) if case.place else ((2, (0, 1)),):
        made = jobs(case, pretrain_seeds=seeds, **{key: {}})
        case.domain.summary(made, key)
        for stage in ("pretrain", "finetune"):
            names = [job.name for job in made.made.values() if job.stage == stage]
            assert {name.rpartition("/seed")[2] for name in names} == set(map(str, numbers))
        found |= {str(seeds): made}
    one, *others = ([case.pretrain(each, case.plain, 1), case.finetune(each, case.plain, 1)] for each in found.values())
    assert all(other == one for other in others)


def differing(case: Case, arms: dict[str, Any], *changes: dict[str, Any]) -> list[set[str]]:
    """Return for each change of the config the stages and arms of PT and FT jobs that it changes."""

    def made(keys: dict[str, Any]) -> list[Job]:
        own = jobs(case, **{"arms": arms} | keys)
        return [make(own, arm) for arm in arms for make in (case.pretrain, case.finetune)]

    plain = made({})
    return [
        {"/".join(a.name.split("/")[1:3]) for a, b in zip(plain, made(change), strict=True) if a.config != b.config}
        for change in changes
    ]


@pytest.mark.parametrize(
    ("name", "method", "pretrain"),
    [("ecg", "simclr", {"jitter": "uniform"}), ("ppi", "supervised", {"offset_centres": False})],
)
def test_a_key_reaches_the_jobs_that_read_it_and_no_other(name: str, method: str, pretrain: dict[str, Any]) -> None:
    arms: dict[str, Any] = {"no_pt": {"method": "no_pt"}, "plain": {"method": method}, "mine": {"method": "meta"}}

    def own(**keys: Any) -> dict[str, Any]:
        return {"arms": arms | {"mine": arms["mine"] | keys}}

    pt, ft = {"pretrain/plain", "pretrain/mine"}, {"finetune/no_pt", "finetune/plain", "finetune/mine"}
    changes: list[tuple[dict[str, Any], set[str]]] = [
        ({"pretrain": {"precision": "bfloat16"}}, pt),
        ({"finetune": {"epochs": 3}}, ft),
        (own(recompute=True), {"pretrain/mine"}),
        (own(pretrain=pretrain), {"pretrain/mine"}),
        (own(finetune={"batch_size": 5}), {"finetune/mine"}),
        (own(label="mine", controls={"plain": []}), set()),
    ]
    found = differing(CASES[name], arms, *(change for change, _ in changes))
    assert found == [expected for _, expected in changes]


@pytest.mark.parametrize("case", [CASES["ecg"], CASES["ppi"]], ids=named)
def test_more_work_gets_more_and_a_gpu_takes_less_time(case: Case) -> None:
    small, large = ({"width": width} for width in (8, 64))
    sections = [{"network": each} if case.name == "ppi" else each for each in (small, large)]
    few, many, gpu = jobs(case, **sections[0]), jobs(case, **sections[1]), jobs(case, gpu=True, **sections[1])
    for make in (case.pretrain, case.finetune):
        assert make(few, "meta").mem_mb < make(many, "meta").mem_mb
        assert make(few, "meta").minutes <= make(many, "meta").minutes
    assert case.pretrain(gpu, "meta").minutes < case.pretrain(many, "meta").minutes
    assert case.pretrain(many, "no_pt").minutes < case.pretrain(many, case.plain).minutes
    for keys in ({"accumulate": 20}, {"inverse": {"kind": "neumann", "terms": 200}}, {"unroll": "fitted", "folds": 50}):
        mine = jobs(case, **sections[1], arms={"mine": {"method": "meta"} | keys})
        assert case.pretrain(mine, "mine").minutes > case.pretrain(many, "meta").minutes, keys


# Controls: in every config, each arm that learns has one in its experiment that differs from it in learning alone

ROOT = Path(__file__).parents[2]
COMPARING = ("full_access", "unroll_steps", "half_data", "held_out_tasks", "negative_transfer")
"""Experiments whose claims compare arms."""
CONFIGS: dict[str, Config] = {
    name: load([ROOT / "config" / f"{name}.yaml"]) for name in ("config", "planted", "real-small", "paper")
}
SETTINGS = {"ecg": "n500/n500", "ppi": "full_access"}
NAMES = {"arm", "checkpoint", "arm_settings"}
SEEN = {"ecg": {"meta_size", "split"}, "ppi": {"method"}}
"""Keys of jobs with what learning sees; SimCLR with a fixed warp sees no labels."""


def learns(arm: Any) -> bool:
    meta = isinstance(arm, ecg.EcgMeta | ecg.OptSla | ppi.PpiMeta)
    return meta and getattr(arm, "placebo", None) is None and getattr(arm, "tasks", None) is None


LEARNING_ARMS = [
    (name, domain, key, arm)
    for name, config in CONFIGS.items()
    for domain in SETTINGS
    for key, experiment in getattr(config, domain).experiments()
    for arm in (experiment.arm_names() if key in COMPARING else [])
    if learns(getattr(config, domain).arms[arm])
]
"""Config, domain, experiment, and an arm that learns in it."""


@cache
def jobs_of(config: str, domain: str, arm: str) -> tuple[Job, Job]:
    """Return a PT job and an FT job of an arm."""
    place = Place("results", "raw", SOURCES_READ, [])
    jobs: Any = CASES[domain].domain.jobs(domain, getattr(CONFIGS[config], domain), place)
    return jobs.pretrain(arm, SETTINGS[domain], 0), jobs.finetune(arm, SETTINGS[domain], 0)


@pytest.mark.parametrize(("config", "domain", "key", "arm"), LEARNING_ARMS)
def test_a_control_differs_from_its_arm_in_learning_alone(config: str, domain: str, key: str, arm: str) -> None:
    section = getattr(CONFIGS[config], domain)
    run, known = getattr(section, key).arm_names(), controls_of(section.arms[arm])
    pretrained = [each for each in known if each in run and section.arms[each].method != NO_PT]
    start = min(pretrained, key=lambda control: len(known[control]))
    assert set(known[start]) <= {"pretrain_lr"}
    ours, others = jobs_of(config, domain, arm), jobs_of(config, domain, start)
    for one, other in zip(ours, others, strict=True):
        assert one.entry == other.entry
        keys = {*one.config, *other.config} - NAMES - SEEN[domain]
        assert [key for key in keys if one.config.get(key, ...) != other.config.get(key, ...)] == []
    learning, fixed = (jobs[0].config["arm_settings"] for jobs in (ours, others))
    shared = learning.keys() & fixed.keys() - {"method", "batch_size", *known[start]}
    assert {key: learning[key] for key in shared} == {key: fixed[key] for key in shared}
    assert "warp" in shared or domain == "ppi"


@pytest.mark.parametrize(
    ("controls", "words"),
    [
        ({"nobody": []}, "arms.mine.controls.nobody is no other arm; legal: no_pt, simclr, "),
        ({"mine": []}, "arms.mine.controls.mine is no other arm; legal: no_pt, simclr, "),
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
    experiment, none = CASES["ecg"].domain.experiments[key], metrics.validate([])
    results = experiment.results(key, settings, getattr(settings, key), none, pd.DataFrame(), {}, {})
    return {(each.arm, each.control) for each in experiment.comparisons(results)}


def test_a_claim_of_the_paper_is_made_where_the_arms_differ_in_what_it_says_alone() -> None:
    """`real-small` gives `meta` a smaller warp network."""
    of_other_steps = {("meta", "meta-k0"), ("meta-k0", "simclr"), ("meta-k10", "meta")}
    assert claims("unroll_steps", {"unroll_steps": {}}) >= {("meta", "simclr")} | of_other_steps
    assert ("meta", "simclr") in claims("full_access", {})
    assert ("meta", "optsla") not in claims("full_access", {"full_access": {"arms": ["meta", "simclr"]}})
