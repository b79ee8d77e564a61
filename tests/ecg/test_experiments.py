"""Tables, figures and verdicts of the ECG experiments, from metrics with known answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from metapt.config_files import read_one
from metapt.domains.ecg.config import ARMS, EcgFinetuning
from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.experiments.augmentations import AugmentationsResults, _panels
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.quantities import (
    AUROC,
    DISPLACEMENT,
    LABELS,
    ORIGINAL,
    viewed,
)
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation import figures, metrics
from metapt.evaluation.comparisons import STAND_IN
from metapt.evaluation.metrics import row
from metapt.jobs import Job, Place
from metapt.machine import Machine
from metapt.plan import SOURCES
from metapt.twostage.quantities import PEAK_MEMORY, TIME_PER_STEP, WALL_TIME
from metapt.twostage.replicates import pair

SEED_SPREAD = (-0.5, 0.1, 0.4, -0.2, 0.2)
"""What a PT seed adds to the AUROC of every arm, so that it cancels in paired differences."""

AurocOf = Callable[[str, int, int | None, str], float]
"""Arm, |D_FT|, FT ECGs at meta-PT time, evaluation -> mean AUROC (%)."""


class Runs:
    """The files of an experiment's runs, with given numbers."""

    def __init__(self, folder: Path, key: str, settings: Mapping[str, Any]) -> None:
        self.key = key
        self.config: Any = DOMAIN.section().model_validate(
            {key: {}, "source": "ptbxl-1.0.3", "pretrain_seeds": 5, **settings}
        )
        jobs = EcgJobs("ecg", self.config, Place(str(folder), str(folder / "raw"), read_one(SOURCES), []))
        self.job = DOMAIN.summary(jobs, key)
        self.made = list(jobs.made.values())
        self.generator = np.random.default_rng(0)
        self.auroc: AurocOf = lambda arm, size, few, evaluation: 80.0
        self.displacement: Callable[[str], float] = lambda arm: 10.0
        self.trajectory: Callable[[str, int], list[float]] = lambda arm, seed: []
        self.seconds: Callable[[str, int], float] = lambda arm, seed: 0.04
        self.gigabytes: Callable[[str], float] = lambda arm: 2.0
        self.machine: Callable[[str], str] = lambda arm: "a machine"
        self.gap: Callable[[str, int], float] = lambda arm, seed: 0.0
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.series: dict[str, list[dict[str, Any]]] = {}

    @property
    def section(self) -> Any:
        return getattr(self.config, self.key)

    def write(self) -> None:
        for job in self.made:
            name = job.name.removeprefix("ecg/")
            if job.stage == "pretrain":
                self._pretrain(job, name)
            elif job.stage == "finetune":
                self._finetune(job, name)
            if job.trains:
                metrics.write(self.tables.get(name, []), Path(job.outputs["metrics"]))
                metrics.write_series(self.series.get(name, []), Path(job.outputs["series"]))
                machine = {"name": self.machine(job.config.get("arm", "")), "device": "cuda"}
                Path(job.record).write_text(json.dumps({"machine": machine}))

    def _pretrain(self, job: Job, run: str) -> None:
        arm, seed, size = (job.config[key] for key in ("arm", "seed", "meta_size"))
        setting = "" if size is None else f"meta_ft_size={size}"
        values = self.trajectory(arm, seed)
        numbers = {
            TIME_PER_STEP: self.seconds(arm, seed),
            WALL_TIME: 3600 * self.seconds(arm, seed),
            PEAK_MEMORY: self.gigabytes(arm),
            DISPLACEMENT: values[-1] if values else self.displacement(arm),
        }
        self.tables[run] = [
            row("ecg", arm, name, value, replicate=seed, setting=setting, evaluation="pretraining")
            for name, value in numbers.items()
        ]
        self.series[run] = series(DISPLACEMENT, values)

    def _finetune(self, job: Job, run: str) -> None:
        arm, size, few, pt = (job.config[key] for key in ("arm", "size", "meta_size", "seed"))
        setting = f"ft_size={size}" + (f" meta_ft_size={few}" if few not in (None, size) else "")
        rows = []
        for evaluation in self.config.evaluations:
            for ft in range(self.config.finetune_seeds):
                value = self.auroc(arm, size, few, evaluation) + SEED_SPREAD[pt] + self.gap(arm, pt)
                value += 0.3 * (ft - (self.config.finetune_seeds - 1) / 2)
                words = {"replicate": pair(pt, ft), "setting": setting, "evaluation": evaluation}
                rows.append(row("ecg", arm, AUROC, value, **words))
                rows.append(row("ecg", arm, "validation AUROC (%)", value - 1, **words))
        self.tables[run] = rows

    def summarise(self, drawn: bool = False) -> dict[str, Path]:
        """Return the files of the summary; its figure is only built, and not written, unless `drawn`."""
        outputs = {name: Path(path) for name, path in self.job.outputs.items()}
        inputs = {name: Path(path) for name, path in self.job.inputs.items()}
        with pytest.MonkeyPatch.context() as patch:
            if not drawn:
                patch.setattr(figures, "save", lambda figure, path: None)
            DOMAIN.experiments[self.key].summarise(self.job.config, inputs, outputs, Machine())
        if drawn:
            assert all(path.stat().st_size > 0 for path in outputs.values())
            assert imread(outputs["figure_png"])[..., :3].std() > 0.02, "the figure is blank"
        read = metrics.read(outputs["metrics"])
        assert set(read["experiment"]) == {f"ecg_{self.key}"}
        return outputs


