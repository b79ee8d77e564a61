"""Verdicts of the MNIST experiments, from metrics with known answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from metapt.domains.mnist.config import BpttStudy, ExampleWeighting, Fidelity, MnistMeta, RotationMean, RotationMeanStd
from metapt.domains.mnist.domain import DOMAIN
from metapt.domains.mnist.quantities import ACCURACY, COSINE, DEVIATION, ERROR, MEAN, RATIO, WALL_TIME
from metapt.domains.mnist.results import MnistResults
from metapt.engine import records
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, judge
from metapt.evaluation.metrics import row
from metapt.sections import SummarySettings

Values = Mapping[tuple[str, str, str], float]
"""Arm, metric, setting -> mean over the replicates, about."""


def results(key: str, section: Any, values: Values) -> MnistResults:
    """Return results of five replicates, which differ alike in the numbers of every arm."""
    arms = list(dict.fromkeys(arm for arm, _, _ in values))
    rows = [
        row(f"mnist_{key}", arm, metric, value + spread, replicate=i, setting=setting)
        for (arm, metric, setting), value in values.items()
        for i, spread in enumerate((-0.3, 0.0, 0.1, 0.2, 0.0))
    ]
    some = section.model_copy(update={"arms": {arm: section.arms[arm] for arm in arms}})
    tables = metrics.validate(rows), pd.DataFrame()
    return MnistResults(f"mnist_{key}", MnistResults.settings(), some, *tables, {}, {})


def verdicts(key: str, section: Any, values: Values) -> pd.DataFrame:
    """Return the rows of claims.csv by claim."""
    return judge(f"mnist_{key}", DOMAIN.experiments[key].comparisons(results(key, section, values))).set_index("claim")


@pytest.mark.parametrize(
    ("key", "section", "metric", "numbers", "claim"),
    [
        ("rotation_mean", RotationMean(), ERROR, (7.2, 10.6, 30.0), "meta recovers the mean of the FT rotation"),
        ("example_weighting", ExampleWeighting(), RATIO, (1000.0, 100.0, 10.0), "meta weights clean examples over 100"),
    ],
)
def test_what_one_number_decides(key: str, section: Any, metric: str, numbers: tuple[float, ...], claim: str) -> None:
    words = "reproduced", "inconclusive", "not reproduced"
    for number, word in zip(numbers, words, strict=True):
        found = verdicts(key, section, {("meta", metric, ""): number})
        assert found["verdict"].tolist() == [word]
        assert found.index[0].startswith(claim)


@pytest.mark.parametrize(("error", "word"), [(0.0, "reproduced"), (8.0, "not reproduced"), (-8.0, "not reproduced")])
def test_mean_and_deviation_of_the_rotation_lie_near_the_target_on_both_sides(error: float, word: str) -> None:
    study = RotationMeanStd(starts=[(0.0, 1.0), (10.0, 1.0)])
    targets = {MEAN: 45 + error, DEVIATION: 15 + error}
    cells = [(metric, study.setting(start)) for start in range(2) for metric in targets]
    found = verdicts("rotation_mean_std", study, {("meta", *cell): targets[cell[0]] for cell in cells})
    assert found["verdict"].tolist() == [word] * 4
    assert found["criterion"].tolist() == ["within 4 of 45", "within 3 of 15"] * 2
    assert found["paper"].tolist() == ["45.9 degrees", "15.5 degrees", *[BEYOND_THE_PAPER] * 2], "it has one start"


@pytest.mark.parametrize(
    ("change", "papers"),
    [
        ({}, True),
        ({"replicates": 3}, True),
        ({"epochs": 1}, False),
        ({"target": 45.0}, False),
        ({"arms": {"meta": MnistMeta(meta_lr=0.1)}}, False),
    ],
)
def test_only_the_papers_study_has_its_number_beside_it(change: dict[str, Any], papers: bool) -> None:
    setting = "10 initialisations in [45,135], target 90"
    study, values = RotationMean(**change), {("meta", ERROR, setting): 3.0}
    words = "mean error 7.2 ± 1.5 degrees, 95 % interval up to 10.6" if papers else BEYOND_THE_PAPER
    assert verdicts("rotation_mean", study, values)["paper"].item() == words
    table = results("rotation_mean", study, values).beside_paper("").numbers
    assert table["paper_mean"].notna().item() == papers


ARMS = ("meta", "bptt", "bptt_limited", "optimal_augmentation", "initial_augmentation")
PAPERS = (87.6, 88.0, 83.4, 90.0, 80.1)


def compared(accuracies: tuple[float, ...], slow: float, end: str = "") -> Values:
    """Return numbers of the arms whose names end with `end`; backpropagation takes `slow` seconds, the others 60."""
    values = {(arm + end, ACCURACY, ""): value for arm, value in zip(ARMS, accuracies, strict=True)}
    return values | {(arm + end, WALL_TIME, ""): slow if arm == "bptt" else 60.0 for arm in ARMS}


@pytest.mark.parametrize("end", ["", "-shared"])
def test_which_arm_of_the_comparison_with_backpropagation_is_better(end: str) -> None:
    other = "" if end else "-shared"
    values = {**compared(PAPERS, 7200.0, end), **compared((87.6, 95.0, 88.0, 87.0, 87.0), 70.0, other)}
    found = verdicts("bptt", BpttStudy(), values)
    yes, no = "reproduced", "not reproduced"
    for claim, control, own, others in (
        ("comes within 1 point of {}", "bptt", yes, no),
        ("comes within 1 point of {}", "optimal_augmentation", no, yes),
        ("is at least 4 points better than {}", "initial_augmentation", yes, no),
        ("beats {}, at the same wall time", "bptt_limited", yes, no),
        ("is at least 20 times faster than {}", "bptt", yes, no),
    ):
        for suffix, word in ((end, own), (other, others)):
            claimed = found.loc[f"meta{suffix} {claim.format(control + suffix)}"]
            assert (claimed["verdict"], claimed["arm"], claimed["control"]) == (word, f"meta{suffix}", control + suffix)
    assert len(found) == 10


def test_times_of_runs_on_two_machines_do_not_compare(tmp_path: Path) -> None:
    inputs: dict[str, Path] = {}
    for arm, rows in results("bptt", BpttStudy(), compared(PAPERS, 7200.0)).metrics.groupby("arm"):
        inputs |= {f"bptt/{arm}/{what}": tmp_path / f"{arm}.{what}" for what in ("metrics", "record")}
        metrics.write(rows.to_dict("records"), inputs[f"bptt/{arm}/metrics"])
        machine = {"name": "fast" if arm == "meta" else "slow", "device": "cpu", "threads": 1}
        records.write(inputs[f"bptt/{arm}/record"], {"machine": machine})
    settings = SummarySettings(domain="mnist", experiment="bptt", settings={}, section={})
    found = MnistResults.read(BpttStudy, settings, inputs)
    claims = judge("mnist_bptt", DOMAIN.experiments["bptt"].comparisons(found))
    doubtful = claims[claims["measured"].str.contains("not all runs were on the same machine")]
    assert doubtful["control"].tolist() == ["bptt_limited", "bptt"]
    assert set(doubtful["verdict"]) == {"inconclusive"}


def test_backpropagation_that_ends_no_better_than_its_start_is_not_beaten() -> None:
    rows = verdicts("bptt", BpttStudy(), compared((87.6, 78.6, 79.6, 90.0, 79.6), 7200.0))
    failed = rows[rows["verdict"] == "control failed"]
    assert failed["control"].tolist() == ["bptt", "bptt_limited", "bptt"]
    assert "not shown that bptt beats initial_augmentation, its start: -1.0" in failed["measured"].iloc[0]


def test_a_shorter_comparison_with_backpropagation_has_no_number_of_the_paper() -> None:
    arms = BpttStudy().arms
    fewer = BpttStudy(arms=arms | {"bptt": arms["bptt"].model_copy(update={"outer_steps": 5})})
    for study, beyond in ((BpttStudy(), set()), (BpttStudy(pretrain_steps=50), {*ARMS[1:]}), (fewer, {"bptt"})):
        found = verdicts("bptt", study, compared(PAPERS, 7200.0))
        assert set(found["control"][found["paper"] == BEYOND_THE_PAPER]) == beyond


def test_a_claim_about_an_arm_that_was_not_run_is_not_measured() -> None:
    values = {(arm, ACCURACY, ""): value for arm, value in zip(ARMS, PAPERS, strict=True) if "bptt" not in arm}
    words = verdicts("bptt", BpttStudy(), values)["verdict"].tolist()
    assert words == ["not measured", "not reproduced", "reproduced", "not measured", "not measured"]


@pytest.mark.parametrize(
    ("terms", "gain", "words"),
    [([1, 9], 0.1, ["reproduced"]), ([1, 9], -0.1, ["not reproduced"]), ([9], 0.1, [])],
    ids=["more is better", "more is worse", "no other number of terms"],
)
def test_more_neumann_terms_point_nearer_to_the_exact_hypergradient(
    terms: list[int], gain: float, words: list[str]
) -> None:
    section = Fidelity(neumann_terms=terms, pretrain_steps=[5, 10], unroll_steps=[1, 3])
    cells = [(steps, k, count) for steps in (5, 10) for k in (1, 3) for count in terms]
    values = {
        ("head", COSINE, section.setting(*cell)): 0.5 + (gain if cell[:2] == (10, 3) else -gain) * (cell[2] == 9)
        for cell in cells
    }
    assert verdicts("fidelity", section, values)["verdict"].tolist() == words
