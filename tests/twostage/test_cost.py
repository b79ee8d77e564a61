"""The cost of PT compared with plain PT, for measurements with known answers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch
from torch import Tensor

from metapt.evaluation.comparisons import Judgement, decide
from metapt.evaluation.looks import looks
from metapt.evaluation.metrics import NotMeasuredError
from metapt.hypergrad import Pretrained
from metapt.training.measure import Measured, goes_on
from metapt.training.recorder import Recorder
from metapt.twostage.cost import Cost, Limit, comparisons, figure, ratio, tables, whole_runs
from metapt.twostage.pretraining import PretrainRun, finished, time_per_step
from metapt.twostage.quantities import FT_TIME, FULL_TRANSFER, PEAK_MEMORY, TIME_PER_STEP, WALL_TIME

VALUES = {
    ("plain", TIME_PER_STEP): [0.010, 0.012, 0.011, 0.010, 0.012],
    ("plain", PEAK_MEMORY): [2.0] * 5,
    ("plain", WALL_TIME): [3600.0] * 5,
    ("meta", TIME_PER_STEP): [0.033, 0.033, 0.033, 0.030, 0.036],
    ("meta", PEAK_MEMORY): [3.0] * 5,
    ("meta", WALL_TIME): [7200.0, 10800.0, 14400.0, 9000.0, 12600.0],
}
ONE = {arm: ["a machine"] for arm in ("plain", "meta")}


def cost(machines: Mapping[str, list[str]] = ONE, seeds: int = 5, plain: str | None = "plain") -> Cost:
    def measured(arm: str, metric: str) -> pd.Series[float]:
        return pd.Series(VALUES[arm, metric][:seeds])

    return Cost(
        "ecg_cost", looks(["plain", "meta"], {}), measured, machines, plain, {"meta": "3 h"}, {TIME_PER_STEP: 2.0}
    )


def verdict(cost: Cost, metric: str, times: float) -> Judgement:
    (claim,) = comparisons(cost, ["meta"], (Limit(metric, "so many times what", times, "the paper's"),))
    assert (claim.arm, claim.control, claim.metric, claim.paper) == ("meta", "plain", metric, "the paper's")
    assert claim.text == "meta takes at most so many times what of plain"
    (judged,) = decide([claim])
    return judged


def test_an_arm_is_a_multiple_of_plain_pt() -> None:
    product = (0.033 / 0.010) * (0.033 / 0.012) * (0.033 / 0.011) * (0.030 / 0.010) * (0.036 / 0.012)
    assert ratio(cost(), "meta", TIME_PER_STEP).mean == pytest.approx(product ** (1 / 5))
    assert ratio(cost(), "meta", PEAK_MEMORY).mean == pytest.approx(1.5)
    with pytest.raises(NotMeasuredError, match="no plain PT to compare meta to"):
        ratio(cost(plain=None), "meta", TIME_PER_STEP)


def test_numbers_are_in_the_metrics_own_unit_and_texts_in_one_for_people() -> None:
    made = tables(cost())
    row = made.numbers.set_index("arm").loc["meta"]
    spread = [row[f"{TIME_PER_STEP}, {word}"] for word in ("min", "median", "max")]
    assert spread == [pytest.approx(each) for each in (0.030, 0.033, 0.036)]
    assert row[f"{WALL_TIME}, median"] == pytest.approx(10800.0)
    assert row[f"{TIME_PER_STEP}, ratio low"] < 3.0 < row[f"{TIME_PER_STEP}, ratio high"]
    (shown,) = made.blocks.values()
    texts = shown.set_index("arm").loc["meta"]
    assert [texts[name] for name in ("ms per PT step", "whole PT (h)", "memory (GB)", "PT runs")] == [
        "33",
        "3",
        "3",
        "5",
    ]


def test_ft_of_an_encoder_is_all_its_runs_and_a_multiple_of_its_pt() -> None:
    seconds = pd.Series([900.0, 300.0, 300.0, 800.0, 250.0, 250.0], index=[0, 1, 2, 1000, 1001, 1002])
    made = tables(replace(cost(), finetuning={FULL_TRANSFER: seconds}))
    row = made.numbers.set_index("arm").loc["plain"]
    assert row[f"{FT_TIME}, {FULL_TRANSFER}, median"] == pytest.approx(300.0)
    assert row[f"{FT_TIME}, {FULL_TRANSFER}, over PT"] == pytest.approx((1500 + 1300) / 2 / 3600)
    shown = made.blocks["Cost of FT from plain: medians over FT runs, and over PT seeds"]
    assert shown.to_numpy().tolist() == [["FT of the whole network", "6", "300", "0.389", "0.39"]]


@pytest.mark.parametrize(
    ("metric", "times", "word"),
    [
        (TIME_PER_STEP, 4.0, "reproduced"),
        (TIME_PER_STEP, 2.0, "not reproduced"),
        (PEAK_MEMORY, 2.0, "reproduced"),
        (TIME_PER_STEP, 3.0, "inconclusive"),
    ],
)
def test_at_most_so_many_times(metric: str, times: float, word: str) -> None:
    assert verdict(cost(), metric, times).word == word


@pytest.mark.parametrize(
    "machines", [{"plain": ["slow"], "meta": ["fast"]}, {"plain": ["slow", "fast"], "meta": ["slow", "fast"]}]
)
def test_times_on_several_machines_decide_nothing(machines: dict[str, list[str]]) -> None:
    found = verdict(cost(machines), TIME_PER_STEP, 4.0)
    assert found.word == "inconclusive"
    assert found.measured.endswith("but not all runs were on the same machine")


@pytest.mark.parametrize("seeds", [1, 4])
def test_few_pt_seeds_decide_nothing(seeds: int) -> None:
    assert verdict(cost(seeds=seeds), TIME_PER_STEP, 4.0).word == "too few seeds"
    assert math.isnan(ratio(cost(seeds=1), "meta", TIME_PER_STEP).low)


def test_an_interrupted_run_has_no_time_and_no_memory() -> None:
    for interrupted in (True, False):
        with Measured("cpu") as measured:
            if interrupted:
                goes_on()
        run = finished(PretrainRun(Pretrained({}, {}, {})), measured)
        numbers = run.numbers | time_per_step(measured, 8)
        assert numbers.keys() == {TIME_PER_STEP, PEAK_MEMORY, WALL_TIME}
        assert all(math.isnan(each) is interrupted for each in numbers.values())


def test_the_time_per_step_leaves_out_what_is_only_observed() -> None:
    def observe() -> dict[str, Tensor]:
        time.sleep(0.05)
        return {"auroc": torch.ones(())}

    recorder = Recorder(observe)
    with Measured("cpu") as measured:
        recorder(0)
        time.sleep(0.02)
    assert recorder.seconds >= 0.05
    assert measured.seconds >= recorder.seconds + 0.02
    found = time_per_step(measured, 4, recorder)[TIME_PER_STEP]
    assert found == pytest.approx((measured.seconds - recorder.seconds) / 4)


def test_runs_that_were_interrupted_are_left_out_of_times_and_memory() -> None:
    rows = {("simclr", 0): 1.0, ("simclr", 1): math.nan, ("simclr", 2): 2.0, ("meta", 0): math.nan, ("meta", 1): 9.0}
    rows |= {("meta", 2): 4.0, ("optsla", 0): math.nan}
    table = pd.DataFrame([(arm, seed, value) for (arm, seed), value in rows.items()], columns=["arm", "seed", "value"])

    class Measurements:
        def pretraining(self, arm: str, metric: str) -> pd.Series[float]:
            return table[table["arm"] == arm].set_index("seed")["value"]

    whole = partial(whole_runs, Measurements())  # type: ignore[arg-type]
    assert whole("simclr", TIME_PER_STEP).to_dict() == {0: 1.0, 2: 2.0}
    with pytest.raises(NotMeasuredError, match="All PT runs of optsla were interrupted"):
        whole("optsla", TIME_PER_STEP)
    found = ratio(replace(cost(plain="simclr"), measured=whole), "meta", TIME_PER_STEP)
    assert (found.mean, found.n) == (pytest.approx(2.0), 1), "of the PT seed that both arms have"
    table.loc[(table["arm"] == "meta") & (table["seed"] == 2), "value"] = math.nan
    with pytest.raises(NotMeasuredError, match="with no common PT seed"):
        ratio(replace(cost(plain="simclr"), measured=whole), "meta", TIME_PER_STEP)
    shown = replace(cost(plain="simclr"), measured=whole, looks=looks(["simclr", "meta", "optsla"], {}))
    shown = replace(shown, papers_ratios={TIME_PER_STEP: 2.0, PEAK_MEMORY: 1.9})
    (block,) = tables(shown).blocks.values()
    assert block["PT runs"].tolist() == ["2", "1", ""]
    figure(shown)


def test_without_plain_pt_nothing_is_claimed() -> None:
    assert list(comparisons(cost(plain=None), ["meta"], (Limit(TIME_PER_STEP, "", 2.0, ""),))) == []
