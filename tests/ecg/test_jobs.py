"""The jobs of the ECG domain, and which of them each experiment needs."""

from __future__ import annotations

from typing import Any

import pytest

from metapt.config import validate
from metapt.domains.ecg.config import access
from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.jobs import RAW, EcgJobs
from metapt.errors import ConfigError
from metapt.jobs import Place

PTBXL = {"name": "ptbxl-1.0.3"}


def section(**keys: Any) -> Any:
    return validate({"ecg": {"pretrain_seeds": 2} | keys}).ecg


def jobs(gpu: bool = False, **keys: Any) -> EcgJobs:
    return EcgJobs("ecg", section(**keys), Place("results/mine", "data/raw", {"ptbxl-1.0.3": PTBXL}, ["a mirror"], gpu))


def runs(experiment: str, **keys: Any) -> list[str]:
    """Return the names of the runs that an experiment needs, without the domain's."""
    made = jobs(**keys)
    needs = DOMAIN.experiments[experiment].needs(made, getattr(made.config, experiment))
    return [job.name.removeprefix("ecg/") for job in needs.runs]


def test_keys_of_the_computation_reach_the_jobs_that_read_them() -> None:
    arms = {"simclr": {"method": "simclr"}, "meta": {"method": "meta"}}
    plain = jobs(arms=arms, full_access={"arms": list(arms)})
    lower = jobs(arms=arms, full_access={"arms": list(arms)}, pretrain={"precision": "bfloat16"})
    again = jobs(arms=arms | {"meta": {"method": "meta", "recompute": True}}, full_access={"arms": list(arms)})

    def differing(other: EcgJobs) -> list[str]:
        made = [[*each.runs([("simclr", "none", 10), ("meta", "n10", 10)])] for each in (plain, other)]
        return [a.name.removeprefix("ecg/") for a, b in zip(*made, strict=True) if a.config != b.config]

    seeds = ("seed0", "seed1")
    assert differing(lower) == [f"pretrain/{run}/{seed}" for seed in seeds for run in ("simclr/none", "meta/n10")]
    assert differing(again) == [f"pretrain/meta/n10/{seed}" for seed in seeds]


def test_raw_files_are_downloaded_or_simulated() -> None:
    made = jobs(full_access={})
    prepare = made.prepared()
    assert prepare.inputs == {name: f"data/raw/ptbxl-1.0.3/{name}" for name in RAW}
    download = made.made["raw/ptbxl-1.0.3/records.json"]
    assert (download.stage, download.mem_mb, download.minutes) == ("download", 1000, 240)
    assert download.config == {"source": PTBXL, "mirrors": ["a mirror"]}
    generated = jobs(source="simulated", full_access={})
    assert generated.prepared().inputs == {name: f"data/raw/ecg-simulated/{name}" for name in RAW}
    assert generated.made["raw/ecg-simulated"].entry == "domains.ecg.data.simulate"