def series(name: str, *replicates: Iterable[float]) -> list[dict[str, Any]]:
    return [
        {"replicate": replicate, "step": step, "name": name, "value": value}
        for replicate, values in enumerate(replicates)
        for step, value in enumerate(values)
    ]


SIZES = {
    "no_pt": (71.5, 76.1, 78.7, 82.0, 84.5),
    "simclr": (74.6, 76.5, 79.8, 82.2, 85.8),
    "meta": (75.0, 76.2, 79.9, 82.6, 85.7),
    "meta-stable": (76.5, 79.0, 81.9, 84.1, 86.9),
    "meta-stable-start": (75.0, 77.0, 80.0, 82.0, 86.0),
}


def full_access(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "full_access", settings)
    others = {arm: 74.0 + 0.2 * place for place, arm in enumerate(runs.config.arms)}

    def auroc(arm: str, size: int, few: int | None, evaluation: str) -> float:
        place = (100, 250, 500, 1000, 2500).index(size)
        known = SIZES.get(arm)
        value = known[place] if known else others.get(arm, 75.0) + 2.6 * place
        return value - (4 if evaluation == "linear_evaluation" else 0)

    runs.auroc = auroc
    runs.gap = lambda arm, seed: (-0.3, 0.0, 0.3, 0.2, -0.2)[seed] if arm == "meta" else 0.0
    return runs


def unroll_steps(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "unroll_steps", settings)
    gains = {"simclr": 0.0, "meta-k0": 0.6, "meta": 1.5, "meta-k5": 1.9, "meta-k10": 1.7}
    runs.auroc = lambda arm, size, few, evaluation: 80.0 + 5 * math.log10(size / 500) + gains[arm]
    runs.gap = lambda arm, seed: (-0.05, 0.0, 0.05, 0.02, -0.02)[seed] if arm != "simclr" else 0.0
    return runs


def partial_access(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "partial_access", settings)

    def auroc(arm: str, size: int, few: int | None, evaluation: str) -> float:
        gain = 0.0 if few is None else (1.0 if arm == "meta" else 2.0) * (1 - math.exp(-few / 40))
        return 80.0 + 5 * math.log10(size / 500) + gain

    runs.auroc = auroc
    runs.gap = lambda arm, seed: (-0.2, 0.0, 0.1, 0.05, 0.05)[seed] if arm != "simclr" else 0.0
    return runs


def augmentations(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "augmentations", settings)
    ends = {"simclr": 60.0, "meta": 75.0, "meta-stable": 5.0}
    runs.displacement = ends.__getitem__
    runs.trajectory = lambda arm, seed: (
        []
        if arm == "simclr"
        else list(60 * np.geomspace(1, ends[arm] / 60, 60) * np.exp(0.03 * runs.generator.normal(size=60)))
    )
    time = np.arange(1000) / 100
    beat = np.exp(-(((time % 0.9) - 0.4) ** 2) / 3e-4) + 0.2 * np.exp(-(((time % 0.9) - 0.65) ** 2) / 4e-3)
    labels = runs.generator.random((400, 5)) < 0.3
    found = series(ORIGINAL, beat)
    for name, having in zip(LABELS.values(), labels.T, strict=True):
        found += series(name, having.astype(float))
    for arm, end in ends.items():
        for when, size in (("initial", 60.0), ("learned", end)):
            bends = [size / 100 * np.sin(2 * np.pi * time / 5 + phase) for phase in (0.3, 1.4)]
            found += series(viewed(arm, when), *(np.interp(time + bend, time, beat) for bend in bends))
        found += series(
            viewed(arm, "strength"), end * np.exp(0.2 * runs.generator.normal(size=400) + 0.2 * labels[:, 1])
        )
    runs.series["augmentations/views"] = found
    return runs


