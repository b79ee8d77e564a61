"""The jobs of the ECG domain, and which of them each experiment needs."""

from __future__ import annotations

from typing import Any

import pytest

from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.jobs import EcgJobs
from metapt.engine.config import validate
from metapt.engine.jobs import Job, Place

PTBXL = {"name": "ptbxl-1.0.3"}
RAW = ("ptbxl_database.csv", "scp_statements.csv", "records.json")


def jobs(gpu: bool = False, **keys: Any) -> EcgJobs:
    section: Any = validate({"ecg": {"pretrain_seeds": 2} | keys}).ecg
    return EcgJobs("ecg", section, Place("results/mine", "data/raw", {"ptbxl-1.0.3": PTBXL}, ["a mirror"], gpu))


def runs(experiment: str, **keys: Any) -> list[str]:
    """Return the names of the runs that an experiment needs, without the domain's."""
    made = jobs(**keys)
    needs = DOMAIN.experiments[experiment].needs(made, getattr(made.config, experiment))
    return [job.name.removeprefix("ecg/") for job in needs.runs]


def test_raw_files_are_downloaded_or_simulated() -> None:
    made, generated = jobs(full_access={}), jobs(source="simulated", full_access={})
    assert made.prepared().inputs == {name: f"data/raw/ptbxl-1.0.3/{name}" for name in RAW}
    download = made.made["raw/ptbxl-1.0.3/records.json"]
    assert download.stage == "download"
    assert download.config == {"source": PTBXL, "mirrors": ["a mirror"]}
    assert generated.prepared().inputs == {name: f"data/raw/ecg-simulated/{name}" for name in RAW}


def test_a_pt_job_says_all_that_its_result_depends_on() -> None:
    made = jobs(width=4, pretrain={"signals": 896, "batch_size": 64, "epochs": 9}, full_access={})
    job, plain = made.pretrain("meta", "n500/n500", 1), made.pretrain("simclr", "n500/n500", 1)
    assert job.name == "ecg/pretrain/meta/n500/seed1"
    assert job.outputs["pretrained"] == "results/mine/ecg/pretrain/meta/n500/seed1/pretrained.pt"
    assert job.config["checkpoint"] == "results/mine/.resume/ecg/pretrain/meta/n500/seed1.pt"
    assert job.config["arm_settings"]["method"] == "meta"
    assert [job.config[key] for key in ("meta_size", "split", "seed")] == [500, "patients", 1]
    assert [plain.config[key] for key in ("meta_size", "split")] == [None, None]
    assert made.pretrain("simclr", "n500/n500", 1) is plain


def test_an_ft_job_starts_from_the_encoder_of_one_pt_seed() -> None:
    job = jobs(pretrain_seeds=[1], full_access={}).finetune("meta", "n250/n500", 1)
    assert job.name == "ecg/finetune/meta/n250/n500/seed1"
    assert job.inputs["pretrained"] == "results/mine/ecg/pretrain/meta/n250/seed1/pretrained.pt"
    assert job.config["checkpoint"] == "results/mine/.resume/ecg/finetune/meta/n250/n500/seed1.pt"
    assert [job.config[key] for key in ("meta_size", "size", "seed")] == [250, 500, 1]
    assert job == jobs(pretrain_seeds=9, full_access={}).finetune("meta", "n250/n500", 1), "other seeds are no matter"


@pytest.mark.parametrize(
    ("own", "in_pretraining"),
    [
        ({"method": "simclr", "pretrain": {"batch_size": 2048}}, True),
        ({"method": "simclr", "finetune": {"batch_size": 2048}}, False),
        ({"method": "meta", "batch_size": 2048}, True),
        ({"method": "best_of", "finetune": {"batch_size": 2048}}, True),
    ],
)
def test_memory_is_that_of_an_arms_own_minibatches(own: dict[str, Any], in_pretraining: bool) -> None:
    made, more = jobs(arms={"large": own}), 32 * (2048 - 256)
    usual, large = (made.pretrain(arm, "n500/n500", 0).mem_mb for arm in ("simclr", "large"))
    assert large - usual == (more if in_pretraining else 0)
    usual, large = (made.finetune(arm, "n500/n500", 0).mem_mb for arm in ("simclr", "large"))
    assert large - usual == (more if "finetune" in own else 0)


def test_a_frozen_warp_comes_from_the_run_that_learns_it_and_a_start_from_its_settings() -> None:
    made = jobs(arms={"meta": {"warp": {"initial": 2}}}, full_access={"arms": ["meta-frozen", "meta-stable-start"]})

    def warp(job: Job) -> dict[str, Any]:
        found: dict[str, Any] = job.config["arm_settings"]["warp"]
        return found

    frozen, learning = (made.pretrain(arm, "n250/n250", 1) for arm in ("meta-frozen", "meta"))
    assert frozen.inputs == learning.inputs | {"learned": learning.outputs["pretrained"]}
    assert warp(frozen) == warp(learning)
    assert warp(frozen)["initial"] == 2
    start = made.pretrain("meta-stable-start", "n250/n250", 1)
    assert "learned" not in start.inputs
    assert warp(start) == warp(made.pretrain("meta-stable", "n250/n250", 1))
    assert [job.config["meta_size"] for job in (frozen, start)] == [250, None]