def test_a_pt_job_says_all_that_its_result_depends_on() -> None:
    made = jobs(width=4, pretrain={"signals": 896, "batch_size": 64, "epochs": 9}, full_access={})
    job = made.pretrain("meta", "n500", 1)
    assert job.name == "ecg/pretrain/meta/n500/seed1"
    assert job.outputs["pretrained"] == "results/mine/ecg/pretrain/meta/n500/seed1/pretrained.pt"
    assert job.config["arm_settings"]["method"] == "meta"
    assert (job.config["meta_size"], job.config["split"], job.config["seed"]) == (500, "patients", 1)
    assert job.config["checkpoint"] == "results/mine/.resume/ecg/pretrain/meta/n500/seed1.pt"
    assert (job.mem_mb, job.minutes) == (1500 + 4 * 256, 60 + 4 * 9 * 896 * 4 // 30_000)
    plain = made.pretrain("simclr", "none", 1)
    assert (plain.config["meta_size"], plain.config["split"]) == (None, None)
    assert made.pretrain("no_pt", "none", 1).config["pretrain"] == {}, "no key of PT counts"
    assert made.pretrain("simclr", "none", 1) is plain


def test_long_meta_updates_get_more_time() -> None:
    pretrain = {"signals": 8960, "batch_size": 64, "epochs": 50}
    arms = {
        "four": {"accumulate": 4},
        "series": {"inverse": {"kind": "neumann", "terms": 20}},
        "folded": {"unroll": "fitted", "folds": 10},
    }
    made = jobs(pretrain=pretrain, arms={name: {"method": "meta"} | arm for name, arm in arms.items()})
    plain, passes = made.pretrain("meta", "n500", 0).minutes - 60, 2 * 50 * 8960 * 32 / 30_000
    assert plain == pytest.approx(2 * passes, abs=1)
    for name, each in {"four": 4 * (4 * 128 + 512), "series": 23 * 128 + 512, "folded": 4 * 128 + 2560}.items():
        longer = made.pretrain(name, "n500", 0).minutes - 60
        assert longer == pytest.approx(passes * (1 + each / (2 * 640)), abs=1)
        assert longer > plain


def test_an_ft_job_starts_from_the_encoder_of_one_pt_seed() -> None:
    job = jobs(gpu=True, full_access={}).finetune("meta", "n250", 500, 1)
    assert job.name == "ecg/finetune/meta/n250/n500/seed1"
    assert job.inputs["pretrained"] == "results/mine/ecg/pretrain/meta/n250/seed1/pretrained.pt"
    assert job.config["checkpoint"] == "results/mine/.resume/ecg/finetune/meta/n250/n500/seed1.pt"
    assert [job.config[key] for key in ("meta_size", "size", "seed")] == [250, 500, 1]
    assert job.minutes == 240


def test_an_ft_job_does_not_depend_on_the_other_pt_seeds() -> None:
    few, many = jobs(pretrain_seeds=[1], full_access={}), jobs(pretrain_seeds=9, full_access={})
    assert few.finetune("meta", "n250", 500, 1) == many.finetune("meta", "n250", 500, 1)


def test_a_frozen_warp_comes_from_the_run_that_learns_it() -> None:
    made = jobs(arms={"meta": {"warp": {"initial": 2}}}, full_access={"arms": ["meta-frozen", "meta-stable-start"]})
    frozen, learning = (made.pretrain(arm, "n250", 1) for arm in ("meta-frozen", "meta"))
    assert frozen.inputs == learning.inputs | {"learned": learning.outputs["pretrained"]}
    assert frozen.config["arm_settings"]["warp"] == learning.config["arm_settings"]["warp"]
    assert frozen.config["arm_settings"]["warp"]["initial"] == 2
    cells = [(arm, access(made.config.arms[arm], 250)) for arm in ("meta-frozen", "meta-stable-start")]
    assert cells == [("meta-frozen", "n250"), ("meta-stable-start", "none")]
    start = made.pretrain("meta-stable-start", "none", 1)
    assert "learned" not in start.inputs
    assert (
        start.config["arm_settings"]["warp"] == made.pretrain("meta-stable", "n250", 1).config["arm_settings"]["warp"]
    )


def test_what_an_arm_changes_of_its_domain_reaches_its_jobs_alone() -> None:
    arms = {"simclr": {"method": "simclr"}, "mine": {"method": "simclr", "warp": {"initial": 2}}}
    section: dict[str, Any] = {"full_access": {"arms": list(arms)}, "finetune": {"linear_epochs": 7}}

    def made(**changes: Any) -> dict[str, dict[str, Any]]:
        found = jobs(arms=arms | {"mine": arms["mine"] | changes}, **section)
        return {job.name: job.config for job in found.runs((arm, "none", 10) for arm in arms)}

    def differing(**changes: Any) -> list[str]:
        plain, other = made(), made(**changes)
        return [name.removeprefix("ecg/") for name in plain if plain[name] != other[name]]

    assert differing(pretrain={"jitter": "uniform"}) == [f"pretrain/mine/none/seed{seed}" for seed in range(2)]
    assert differing(finetune={"batch_norm": "eval"}) == [f"finetune/mine/none/n10/seed{seed}" for seed in range(2)]
    finetune = made(finetune={"batch_norm": "eval"})["ecg/finetune/mine/none/n10/seed1"]["finetune"]
    assert (finetune["batch_norm"], finetune["linear_epochs"], finetune["batch_size"]) == ("eval", 7, 256)


def test_the_released_choices_are_those_of_the_released_code() -> None:
    made = jobs(full_access={})
    for arm, seen in (("meta-released", "n100"), ("simclr-released", "none")):
        assert made.pretrain(arm, seen, 0).config["pretrain"]["jitter"] == "uniform"
        finetune = made.finetune(arm, seen, 100, 0).config["finetune"]
        assert (finetune["batch_norm"], finetune["batch_size"], finetune["linear_lr"]) == ("eval", 64, 1e-3)
    assert made.pretrain("meta-released", "n100", 0).config["arm_settings"]["head_steps_between_updates"] == 1


def test_full_access_needs_each_arm_at_each_size_and_shares_pretraining_without_labels() -> None:
    """All jobs of a PT seed come before the next, so that a run that ends early has compared something."""
    found = runs("full_access", full_access={"arms": ["simclr", "meta"], "finetune_sizes": [50, 100]})
    pretrained = [f"pretrain/{run}" for run in ("simclr/none", "meta/n50", "meta/n100")]
    finetuned = [
        f"finetune/{cell}" for cell in ("simclr/none/n50", "simclr/none/n100", "meta/n50/n50", "meta/n100/n100")
    ]
    assert found == [f"{run}/seed{seed}" for seed in range(2) for run in pretrained + finetuned]


def test_partial_access_needs_no_more_labels_in_pretraining_than_in_finetuning() -> None:
    keys = {"arms": ["meta"], "finetune_sizes": [50, 100], "meta_sizes": [10, 50, 100, 200]}
    found = runs("partial_access", partial_access=keys)
    learned = [f"meta/n{seen}/n{size}" for size, seen in [(50, 10), (50, 50), (100, 10), (100, 50), (100, 100)]]
    cells = ["simclr/none/n50", "simclr/none/n100", *learned]
    finetuned = [f"finetune/{cell}/seed{seed}" for seed in range(2) for cell in cells]
    assert [name for name in found if name.startswith("finetune/")] == finetuned
    pretrained = [name for name in found if name.startswith("pretrain/")]
    assert len(pretrained) == len(set(pretrained)) == 2 * 4


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
    assert views.inputs["pretrained/meta/1"] == made.made["ecg/pretrain/meta/n50/seed1"].outputs["pretrained"]
    assert "pretrained/simclr/0" in views.inputs
    assert "checkpoint" not in views.config


def test_a_summary_knows_the_arms_that_it_compares() -> None:
    made = jobs(partial_access={"arms": ["meta"]}, full_access={})
    job = DOMAIN.summary(made, "partial_access")
    assert set(job.config["settings"]["arms"]) == {"meta", "simclr"}
    assert not {"full_access", "partial_access"} & set(job.config["settings"])
    assert job.config["section"]["baseline"] == "simclr"


def test_pt_seeds_can_be_listed() -> None:
    made = jobs(pretrain_seeds=[100, 3])
    tuned = [job for job in made.runs([("simclr", "none", 50)]) if job.stage == "finetune"]
    assert [job.name for job in tuned] == [f"ecg/finetune/simclr/none/n50/seed{seed}" for seed in (100, 3)]
    encoders = made.encoders("simclr", "none")
    assert [job.name for job in encoders] == [f"ecg/pretrain/simclr/none/seed{seed}" for seed in (100, 3)]
    views = made.views({"simclr": encoders}, 50)
    for seed, job, each in zip((100, 3), encoders, tuned, strict=True):
        assert each.inputs["pretrained"] == views.inputs[f"pretrained/simclr/{seed}"] == job.outputs["pretrained"]


@pytest.mark.parametrize("seeds", [0, [], [1, 1], [-1]])
def test_pt_seeds_that_mean_no_run_or_one_run_twice_are_refused(seeds: Any) -> None:
    with pytest.raises(ConfigError, match=r"ecg\.pretrain_seeds"):
        jobs(pretrain_seeds=seeds)


def test_a_headroom_runs_settings_and_reference_with_the_same_seeds() -> None:
    keys = {"settings": 3, "pretrain_seeds": [5, 7], "finetune_size": 50}
    made = jobs(headroom=keys)
    needs = DOMAIN.experiments["headroom"].needs(made, getattr(made.config, "headroom"))  # noqa: B009
    names = ["simclr", *(f"headroom-0-{number:02d}" for number in range(3))]
    assert [job.name for job in needs.runs] == [
        f"ecg/finetune/{name}/none/n50/seed{seed}" for seed in (5, 7) for name in names
    ]
    usual = made.pretrain("simclr", "none", 0).config
    of_settings = [made.made[f"ecg/pretrain/{name}/none/seed7"].config["pretrain"] for name in names]
    changed = [{key for key in usual["pretrain"] if usual["pretrain"][key] != each[key]} for each in of_settings]
    assert changed == [set()] + 3 * [{"crop", "noise", "temperature"}]
    more = jobs(headroom=keys | {"settings": 4, "pretrain_seeds": [5, 6]})
    DOMAIN.summary(more, "headroom")
    for name in names:
        run = f"ecg/pretrain/{name}/none/seed5"
        assert more.made[run].config == made.made[run].config, "further settings and other seeds change no run"


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
    usual, large = (made.pretrain(arm, "n500", 0).mem_mb for arm in ("simclr", "large"))
    assert large - usual == (more if in_pretraining else 0)
    usual, large = (made.finetune(arm, "n500", 500, 0).mem_mb for arm in ("simclr", "large"))
    assert large - usual == (more if "finetune" in own else 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reference": "meta"}, "headroom.reference is 'meta', whose PT sees labels"),
        (
            {"reference": "simclr-released"},
            "has batch_norm, batch_size, jitter, linear_lr of its own, and the settings have the domain's",
        ),
        ({"crop": [0.5, 1.5]}, "headroom.crop goes up to 1.5; legal: shares of at most 1"),
        ({"noise": [0.5, 0.5]}, "0.5 is not below 0.5; a range begins with its lower end"),
        ({"pretrain_seeds": [1, 1]}, "1 stands there twice"),
        ({"pretrain_seeds": [1]}, "headroom.pretrain_seeds names 1; legal: 2 or more"),
    ],
)
def test_what_makes_no_headroom_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        jobs(headroom=change)


def test_a_headroom_may_be_over_an_arm_with_other_views() -> None:
    arm = {"extends": "simclr", "pretrain": {"temperature": 0.125}}
    assert jobs(arms={"low": arm}, headroom={"reference": "low"}).config.headroom.reference == "low"


def test_a_setting_can_not_take_the_name_of_an_arm() -> None:
    with pytest.raises(ConfigError, match=r"headroom makes an arm of its own with the name of arms\.headroom-0-01"):
        jobs(arms={"headroom-0-01": {"method": "simclr"}}, headroom={})


def test_every_experiment_can_be_planned() -> None:
    made = jobs(**{key: {} for key in DOMAIN.experiments})
    papers = ["full_access", "unroll_steps", "partial_access", "augmentations", "cost"]
    assert list(DOMAIN.experiments)[:5] == papers, "in the paper's order"
    for key in DOMAIN.experiments:
        assert DOMAIN.summary(made, key).inputs