def cost(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "cost", settings)
    seconds, gigabytes = (
        {"simclr": 0.040, "meta": 0.060, "meta-stable": 0.12},
        {"simclr": 2.0, "meta": 3.5, "meta-stable": 3.8},
    )
    runs.seconds = lambda arm, seed: seconds[arm] * (1 + 0.02 * seed)
    runs.gigabytes = gigabytes.__getitem__
    return runs


MAKERS = {
    "full_access": full_access,
    "unroll_steps": unroll_steps,
    "partial_access": partial_access,
    "augmentations": augmentations,
    "cost": cost,
}

ONE = {"pretrain_seeds": 1, "finetune_seeds": 2}
SMALL: dict[str, dict[str, Any]] = {
    "full_access": {"arms": ["no_pt", "simclr", "meta", "meta-stable"], "finetune_sizes": [100]},
    "unroll_steps": {"finetune_sizes": [100, 500]},
    "partial_access": {"finetune_sizes": [500], "meta_sizes": [50]},
}


def claims_of(outputs: dict[str, Path]) -> pd.DataFrame:
    return pd.read_csv(outputs["claims"], keep_default_na=False).set_index("claim")


def run(key: str, folder: Path, drawn: bool = False, **settings: Any) -> dict[str, Path]:
    runs = MAKERS[key](folder, **settings)
    runs.write()
    return runs.summarise(drawn)


@pytest.mark.parametrize("key", MAKERS)
def test_one_pt_seed_makes_tables_and_decides_nothing(key: str, tmp_path: Path) -> None:
    claims = claims_of(run(key, tmp_path, drawn=True, **ONE, **({key: SMALL[key]} if key in SMALL else {})))
    assert set(claims["verdict"]) <= {"too few seeds"}
    assert all("n = 1: no spread known" in text for text in claims["measured"])


COMPARED = ["no_pt", "simclr", "optsla", "meta", "meta-stable-start"]


def test_full_access(tmp_path: Path) -> None:
    outputs = run("full_access", tmp_path, full_access={"arms": [*COMPARED, "meta-stable"]})
    numbers = pd.read_csv(outputs["table_csv"])
    cells = numbers[numbers["minus"].isna()].set_index(["evaluation", "arm", "size"]).sort_index()
    cell = cells.loc[("full_transfer", "meta-stable", 250)]
    runs = np.add.outer(SEED_SPREAD, 0.3 * np.arange(-2, 3)) + 79.0
    assert cell["mean"] == pytest.approx(79.0)
    assert cell["standard_error"] == pytest.approx(runs.std(ddof=1) / math.sqrt(25))
    assert cell["seed_standard_error"] == pytest.approx(np.std(SEED_SPREAD, ddof=1) / math.sqrt(5))
    assert (cell["n"], cell["seeds"]) == (25, 5)
    assert math.isnan(cell["paper_mean"])
    assert cells.loc[("full_transfer", "optsla", 1000), "paper_mean"] == 82.8
    assert cells.loc[("linear_evaluation", "optsla"), "paper_mean"].isna().all()

    differences = numbers[numbers["minus"].notna()].set_index(["evaluation", "arm", "minus", "size"])
    pairs = {(arm, minus) for _, arm, minus, _ in differences.index}
    starts = {("meta", "simclr"), ("optsla", "simclr"), ("meta-stable", "meta-stable-start")}
    assert pairs == starts | {("simclr", "no_pt"), ("meta", "optsla")}
    d = differences.loc[("full_transfer", "meta", "simclr", 100)]
    assert d["mean"] == pytest.approx(0.4)
    half = 2.776445 * math.sqrt(0.065 / 5)
    assert (d["low"], d["high"]) == pytest.approx((0.4 - half, 0.4 + half))
    assert d["low"] < d["bootstrap_low"] < 0.4 < d["bootstrap_high"] < d["high"]

    claims = claims_of(outputs)
    where = "FT of the whole network, |D_FT| = {}"
    assert claims.loc[f"simclr beats no_pt, {where.format(100)}", "verdict"] == "reproduced"
    meta = claims.loc[[f"meta beats simclr, {where.format(size)}" for size in (100, 500)]]
    assert meta["verdict"].tolist() == ["inconclusive", "inconclusive"]
    assert meta["paper"].iloc[1] == "81.7 ± 0.2 against 79.8 ± 0.3 %"
    assert claims.loc[f"meta-stable beats meta-stable-start, {where.format(250)}", "verdict"] == "reproduced"
    assert claims.loc[f"meta-stable beats meta-stable-start, {where.format(250)}", "paper"] == "beyond the paper"
    assert not claims.index.str.contains("random_search").any(), "an arm that the config does not run"
    assert len(claims) == 5 * 2 * 5

    markdown = outputs["table_md"].read_text()
    assert "SimCLR + OptSLA" in markdown
    assert "79.00 ± 0.11 [0.2]" in markdown
    assert "meta (K = 1) minus SimCLR" in markdown