def test_the_released_choices_are_those_of_the_released_code() -> None:
    made = jobs(full_access={})
    for arm in ("meta-released", "simclr-released"):
        assert made.pretrain(arm, "n100/n100", 0).config["pretrain"]["jitter"] == "uniform"
        finetune = made.finetune(arm, "n100/n100", 0).config["finetune"]
        assert (finetune["batch_norm"], finetune["batch_size"], finetune["linear_lr"]) == ("eval", 64, 1e-3)
    assert made.pretrain("meta-released", "n100/n100", 0).config["arm_settings"]["head_steps_between_updates"] == 1


def test_full_access_needs_each_arm_at_each_size_and_shares_pretraining_without_labels() -> None:
    """All jobs of a PT seed come before the next, so that a run that ends early has compared something."""
    section = {"arms": ["simclr", "meta"], "finetune_sizes": [50, 100]}
    cells = ["pretrain/simclr/none", "pretrain/meta/n50", "pretrain/meta/n100"]
    cells += [f"finetune/{run}" for run in ("simclr/none/n50", "simclr/none/n100", "meta/n50/n50", "meta/n100/n100")]
    for given, seeds in ((2, (0, 1)), ([100, 3], (100, 3))):
        found = runs("full_access", full_access=section, pretrain_seeds=given)
        assert found == [f"{cell}/seed{seed}" for seed in seeds for cell in cells]


def test_partial_access_needs_no_more_labels_in_pretraining_than_in_finetuning() -> None:
    section = {"arms": ["meta"], "finetune_sizes": [50, 100], "meta_sizes": [10, 50, 100, 200]}
    found = runs("partial_access", partial_access=section, pretrain_seeds=1)
    learned = [f"meta/n{seen}/n{size}" for size, seen in [(50, 10), (50, 50), (100, 10), (100, 50), (100, 100)]]
    cells = ["simclr/none/n50", "simclr/none/n100", *learned]
    assert [name for name in found if name.startswith("finetune/")] == [f"finetune/{cell}/seed0" for cell in cells]
    assert len(found) == len(set(found)) == 4 + len(cells)


@pytest.mark.parametrize(
    ("experiment", "more"),
    [
        ("augmentations", ["augmentations/views"]),
        ("cost", [f"finetune/simclr/none/n50/seed{seed}" for seed in range(2)]),
    ],
)
def test_some_experiments_need_pretraining_and_little_more(experiment: str, more: list[str]) -> None:
    found = runs(experiment, **{experiment: {"arms": ["simclr", "meta"], "finetune_size": 50}})
    assert found == [f"pretrain/{run}/seed{seed}" for run in ("simclr/none", "meta/n50") for seed in range(2)] + more


def test_the_views_are_of_every_arm_and_pt_seed() -> None:
    made = jobs(augmentations={"arms": ["simclr", "meta"], "finetune_size": 50})
    DOMAIN.summary(made, "augmentations")
    views = made.made["ecg/augmentations/views"]
    for arm, seen in (("simclr", "none"), ("meta", "n50")):
        for seed in range(2):
            job = made.made[f"ecg/pretrain/{arm}/{seen}/seed{seed}"]
            assert views.inputs[f"pretrained/{arm}/{seed}"] == job.outputs["pretrained"]
    assert "checkpoint" not in views.config


def test_a_headroom_runs_settings_and_reference_with_the_same_seeds() -> None:
    keys = {"settings": 3, "pretrain_seeds": [5, 7], "finetune_size": 50}
    names = ["simclr", *(f"headroom-0-{number:02d}" for number in range(3))]
    runs_of = [f"finetune/{name}/none/n50/seed{seed}" for seed in (5, 7) for name in names]
    assert runs("headroom", headroom=keys) == runs_of
    made, more = jobs(headroom=keys), jobs(headroom=keys | {"settings": 4, "pretrain_seeds": [5, 6]})
    for each in (made, more):
        DOMAIN.summary(each, "headroom")
    configs = [made.made[f"ecg/pretrain/{name}/none/seed5"].config for name in names]
    usual = configs[0]["pretrain"]
    changed = [{key for key in usual if usual[key] != config["pretrain"][key]} for config in configs]
    assert changed == [set()] + 3 * [{"crop", "noise", "temperature"}]
    again = [more.made[f"ecg/pretrain/{name}/none/seed5"].config for name in names]
    assert again == configs, "further settings and other seeds change no run"


def test_partial_access_is_told_its_baseline_and_the_papers_experiments_come_first() -> None:
    job = DOMAIN.summary(jobs(partial_access={"arms": ["meta"]}), "partial_access")
    assert set(job.config["settings"]["arms"]) == {"meta", "simclr"}
    assert job.config["section"]["baseline"] == "simclr"
    papers = ["full_access", "unroll_steps", "partial_access", "augmentations", "cost"]
    assert list(DOMAIN.experiments)[:5] == papers, "in the paper's order"
