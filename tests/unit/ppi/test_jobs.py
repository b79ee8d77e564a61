"""The experiments need the right runs, and runs are shared between settings."""

from __future__ import annotations

from typing import Any

import pytest

from metapt.domains.ppi.config import ARMS
from metapt.domains.ppi.data.sections import SIMULATED
from metapt.domains.ppi.data.sources import string_names
from metapt.domains.ppi.domain import DOMAIN
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.settings import finetune_setting, pretrain_setting
from metapt.engine.jobs import Job, Place
from metapt.errors import ConfigError

SOURCES: dict[str, Any] = {
    "hu2020": {"name": "hu2020"},
    "string-{version}": {
        "name": "string-{version}",
        "files": {
            "{taxon}.protein.links.detailed.v{version}.txt.gz": {"urls": ["https://a.org/{version}/{taxon}.links"]},
            "{taxon}.protein.enrichment.terms.v{version}.txt.gz": {"urls": ["https://a.org/{version}/{taxon}.terms"]},
        },
    },
}


def jobs_of(gpu: bool = False, **settings: Any) -> PpiJobs:
    config = DOMAIN.section().model_validate({"pretrain_seeds": 2, **settings})
    return PpiJobs("ppi", config, Place("results/x", "raw", SOURCES, [], gpu))


def test_pt_seeds_can_be_listed() -> None:
    jobs = jobs_of(pretrain_seeds=[100, 3])
    tuned = [job.name for job in jobs.finetunes([("graph_supervised", "full_access")])]
    assert tuned == [f"ppi/finetune/graph_supervised/full_access/seed{seed}" for seed in (100, 3)]
    names = [job.name for job in jobs.encoders(["graph_supervised"], "full_access")]
    assert names == [f"ppi/pretrain/graph_supervised/full_access/seed{seed}" for seed in (100, 3)]


def summary(key: str, **settings: Any) -> tuple[Job, list[str]]:
    """Return an experiment's summary, and the runs that it reads."""
    job = DOMAIN.summary(jobs_of(**settings), key)
    return job, [name.removesuffix("/metrics") for name in job.inputs if name.endswith("/metrics")]


def test_keys_of_the_computation_reach_the_jobs_that_read_them() -> None:
    arms = {name: {"method": name} for name in ("no_pt", "supervised", "meta")}
    changes: list[dict[str, Any]] = [
        {"arms": arms},
        {"arms": arms, "pretrain": {"precision": "bfloat16"}},
        {"arms": arms | {"meta": {"method": "meta", "recompute": True}}},
    ]
    made = [
        [make(arm, "full_access", 0) for arm in arms for make in (jobs.pretrain, jobs.finetune)]
        for jobs in (jobs_of(**change) for change in changes)
    ]
    plain, *others = made
    differing = [[a.name for a, b in zip(plain, other, strict=True) if a.config != b.config] for other in others]
    runs = [f"ppi/pretrain/{arm}/full_access/seed0" for arm in arms]
    assert differing == [runs[1:], runs[2:]]


def test_wide_networks_have_large_products() -> None:
    for width, large in ((64, False), (300, True)):
        made = jobs_of(network={"width": width})
        runs = [make("meta", "full_access", 0) for make in (made.pretrain, made.finetune)]
        assert [job.large_products for job in runs] == [large, large]


@pytest.mark.parametrize("arm", ["graph_supervised", "meta", "meta-frozen", "related_only"])
def test_settings_in_which_pt_and_ft_see_the_same_share_runs(arm: str) -> None:
    names, sees_ft = ["full_access", "half_data", "held_out_2", "permuted_50"], arm != "graph_supervised"
    found = [pretrain_setting(ARMS[arm], name) for name in names]
    assert found == (names if sees_ft else ["full_access"] * 3 + ["permuted_50"])
    found = [finetune_setting(ARMS[arm], name) for name in names]
    assert found == (names if sees_ft else ["full_access", "full_access", "held_out_2", "permuted_50"])
    with pytest.raises(ConfigError, match=r"no setting 'quarter_data'; legal: full_access, half_data, held_out_0"):
        pretrain_setting(ARMS[arm], "quarter_data")


def finetuned(*cells: str) -> list[str]:
    """Return the names of FT runs with both PT seeds, one after the other, without the domain's."""
    return [f"finetune/{cell}/seed{seed}" for seed in range(2) for cell in cells]


def test_auroc_experiments_need_ft_runs() -> None:
    settings = {key: {"arms": ["graph_supervised", "meta"]} for key in ("full_access", "half_data", "held_out_tasks")}
    assert summary("full_access", **settings)[1] == finetuned("graph_supervised/full_access", "meta/full_access")
    assert summary("half_data", **settings)[1] == finetuned("graph_supervised/full_access", "meta/half_data")
    folds = [f"{arm}/held_out_{fold}" for arm in ("graph_supervised", "meta") for fold in range(4)]
    assert summary("held_out_tasks", **settings)[1] == finetuned(*folds)


