"""The plan of a config: its jobs, each of which is made once, without torch; and the time that is left."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

import metapt
from metapt.domains.ppi.config import ARMS, uses_labels
from metapt.domains.ppi.stages import FOLDS
from metapt.engine.config import load, validate
from metapt.engine.digest import PACKAGE
from metapt.engine.domain import discover, domain, summary_module
from metapt.engine.jobs import Job
from metapt.engine.plan import Plan, Remaining, planned
from metapt.errors import ConfigError
from metapt.evaluation.tables import paper_numbers

ROOT = Path(__file__).parents[2]
PAPER = yaml.safe_load((ROOT / "config/paper.yaml").read_text())
SMALL = {"source": "simulated", "test_species": [900005], "pretrain_seeds": 2}


@pytest.fixture(scope="module")
def papers() -> Plan:
    """Return the plan of the paper's config."""
    return planned(load([ROOT / "config/paper.yaml"]))


def plan(**sections: object) -> Plan:
    return planned(validate({"results": "r"} | sections))


def ppi(**experiments: object) -> Plan:
    """Return the plan of a small PPI section with these experiments."""
    return plan(ppi=SMALL | experiments)


def stages(found: Plan) -> dict[str, int]:
    return dict(Counter(job.stage for job in found.jobs.values()))


def names(found: Plan, stage: str) -> list[str]:
    return sorted(job.name for job in found.jobs.values() if job.stage == stage)


