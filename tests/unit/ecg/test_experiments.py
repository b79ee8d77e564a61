"""Tables, figures and verdicts of the ECG experiments, from metrics with known answers."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from metapt.domains.ecg.config import ARMS, EcgFinetuning
from metapt.domains.ecg.stages import AUROC, DISPLACEMENT
from metapt.evaluation import metrics
from metapt.twostage.quantities import TIME_PER_STEP

from .synthetic_results import cost, full_access, partial_access, unroll_steps

WHERE = "FT of the whole network, |D_FT| = {}"


@pytest.mark.slow
def test_full_access(tmp_path: Path) -> None:
    section = {"arms": ["no_pt", "simclr", "optsla", "meta", "meta-stable-start", "meta-stable"]}
    runs = full_access(tmp_path, full_access=section | {"finetune_sizes": [250, 500, 1000]}, finetune_seeds=2).write()
    cells = runs.tabled()[0].query("minus.isna()").set_index(["evaluation", "arm", "size"]).sort_index()
    assert cells.loc[("full_transfer", "optsla", 1000), "paper_mean"] == 82.8
    assert cells.loc[("linear_evaluation", "optsla"), "paper_mean"].isna().all()
    claims = runs.judged()
    assert len(claims) == 5 * 2 * 3
    for claim, verdict, paper in (
        (f"simclr beats no_pt, {WHERE.format(500)}", "reproduced", None),
        (f"meta beats simclr, {WHERE.format(500)}", "inconclusive", "81.7 ± 0.2 against 79.8 ± 0.3 %"),
        (f"meta-stable beats meta-stable-start, {WHERE.format(250)}", "reproduced", "beyond the paper"),
    ):
        assert claims.loc[claim, "verdict"] == verdict
        assert paper in (None, claims.loc[claim, "paper"])


def test_no_pt_is_no_failed_control_of_another_arm_without_pt(tmp_path: Path) -> None:
    section = {"arms": ["no_pt", "no_pt-released", "simclr"], "finetune_sizes": [500]}
    both = {"batch_norm": "eval", "batch_size": 64, "linear_lr": 1e-3}
    claims = full_access(tmp_path, full_access=section, finetune=both).write().judged()
    assert claims.loc[f"simclr beats no_pt, {WHERE.format(500)}", "verdict"] == "reproduced"


@pytest.mark.parametrize("arms", [["no_pt", "meta"], ["simclr"]])
def test_sizes_without_simclr_or_with_nothing_else_have_a_figure(arms: list[str], tmp_path: Path) -> None:
    runs = full_access(tmp_path, full_access={"arms": arms, "finetune_sizes": [250, 500]}).write()
    assert len(runs.experiment.figure(runs.results()).axes) == 2


@pytest.mark.parametrize(
    ("arms", "control", "papers"),
    [(["simclr-mild", "simclr", "meta"], "simclr", True), (["simclr-mild", "meta"], "simclr-mild", False)],
)
def test_the_papers_cost_is_that_of_simclr(arms: list[str], control: str, papers: bool, tmp_path: Path) -> None:
    runs = cost(tmp_path, cost={"arms": arms}).write()
    assert set(runs.judged()["control"]) == {control}
    assert set(runs.judged()["paper"] != "beyond the paper") == {papers}
    assert ("1.5 h" in runs.tabled()[1]) == papers


def test_unroll_steps(tmp_path: Path) -> None:
    runs = unroll_steps(tmp_path, unroll_steps={"finetune_sizes": [500, 1000]}, finetune_seeds=2).write()
    claims, where = runs.judged(), WHERE.format(500)
    for claim in ("meta beats meta-k0", "meta-k0 beats simclr", "meta-k10 comes within 1 point of meta"):
        assert claims.loc[f"{claim}, {where}", "verdict"] == "reproduced"
    assert claims.loc[f"meta beats meta-k0, {where}", "paper"] == "81.7 ± 0.2 against 80.5 ± 0.4 %"
    numbers = runs.tabled()[0].set_index(["evaluation", "arm", "size"])
    assert numbers.loc[("full_transfer", "meta-k10", 1000), "paper_mean"].iloc[0] == 84.3


@pytest.mark.parametrize("gap", [-3.0, 3.0])
def test_within_a_point_is_on_both_sides(gap: float, tmp_path: Path) -> None:
    settings = {"arms": ["simclr", "meta", "meta-k10"], "finetune_sizes": [500]}
    runs = unroll_steps(tmp_path, unroll_steps=settings, evaluations=["full_transfer"])
    runs.auroc = lambda arm, size, few, evaluation: 80.0 + (gap if arm == "meta-k10" else 0.0)
    verdicts = runs.write().judged()["verdict"]
    assert verdicts[f"meta-k10 comes within 1 point of meta, {WHERE.format(500)}"] == "not reproduced"


@pytest.mark.slow
def test_partial_access(tmp_path: Path) -> None:
    sizes = {"finetune_sizes": [100, 500], "meta_sizes": [50, 250, 500]}
    runs = partial_access(tmp_path, partial_access=sizes, finetune_seeds=2).write()
    cells = runs.tabled()[0].query("minus.isna()").set_index(["evaluation", "arm", "size", "meta_size"])
    assert cells.loc[("full_transfer", "meta", 500, 50), "paper_mean"] == 81.3
    assert cells.loc[("full_transfer", "simclr", 500, 0), "paper_mean"] == 79.8
    assert ("full_transfer", "meta", 500, 500) in cells.index, "with all FT data, which is a run under full access"
    assert ("full_transfer", "meta", 100, 250) not in cells.index
    claims = runs.judged()
    assert set(claims["arm"]) == {"meta"}, "meta-stable does not start from the baseline"
    assert claims["verdict"].tolist() == ["reproduced"] * 2
    assert claims["paper"].tolist() == ["81.3 ± 0.5 against 79.8 ± 0.3 %", "beyond the paper"]
    found = pd.read_csv(runs.summarise()["differences"]).set_index(["arm", "control"]).loc[("meta", "simclr")]
    gains = found.set_index(["setting", "evaluation", "metric"])["mean"]  # whose settings have other words
    assert gains["ft_size=500 meta_ft_size=50", "full_transfer", AUROC] == pytest.approx(1 - math.exp(-50 / 40))
    few = {"arms": ["meta"], "finetune_sizes": [100], "meta_sizes": [25]}
    assert partial_access(tmp_path, partial_access=few).write().judged().empty, "without the paper's sizes"


def test_the_papers_claims_are_the_papers_arms_and_stand_once(tmp_path: Path) -> None:
    sizes = {"arms": ["meta", "meta-k5"], "finetune_sizes": [500], "meta_sizes": [50]}
    learners = partial_access(tmp_path, partial_access=sizes, finetune_seeds=1).write().results()
    assert learners.pairs() == [("meta", "simclr", True), ("meta-k5", "simclr", False)]
    named = ARMS["meta"].model_copy(update={"controls": {"meta-k0": ["unroll_steps"]}})
    steps = {"arms": ["meta-k0", "meta"], "finetune_sizes": [500]}
    results = unroll_steps(tmp_path / "k", arms=ARMS | {"meta": named}, unroll_steps=steps, finetune_seeds=1).write()
    assert results.results().pairs() == [("meta", "meta-k0", True)]


def test_arms_that_share_pt_runs_have_their_numbers(tmp_path: Path) -> None:
    own = {"finetune": EcgFinetuning(lr=0.1), "controls": {}, "label": ""}
    tuned = {f"{arm}-tuned": ARMS[arm].model_copy(update=own) for arm in ("simclr", "meta")}
    runs = cost(tmp_path, arms=ARMS | tuned, cost={"arms": ["simclr", "simclr-tuned", "meta-tuned"]}, finetune_seeds=1)
    runs.trajectory = lambda arm, seed: [4.0, 3.0 + seed]
    outputs = runs.summarise()
    numbers = pd.read_csv(outputs["table_csv"]).set_index("arm")
    assert numbers.loc["simclr-tuned", "machine"] == "a machine"
    assert numbers.loc["simclr-tuned", f"{TIME_PER_STEP}, median"] == pytest.approx(0.04 * 1.04)
    assert numbers.loc["meta-tuned", f"{TIME_PER_STEP}, ratio"] == pytest.approx(1.5)
    assert {"simclr", "simclr-tuned", "meta-tuned"} == set(metrics.read(outputs["metrics"])["arm"])
    assert runs.results().by_seed("meta-tuned", DISPLACEMENT, "n500")[2].tolist() == [4.0, 5.0]
