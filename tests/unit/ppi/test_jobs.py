"""The experiments need the right runs, and runs are shared between settings."""

from __future__ import annotations

from typing import Any

import pytest

from metapt.domains.ppi.config import ARMS
from metapt.domains.ppi.data.sections import SIMULATED, string_names
from metapt.domains.ppi.domain import DOMAIN
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.settings import finetune_setting, pretrain_setting
from metapt.engine.jobs import Job, Place
from metapt.errors import ConfigError

STRING = {
    "{taxon}.protein.links.detailed.v{version}.txt.gz": {"urls": ["https://a.org/{version}/{taxon}.links"]},
    "{taxon}.protein.enrichment.terms.v{version}.txt.gz": {"urls": ["https://a.org/{version}/{taxon}.terms"]},
}
SOURCES: dict[str, Any] = {
    "hu2020": {"name": "hu2020"},
    "string-{version}": {"name": "string-{version}", "files": STRING},
}
TWO, ARM_AND_CONTROL = ["graph_supervised", "meta"], {"arms": ["graph_supervised", "meta"]}


def jobs_of(gpu: bool = False, **settings: Any) -> PpiJobs:
    config = DOMAIN.section().model_validate({"pretrain_seeds": 2, **settings})
    return PpiJobs("ppi", config, Place("results/x", "raw", SOURCES, [], gpu))


def summary(key: str, **settings: Any) -> tuple[Job, list[str]]:
    """Return an experiment's summary, and the runs that it reads."""
    job = DOMAIN.summary(jobs_of(**settings), key)
    return job, [name.removesuffix("/metrics") for name in job.inputs if name.endswith("/metrics")]


def finetuned(*cells: str) -> list[str]:
    """Return the names of FT runs with both PT seeds, one after the other, without the domain's."""
    return [f"finetune/{cell}/seed{seed}" for seed in range(2) for cell in cells]


@pytest.mark.parametrize(("width", "large"), [(64, False), (300, True)])
def test_wide_networks_have_large_products(width: int, large: bool) -> None:
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


@pytest.mark.parametrize(
    ("key", "section", "runs"),
    [
        ("full_access", ARM_AND_CONTROL, finetuned("graph_supervised/full_access", "meta/full_access")),
        ("half_data", ARM_AND_CONTROL, finetuned("graph_supervised/full_access", "meta/half_data")),
        (
            "held_out_tasks",
            ARM_AND_CONTROL,
            finetuned(*(f"{arm}/held_out_{fold}" for arm in TWO for fold in range(4))),
        ),
        ("summary", {"arms": ["meta", "cotrain"]}, finetuned("meta/full_access", "cotrain/full_access")),
        ("learned_weights", {"arms": ["meta"]}, [f"pretrain/meta/full_access/seed{seed}" for seed in range(2)]),
        (
            "cost",
            ARM_AND_CONTROL,
            [
                *(f"pretrain/{arm}/full_access/seed{seed}" for seed in range(2) for arm in TWO),
                *finetuned("graph_supervised/full_access"),
            ],
        ),
        (
            "representations",
            {"arms": ["no_pt", "meta"]},
            [
                *(f"pretrain/{arm}/full_access/seed{seed}" for seed in range(2) for arm in ("no_pt", "meta")),
                "representations/cka",
            ],
        ),
        ("negative_transfer", {"arms": ["meta"]}, finetuned("no_pt/full_access", "meta/full_access")),
    ],
)
def test_what_an_experiment_reads(key: str, section: dict[str, Any], runs: list[str]) -> None:
    assert sorted(summary(key, **{key: section})[1]) == sorted(runs)


def test_the_summary_makes_no_run_of_its_own_beside_full_access() -> None:
    arms = {"arms": ["graph_supervised", "meta", "cotrain"]}
    _, runs = summary("summary", summary=arms, half_data=ARM_AND_CONTROL, held_out_tasks={"arms": ["meta"]})
    assert len(runs) == len(set(runs)) == 2 * (3 + 1 + 4)
    assert "finetune/meta/half_data/seed0" in runs
    assert "finetune/cotrain/half_data/seed0" not in runs


def test_representations_are_a_study_of_pt_runs() -> None:
    made = jobs_of(representations={"arms": ["no_pt", "meta"], "graphs": 50})
    DOMAIN.summary(made, "representations")
    study = made.made["ppi/representations/cka"]
    encoders = {f"pretrained/{arm}/{seed}" for arm in ("no_pt", "meta") for seed in range(2)}
    assert set(study.inputs) == {"graphs"} | encoders
    assert "checkpoint" not in study.config


def test_negative_transfer_compares_with_no_pt() -> None:
    job, _ = summary("negative_transfer", negative_transfer={"arms": ["meta"]})
    assert set(job.config["settings"]["arms"]) == {"meta", "no_pt"}
    assert job.inputs["tasks"] == "results/x/ppi/data/hu2020/tasks.csv"


