"""Tables, figures and verdicts of the ECG experiments, from metrics with known answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from metapt.domains.ecg.config import ARMS, EcgFinetuning
from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.quantities import (
    AUROC,
    DISPLACEMENT,
    LABELS,
    ORIGINAL,
    viewed,
)
from metapt.engine.config_files import read_one
from metapt.engine.execute import work_of
from metapt.engine.jobs import Job, Place
from metapt.engine.plan import SOURCES
from metapt.evaluation import figures, metrics
from metapt.evaluation.comparisons import STAND_IN
from metapt.machine import Machine
from metapt.sections import SummarySettings
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
        self.job, self.record = DOMAIN.summary(jobs, key), DOMAIN.experiments[key]
        self.made = list(jobs.made.values())
        self.generator = np.random.default_rng(0)
        self.auroc: AurocOf = lambda arm, size, few, evaluation: 80.0
        self.gap: Callable[[str, int], float] = lambda arm, seed: 0.0
        self.trajectory: Callable[[str, int], list[float]] = lambda arm, seed: []
        self.numbers: Callable[[str, int], dict[str, float]] = lambda arm, seed: {}
        self.machine: Callable[[str], str] = lambda arm: "a machine"
        self.views: list[dict[str, Any]] = []

    def write(self) -> None:
        for job in self.made:
            if job.trains:
                rows: list[dict[str, Any]] = []
                steps = self.views
                if job.stage == "pretrain":
                    steps = series(DISPLACEMENT, self.trajectory(job.config["arm"], job.config["seed"]))
                    rows = self._pretrain(job)
                elif job.stage == "finetune":
                    rows, steps = self._finetune(job), []
                metrics.write(rows, Path(job.outputs["metrics"]))
                metrics.write_series(steps, Path(job.outputs["series"]))
                machine = {"name": self.machine(job.config.get("arm", "")), "device": "cuda"}
                Path(job.record).write_text(json.dumps({"machine": machine}))

    def _pretrain(self, job: Job) -> list[dict[str, Any]]:
        arm, seed, size = (job.config[key] for key in ("arm", "seed", "meta_size"))
        setting = "" if size is None else f"meta_ft_size={size}"
        usual = {TIME_PER_STEP: 0.04, WALL_TIME: 144.0, PEAK_MEMORY: 2.0}
        numbers = usual | {DISPLACEMENT: [10.0, *self.trajectory(arm, seed)][-1]} | self.numbers(arm, seed)
        return metrics.rows_of("ecg", arm, numbers, replicate=seed, setting=setting, evaluation="pretraining")

    def _finetune(self, job: Job) -> list[dict[str, Any]]:
        arm, size, few, pt = (job.config[key] for key in ("arm", "size", "meta_size", "seed"))
        setting = f"ft_size={size}" + (f" meta_ft_size={few}" if few not in (None, size) else "")
        rows = []
        for evaluation in self.config.evaluations:
            for ft in range(self.config.finetune_seeds):
                value = self.auroc(arm, size, few, evaluation) + SEED_SPREAD[pt] + self.gap(arm, pt)
                value += 0.3 * (ft - (self.config.finetune_seeds - 1) / 2)
                words = {"replicate": pair(pt, ft), "setting": setting, "evaluation": evaluation}
                rows.append(metrics.row("ecg", arm, AUROC, value, **words))
        return rows

    def inputs(self) -> dict[str, Path]:
        self.write()
        return {name: Path(path) for name, path in self.job.inputs.items()}

    def results(self) -> Any:
        """Return what the experiment reads of its runs."""
        return self.record.results.read(
            self.record.section, SummarySettings.model_validate(self.job.config), self.inputs()
        )

    def summarise(self, drawn: bool = False) -> dict[str, Path]:
        """Return the files of the summary; its figure is only built, and not written, unless `drawn`."""
        outputs = {name: Path(path) for name, path in self.job.outputs.items()}
        with pytest.MonkeyPatch.context() as patch:
            if not drawn:
                patch.setattr(figures, "save", lambda figure, path: None)
            work_of(self.job)(self.inputs(), outputs, Machine())
        if drawn:
            assert all(path.stat().st_size > 0 for path in outputs.values())
            assert imread(outputs["figure_png"])[..., :3].std() > 0.02, "the figure is blank"
        assert set(metrics.read(outputs["metrics"])["experiment"]) == {f"ecg_{self.key}"}
        return outputs


def series(name: str, *replicates: Iterable[float]) -> list[dict[str, Any]]:
    return [row for number, values in enumerate(replicates) for row in metrics.series(name, values, number)]


SIZES = {
    "no_pt": (71.5, 76.1, 78.7, 82.0, 84.5),
    "simclr": (74.6, 76.5, 79.8, 82.2, 85.8),
    "meta": (75.0, 76.2, 79.9, 82.6, 85.7),
    "meta-stable": (76.5, 79.0, 81.9, 84.1, 86.9),
    "meta-stable-start": (75.0, 77.0, 80.0, 82.0, 86.0),
}


def full_access(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "full_access", settings)

    def auroc(arm: str, size: int, few: int | None, evaluation: str) -> float:
        place = (100, 250, 500, 1000, 2500).index(size)
        value = SIZES[arm][place] if arm in SIZES else 75.0 + 2.6 * place
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
    ends, random = {"simclr": 60.0, "meta": 75.0, "meta-stable": 5.0}, runs.generator
    runs.trajectory = lambda arm, seed: [] if arm == "simclr" else list(np.geomspace(60, ends[arm] + 0.1 * seed, 60))
    runs.numbers = lambda arm, seed: {DISPLACEMENT: 60.0} if arm == "simclr" else {}
    time = np.arange(1000) / 100
    beat = np.exp(-(((time % 0.9) - 0.4) ** 2) / 3e-4) + 0.2 * np.exp(-(((time % 0.9) - 0.65) ** 2) / 4e-3)
    labels = random.random((400, 5)) < 0.3
    runs.views = series(ORIGINAL, beat)
    for name, having in zip(LABELS.values(), labels.T, strict=True):
        runs.views += series(name, having.astype(float))
    for arm, end in ends.items():
        for when, size in (("initial", 60.0), ("learned", end)):
            bends = [size / 100 * np.sin(2 * np.pi * time / 5 + phase) for phase in (0.3, 1.4)]
            runs.views += series(viewed(arm, when), *(np.interp(time + bend, time, beat) for bend in bends))
        runs.views += series(viewed(arm, "strength"), end * np.exp(0.2 * random.normal(size=400) + 0.2 * labels[:, 1]))
    return runs


def cost(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "cost", settings)

    def numbers(arm: str, seed: int) -> dict[str, float]:
        seconds, gigabytes = {"simclr": (0.040, 2.0), "meta": (0.060, 3.5)}.get(arm, (0.12, 3.8))
        seconds *= 1 + 0.02 * seed
        return {TIME_PER_STEP: seconds, WALL_TIME: 3600 * seconds, PEAK_MEMORY: gigabytes}

    runs.numbers = numbers
    return runs


MAKERS = {
    "full_access": full_access,
    "unroll_steps": unroll_steps,
    "partial_access": partial_access,
    "augmentations": augmentations,
    "cost": cost,
}
SMALL: dict[str, dict[str, Any]] = {
    "full_access": {"arms": ["no_pt", "simclr", "meta", "meta-stable"], "finetune_sizes": [100]},
    "unroll_steps": {"finetune_sizes": [100, 500]},
    "partial_access": {"finetune_sizes": [500], "meta_sizes": [50]},
    "augmentations": {},
    "cost": {},
}
WHERE = "FT of the whole network, |D_FT| = {}"


def claims_of(outputs: dict[str, Path]) -> pd.DataFrame:
    return pd.read_csv(outputs["claims"], keep_default_na=False).set_index("claim")


@pytest.mark.parametrize("key", MAKERS)
def test_one_pt_seed_makes_tables_and_decides_nothing(key: str, tmp_path: Path) -> None:
    one = {"pretrain_seeds": 1, "finetune_seeds": 2, key: SMALL[key]}
    claims = claims_of(MAKERS[key](tmp_path, **one).summarise(drawn=True))
    assert set(claims["verdict"]) <= {"too few seeds"}
    assert all("n = 1: no spread known" in text for text in claims["measured"])


def test_full_access(tmp_path: Path) -> None:
    arms = ["no_pt", "simclr", "optsla", "meta", "meta-stable-start", "meta-stable"]
    outputs = full_access(tmp_path, full_access={"arms": arms}).summarise()
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
    d, half = differences.loc[("full_transfer", "meta", "simclr", 100)], 2.776445 * math.sqrt(0.065 / 5)
    assert (d["mean"], d["low"], d["high"]) == pytest.approx((0.4, 0.4 - half, 0.4 + half))

    claims = claims_of(outputs)
    assert len(claims) == 5 * 2 * 5
    for claim, verdict, paper in (
        (f"simclr beats no_pt, {WHERE.format(100)}", "reproduced", None),
        (f"meta beats simclr, {WHERE.format(100)}", "inconclusive", None),
        (f"meta beats simclr, {WHERE.format(500)}", "inconclusive", "81.7 ± 0.2 against 79.8 ± 0.3 %"),
        (f"meta-stable beats meta-stable-start, {WHERE.format(250)}", "reproduced", "beyond the paper"),
    ):
        assert claims.loc[claim, "verdict"] == verdict
        assert paper in (None, claims.loc[claim, "paper"])
    markdown = outputs["table_md"].read_text()
    for words in ("SimCLR + OptSLA", "79.00 ± 0.11 [0.2]", "meta (K = 1) minus SimCLR"):
        assert words in markdown


def test_a_diverged_run_decides_nothing(tmp_path: Path) -> None:
    runs = full_access(tmp_path, full_access={"arms": ["no_pt", "simclr"], "finetune_sizes": [100, 500]})
    runs.gap = lambda arm, seed: math.nan if (arm, seed) == ("simclr", 1) else 0.0
    outputs = runs.summarise()
    assert set(claims_of(outputs)["verdict"]) == {"inconclusive"}
    numbers = pd.read_csv(outputs["table_csv"])
    assert numbers.loc[numbers["arm"] == "simclr", "mean"].isna().all()


def test_unroll_steps(tmp_path: Path) -> None:
    outputs = unroll_steps(tmp_path).summarise()
    claims, where = claims_of(outputs), WHERE.format(500)
    for claim in ("meta beats meta-k0", "meta-k0 beats simclr", "meta-k10 comes within 1 point of meta"):
        assert claims.loc[f"{claim}, {where}", "verdict"] == "reproduced"
    assert claims.loc[f"meta beats meta-k0, {where}", "paper"] == "81.7 ± 0.2 against 80.5 ± 0.4 %"
    numbers = pd.read_csv(outputs["table_csv"]).set_index(["evaluation", "arm", "size"])
    assert numbers.loc[("full_transfer", "meta-k10", 1000), "paper_mean"].iloc[0] == 84.3


@pytest.mark.parametrize("gap", [-3.0, 3.0])
def test_within_a_point_is_on_both_sides(gap: float, tmp_path: Path) -> None:
    settings = {"arms": ["simclr", "meta", "meta-k10"], "finetune_sizes": [500]}
    runs = unroll_steps(tmp_path, unroll_steps=settings, evaluations=["full_transfer"])
    runs.auroc = lambda arm, size, few, evaluation: 80.0 + (gap if arm == "meta-k10" else 0.0)
    verdicts = claims_of(runs.summarise())["verdict"]
    assert verdicts[f"meta-k10 comes within 1 point of meta, {WHERE.format(500)}"] == "not reproduced"


@pytest.mark.parametrize("key", ["full_access", "partial_access", "cost"])
def test_each_claim_has_its_paired_differences(key: str, tmp_path: Path) -> None:
    """An arm that sees labels in PT, and one without, are compared though their settings have other words."""
    outputs = MAKERS[key](tmp_path, **{key: SMALL[key]}).summarise()
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
    outputs = partial_access(tmp_path).summarise()
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


def test_partial_access_without_the_papers_sizes(tmp_path: Path) -> None:
    sizes = {"arms": ["meta"], "finetune_sizes": [100], "meta_sizes": [25]}
    assert claims_of(partial_access(tmp_path, partial_access=sizes).summarise()).empty


def test_augmentations(tmp_path: Path) -> None:
    runs = augmentations(tmp_path)
    outputs, results = runs.summarise(), runs.results()
    lines = [line.split("|") for line in outputs["table_md"].read_text().splitlines() if line.startswith("|")]
    places = [[cell.strip() for cell in lines[0]].index(f"at the {when}") for when in ("start", "end")]
    last = [float(lines[-1][place].split("±")[0]) for place in places]
    assert last == [pytest.approx(60.0, rel=0.1), pytest.approx(5.0, rel=0.1)], "of meta-stable"
    assert claims_of(outputs).empty
    numbers = pd.read_csv(outputs["table_csv"]).set_index(["arm", "diagnosis"])
    infarcts = results.displacements("meta")[results.labelled("MI")]
    assert 50 < len(infarcts) < 200
    assert numbers.loc[("meta", "MI"), "median"] == pytest.approx(np.median(infarcts))
    assert numbers.loc[("meta", "MI"), "ecgs"] == len(infarcts)
    assert numbers.loc[("meta", "all"), "ecgs"] == 400

    titles = [axis.get_title(loc="left") for axis in runs.record.figure(results).axes]
    counts = {words: sum(words in title for title in titles) for words in ("SimCLR", "SimCLR, learned", "initial str")}
    assert list(counts.values()) == [1, 0, 1], "an arm that learns nothing is drawn once, and equal views are"
    assert sum("meta-stable, learned strength" in title for title in titles) == 1


def test_cost(tmp_path: Path) -> None:
    outputs = cost(tmp_path).summarise()
    claims = claims_of(outputs)["verdict"]
    takes = "{} takes at most about twice the {} of simclr"
    assert claims[takes.format("meta", "time per PT step")] == "reproduced"
    assert claims[takes.format("meta", "memory")] == "reproduced"
    assert claims[takes.format("meta-stable", "time per PT step")] == "not reproduced"
    numbers = pd.read_csv(outputs["table_csv"]).set_index("arm")
    assert numbers.loc["meta", f"{TIME_PER_STEP}, ratio"] == pytest.approx(1.5)
    assert numbers.loc["meta", f"{PEAK_MEMORY}, ratio"] == pytest.approx(1.75)
    markdown = outputs["table_md"].read_text()
    assert "Cost of PT on a machine:" in markdown
    assert "3 h, 8-9 GB" in markdown


def test_times_on_two_machines_do_not_compare(tmp_path: Path) -> None:
    runs = cost(tmp_path)
    runs.machine = lambda arm: "fast" if arm == "meta" else "slow"
    claims = claims_of(runs.summarise())
    assert claims.filter(like="meta takes", axis=0)["verdict"].tolist() == ["inconclusive"] * 2
    assert "not all runs were on the same machine" in claims["measured"].iloc[0]
    assert claims.filter(like="meta-stable takes", axis=0)["verdict"].tolist() == ["not reproduced", "reproduced"]


def test_arms_that_share_pt_runs_have_their_numbers(tmp_path: Path) -> None:
    own = {"finetune": EcgFinetuning(lr=0.1), "controls": {}}
    tuned = {f"{arm}-tuned": ARMS[arm].model_copy(update=own) for arm in ("simclr", "meta")}
    runs = cost(tmp_path, arms=ARMS | tuned, cost={"arms": ["simclr", "simclr-tuned", "meta-tuned"]})
    runs.trajectory = lambda arm, seed: [4.0, 3.0 + seed]
    outputs = runs.summarise()
    numbers = pd.read_csv(outputs["table_csv"]).set_index("arm")
    assert numbers.loc["simclr-tuned", "machine"] == "a machine"
    assert numbers.loc["simclr-tuned", f"{TIME_PER_STEP}, median"] == pytest.approx(0.04 * 1.04)
    assert numbers.loc["meta-tuned", f"{TIME_PER_STEP}, ratio"] == pytest.approx(1.5)
    assert {"simclr", "simclr-tuned", "meta-tuned"} == set(metrics.read(outputs["metrics"])["arm"])
    assert runs.results().trajectories("meta-tuned")[2]["value"].tolist() == [4.0, 5.0]


def test_arms_of_ones_own_are_drawn(tmp_path: Path) -> None:
    own = {"simclr": {"method": "simclr"}, "my_arm": {"method": "meta", "unroll_steps": 2, "controls": {"simclr": []}}}
    section = {"arms": list(own), "finetune_sizes": [100, 500]}
    outputs = full_access(tmp_path, arms=own, full_access=section).summarise(drawn=True)
    assert "my arm minus simclr" in outputs["table_md"].read_text()


def test_generated_ecgs_are_not_put_beside_the_papers(tmp_path: Path) -> None:
    outputs = full_access(tmp_path, source="simulated", full_access=SMALL["full_access"]).summarise()
    assert pd.read_csv(outputs["table_csv"])["paper_mean"].isna().all()
    assert set(claims_of(outputs)["paper"]) == {STAND_IN}