def test_an_arm_that_learns_is_compared_with_its_controls(tmp_path: Path) -> None:
    arms = ["meta-stable", "meta-stable-start", "meta-stable-frozen", "random_search"]
    runs = full_access(tmp_path, full_access={"arms": arms, "finetune_sizes": [500]}, evaluations=["full_transfer"])
    runs.auroc = lambda arm, size, few, evaluation: {"random_search": 80.3, "meta-stable-start": 79.5}.get(arm, 80.0)
    runs.write()
    claims = claims_of(runs.summarise())
    assert claims["control"].tolist() == ["meta-stable-start", "meta-stable-frozen", "random_search"]
    assert claims["verdict"].tolist() == ["reproduced", "inconclusive", "not reproduced"]


def test_a_diverged_run_decides_nothing(tmp_path: Path) -> None:
    runs = full_access(tmp_path, full_access={"arms": ["no_pt", "simclr"], "finetune_sizes": [100, 500]})
    runs.gap = lambda arm, seed: math.nan if (arm, seed) == ("simclr", 1) else 0.0
    runs.write()
    outputs = runs.summarise()
    assert set(claims_of(outputs)["verdict"]) == {"inconclusive"}
    numbers = pd.read_csv(outputs["table_csv"])
    assert numbers.loc[numbers["arm"] == "simclr", "mean"].isna().all()


def test_unroll_steps(tmp_path: Path) -> None:
    outputs = run("unroll_steps", tmp_path)
    claims, where = claims_of(outputs), "FT of the whole network, |D_FT| = 500"
    assert claims.loc[f"meta beats meta-k0, {where}", "verdict"] == "reproduced"
    assert claims.loc[f"meta beats meta-k0, {where}", "paper"] == "81.7 ± 0.2 against 80.5 ± 0.4 %"
    assert claims.loc[f"meta-k0 beats simclr, {where}", "verdict"] == "reproduced"
    assert claims.loc[f"meta-k10 comes within 1 point of meta, {where}", "verdict"] == "reproduced"
    numbers = pd.read_csv(outputs["table_csv"]).set_index(["evaluation", "arm", "size"])
    assert numbers.loc[("full_transfer", "meta-k10", 1000), "paper_mean"].iloc[0] == 84.3


@pytest.mark.parametrize("gap", [-3.0, 3.0])
def test_within_a_point_is_on_both_sides(gap: float, tmp_path: Path) -> None:
    settings = {"arms": ["simclr", "meta", "meta-k10"], "finetune_sizes": [500]}
    runs = unroll_steps(tmp_path, unroll_steps=settings, evaluations=["full_transfer"])
    runs.auroc = lambda arm, size, few, evaluation: 80.0 + (gap if arm == "meta-k10" else 0.0)
    runs.write()
    verdicts = claims_of(runs.summarise())["verdict"]
    assert verdicts["meta-k10 comes within 1 point of meta, FT of the whole network, |D_FT| = 500"] == "not reproduced"


