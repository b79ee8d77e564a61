"""Verdicts of the PPI experiments, from metrics whose answers are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from metapt.domains.ppi.config import ARMS
from metapt.domains.ppi.quantities import AUROC
from metapt.evaluation.differences import compared, differences

from .synthetic_results import MAKERS, runs_of, written

WHOLE, LINEAR = "FT of the whole network", "linear evaluation"


@pytest.mark.parametrize("key", MAKERS)
def test_a_comparison_says_what_it_compares(key: str, tmp_path: Path) -> None:
    claims = written(key, tmp_path, source="simulated").judged()
    section = runs_of(key, tmp_path).config
    assert set(claims["arm"]) <= set(section.arms)
    assert set(claims["control"]) <= {"", *section.arms}
    assert not (claims["arm"] == claims["control"]).any()
    assert (claims["metric"] != "").all()
    assert (claims["least_seeds"] == 5).all()


@pytest.mark.parametrize("key", MAKERS)
def test_one_pt_seed_decides_nothing(key: str, tmp_path: Path) -> None:
    claims = written(key, tmp_path, pretrain_seeds=1, finetune_seeds=2, source="simulated").judged()
    assert set(claims["verdict"]) <= {"too few seeds", "not measured"}
    unmeasured = claims[claims["verdict"] == "not measured"]
    assert all("agree between PT seeds" in text for text in unmeasured.index)


@pytest.mark.parametrize(
    ("key", "words"), [("full_access", "full access"), ("half_data", "half data"), ("held_out_tasks", "held-out tasks")]
)
def test_which_arm_beats_which(key: str, words: str, tmp_path: Path) -> None:
    claims = written(key, tmp_path).judged()
    assert claims.loc[f"graph_supervised beats no_pt, {words}, {WHOLE}", "verdict"] == "reproduced"
    assert claims.loc[f"meta beats graph_supervised, {words}, {LINEAR}", "verdict"] == "inconclusive"
    assert claims.loc[f"meta-stable beats graph_supervised, {words}, {LINEAR}", "verdict"] == "reproduced"
    assert f"meta-stable beats graph_supervised-slow, {words}, {LINEAR}" not in claims.index, "other learning rates"
    assert claims.loc[f"meta-frozen beats meta-permuted, {words}, {LINEAR}", "paper"] == "beyond the paper"
    assert (claims["paper"] == "beyond the paper").sum() >= 11 * 2, "each arm that learns, and its controls"
    assert len(claims) == (6 + 11 + 1) * 2


def test_whether_the_released_choices_explain_the_gain(tmp_path: Path) -> None:
    runs = runs_of("full_access", tmp_path, evaluations=["linear_evaluation"])
    means = {"meta": 71.0, "graph_supervised-slow": 70.0, "meta-released": 66.0, "graph_supervised-released": 62.0}
    runs.auroc = lambda arm, setting, evaluation: means.get(arm, 60.0)
    runs.gap = lambda arm, setting, seed: 0.1 * seed if arm == "meta-released" else 0.0
    runs.write()
    text = "meta-released gains more over graph_supervised-released than meta over graph_supervised-slow, full access"
    claim = runs.judged().loc[f"{text}, {LINEAR}"]
    assert claim["mean"] == pytest.approx((66 + 0.2 - 62) - (71 - 70))
    assert claim["standard_error"] == pytest.approx(0.1 * math.sqrt(2.5 / 5))
    assert (claim["verdict"], claim["n"]) == ("reproduced", 5)


@pytest.mark.parametrize(("without", "verdict"), [(60.0, "reproduced"), (65.0, "control failed")])
def test_a_control_must_beat_the_arm_without_pt_that_has_its_ft(without: float, verdict: str, tmp_path: Path) -> None:
    pair = ["graph_supervised-released", "meta-released"]
    runs = runs_of(
        "full_access",
        tmp_path,
        full_access={"arms": ["no_pt", "no_pt-released", *pair]},
        arms={**ARMS, "no_pt-released": {"method": "no_pt", "finetune": {"lrs": [1e-5]}}},
    )
    runs.auroc = lambda arm, setting, evaluation: dict(zip(pair, (62.0, 64.0), strict=True)).get(
        arm, {"no_pt": 70.0}.get(arm, without)
    )
    runs.write()
    claim = runs.judged().loc[f"meta-released beats graph_supervised-released, full access, {LINEAR}"]
    assert claim["verdict"] == verdict
    assert ("graph_supervised-released beats no_pt-released" in claim["measured"]) == (verdict == "control failed")


@pytest.mark.parametrize(
    ("key", "arms"),
    [
        ("full_access", ["no_pt", "graph_supervised"]),
        ("learned_weights", ["meta-stable"]),
        ("negative_transfer", ["meta"]),
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
    runs.write()
    assert set(runs.judged()["verdict"]) == {"inconclusive"}


def test_the_papers_numbers_stand_beside_its_claims(tmp_path: Path) -> None:
    paper = written("full_access", tmp_path).judged()["paper"]
    assert paper[f"meta beats graph_supervised, full access, {LINEAR}"] == "78.6 ± 0.1 against 74.7 ± 0.1 %"
    assert paper[f"meta beats no_pt, full access, {LINEAR}"] == "78.6 ± 0.1 against 66.6 ± 0.7 % (no_pt: full transfer)"


def test_the_ft_head_during_pt(tmp_path: Path) -> None:
    claims = written("during_pretraining", tmp_path).judged()
    assert set(claims["verdict"]) == {"reproduced"}
    assert claims.loc["meta's FT head during PT beats cotrain's, test AUROC", "paper"] == "76.1 against 67.3 %"


@pytest.mark.parametrize("key", ["full_access", "half_data"])
def test_each_claim_has_its_paired_differences(key: str, tmp_path: Path) -> None:
    """Under half data, PT without FT data is that of full access."""
    runs = written(key, tmp_path)
    claims, results = runs.judged(), runs.results()
    claimed = zip(claims["arm"], claims["control"], strict=True)
    found = differences(results, compared(results.arm_settings(), claimed)).set_index(["arm", "control"])
    means = found[found["metric"] == AUROC].set_index("evaluation", append=True)["mean"]
    for claim in claims[~claims.index.str.contains("gains more over")].itertuples():
        assert means[claim.arm, claim.control, claim.evaluation] == pytest.approx(claim.mean)


def test_what_the_weights_find(tmp_path: Path) -> None:
    verdicts = written("learned_weights", tmp_path, source="simulated").judged()["verdict"]
    assert verdicts["meta-stable's weights find the PT tasks of planted use"] == "reproduced"
    assert verdicts["meta's weights find the PT tasks of planted use"] == "not reproduced"
    assert verdicts["meta-stable's weights agree between PT seeds (rank correlation at least 0.5)"] == "reproduced"
    assert verdicts["meta-stable gives PT tasks that an FT task implies more weight than the others"] == "reproduced"
    real = written("learned_weights", tmp_path, source="hu2020").judged()
    assert not real.index.str.contains("planted").any(), "nothing is planted in real networks"


def test_relatives_that_were_not_told_are_not_measured(tmp_path: Path) -> None:
    runs = runs_of("learned_weights", tmp_path, learned_weights={"arms": ["meta-stable"]})
    runs.write()
    for name, path in runs.inputs.items():
        if name.endswith("/metrics"):
            path.write_text("".join(line for line in path.open() if "mean weight" not in line))
    verdicts = runs.judged()["verdict"]
    assert verdicts["meta-stable gives PT tasks that an FT task implies more weight than the others"] == "not measured"


def test_negative_transfer(tmp_path: Path) -> None:
    verdicts = written("negative_transfer", tmp_path).judged()["verdict"]
    assert verdicts[f"at most 10 % of the FT tasks lose by meta, {WHOLE}"] == "reproduced"
    assert verdicts[f"at most 10 % of the FT tasks lose by graph_supervised, {WHOLE}"] == "not reproduced"
    assert verdicts[f"no more FT tasks lose by meta than by graph_supervised, {LINEAR}"] == "reproduced"


def test_cost(tmp_path: Path) -> None:
    verdicts = written("cost", tmp_path).judged()["verdict"]
    assert verdicts["meta takes at most twice the time per PT step of graph_supervised"] == "reproduced"
    assert verdicts["meta-stable takes at most twice the time per PT step of graph_supervised"] == "not reproduced"
    assert verdicts["meta-stable takes at most about twice the memory of graph_supervised"] == "reproduced"


def test_times_on_two_machines_do_not_compare(tmp_path: Path) -> None:
    runs = runs_of("cost", tmp_path)
    runs.machine = lambda arm: "fast" if arm == "meta" else "slow"
    runs.write()
    claims = runs.judged()
    assert claims.filter(like="meta takes", axis=0)["verdict"].tolist() == ["inconclusive"] * 2
    assert "not all runs were on the same machine" in claims["measured"].iloc[0]