@pytest.mark.slow
def test_the_papers_plan_is_made_in_less_than_a_second_and_a_command_needs_no_torch() -> None:
    """Another job on the same core can make one of three plans slow."""
    code = (
        "import sys, time; from pathlib import Path; from metapt.cli import main\n"
        "from metapt.engine.config import load; from metapt.engine.plan import planned\n"
        "main(['check', '--configfile', 'tests/system/workflow/tiny.yaml']); times = []\n"
        "for _ in range(3):\n"
        "    start = time.process_time(); planned(load([Path('config/paper.yaml')]))\n"
        "    times.append(time.process_time() - start)\n"
        "print(min(times), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, torch = done.stdout.splitlines()[-1].split()
    assert float(seconds) < 1
    assert torch == "False"


def test_every_experiment_with_a_number_of_the_paper_is_in_the_papers_config(papers: Plan) -> None:
    assert set(paper_numbers()["experiment"]) <= set(papers.summaries)
    for job in papers.jobs.values():
        assert PACKAGE.joinpath(*job.entry.split(".")).with_suffix(".py").is_file(), job.entry


def test_the_cluster_page_says_how_many_jobs_the_papers_config_has(papers: Plan) -> None:
    text = " ".join((ROOT / "docs" / "cluster.md").read_text().split())
    fewer = planned(load([ROOT / "config" / name for name in ("paper.yaml", "ablations/paper-seeds.yaml")]))
    counts = stages(papers)
    assert f"has {len(papers.jobs):,} jobs: {counts['pretrain']} PT runs, {counts['finetune']:,} FT jobs" in text
    assert f"{counts['study']} studies" in text
    assert f"there are {len(fewer.jobs):,} jobs" in text


def test_further_seeds_repeat_all_runs_in_another_folder() -> None:
    configs = [ROOT / "config" / name for name in ("real-small.yaml", "ablations/further-seeds.yaml")]
    usual, further = (planned(load(configs[:count])) for count in (1, 2))
    before, after = ({name.rpartition("/seed") for name in names(found, "pretrain")} for found in (usual, further))
    assert {run for run, _, _ in before} == {run for run, _, _ in after}
    assert {int(seed) for _, _, seed in after} == {100, 101, 102, 103, 104}
    assert not {int(seed) for _, _, seed in before} & {int(seed) for _, _, seed in after}
    written = [{path for job in found.jobs.values() for path in job.outputs.values()} for found in (usual, further)]
    assert {path for path in written[0] & written[1] if not path.startswith("data/raw/")} == set()


def test_further_seeds_of_mnist_repeat_each_study_of_the_paper(papers: Plan) -> None:
    config = load([ROOT / "config" / name for name in ("paper.yaml", "ablations/mnist-further-seeds.yaml")])
    again = planned(config.model_copy(update={"ecg": None, "ppi": None}))
    usual = {name: job.config for name, job in papers.jobs.items() if name.startswith("mnist/")}
    further = {name: job.config for name, job in again.jobs.items() if name.startswith("mnist/")}
    assert usual.keys() == further.keys()
    studies = [name for name, config in usual.items() if "arm" in config]
    assert len(studies) > 5
    for name in studies:
        assert further[name]["settings"] == usual[name]["settings"] | {"replicates": [100, 101, 102, 103, 104]}


def test_no_file_is_made_twice_and_what_a_job_needs_is_made_before(papers: Plan) -> None:
    made = [path for job in papers.jobs.values() for path in (*job.outputs.values(), job.record, job.log)]
    assert len(set(made)) == len(made)
    order = [job.name for job in papers.needed("page")]
    assert sorted(order) == sorted(papers.jobs)
    places = {name: place for place, name in enumerate(order)}
    for job in papers.jobs.values():
        assert all(places[before.name] < places[job.name] for before in papers.before(job))
        assert all(papers.maker(path) for path in job.inputs.values())


def test_a_file_that_no_job_makes_is_told_its_neighbour() -> None:
    found = plan(mnist={"source": "digits", "bptt": {}})
    with pytest.raises(ConfigError, match=r"the file r/mnist/bptt/met/run\.json \(did you mean 'r/mnist/bptt/meta/"):
        found.maker("r/mnist/bptt/met/run.json")
    with pytest.raises(ConfigError, match="mnist_fidelity is not in the config: add `fidelity: "):
        found.summary("mnist_fidelity")


def test_the_papers_protein_experiments_take_these_jobs() -> None:
    fewer = PAPER["ppi"]["half_data"]["arms"]
    others = [arm for arm in fewer if uses_labels(ARMS[arm])]
    pretrain = len(ARMS) - 1 + (1 + FOLDS) * len(others)  # the two arms without PT share PT runs
    # Arms that see no FT data have no runs for half of them, but separate FT runs on held-out tasks.
    finetune = len(ARMS) + len(others) + FOLDS * len(fewer)
    seeds = PAPER["ppi"]["pretrain_seeds"]
    assert stages(plan(ppi=PAPER["ppi"])) == {
        "download": 1,
        "prepare": 1,
        "pretrain": seeds * pretrain,
        "finetune": seeds * finetune,
        "study": 1,
        "summarise": len(PAPER["ppi"].keys() - {"source", "pretrain_seeds", "arms"}),
        "page": 1,
    }


def test_an_experiment_takes_no_more_than_it_needs() -> None:
    found = ppi(learned_weights={"arms": ["graph_supervised", "meta"]})
    assert stages(found) == {"simulate": 1, "prepare": 1, "pretrain": 4, "summarise": 1, "page": 1}
    found = ppi(full_access={}, during_pretraining={"arms": ["meta"]})
    needed = Counter(job.stage for job in found.needed(found.summaries["ppi_during_pretraining"]))
    assert needed == {"simulate": 1, "prepare": 1, "pretrain": 2, "summarise": 1}


def test_one_pretraining_of_an_arm_without_labels_serves_all_settings() -> None:
    arms = {"arms": ["graph_supervised", "meta"]}
    found = ppi(full_access=arms, half_data=arms, held_out_tasks=arms, summary=arms)
    pretrain = names(found, "pretrain")
    assert [run for run in pretrain if "graph_supervised" in run] == [
        f"ppi/pretrain/graph_supervised/full_access/seed{seed}" for seed in (0, 1)
    ]
    assert len(pretrain) == 2 + 2 * (2 + FOLDS)
    settings = ["full_access", *(f"held_out_{fold}" for fold in range(FOLDS))]
    cells = [f"graph_supervised/{setting}" for setting in settings]
    cells += [f"meta/{setting}" for setting in [*settings, "half_data"]]
    assert names(found, "finetune") == sorted(f"ppi/finetune/{cell}/seed{seed}" for cell in cells for seed in (0, 1))


TWO = {"ecg": {"arms": ["mine", "simclr"], "finetune_sizes": [30]}, "ppi": {"arms": ["mine", "graph_supervised"]}}
"""Experiments on two arms, the first of which a test defines."""


def shared(domain: str, **arms: dict[str, object]) -> Plan:
    """Return the plan of `TWO` with arms of its own."""
    section = {"ecg": {"source": "simulated", "pretrain_seeds": 2}, "ppi": SMALL}[domain]
    return plan(**{domain: section | {"arms": arms, "full_access": TWO[domain]}})


@pytest.mark.parametrize(
    ("domain", "plain", "changes", "share"),
    [
        ("ecg", "simclr", {"finetune": {"lr": 0.01}}, True),
        ("ecg", "simclr", {"finetune": {"lr": 0.01}, "pretrain": {"noise": 0.1}}, True),
        ("ecg", "no_pt", {"finetune": {"lr": 0.01}}, True),
        ("ppi", "graph_supervised", {"finetune": {"dropout": 0.1}}, True),
        ("ecg", "simclr", {"pretrain": {"noise": 0.2}}, False),
        ("ecg", "simclr", {"warp": {"initial": 2}}, False),
        ("ecg", "best_of_4", {"finetune": {"lr": 0.01}}, False),
        ("ppi", "graph_supervised", {"pretrain": {"dropout": 0.1}}, False),
        ("ppi", "graph_supervised", {"pretrain_lr": 1e-2}, False),
    ],
)
def test_arms_that_differ_in_ft_alone_share_their_pt_runs_and_no_others_do(
    domain: str, plain: str, changes: dict[str, object], share: bool
) -> None:
    found = shared(domain, mine={"extends": plain} | changes)
    pretrained = names(found, "pretrain")
    if not share:
        assert sum("/mine/" in name for name in pretrained) == 2
        assert len(pretrained) == 2 * 2
        return
    runs = [f"{domain}/pretrain/{plain}/{'none' if domain == 'ecg' else 'full_access'}/seed{seed}" for seed in (0, 1)]
    assert [name for name in pretrained if "/mine/" in name or f"/{plain}/" in name] == runs
    assert len(names(found, "finetune")) == 2 * 2
    mine = [found.jobs[name] for name in names(found, "finetune") if "/mine/" in name]
    assert [job.inputs["pretrained"] for job in mine] == [found.jobs[run].outputs["pretrained"] for run in runs]


@pytest.mark.parametrize(("domain", "key"), [("ecg", "warp_of"), ("ppi", "weights")])
def test_what_two_arms_share_serves_those_that_take_it(domain: str, key: str) -> None:
    tuned = {"extends": "meta", "finetune": {"linear_epochs": 3}}
    found = shared(domain, tuned=tuned, mine={"extends": "meta-frozen", key: {"of": "tuned"}})
    assert {name.split("/")[2] for name in names(found, "pretrain")} == {"meta", "meta-frozen", TWO[domain]["arms"][1]}


def test_frozen_weights_come_from_the_same_setting_and_seed() -> None:
    arms = {"arms": ["meta-frozen"]}
    found = ppi(full_access=arms, half_data=arms)
    for setting in ("full_access", "half_data"):
        for seed in (0, 1):
            job = found.jobs[f"ppi/pretrain/meta-frozen/{setting}/seed{seed}"]
            assert f"r/ppi/pretrain/meta/{setting}/seed{seed}/pretrained.pt" in job.inputs.values()


def test_public_data_are_downloaded_file_by_file() -> None:
    string = {"version": "11.5", "links": "physical.links.full", "species": [511145, 224308]}
    proteins = plan(ppi={"source": "string", "string": string, "test_species": [224308], "cost": {"arms": ["meta"]}})
    assert names(proteins, "download") == sorted(
        f"raw/string-11.5/{taxon}.protein.{kind}.v11.5.txt.gz"
        for kind in ("physical.links.full", "enrichment.terms")
        for taxon in (511145, 224308)
    )
    assert names(plan(ecg={"source": "ptbxl-1.0.1", "cost": {}}), "download") == [
        f"raw/ptbxl-1.0.1/{name}" for name in ("ptbxl_database.csv", "records.json", "scp_statements.csv")
    ]


def test_an_experiment_is_a_module_or_a_package_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, order in (("__init__", None), ("later", 2), ("first/__init__", None), ("first/report", 1)):
        path = tmp_path / "pretend" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "" if order is None else f"from types import SimpleNamespace as S\nEXPERIMENT = S(order={order})\n"
        )
    monkeypatch.setattr(metapt, "__path__", [*metapt.__path__, str(tmp_path)])
    assert list(discover("metapt.pretend")) == ["first", "later"]
    assert [summary_module("pretend", key) for key in ("first", "later")] == ["pretend.first.report", "pretend.later"]


