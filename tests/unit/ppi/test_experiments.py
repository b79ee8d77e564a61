"""Cells, verdicts, tables and figures of the experiments on protein graphs, from metrics whose answers are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from metapt.domains.ppi.config import ARMS, PpiFinetuning
from metapt.domains.ppi.experiments.learned_weights import agreement
from metapt.domains.ppi.results import PAPERS_CLAIMS
from metapt.domains.ppi.stages import AUROC
from metapt.errors import DataError
from metapt.evaluation import figures, metrics
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.results import compared, differences
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error
from metapt.twostage.quantities import pretrain_seed
from metapt.twostage.tables import auroc_cells

from ..twostage.synthetic_runs import SEED_SPREAD
from .synthetic_results import FEW, MAKERS, runs_of, weights_of, written

WHOLE, LINEAR = "FT of the whole network", "linear evaluation"
TELLS = "meta-stable gives PT tasks that an FT task implies more weight than the others"


def test_the_experiments_of_the_paper_come_first() -> None:
    assert [
        *("full_access", "half_data", "held_out_tasks", "summary", "during_pretraining"),
        *("representations", "learned_weights", "negative_transfer", "cost"),
    ] == MAKERS


def test_which_arm_beats_which(tmp_path: Path) -> None:
    claims = written("full_access", tmp_path, pretrain_seeds=1, finetune_seeds=1).judged()
    assert f"meta-stable beats graph_supervised-slow, full access, {LINEAR}" not in claims.index, "other learning rates"
    paper = claims["paper"]
    assert paper[f"meta-frozen beats meta-permuted, full access, {LINEAR}"] == "beyond the paper"
    assert paper[f"meta beats graph_supervised, full access, {LINEAR}"] == "78.6 ± 0.1 against 74.7 ± 0.1 %"
    assert paper[f"meta beats no_pt, full access, {LINEAR}"] == "78.6 ± 0.1 against 66.6 ± 0.7 % (no_pt: full transfer)"
    learn = [name for name in ARMS if name.startswith("meta") and not name.endswith(("frozen", "permuted"))]
    assert set(claims["arm"][paper == "beyond the paper"]) >= {*learn}


@pytest.mark.parametrize(
    ("key", "words"), [("full_access", "full access"), ("half_data", "half data"), ("held_out_tasks", "held-out tasks")]
)
def test_few_arms_in_each_setting(key: str, words: str, tmp_path: Path) -> None:
    """Claims are on paired differences (of held-out tasks, over folds); half data are compared with full access."""
    runs = written(key, tmp_path, finetune_seeds=1, **{key: FEW})
    claims, results = runs.judged(), runs.results()
    verdicts = claims["verdict"]
    beaten = set(zip(claims["arm"], claims["control"], strict=True)) & set(PAPERS_CLAIMS)
    assert len(beaten) >= 3
    for claim in claims.itertuples():
        assert (claim.paper == "beyond the paper") == ((claim.arm, claim.control) not in beaten)
    assert verdicts[f"graph_supervised beats no_pt, {words}, {WHOLE}"] == "reproduced"
    assert verdicts[f"meta beats graph_supervised, {words}, {LINEAR}"] == "inconclusive"
    assert verdicts[f"meta-stable beats graph_supervised, {words}, {LINEAR}"] == "reproduced"
    chosen = compared(results.arm_settings(), zip(claims["arm"], claims["control"], strict=True))
    found = differences(results, chosen).set_index(["arm", "control"])
    means = found[found["metric"] == AUROC].set_index("evaluation", append=True)["mean"]
    for claim in claims.itertuples() if key != "held_out_tasks" else ():
        assert means[claim.arm, claim.control, claim.evaluation] == pytest.approx(claim.mean)


def test_whether_the_released_choices_explain_the_gain(tmp_path: Path) -> None:
    means = {"meta": 71.0, "graph_supervised-slow": 70.0, "meta-released": 66.0, "graph_supervised-released": 62.0}
    section = {"arms": ["no_pt", "no_pt-released", *means]}
    runs = runs_of("full_access", tmp_path, evaluations=["linear_evaluation"], finetune_seeds=1, full_access=section)
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
    runs = runs_of("full_access", tmp_path, full_access=section, arms=arms, finetune_seeds=1)
    means = dict(zip(section["arms"], (70.0, without, 62.0, 64.0), strict=True))
    runs.auroc = lambda arm, setting, evaluation: means[arm]
    claim = runs.write().judged().loc[f"meta-released beats graph_supervised-released, full access, {LINEAR}"]
    assert claim["verdict"] == verdict
    assert ("graph_supervised-released beats no_pt-released" in claim["measured"]) == (verdict == "control failed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "arms"),
    [
        ("full_access", ["no_pt", "graph_supervised", "meta"]),
        ("learned_weights", ["meta", "meta-stable"]),
        ("negative_transfer", ["graph_supervised", "meta"]),
    ],
)
def test_a_run_that_diverged_decides_nothing_and_is_left_out_of_figures(
    key: str, arms: list[str], tmp_path: Path
) -> None:
    runs = runs_of(key, tmp_path, finetune_seeds=1, **{key: {"arms": arms}})
    scored, lost = runs.task_auroc, (0.0, math.nan, 0.0, 0.0, 0.0)  # by PT seed
    runs.gap = lambda arm, setting, seed: lost[seed]
    runs.weight = lambda arm, setting, seed: np.where(np.arange(60) == 3, lost[seed], weights_of(arm, setting, seed))
    runs.task_auroc = lambda arm, evaluation, seed: scored(arm, evaluation, seed) + (lost[seed] if arm == "meta" else 0)
    assert set(runs.write().judged()["verdict"]) == {"inconclusive"}
    runs.experiment.figure(runs.results()).draw_without_rendering()


@pytest.mark.slow
def test_the_ft_head_during_pt(tmp_path: Path) -> None:
    """Two arms count iterations of ten PT steps. Without series, the figure shows the ends."""
    runs = written("during_pretraining", tmp_path)
    claims, numbers = runs.judged(), runs.tabled()[0]
    assert set(claims["verdict"]) == {"reproduced"}
    assert claims.loc["meta's FT head during PT beats cotrain's, test AUROC", "paper"] == "76.1 against 67.3 %"
    assert set(claims["control"]) == {"cotrain", "cotrain_pcgrad", "cotrain_learned_weights"}
    ends = numbers[numbers["minus"].isna()].set_index(["evaluation", "arm"])
    assert ends.loc[("test", "meta"), "mean"] == pytest.approx(76.0)
    assert ends.loc[("validation", "cotrain"), "paper_mean"] == 83.1
    gaps = numbers[numbers["minus"].notna()].set_index(["evaluation", "minus"])
    assert gaps.loc[("test", "cotrain_pcgrad"), "mean"] == pytest.approx(7.0)
    for axis in runs.experiment.figure(runs.results()).axes:
        steps = [max(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) > 1]
        assert len(steps) >= 4
        assert set(steps) == {1000}
    runs.inputs = {name: path for name, path in runs.inputs.items() if not name.endswith("/series")}
    assert len(runs.experiment.figure(runs.results()).axes) == 2


@pytest.mark.parametrize(
    "shorter",
    [
        {"source": "simulated"},
        {"pretrain": {"epochs": 10}},
        {"arms": ARMS | {name: {"method": name, "pretrain": {"batch_size": 64}} for name in ("meta", "cotrain")}},
    ],
)
def test_the_ft_head_of_a_shorter_pt_does_not_compare(shorter: dict[str, Any], tmp_path: Path) -> None:
    assert written("during_pretraining", tmp_path, pretrain_seeds=1, **shorter).judged().empty


def test_what_the_weights_find(tmp_path: Path) -> None:
    runs = written("learned_weights", tmp_path, source="simulated")
    claims, (numbers, markdown) = runs.judged(), runs.tabled()
    verdicts = claims["verdict"]
    assert verdicts["meta-stable's weights find the PT tasks of planted use"] == "reproduced"
    assert verdicts["meta's weights find the PT tasks of planted use"] == "not reproduced"
    agree = claims.loc["meta-stable's weights agree between PT seeds (rank correlation at least 0.5)"]
    assert agree["verdict"] == "reproduced"
    assert verdicts[TELLS] == "reproduced"
    rows = numbers[numbers["seeds"].notna()].set_index("arm")
    assert 0.9 < rows.loc["meta-stable", "agreement"] == pytest.approx(agree["mean"])
    assert abs(rows.loc["meta", "agreement"]) < 0.3
    assert rows.loc["meta-stable", "planted"] > 0.95
    apart = numbers[numbers["half_iqr"].notna()]
    gaps = np.abs(weights_of("meta", "full_access", 1) - weights_of("cotrain_learned_weights", "full_access", 1))
    assert apart["median"].iloc[1] == pytest.approx(np.median(gaps))
    tasks = numbers[(numbers["arm"] == "meta-stable") & numbers["task"].notna()]
    assert len(tasks) == 60
    assert tasks["weight"].is_monotonic_decreasing
    e = estimate_mean(apart["median"])
    for words in (mean_and_error(e.mean, e.standard_error), "process number 0 of a cell", "planted use"):
        assert words in markdown


def test_nothing_is_planted_in_real_networks(tmp_path: Path) -> None:
    real = written("learned_weights", tmp_path, pretrain_seeds=2)
    assert not real.judged().index.str.contains("planted").any()
    for name, path in real.inputs.items():
        if name.endswith("/metrics"):
            path.write_text("".join(line for line in path.open() if "mean weight" not in line))
    assert real.judged().loc[TELLS, "verdict"] == "not measured"


def test_the_summary_names_the_better_evaluation(tmp_path: Path) -> None:
    seeds = {"pretrain_seeds": 2, "finetune_seeds": 1}
    runs = runs_of("summary", tmp_path, summary=FEW, half_data=FEW, held_out_tasks=FEW, **seeds)
    plain = runs.auroc
    runs.gap = lambda arm, setting, seed: math.nan if (arm, seed) == ("meta-stable", 1) else 0.0
    runs.auroc = lambda arm, setting, evaluation: (
        plain(arm, setting, evaluation) + (3 if (arm, evaluation) == ("no_pt", "full_transfer") else 0)
    )
    numbers = runs.write().tabled()[0].set_index(["setting", "arm"])
    assert numbers.loc[("full_access", "no_pt"), "best"] == "full_transfer"
    assert numbers.loc[("half_data", "meta"), "best"] == "linear_evaluation"
    assert runs.results().setting_of_control("graph_supervised", "half_data") == "full_access"
    assert numbers.loc[("held_out_tasks", "meta"), "paper_mean"] == 77.0
    assert len(numbers) == 3 * 4
    assert math.isnan(numbers.loc[("full_access", "meta-stable"), "mean"]), "a run that diverged is not averaged away"


@pytest.mark.parametrize(("settings", "best"), [({}, "full_transfer"), ({"choose": "test"}, "linear_evaluation")])
def test_the_better_evaluation_is_chosen_on_validation(settings: dict[str, str], best: str, tmp_path: Path) -> None:
    sections = {"summary": FEW | settings, "half_data": None, "held_out_tasks": FEW}
    runs = runs_of("summary", tmp_path, pretrain_seeds=1, finetune_seeds=1, **sections)
    runs.validation = lambda arm, setting, evaluation: 2.0 if evaluation == "full_transfer" else 0.0
    numbers, markdown = runs.write().tabled()
    assert set(numbers["best"]) == {best}
    assert set(numbers["setting"]) == {"full_access", "held_out_tasks"}
    assert ("on the test set, as in the paper; that flatters" in markdown) == ("choose" in settings)
    assert ("on the validation set (the paper: on the test set)" in markdown) == ("choose" not in settings)


def test_cka_is_symmetric(tmp_path: Path) -> None:
    numbers = written("representations", tmp_path, representations=FEW).tabled()[0].set_index(["arm", "other"])["mean"]
    assert numbers[("no_pt", "meta")] == numbers[("meta", "no_pt")] == pytest.approx(0.78)
    assert numbers[("meta", "meta")] == 1.0


@pytest.mark.slow
def test_negative_transfer_counts_tasks_that_lose_against_training_from_scratch(tmp_path: Path) -> None:
    runs = written("negative_transfer", tmp_path, negative_transfer=FEW, finetune_seeds=2)
    numbers, markdown = runs.tabled()
    claims = runs.judged()
    claim = claims.loc[f"no more FT tasks lose by meta than by graph_supervised, {LINEAR}"]
    assert (claim["verdict"], claim["mean"]) == ("reproduced", pytest.approx(200 / 7))
    assert all(text.startswith("no more FT tasks lose by") for text in claims.index)
    table = numbers.set_index(["arm", "evaluation", "task"])
    assert table.loc[("graph_supervised", "full_transfer", 0), "change"] == pytest.approx(-3.0)
    assert table.loc[("meta", "linear_evaluation", 0), "change"] == pytest.approx(2.0)
    assert math.isnan(table.loc[("meta", "full_transfer", 7), "change"])
    assert "28.57 ± 0" in markdown, "two of the seven tasks that can be scored"
    assert "-3.0, function number 0" in markdown
    with figures.style():  # as a summary does
        drawn = runs.experiment.figure(runs.results()).axes
    assert [axis.get_title(loc="left") for axis in drawn] == ["graph supervised", "meta", "meta-stable"]
    assert "29 % lose" in [text.get_text() for text in drawn[0].texts]


def test_negative_transfer_is_measured_against_an_arm_with_the_same_ft(tmp_path: Path) -> None:
    section: dict[str, Any] = {"negative_transfer": {"arms": ["meta", "blank", "meta-released"]}, "pretrain_seeds": 2}
    section["arms"] = ARMS | {"blank": {"method": "no_pt"}}  # one more with the FT of no_pt, and before it by name
    runs = runs_of("negative_transfer", tmp_path, finetune_seeds=1, **section)
    scored = runs.task_auroc
    less = {"blank": 0.0, "no_pt-released": 60.0}
    runs.task_auroc = lambda arm, *rest: scored("no_pt" if arm in less else arm, *rest) - less.get(arm, 0.0)
    numbers, markdown = runs.write().tabled()
    change = numbers.set_index(["arm", "evaluation", "task"])["change"]
    assert change["meta-released", "full_transfer", 0] - change["meta", "full_transfer", 0] == pytest.approx(60)
    assert set(numbers["arm"]) == {"meta", "meta-released"}
    assert "no PT, released" in markdown


def test_held_out_tasks_are_the_mean_of_the_folds(tmp_path: Path) -> None:
    runs = runs_of("held_out_tasks", tmp_path, held_out_tasks={"arms": ["meta-stable"]})
    runs.auroc = lambda arm, setting, evaluation: 70.0 + int(setting[-1])
    results = runs.write().results()
    cell = auroc_cells(results).iloc[0]
    assert (cell["mean"], cell["n"]) == (pytest.approx(71.5), 4)
    assert cell["standard_error"] == pytest.approx(np.std([0, 1, 2, 3], ddof=1) / 2), "over the folds"
    assert cell["seed_standard_error"] == pytest.approx(np.std(SEED_SPREAD, ddof=1) / math.sqrt(5))
    assert results.papers_aurocs(["meta"]).set_index("evaluation").loc["linear_evaluation", "mean"] == 77.0


def test_folds_that_were_not_run_that_diverged_or_that_have_other_seeds(tmp_path: Path) -> None:
    section, cell = {"arms": ["meta-stable"]}, ("meta-stable", "held_out_tasks", "full_transfer")
    runs = runs_of("held_out_tasks", tmp_path, held_out_tasks=section, pretrain_seeds=2, finetune_seeds=2)
    runs.gap = lambda arm, setting, seed: math.nan if (setting[-1], seed) == ("2", 1) else 0.0
    values = runs.write().results().runs(*cell)
    assert set(values[values.isna()].index) == {each for each in values.index if pretrain_seed(each) == 1}
    path = runs.inputs["finetune/meta-stable/held_out_3/seed1/metrics"]
    metrics.write(metrics.read(path).iloc[:0], path)
    with pytest.raises(DataError, match="other seeds"):
        runs.results().runs(*cell)
    runs.inputs = {name: path for name, path in runs.inputs.items() if "held_out_3" not in name}
    with pytest.raises(NotMeasuredError, match="held_out_3"):
        runs.results().runs(*cell)


def test_weights_are_read_by_pt_seed_and_arms_that_share_pt_runs_have_them(tmp_path: Path) -> None:
    arms = ARMS | {"tuned": ARMS["meta"].model_copy(update={"finetune": PpiFinetuning(epochs=1), "label": ""})}
    section = {"arms": ["meta", "tuned"]}
    runs = written("learned_weights", tmp_path, arms=arms, learned_weights=section, pretrain_seeds=3)
    results = runs.results()
    assert results.weights("tuned").equals(results.weights("meta"))
    assert results.weights("meta").shape == (60, 3)
    assert results.weights("meta")[2].to_numpy() == pytest.approx(runs.weight("meta", "full_access", 2))
    runs.inputs["tasks"].write_text("kind,task\ncoarse,0\n")
    with pytest.raises(DataError, match="not the list of tasks"):
        runs.tabled()


def test_agreement_is_the_mean_rank_correlation_jackknifed_over_seeds() -> None:
    """Of three seeds, leaving one out leaves one pair; two seeds have no spread, and one has no agreement."""
    weights = pd.DataFrame(np.random.default_rng(2).normal(size=(20, 3)))
    r = spearmanr(weights.to_numpy()).statistic
    pairs = np.array([r[1, 2], r[0, 2], r[0, 1]])
    for found in (agreement(weights), agreement(np.exp(weights))):  # only ranks count
        assert found.mean == pytest.approx(pairs.mean())
        assert found.standard_error == pytest.approx(math.sqrt(2 / 3 * ((pairs - pairs.mean()) ** 2).sum()))
    two = agreement(weights[[0, 1]])
    assert (two.mean, two.n) == (pytest.approx(pairs[2]), 2)
    assert math.isnan(two.standard_error)
    with pytest.raises(NotMeasuredError, match="needs two"):
        agreement(weights[[0]])
    for bad in (math.nan, math.inf):
        assert math.isnan(agreement(weights.replace(weights.iloc[3, 1], bad)).mean)
    assert math.isnan(agreement(weights.assign(**{"1": 1.0})).mean), "equal weights have no order"