@pytest.mark.parametrize("key", ["full_access", "partial_access", "cost"])
def test_each_claim_has_its_paired_differences(key: str, tmp_path: Path) -> None:
    """An arm that sees labels in PT, and one without, are compared though their settings have other words."""
    outputs = run(key, tmp_path, **({key: SMALL[key]} if key in SMALL else {}))
    claims, found = claims_of(outputs), pd.read_csv(outputs["differences"]).set_index(["arm", "control"])
    assert len(claims) > 0
    for claim in claims.itertuples():
        assert claim.metric in set(found.loc[[(claim.arm, claim.control)], "metric"]), claim
    if key == "partial_access":
        gains = found.loc[("meta", "simclr")].set_index(["setting", "evaluation", "metric"])["mean"]
        words = ("ft_size=500 meta_ft_size=50", "full_transfer", AUROC)
        assert gains[words] == pytest.approx(1 - math.exp(-50 / 40))


@pytest.mark.slow
def test_partial_access(tmp_path: Path) -> None:
    outputs = run("partial_access", tmp_path)
    numbers = pd.read_csv(outputs["table_csv"])
    cells = numbers[numbers["minus"].isna()].set_index(["evaluation", "arm", "size", "meta_size"])
    assert cells.loc[("full_transfer", "meta", 500, 50), "paper_mean"] == 81.3
    assert cells.loc[("full_transfer", "simclr", 500, 0), "paper_mean"] == 79.8
    assert ("full_transfer", "meta", 500, 500) in cells.index, "with all FT data, which is a run under full access"
    assert ("full_transfer", "meta", 100, 250) not in cells.index
    claims = claims_of(outputs)
    assert set(claims["arm"]) == {"meta"}, "meta-stable does not start from the baseline"
    assert claims["verdict"].tolist() == ["reproduced"] * 2
    assert claims["paper"].tolist() == ["81.3 ± 0.5 against 79.8 ± 0.3 %", "beyond the paper"]
    settings = set(metrics.read(outputs["metrics"])["setting"])
    assert {"ft_size=500 meta_ft_size=0", "ft_size=500 meta_ft_size=500", "ft_size=500 meta_ft_size=50"} <= settings


def test_partial_access_without_the_papers_sizes(tmp_path: Path) -> None:
    outputs = run(
        "partial_access", tmp_path, partial_access={"arms": ["meta"], "finetune_sizes": [100], "meta_sizes": [25]}
    )
    assert claims_of(outputs).empty


def test_augmentations(tmp_path: Path) -> None:
    runs = augmentations(tmp_path)
    runs.write()
    outputs = runs.summarise()
    lines = [line.split("|") for line in outputs["table_md"].read_text().splitlines() if line.startswith("|")]
    start, end = (
        next(i for i, cell in enumerate(lines[0]) if cell.strip() == f"at the {when}") for when in ("start", "end")
    )
    last = [float(cell.split("±")[0]) for cell in (lines[-1][start], lines[-1][end])]
    assert last == [pytest.approx(60.0, rel=0.1), pytest.approx(5.0, rel=0.1)], "of meta-stable"
    assert claims_of(outputs).empty
    numbers = pd.read_csv(outputs["table_csv"]).set_index(["arm", "diagnosis"])
    inputs = {name: Path(path) for name, path in runs.job.inputs.items()}
    results = AugmentationsResults.read(DOMAIN.experiments["augmentations"].section, runs.job.config, inputs)
    assert isinstance(results, AugmentationsResults)
    infarcts = results.displacements("meta")[results.labelled("MI")]
    assert 50 < len(infarcts) < 200
    assert results.views("meta", "initial").shape == (2, 1000)
    assert numbers.loc[("meta", "MI"), "median"] == pytest.approx(np.median(infarcts))
    assert numbers.loc[("meta", "MI"), "ecgs"] == len(infarcts)
    assert numbers.loc[("meta", "all"), "ecgs"] == 400


def test_views_of_a_fixed_strength_are_those_of_pt() -> None:
    """A warp that was learned or searched before PT has initial views that PT did not see."""
    views = {"initial": np.zeros((2, 3)), "learned": np.ones((2, 3))}
    results: Any = SimpleNamespace(
        arms=["meta-frozen"], trajectories=lambda arm: [], views=lambda arm, when: views[when]
    )
    [(names, shown, _)] = _panels(results)
    assert names == ["meta's warp, frozen, fixed strength"]
    assert shown is views["learned"]