def test_a_summary_reads_the_record_of_each_of_its_runs_and_the_arms_that_it_names() -> None:
    job, runs = summary("full_access", full_access={"arms": ["meta-frozen"]}, half_data={})
    assert set(job.inputs) == {f"{run}/{what}" for run in runs for what in ("metrics", "series", "record")}
    assert (
        job.inputs["finetune/meta-frozen/full_access/seed1/record"]
        == "results/x/ppi/finetune/meta-frozen/full_access/seed1/run.json"
    )
    assert list(job.config["settings"]["arms"]) == ["meta-frozen"]
    assert "half_data" not in job.config["settings"]


def test_the_summary_makes_no_run_of_its_own_beside_full_access() -> None:
    arms = {"arms": ["graph_supervised", "meta", "cotrain"]}
    _, runs = summary("summary", summary=arms)
    assert runs == finetuned(*(f"{arm}/full_access" for arm in arms["arms"]))
    others = {"half_data": {"arms": ["graph_supervised", "meta"]}, "held_out_tasks": {"arms": ["meta"]}}
    _, runs = summary("summary", summary=arms, **others)
    assert len(runs) == len(set(runs)) == 2 * (3 + 1 + 4)
    assert "finetune/meta/half_data/seed0" in runs
    assert "finetune/cotrain/half_data/seed0" not in runs


def test_experiments_on_pt_need_each_seed() -> None:
    runs = summary("learned_weights", learned_weights={"arms": ["meta"]})[1]
    assert runs == [f"pretrain/meta/full_access/seed{seed}" for seed in range(2)]
    runs = summary("cost", cost={"arms": ["graph_supervised", "meta"]})[1]
    assert [run.partition("/")[0] for run in runs[:4]] == ["pretrain"] * 4
    assert runs[4:] == finetuned("graph_supervised/full_access")


def test_representations_are_a_study_of_pt_runs() -> None:
    runs = summary("representations", representations={"arms": ["no_pt", "meta"]})[1]
    assert len(runs) == 4 + 1
    assert runs[-1] == "representations/cka"
    made = jobs_of(representations={"arms": ["no_pt", "meta"], "graphs": 50})
    DOMAIN.summary(made, "representations")
    study = made.made["ppi/representations/cka"]
    assert set(study.inputs) == {
        "graphs",
        *(f"pretrained/{arm}/{seed}" for arm in ("no_pt", "meta") for seed in range(2)),
    }
    assert "checkpoint" not in study.config


def test_negative_transfer_compares_with_no_pt() -> None:
    job, runs = summary("negative_transfer", negative_transfer={"arms": ["meta"]})
    assert runs == finetuned("no_pt/full_access", "meta/full_access")
    assert set(job.config["settings"]["arms"]) == {"meta", "no_pt"}
    assert job.inputs["tasks"] == "results/x/ppi/data/hu2020/tasks.csv"


def test_ft_starts_from_the_encoder_of_one_pt_seed_and_without_pt_from_none() -> None:
    jobs = jobs_of()
    assert set(jobs.finetune("no_pt", "full_access", 1).inputs) == {"graphs"}
    inputs = jobs.finetune("graph_supervised", "held_out_1", 1).inputs
    assert set(inputs) == {"graphs", "pretrained"}
    assert inputs["pretrained"] == "results/x/ppi/pretrain/graph_supervised/full_access/seed1/pretrained.pt"


def test_a_headroom_runs_settings_and_reference_on_each_problem_with_the_same_seeds() -> None:
    keys = {"settings": 2, "pretrain_seeds": [5, 7], "groups": 3, "permuted": [0, 90]}
    made = jobs_of(headroom=keys)
    job = DOMAIN.summary(made, "headroom")
    runs = [name.removesuffix("/metrics") for name in job.inputs if name.endswith("/metrics")]
    names, problems = ["graph_supervised", "headroom-0-00", "headroom-0-01"], ["full_access", "permuted_90"]
    assert runs == [
        f"finetune/{name}/{problem}/seed{seed}" for problem in problems for name in names for seed in (5, 7)
    ]
    first, second = (
        made.made[f"ppi/pretrain/headroom-0-01/{problem}/seed7"].config["arm_settings"] for problem in problems
    )
    assert first == second
    assert len(first["group_weights"]) == 3
    assert min(first["group_weights"]) >= 0.02
    assert max(first["group_weights"]) <= 1.98
    assert made.pretrain("graph_supervised", "full_access", 0).config["arm_settings"]["group_weights"] is None


def test_an_arm_with_learned_weights_waits_for_the_run_that_learns_them() -> None:
    jobs = jobs_of()
    job = jobs.pretrain("meta-frozen", "half_data", 1)
    assert job.inputs["weights"] == "results/x/ppi/pretrain/meta/half_data/seed1/pretrained.pt"
    assert "ppi/pretrain/meta/half_data/seed1" in jobs.made


