"""Verdicts of the PPI experiments, from metrics whose answers are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metapt.domains.ppi.config import ARMS
from metapt.domains.ppi.quantities import AUROC
from metapt.evaluation.differences import compared, differences

from .synthetic_results import FEW, Runs, runs_of, written

WHOLE, LINEAR = "FT of the whole network", "linear evaluation"
RELATIVES = "meta-stable gives PT tasks that an FT task implies more weight than the others"


def assert_claims_are_paired_differences(runs: Runs) -> None:
    """Under half data, PT without FT data is that of full access."""
    claims, results = runs.judged(), runs.results()
    claimed = zip(claims["arm"], claims["control"], strict=True)
    found = differences(results, compared(results.arm_settings(), claimed)).set_index(["arm", "control"])
    means = found[found["metric"] == AUROC].set_index("evaluation", append=True)["mean"]
    for claim in claims[~claims.index.str.contains("gains more over")].itertuples():
        assert means[claim.arm, claim.control, claim.evaluation] == pytest.approx(claim.mean)


def test_which_arm_beats_which(tmp_path: Path) -> None:
    runs = written("full_access", tmp_path, finetune_seeds=2)
    claims = runs.judged()
    assert f"meta-stable beats graph_supervised-slow, full access, {LINEAR}" not in claims.index, "other learning rates"
    assert claims.loc[f"meta-frozen beats meta-permuted, full access, {LINEAR}", "paper"] == "beyond the paper"
    assert (claims["paper"] == "beyond the paper").sum() >= 11 * 2, "each arm that learns, and its controls"
    assert len(claims) == (6 + 11 + 1) * 2
    paper = claims["paper"]
    assert paper[f"meta beats graph_supervised, full access, {LINEAR}"] == "78.6 ± 0.1 against 74.7 ± 0.1 %"
    assert paper[f"meta beats no_pt, full access, {LINEAR}"] == "78.6 ± 0.1 against 66.6 ± 0.7 % (no_pt: full transfer)"
    assert_claims_are_paired_differences(runs)


@pytest.mark.parametrize(
    ("key", "words"), [("full_access", "full access"), ("half_data", "half data"), ("held_out_tasks", "held-out tasks")]
)
def test_few_arms_in_each_setting(key: str, words: str, tmp_path: Path) -> None:
    runs = written(key, tmp_path, finetune_seeds=2, **{key: FEW})
    verdicts = runs.judged()["verdict"]
    assert verdicts[f"graph_supervised beats no_pt, {words}, {WHOLE}"] == "reproduced"
    assert verdicts[f"meta beats graph_supervised, {words}, {LINEAR}"] == "inconclusive"
    assert verdicts[f"meta-stable beats graph_supervised, {words}, {LINEAR}"] == "reproduced"
    if key == "half_data":
        assert_claims_are_paired_differences(runs)


def test_whether_the_released_choices_explain_the_gain(tmp_path: Path) -> None:
    means = {"meta": 71.0, "graph_supervised-slow": 70.0, "meta-released": 66.0, "graph_supervised-released": 62.0}
    section = {"arms": ["no_pt", "no_pt-released", *means]}
    runs = runs_of("full_access", tmp_path, evaluations=["linear_evaluation"], full_access=section)
    runs.auroc = lambda arm, setting, evaluation: means.get(arm, 60.0)
    runs.gap = lambda arm, setting, seed: 0.1 * seed if arm == "meta-released" else 0.0
    text = "meta-released gains more over graph_supervised-released than meta over graph_supervised-slow, full access"
    claim = runs.write().judged().loc[f"{text}, {LINEAR}"]
    assert claim["mean"] == pytest.approx((66 + 0.2 - 62) - (71 - 70))
    assert claim["standard_error"] == pytest.approx(0.1 * math.sqrt(2.5 / 5))
    assert (claim["verdict"], claim["n"]) == ("reproduced", 5)


@pytest.mark.parametrize(("without", "verdict"), [(60.0, "reproduced"), (65.0, "control failed")])
def test_a_control_must_beat_the_arm_without_pt_that_has_its_ft(without: float, verdict: str, tmp_path: Path) -> None:
    section = {"arms": ["no_pt", "no_pt-released", "graph_supervised-released", "meta-released"]}
    arms = {**ARMS, "no_pt-released": {"method": "no_pt", "finetune": {"lrs": [1e-5]}}}
    runs = runs_of("full_access", tmp_path, full_access=section, arms=arms)
    means = dict(zip(section["arms"], (70.0, without, 62.0, 64.0), strict=True))
    runs.auroc = lambda arm, setting, evaluation: means[arm]
    claim = runs.write().judged().loc[f"meta-released beats graph_supervised-released, full access, {LINEAR}"]
    assert claim["verdict"] == verdict
    assert ("graph_supervised-released beats no_pt-released" in claim["measured"]) == (verdict == "control failed")


@pytest.mark.parametrize(
    ("key", "arms"),
    [
        ("full_access", ["no_pt", "graph_supervised"]),
        ("learned_weights", ["meta-stable"]),
        ("negative_transfer", ["graph_supervised", "meta"]),
    ],
)
def test_a_run_without_finite_numbers_decides_nothing(key: str, arms: list[str], tmp_path: Path) -> None:
    runs = runs_of(key, tmp_path, **{key: {"arms": arms}})
    scored = runs.task_auroc
    runs.gap = lambda arm, setting, seed: math.nan if seed == 2 else 0.0
    runs.weight = lambda arm, setting, seed: np.where(np.arange(60) == 3, math.nan, 1.0)
    runs.task_auroc = lambda arm, evaluation, seed: (
        scored(arm, evaluation, seed) + (math.nan if (arm, seed) == ("meta", 1) else 0.0)
    )
    assert set(runs.write().judged()["verdict"]) == {"inconclusive"}


def test_the_ft_head_during_pt(tmp_path: Path) -> None:
    claims = written("during_pretraining", tmp_path).judged()
    assert set(claims["verdict"]) == {"reproduced"}
    assert claims.loc["meta's FT head during PT beats cotrain's, test AUROC", "paper"] == "76.1 against 67.3 %"


@pytest.mark.parametrize(
    "shorter",
    [
        {"source": "simulated"},
        {"pretrain": {"epochs": 10}},
        {"arms": ARMS | {name: {"method": name, "pretrain": {"batch_size": 64}} for name in ("meta", "cotrain")}},
    ],
)
def test_the_ft_head_of_a_shorter_pt_does_not_compare(shorter: dict[str, Any], tmp_path: Path) -> None:
    assert written("during_pretraining", tmp_path, **shorter).judged().empty


def test_what_the_weights_find(tmp_path: Path) -> None:
    verdicts = written("learned_weights", tmp_path, source="simulated").judged()["verdict"]
    assert verdicts["meta-stable's weights find the PT tasks of planted use"] == "reproduced"
    assert verdicts["meta's weights find the PT tasks of planted use"] == "not reproduced"
    assert verdicts["meta-stable's weights agree between PT seeds (rank correlation at least 0.5)"] == "reproduced"
    assert verdicts[RELATIVES] == "reproduced"
    real = written("learned_weights", tmp_path, source="hu2020")
    assert not real.judged().index.str.contains("planted").any(), "nothing is planted in real networks"
    for name, path in real.inputs.items():
        if name.endswith("/metrics"):
            path.write_text("".join(line for line in path.open() if "mean weight" not in line))
    assert real.judged().loc[RELATIVES, "verdict"] == "not measured"


def test_negative_transfer(tmp_path: Path) -> None:
    claims = written("negative_transfer", tmp_path, negative_transfer=FEW).judged()
    claim = claims.loc[f"no more FT tasks lose by meta than by graph_supervised, {LINEAR}"]
    assert (claim["verdict"], claim["mean"]) == ("reproduced", pytest.approx(200 / 7))
    assert all(text.startswith("no more FT tasks lose by") for text in claims.index)


def test_cost_of_runs_on_the_same_machine(tmp_path: Path) -> None:
    runs = written("cost", tmp_path)
    verdicts = runs.judged()["verdict"]
    assert verdicts["meta takes at most twice the time per PT step of graph_supervised"] == "reproduced"
    assert verdicts["meta-stable takes at most twice the time per PT step of graph_supervised"] == "not reproduced"
    assert verdicts["meta-stable takes at most about twice the memory of graph_supervised"] == "reproduced"
    runs.machine = lambda arm: "fast" if arm == "meta" else "slow"
    claims = runs.write().judged()
    assert claims.filter(like="meta takes", axis=0)["verdict"].tolist() == ["inconclusive"] * 2
    assert "not all runs were on the same machine" in claims["measured"].iloc[0]