def test_a_domain_whose_name_would_make_targets_ambiguous_is_refused() -> None:
    with pytest.raises(ConfigError, match="the domain my_noise must have a name without an underscore"):
        domain("my_noise")


# The time left


def job(entry: str, arm: str | None = None, stage: str = "pretrain") -> Job:
    return Job(stage=stage, name=f"{entry}/{arm}", entry=entry, config={} if arm is None else {"arm": arm})


def finished(*of: tuple[Job, float]) -> Remaining:
    remaining = Remaining()
    for each, seconds in of:
        remaining.finished(each, seconds)
    return remaining


PREPARED, META = (job("prepare", stage="prepare"), 1.0), job("pt", "meta")
KNOWN = finished(PREPARED, (job("pt", "simclr"), 10.0), (META, 20.0), (META, 30.0))


@pytest.mark.parametrize(
    ("left", "seconds"),
    [
        ([(META, 1.0, 0.0)], 25.0),
        ([(job("pt", "simclr"), 1.0, 0.0)], 10.0),
        ([(job("pt", "other"), 1.0, 0.0)], 20.0),  # as all PT
        ([(job("ft", "meta"), 1.0, 0.0)], 20.0),  # as all training
        ([(job("page", stage="page"), 1.0, 0.0)], 1.0),  # as all that train nothing
        # jobs side by side fill the machine, and the longest one bounds them
        ([(META, 0.5, 0.0)] * 4, 50.0),
        ([(META, 0.25, 0.0)] * 2, 25.0),
        ([(META, 0.5, 20.0), (META, 0.5, 100.0)], 5.0),
        ([(META, 0.5, 0.0)] * 4 + [(META, 0.5, 100.0)], 50.0),  # one that takes longer than known ones
        ([], 0.0),
    ],
)
def test_a_job_takes_as_long_as_the_most_similar_ones(left: list[tuple[Job, float, float]], seconds: float) -> None:
    assert KNOWN.seconds(left) == seconds


def test_nothing_is_said_before_a_job_of_the_sort_has_finished() -> None:
    assert finished(PREPARED).seconds([(META, 1.0, 0.0)]) is None