def test_learned_weights_are_used_at_the_learning_rate_they_were_learned_at() -> None:
    jobs = jobs_of(arms={"meta": {"method": "meta", "pretrain_lr": 2e-3}} | {"meta-frozen": ARMS["meta-frozen"]})
    rates = [
        jobs.pretrain(arm, "full_access", 0).config["arm_settings"]["pretrain_lr"] for arm in ("meta", "meta-frozen")
    ]
    assert rates == [2e-3, 2e-3]
    assert jobs_of().pretrain("meta-frozen", "full_access", 0).config["arm_settings"]["pretrain_lr"] == 1e-4


def test_what_an_arm_changes_of_its_domain_reaches_its_jobs_alone() -> None:
    def made(**changes: Any) -> list[Job]:
        mine = {"method": "supervised", "pretrain_lr": 1e-2} | changes
        arms = {"graph_supervised": {"method": "supervised"}, "mine": mine}
        jobs = jobs_of(arms=arms, pretrain={"epochs": 7})
        return [make(arm, "full_access", 0) for arm in arms for make in (jobs.pretrain, jobs.finetune)]

    def differing(**changes: Any) -> list[str]:
        return [a.name for a, b in zip(made(), made(**changes), strict=True) if a.config != b.config]

    assert differing(pretrain={"offset_centres": False}) == ["ppi/pretrain/mine/full_access/seed0"]
    assert differing(finetune={"lrs": [1e-5]}) == ["ppi/finetune/mine/full_access/seed0"]
    pretrain = made(pretrain={"offset_centres": False})[2].config["pretrain"]
    assert (pretrain["offset_centres"], pretrain["epochs"]) == (False, 7)


def test_the_released_choices_are_those_of_the_released_code() -> None:
    jobs = jobs_of()
    for arm in ("meta-released", "graph_supervised-released"):
        run = jobs.pretrain(arm, "full_access", 0).config
        assert (run["pretrain"]["offset_centres"], run["arm_settings"]["pretrain_lr"]) == (False, 1e-4)
        assert jobs.finetune(arm, "full_access", 0).config["finetune"]["lrs"] == [1e-5]
    released = jobs.pretrain("meta-released", "full_access", 0).config["arm_settings"]
    assert released["head_steps_between_updates"] == 1


@pytest.mark.parametrize("key", DOMAIN.experiments)
def test_every_experiment_has_its_runs(key: str) -> None:
    jobs = jobs_of(**{key: {}})
    job = DOMAIN.summary(jobs, key)
    makers = {path for each in jobs.made.values() for path in (*each.outputs.values(), each.record)}
    assert set(job.inputs.values()) <= makers
    assert jobs_of(pretrain_seeds=[1]).finetune("meta", "half_data", 1) == jobs.finetune("meta", "half_data", 1)


def test_each_file_of_string_is_downloaded_by_a_job_of_its_own() -> None:
    jobs = jobs_of(source="string", string={"species": [7, 8], "version": "11.5"}, test_species=[8])
    made = jobs.prepared()
    assert (
        made.inputs["7.protein.links.detailed.v11.5.txt.gz"] == "raw/string-11.5/7.protein.links.detailed.v11.5.txt.gz"
    )
    downloads = [job for job in jobs.made.values() if job.stage == "download"]
    assert len(downloads) == 4
    (job,) = (job for job in downloads if "8.protein.enrichment" in job.name)
    files = job.config["source"]["files"]
    assert files == {"8.protein.enrichment.terms.v11.5.txt.gz": {"urls": ["https://a.org/11.5/8.terms"]}}
    simulated = jobs_of(source="simulated", test_species=SIMULATED.species[-1:]).prepared()
    assert simulated.inputs == {name: f"raw/ppi-simulated/{name}" for name in string_names(SIMULATED)}


def test_a_larger_network_and_minibatch_take_more_and_a_gpu_less_time() -> None:
    small, large = jobs_of(network={"width": 30}), jobs_of()
    for make in (
        lambda jobs: jobs.pretrain("meta", "full_access", 0),
        lambda jobs: jobs.finetune("meta", "full_access", 0),
    ):
        assert make(small).mem_mb < make(large).mem_mb
        assert make(small).minutes < make(large).minutes
        assert make(jobs_of(gpu=True)).minutes < make(large).minutes
    stable = large.pretrain("meta-stable", "full_access", 0)
    four = large.config.arms["meta-stable"].model_copy(update={"accumulate": 4, "hypergradient_batch": 1024})
    assert large.pretrain("four", "full_access", 0, four).minutes > stable.minutes + 300
    assert stable.mem_mb > large.pretrain("meta", "full_access", 0).mem_mb