def test_cost(tmp_path: Path) -> None:
    outputs = run("cost", tmp_path)
    claims = claims_of(outputs)["verdict"]
    assert claims["meta takes at most about twice the time per PT step of simclr"] == "reproduced"
    assert claims["meta takes at most about twice the memory of simclr"] == "reproduced"
    assert claims["meta-stable takes at most about twice the time per PT step of simclr"] == "not reproduced"
    numbers = pd.read_csv(outputs["table_csv"]).set_index("arm")
    assert numbers.loc["meta", f"{TIME_PER_STEP}, ratio"] == pytest.approx(1.5)
    assert numbers.loc["meta", f"{PEAK_MEMORY}, ratio"] == pytest.approx(1.75)
    markdown = outputs["table_md"].read_text()
    assert "Cost of PT on a machine:" in markdown
    assert "3 h, 8-9 GB" in markdown


def test_arms_that_share_pt_runs_have_their_numbers(tmp_path: Path) -> None:
    own = {"finetune": EcgFinetuning(lr=0.1)}
    tuned = {f"{arm}-tuned": ARMS[arm].model_copy(update=own) for arm in ("simclr", "meta")}
    runs = cost(tmp_path, arms=ARMS | tuned, cost={"arms": ["simclr", "simclr-tuned", "meta-tuned"]})
    runs.trajectory = lambda arm, seed: [4.0, 3.0 + seed]
    runs.write()
    outputs = runs.summarise()
    numbers = pd.read_csv(outputs["table_csv"]).set_index("arm")
    assert numbers.loc["simclr-tuned", "machine"] == "a machine"
    assert numbers.loc["simclr-tuned", f"{TIME_PER_STEP}, median"] == pytest.approx(0.04 * 1.04)
    assert numbers.loc["meta-tuned", f"{TIME_PER_STEP}, ratio"] == pytest.approx(1.5)
    assert {"simclr", "simclr-tuned", "meta-tuned"} == set(metrics.read(outputs["metrics"])["arm"])
    inputs = {name: Path(path) for name, path in runs.job.inputs.items()}
    results = EcgResults.read(DOMAIN.experiments["cost"].section, runs.job.config, inputs)
    assert results.trajectories("meta-tuned")[2]["value"].tolist() == [4.0, 5.0]


def test_times_on_two_machines_do_not_compare(tmp_path: Path) -> None:
    runs = cost(tmp_path)
    runs.machine = lambda arm: "fast" if arm == "meta" else "slow"
    runs.write()
    claims = claims_of(runs.summarise())
    assert claims.filter(like="meta takes", axis=0)["verdict"].tolist() == ["inconclusive"] * 2
    assert "not all runs were on the same machine" in claims["measured"].iloc[0]
    assert claims.filter(like="meta-stable takes", axis=0)["verdict"].tolist() == ["not reproduced", "reproduced"]


def test_arms_of_ones_own_are_drawn(tmp_path: Path) -> None:
    own = {"simclr": {"method": "simclr"}, "my_arm": {"method": "meta", "unroll_steps": 2}}
    section = {"arms": list(own), "finetune_sizes": [100, 500]}
    outputs = run("full_access", tmp_path, drawn=True, arms=own, full_access=section)
    assert "my arm minus SimCLR" in outputs["table_md"].read_text()


@pytest.mark.slow
def test_generated_ecgs_are_not_put_beside_the_papers(tmp_path: Path) -> None:
    outputs = run("full_access", tmp_path, source="simulated")
    assert pd.read_csv(outputs["table_csv"])["paper_mean"].isna().all()
    assert set(claims_of(outputs)["paper"]) == {STAND_IN}


def test_the_views_of_an_arm_that_learns_nothing_are_drawn_once(tmp_path: Path) -> None:
    runs = augmentations(tmp_path)
    runs.write()
    inputs = {name: Path(path) for name, path in runs.job.inputs.items()}
    record = DOMAIN.experiments["augmentations"]
    titles = [
        axis.get_title(loc="left")
        for axis in record.figure(record.results.read(record.section, runs.job.config, inputs)).axes
    ]
    assert sum("SimCLR" in title for title in titles) == 1
    assert not any("SimCLR, learned" in title for title in titles)
    assert sum("meta-stable, learned strength" in title for title in titles) == 1
    lines = [axis for axis in titles if "initial strength" in axis]
    assert len(lines) == 1, "the arms start from the same warp"