def test_ft_starts_from_the_encoder_of_one_pt_seed_and_without_pt_from_none() -> None:
    jobs = jobs_of()
    assert set(jobs.finetune("no_pt", "full_access", 1).inputs) == {"graphs"}
    inputs = jobs.finetune("graph_supervised", "held_out_1", 1).inputs
    assert set(inputs) == {"graphs", "pretrained"}
    assert inputs["pretrained"] == "results/x/ppi/pretrain/graph_supervised/full_access/seed1/pretrained.pt"


def test_a_headroom_runs_settings_and_reference_on_each_problem_with_the_same_seeds() -> None:
    made = jobs_of(headroom={"settings": 2, "pretrain_seeds": [5, 7], "groups": 3, "permuted": [0, 90]})
    job = DOMAIN.summary(made, "headroom")
    runs = [name.removesuffix("/metrics") for name in job.inputs if name.endswith("/metrics")]
    names, problems = ["graph_supervised", "headroom-0-00", "headroom-0-01"], ["full_access", "permuted_90"]
    cells = [f"{name}/{problem}" for problem in problems for name in names]
    assert runs == [f"finetune/{cell}/seed{seed}" for cell in cells for seed in (5, 7)]
    first, second = (
        made.made[f"ppi/pretrain/headroom-0-01/{problem}/seed7"].config["arm_settings"] for problem in problems
    )
    assert first == second
    assert len(first["group_weights"]) == 3
    assert 0.02 <= min(first["group_weights"]) <= max(first["group_weights"]) <= 1.98
    assert made.pretrain("graph_supervised", "full_access", 0).config["arm_settings"]["group_weights"] is None


def test_learned_weights_are_used_after_and_at_the_learning_rate_of_the_run_that_learns_them() -> None:
    jobs = jobs_of(arms={"meta": {"method": "meta", "pretrain_lr": 2e-3}} | {"meta-frozen": ARMS["meta-frozen"]})
    job = jobs.pretrain("meta-frozen", "half_data", 1)
    assert job.inputs["weights"] == "results/x/ppi/pretrain/meta/half_data/seed1/pretrained.pt"
    assert "ppi/pretrain/meta/half_data/seed1" in jobs.made
    rates = [each.config["arm_settings"]["pretrain_lr"] for each in (job, jobs.pretrain("meta", "half_data", 1))]
    assert rates == [2e-3, 2e-3]
    assert jobs_of().pretrain("meta-frozen", "full_access", 0).config["arm_settings"]["pretrain_lr"] == 1e-4


def test_the_released_choices_are_those_of_the_released_code() -> None:
    jobs = jobs_of()
    for arm in ("meta-released", "graph_supervised-released"):
        run = jobs.pretrain(arm, "full_access", 0).config
        assert (run["pretrain"]["offset_centres"], run["arm_settings"]["pretrain_lr"]) == (False, 1e-4)
        assert jobs.finetune(arm, "full_access", 0).config["finetune"]["lrs"] == [1e-5]
    released = jobs.pretrain("meta-released", "full_access", 0).config["arm_settings"]
    assert released["head_steps_between_updates"] == 1


def test_each_file_of_string_is_downloaded_by_a_job_of_its_own() -> None:
    jobs = jobs_of(source="string", string={"species": [7, 8], "version": "11.5"}, test_species=[8])
    made, links = jobs.prepared(), "7.protein.links.detailed.v11.5.txt.gz"
    assert made.inputs[links] == f"raw/string-11.5/{links}"
    downloads = [job for job in jobs.made.values() if job.stage == "download"]
    assert len(downloads) == 4
    (job,) = (job for job in downloads if "8.protein.enrichment" in job.name)
    files = job.config["source"]["files"]
    assert files == {"8.protein.enrichment.terms.v11.5.txt.gz": {"urls": ["https://a.org/11.5/8.terms"]}}
    simulated = jobs_of(source="simulated", test_species=SIMULATED.species[-1:]).prepared()
    assert simulated.inputs == {name: f"raw/ppi-simulated/{name}" for name in string_names(SIMULATED)}


def test_a_larger_network_and_minibatch_take_more_and_a_gpu_less_time() -> None:
    small, large, gpu = jobs_of(network={"width": 30}), jobs_of(), jobs_of(gpu=True)
    for stage in ("pretrain", "finetune"):
        less, more, fast = (getattr(jobs, stage)("meta", "full_access", 0) for jobs in (small, large, gpu))
        assert less.mem_mb < more.mem_mb
        assert less.minutes < more.minutes
        assert fast.minutes < more.minutes
    stable = large.pretrain("meta-stable", "full_access", 0)
    four = large.config.arms["meta-stable"].model_copy(update={"accumulate": 4, "hypergradient_batch": 1024})
    assert large.pretrain("four", "full_access", 0, four).minutes > stable.minutes + 300
    assert stable.mem_mb > large.pretrain("meta", "full_access", 0).mem_mb
