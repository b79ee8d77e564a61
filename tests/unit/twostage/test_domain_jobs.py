"""The jobs of ECGs and protein graphs: which runs each experiment needs, and what these read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metapt.domains.ecg.config import ARMS as ECG_ARMS
from metapt.domains.ecg.config import Warp
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ppi.config import ARMS as PPI_ARMS
from metapt.domains.ppi.data.sections import SIMULATED, string_names
from metapt.domains.ppi.stages import finetune_setting, pretrain_setting
from metapt.engine.domain import domain
from metapt.engine.jobs import Job, Place

RAW = ("ptbxl_database.csv", "scp_statements.csv", "records.json")
STRING = {
    "{taxon}.protein.links.detailed.v{version}.txt.gz": {"urls": ["https://a.org/{version}/{taxon}.links"]},
    "{taxon}.protein.enrichment.terms.v{version}.txt.gz": {"urls": ["https://a.org/{version}/{taxon}.terms"]},
}
SOURCES: dict[str, Any] = {name: {"name": name} for name in ("ptbxl-1.0.3", "hu2020")}
SOURCES["string-{version}"] = {"name": "string-{version}", "files": STRING}
ECG, PPI = ["simclr", "meta"], ["graph_supervised", "meta"]


def jobs(name: str, **keys: Any) -> Any:
    section = domain(name).section().model_validate({"pretrain_seeds": 2} | keys)
    return domain(name).jobs(name, section, Place("results/x", "raw", SOURCES, ["a mirror"]))


def summary(name: str, key: str, **keys: Any) -> tuple[Any, Job, list[str]]:
    """Return the jobs of an experiment, its summary, and the runs that it reads, in their order."""
    made = jobs(name, **keys)
    job = domain(name).summary(made, key)
    return made, job, [each.removesuffix("/metrics") for each in job.inputs if each.endswith("/metrics")]


PT_ECG = "pretrain/simclr/none pretrain/meta/n50"
PT_PPI = "pretrain/graph_supervised/full_access pretrain/meta/full_access"
BOTH = "finetune/graph_supervised/full_access finetune/meta/"
PARTIAL = {"arms": ["meta"], "finetune_sizes": [50, 100], "meta_sizes": [10, 50, 100, 200]}
PARTIAL_RUNS = f"{PT_ECG} pretrain/meta/n10 pretrain/meta/n100 finetune/simclr/none/n50 finetune/simclr/none/n100 "
PARTIAL_RUNS += " ".join(
    f"finetune/meta/{cell}" for cell in ("n10/n50", "n50/n50", "n10/n100", "n50/n100", "n100/n100")
)
READ: list[tuple[str, str, dict[str, Any], str]] = [
    ("ecg", "full_access", {"finetune_sizes": [50]}, f"{PT_ECG} finetune/simclr/none/n50 finetune/meta/n50/n50"),
    ("ecg", "partial_access", PARTIAL, PARTIAL_RUNS),
    ("ecg", "cost", {"finetune_size": 50}, f"{PT_ECG} finetune/simclr/none/n50"),
    ("ppi", "full_access", {}, f"{BOTH}full_access"),
    ("ppi", "half_data", {}, f"{BOTH}half_data"),
    ("ppi", "held_out_tasks", {}, " ".join(f"finetune/{arm}/held_out_{fold}" for arm in PPI for fold in range(4))),
    ("ppi", "summary", {"arms": ["meta", "cotrain"]}, "finetune/meta/full_access finetune/cotrain/full_access"),
    ("ppi", "learned_weights", {"arms": ["meta"]}, "pretrain/meta/full_access"),
    ("ppi", "cost", {}, f"{PT_PPI} finetune/graph_supervised/full_access"),
    ("ppi", "representations", {}, f"{PT_PPI} representations/cka"),
    ("ppi", "negative_transfer", {"arms": ["meta"]}, "finetune/no_pt/full_access finetune/meta/full_access"),
]
"""Domain, experiment, its section (arms: plain PT and `meta`), and the runs of each seed that it reads."""


@pytest.mark.parametrize(("name", "key", "section", "runs"), READ)
def test_what_an_experiment_reads(name: str, key: str, section: dict[str, Any], runs: str) -> None:
    section = {"arms": ECG if name == "ecg" else PPI} | section
    made, _, found = summary(name, key, **{key: section})
    *trained, last = runs.split()
    studies = [last] if last.startswith("representations/") else []
    expected = [f"{run}/seed{seed}" for run in (*trained, last) if run not in studies for seed in range(2)]
    assert sorted(found) == sorted([*expected, *studies])
    for study in (job for job in made.made.values() if job.stage == "study"):
        encoders = {each: path for each, path in study.inputs.items() if each.startswith("pretrained/")}
        made_before = [job.outputs["pretrained"] for job in made.made.values() if job.stage == "pretrain"]
        assert list(encoders.values()) == made_before
        assert set(encoders) == {f"pretrained/{arm}/{seed}" for arm in section["arms"] for seed in range(2)}
        assert "checkpoint" not in study.config


@pytest.mark.parametrize("numbers", [(0, 1), (100, 3)])
def test_all_jobs_of_a_pt_seed_come_before_the_next(numbers: tuple[int, ...]) -> None:
    """A run that ends early has then compared something."""
    section = {"arms": ECG, "finetune_sizes": [50, 100]}
    made = jobs("ecg", full_access=section, pretrain_seeds=list(numbers))
    needs = domain("ecg").experiments["full_access"].needs(made, made.config.full_access)
    cells = ["pretrain/simclr/none", "pretrain/meta/n50", "pretrain/meta/n100"]
    cells += [f"finetune/{run}" for run in ("simclr/none/n50", "simclr/none/n100", "meta/n50/n50", "meta/n100/n100")]
    assert [job.name for job in needs.runs] == [f"ecg/{cell}/seed{seed}" for seed in numbers for cell in cells]


def test_summaries_read_the_runs_of_other_experiments_and_further_arms() -> None:
    arms: dict[str, Any] = {"arms": ["graph_supervised", "meta", "cotrain"]}
    _, _, runs = summary("ppi", "summary", summary=arms, half_data={"arms": PPI}, held_out_tasks={"arms": ["meta"]})
    assert len(runs) == len(set(runs)) == 2 * (3 + 1 + 4)
    assert "finetune/meta/half_data/seed0" in runs
    assert "finetune/cotrain/half_data/seed0" not in runs
    _, job, _ = summary("ppi", "negative_transfer", negative_transfer={"arms": ["meta"]})
    assert set(job.config["settings"]["arms"]) == {"meta", "no_pt"}
    assert job.inputs["tasks"] == "results/x/ppi/data/hu2020/tasks.csv"
    _, job, _ = summary("ecg", "partial_access", partial_access={"arms": ["meta"]})
    assert set(job.config["settings"]["arms"]) == {"meta", "simclr"}
    assert job.config["section"]["baseline"] == "simclr"
    for name in ("ecg", "ppi"):
        _, job, _ = summary(name, "full_access", full_access={"arms": ["meta-frozen"]})
        assert set(job.config["settings"]["arms"]) == {"meta-frozen", "meta"}, "an arm and what it takes"
    papers = ["full_access", "unroll_steps", "partial_access", "cost"]
    assert list(domain("ecg").experiments)[:4] == papers, "in the paper's order"


def test_jobs_say_all_that_their_results_depend_on() -> None:
    made = jobs("ecg", full_access={})
    job, plain = made.pretrain("meta", "n250/n500", 1), made.pretrain("simclr", "n500/n500", 1)
    assert job.outputs["pretrained"] == "results/x/ecg/pretrain/meta/n250/seed1/pretrained.pt"
    assert [job.config[key] for key in ("meta_size", "split", "seed")] == [250, "patients", 1]
    assert [plain.config[key] for key in ("meta_size", "split")] == [None, None]
    assert made.pretrain("simclr", "n100/n100", 1) is plain
    tuned = made.finetune("meta", "n250/n500", 1)
    assert tuned.inputs["pretrained"] == job.outputs["pretrained"]
    assert [tuned.config[key] for key in ("meta_size", "size", "seed")] == [250, 500, 1]
    of_graphs = jobs("ppi")
    assert set(of_graphs.finetune("no_pt", "full_access", 1).inputs) == {"graphs"}
    inputs = of_graphs.finetune("graph_supervised", "held_out_1", 1).inputs
    assert inputs["pretrained"] == "results/x/ppi/pretrain/graph_supervised/full_access/seed1/pretrained.pt"


@pytest.mark.parametrize("arm", ["graph_supervised", "meta", "meta-frozen"])
def test_settings_in_which_pt_and_ft_see_the_same_share_runs(arm: str) -> None:
    names, sees_ft = ["full_access", "half_data", "held_out_2"], arm != "graph_supervised"
    found = [pretrain_setting(PPI_ARMS[arm], name) for name in names]
    assert found == (names if sees_ft else ["full_access"] * 3)
    found = [finetune_setting(PPI_ARMS[arm], name) for name in names]
    assert found == (names if sees_ft else ["full_access", "full_access", "held_out_2"])


def test_what_an_arm_takes_from_another_comes_from_the_run_that_learns_it() -> None:
    warp = ECG_ARMS["meta"].model_copy(update={"warp": Warp(initial=2)})
    made = jobs("ecg", arms=ECG_ARMS | {"meta": warp}, full_access={"arms": ["meta-frozen"]})
    frozen, learning = (made.pretrain(arm, "n250/n250", 1) for arm in ("meta-frozen", "meta"))
    start, stable = (made.pretrain(arm, "n250/n250", 1) for arm in ("meta-stable-start", "meta-stable"))
    assert frozen.inputs == learning.inputs | {"learned": learning.outputs["pretrained"]}
    assert "learned" not in start.inputs
    warps = [job.config["arm_settings"]["warp"] for job in (frozen, learning, start, stable)]
    assert (warps[0], warps[0]["initial"], warps[2]) == (warps[1], 2, warps[3])
    assert [job.config["meta_size"] for job in (frozen, start)] == [250, None]
    made = jobs("ppi", arms={"meta": {"method": "meta", "pretrain_lr": 2e-3}, "meta-frozen": PPI_ARMS["meta-frozen"]})
    frozen, learning = (made.pretrain(arm, "half_data", 1) for arm in ("meta-frozen", "meta"))
    assert frozen.inputs["weights"] == learning.outputs["pretrained"]
    assert learning.name == "ppi/pretrain/meta/half_data/seed1"
    assert [job.config["arm_settings"]["pretrain_lr"] for job in (frozen, learning)] == [2e-3, 2e-3]
    usual = jobs("ppi").pretrain("meta-frozen", "full_access", 0)
    assert usual.config["arm_settings"]["pretrain_lr"] == 1e-4


def test_a_headroom_runs_settings_and_reference_with_the_same_seeds() -> None:
    keys: dict[str, Any] = {"settings": 3, "pretrain_seeds": [5, 7], "finetune_size": 50}
    names = ["simclr", *(f"headroom-0-{number:02d}" for number in range(3))]
    made, _, runs = summary("ecg", "headroom", headroom=keys)
    assert sorted(runs) == sorted(f"finetune/{name}/none/n50/seed{seed}" for name in names for seed in (5, 7))
    more, _, _ = summary("ecg", "headroom", headroom=keys | {"settings": 4, "pretrain_seeds": [5, 6]})
    configs, again = ([each.made[f"ecg/pretrain/{name}/none/seed5"].config for name in names] for each in (made, more))
    usual = configs[0]["pretrain"]
    changed = [{key for key in usual if usual[key] != config["pretrain"][key]} for config in configs]
    assert changed == [set()] + 3 * [{"crop", "noise", "temperature"}]
    assert again == configs, "further settings and other seeds change no run"


def test_a_headroom_of_task_weights_runs_them() -> None:
    made, _, runs = summary("ppi", "headroom", headroom={"settings": 2, "pretrain_seeds": [5, 7], "groups": 3})
    names = ["graph_supervised", "headroom-0-00", "headroom-0-01"]
    assert sorted(runs) == sorted(f"finetune/{name}/full_access/seed{seed}" for name in names for seed in (5, 7))
    weights = made.made["ppi/pretrain/headroom-0-01/full_access/seed7"].config["arm_settings"]["group_weights"]
    assert len(weights) == 3
    assert 0.02 <= min(weights) <= max(weights) <= 1.98
    assert made.pretrain("graph_supervised", "full_access", 0).config["arm_settings"]["group_weights"] is None


@pytest.mark.parametrize(
    ("name", "plain", "setting", "pretrain", "finetune"),
    [
        (
            "ecg",
            "simclr",
            "n100/n100",
            {"jitter": "uniform"},
            {"batch_norm": "eval", "batch_size": 64, "linear_lr": 1e-3},
        ),
        ("ppi", "graph_supervised", "full_access", {"offset_centres": False}, {"lrs": [1e-5]}),
    ],
)
def test_the_released_choices_are_those_of_the_released_code(
    name: str, plain: str, setting: str, pretrain: dict[str, Any], finetune: dict[str, Any]
) -> None:
    made = jobs(name, full_access={})
    for arm in (plain, "meta"):
        run = made.pretrain(f"{arm}-released", setting, 0).config
        assert run["pretrain"].items() >= pretrain.items()
        assert made.finetune(f"{arm}-released", setting, 0).config["finetune"].items() >= finetune.items()
        assert name == "ecg" or run["arm_settings"]["pretrain_lr"] == 1e-4
    assert run["arm_settings"]["head_steps_between_updates"] == 1


def test_raw_files_are_downloaded_or_simulated() -> None:
    made, generated = jobs("ecg"), jobs("ecg", source="simulated")
    assert made.prepared().inputs == {name: f"raw/ptbxl-1.0.3/{name}" for name in RAW}
    download = made.made["raw/ptbxl-1.0.3/records.json"]
    assert (download.stage, download.config["mirrors"]) == ("download", ["a mirror"])
    assert download.config["source"] == SOURCES["ptbxl-1.0.3"]
    assert generated.prepared().inputs == {name: f"raw/ecg-simulated/{name}" for name in RAW}
    made = jobs("ppi", source="string", string={"species": [7, 8], "version": "11.5"}, test_species=[8])
    links = "7.protein.links.detailed.v11.5.txt.gz"
    assert made.prepared().inputs[links] == f"raw/string-11.5/{links}"
    downloads = {name.rpartition("/")[2]: job for name, job in made.made.items() if job.stage == "download"}
    assert len(downloads) == 4
    terms = "8.protein.enrichment.terms.v11.5.txt.gz"
    assert downloads[terms].config["source"]["files"] == {terms: {"urls": ["https://a.org/11.5/8.terms"]}}
    generated = jobs("ppi", source="simulated", test_species=SIMULATED.species[-1:]).prepared()
    assert generated.inputs == {name: f"raw/ppi-simulated/{name}" for name in string_names(SIMULATED)}


@pytest.mark.parametrize(
    ("own", "pretrain", "finetune"),
    [
        ({"method": "simclr", "pretrain": {"batch_size": 2048}}, 2048, 256),
        ({"method": "simclr", "finetune": {"batch_size": 2048}}, 256, 2048),
        ({"method": "meta", "batch_size": 2048}, 2048, 256),
        ({"method": "optsla", "batch_size": 2048}, 2048, 256),
        ({"method": "best_of", "finetune": {"batch_size": 2048}}, 2048, 2048),
    ],
)
def test_memory_is_that_of_an_arms_own_minibatches(own: dict[str, Any], pretrain: int, finetune: int) -> None:
    made = jobs("ecg", arms={"simclr": {"method": "simclr"}, "large": own})
    for make, largest in ((made.pretrain, pretrain), (made.finetune, finetune)):
        usual, large = (make(arm, "n500/n500", 0).mem_mb for arm in ("simclr", "large"))
        assert large - usual == 32 * (largest - 256)


def test_pt_has_the_memory_of_a_large_folder_of_ecgs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for count in (1_000, 20_000, 120_000):
        monkeypatch.setattr(EcgJobs, "found", SimpleNamespace(records=range(count), digest="0" * 64))
        made.append(jobs("ecg", source="folder", folder={"path": "mine"}).pretrain("simclr", "none/n500", 0).mem_mb)
    assert made[0] == made[1] == made[2] - 2_400


def test_what_an_arm_adds_to_plain_pt_takes_more_time() -> None:
    made = jobs("ecg", arms={f"budget{budget}": {"method": "random_search", "budget": budget} for budget in (2, 9)})
    less, more = (made.pretrain(arm, "n500/n500", 0) for arm in ("budget2", "budget9"))
    assert more.minutes > less.minutes
    made = jobs("ecg", arms={f"epochs{epochs}": {"method": "optsla", "epochs": epochs} for epochs in (200, 20_000)})
    less, more = (made.pretrain(arm, "n500/n500", 0) for arm in ("epochs200", "epochs20000"))
    assert more.minutes > 2 * less.minutes
    names = "graph_supervised", "cotrain", "cotrain_learned_weights"
    plain, both, learned = (jobs("ppi").pretrain(arm, "full_access", 0).minutes for arm in names)
    assert both - 60 == pytest.approx(2 * (plain - 60), abs=1)
    assert learned > both


def test_large_hypergradients_take_more_memory_and_time() -> None:
    made = jobs("ppi")
    meta = made.pretrain("meta", "full_access", 0)
    stable = made.pretrain("meta-stable", "full_access", 0)
    four = made.config.arms["meta-stable"].model_copy(update={"accumulate": 4, "hypergradient_batch": 1024})
    assert made.pretrain("four", "full_access", 0, four).minutes > stable.minutes + 300
    assert stable.mem_mb > meta.mem_mb
    many = made.config.arms["meta"].model_copy(update={"unroll_steps": 20})
    assert made.pretrain("many", "full_access", 0, many).mem_mb > meta.mem_mb
