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

from metapt.evaluation.comparisons import decide
from metapt.evaluation.figures import looks
from metapt.evaluation.metrics import NotMeasuredError
from metapt.hypergrad import Pretrained
from metapt.training.recorder import Measured, Recorder, goes_on
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
LOOKS = looks({"plain": "plain", "meta": "meta"}, {})
ONE = {arm: ["a machine"] for arm in ("plain", "meta")}


def cost(machines: Mapping[str, list[str]] = ONE, seeds: int = 5, plain: str | None = "plain") -> Cost:
    def measured(arm: str, metric: str) -> pd.Series[float]:
        return pd.Series(VALUES[arm, metric][:seeds])

    return Cost("ecg_cost", LOOKS, measured, machines, plain, {"meta": "3 h"})


def test_an_arm_is_a_multiple_of_plain_pt() -> None:
    product = (0.033 / 0.010) * (0.033 / 0.012) * (0.033 / 0.011) * (0.030 / 0.010) * (0.036 / 0.012)
    assert ratio(cost(), "meta", TIME_PER_STEP).mean == pytest.approx(product ** (1 / 5))
    assert ratio(cost(), "meta", PEAK_MEMORY).mean == pytest.approx(1.5)
    with pytest.raises(NotMeasuredError, match="no plain PT to compare meta to"):
        ratio(cost(plain=None), "meta", TIME_PER_STEP)
    assert not list(comparisons(cost(plain=None), ["meta"], (Limit(TIME_PER_STEP, "", 2.0, ""),)))


def test_numbers_are_in_the_metrics_own_unit_and_texts_in_one_for_people() -> None:
    """FT of an encoder is all its runs, and a multiple of its PT."""
    seconds = pd.Series([900.0, 300.0, 300.0, 800.0, 250.0, 250.0], index=[0, 1, 2, 1000, 1001, 1002])
    made = tables(replace(cost(), finetuning={FULL_TRANSFER: seconds}))
    numbers = made.numbers.set_index("arm")
    row = numbers.loc["meta"]
    times = [row[f"{TIME_PER_STEP}, {word}"] for word in ("min", "median", "max")]
    assert times == pytest.approx([0.030, 0.033, 0.036])
    assert row[f"{WALL_TIME}, median"] == pytest.approx(10800.0)
    assert row[f"{TIME_PER_STEP}, ratio low"] < 3.0 < row[f"{TIME_PER_STEP}, ratio high"]
    of_ft = numbers.loc["plain", [f"{FT_TIME}, {FULL_TRANSFER}, {word}" for word in ("median", "over PT")]]
    assert of_ft.tolist() == pytest.approx([300.0, (1500 + 1300) / 2 / 3600])
    shown, of_ft = made.blocks.values()
    texts = shown.set_index("arm").loc["meta"]
    found = texts[["ms per PT step", "whole PT (h)", "memory (GB)", "PT runs", "paper"]]
    assert found.tolist() == ["33", *"335", "3 h"]
    assert of_ft.to_numpy().tolist() == [["FT of the whole network", "6", "300", "0.389", "0.39"]]
    none = replace(cost(), finetuning={FULL_TRANSFER: seconds}, measured=lambda arm, metric: pd.Series([0.0]))
    assert tables(none).numbers[f"{FT_TIME}, {FULL_TRANSFER}, over PT"].isna().all()


SEVERAL = {"plain": ["slow", "fast"], "meta": ["slow", "fast"]}


@pytest.mark.parametrize(
    ("measured", "metric", "times", "word"),
    [
        (cost(), TIME_PER_STEP, 4.0, "reproduced"),
        (cost(), TIME_PER_STEP, 2.0, "not reproduced"),
        (cost(), PEAK_MEMORY, 2.0, "reproduced"),
        (cost(), TIME_PER_STEP, 3.0, "inconclusive"),
        (cost(seeds=1), TIME_PER_STEP, 4.0, "too few seeds"),
        (cost(seeds=4), TIME_PER_STEP, 4.0, "too few seeds"),
        (cost({"plain": ["slow"], "meta": ["fast"]}), TIME_PER_STEP, 4.0, "inconclusive"),
        (cost(SEVERAL), TIME_PER_STEP, 4.0, "inconclusive"),
    ],
)
def test_at_most_so_many_times(measured: Cost, metric: str, times: float, word: str) -> None:
    (claim,) = comparisons(measured, ["meta"], (Limit(metric, "so many times what", times, "the paper's"),))
    assert (claim.arm, claim.control, claim.metric, claim.paper) == ("meta", "plain", metric, "the paper's")
    assert claim.text == "meta takes at most so many times what of plain"
    (judged,) = decide([claim])
    assert judged.word == word
    on_one = measured.machines == ONE
    assert judged.measured.endswith("but not all runs were on the same machine") != on_one


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_interrupted_run_has_no_time_and_observations_take_none(interrupted: bool) -> None:
    def observe() -> dict[str, Tensor]:
        time.sleep(0.05)
        return {"auroc": torch.ones(())}

    recorder = Recorder(observe)
    with Measured("cpu") as measured:
        if interrupted:
            goes_on()
        recorder(0)
    run = finished(PretrainRun(Pretrained({}, {}, {})), measured)
    numbers = run.numbers | time_per_step(measured, 4, recorder)
    assert numbers.keys() == {TIME_PER_STEP, PEAK_MEMORY, WALL_TIME}
    assert all(math.isnan(each) is interrupted for each in numbers.values())
    if not interrupted:
        assert measured.seconds >= recorder.seconds >= 0.05
        assert numbers[TIME_PER_STEP] == pytest.approx((measured.seconds - recorder.seconds) / 4)


def test_runs_that_were_interrupted_are_left_out_of_times_and_memory() -> None:
    values = {"simclr": [1.0, math.nan, 2.0], "meta": [math.nan, 9.0, 4.0], "optsla": [math.nan] * 3}

    class Measurements:
        def pretraining(self, arm: str, metric: str) -> pd.Series[float]:
            return pd.Series(values[arm])

    whole = partial(whole_runs, Measurements())  # type: ignore[arg-type]
    compared = replace(cost(plain="simclr"), measured=whole, looks=looks({arm: arm for arm in values}, {}))
    assert whole("simclr", TIME_PER_STEP).to_dict() == {0: 1.0, 2: 2.0}
    with pytest.raises(NotMeasuredError, match="All PT runs of optsla were interrupted"):
        whole("optsla", TIME_PER_STEP)
    found = ratio(compared, "meta", TIME_PER_STEP)
    assert (found.mean, found.n) == (pytest.approx(2.0), 1), "of the PT seed that both arms have"
    values["meta"][2] = math.nan
    with pytest.raises(NotMeasuredError, match="with no common PT seed"):
        ratio(compared, "meta", TIME_PER_STEP)
    (block,) = tables(compared).blocks.values()
    assert block["PT runs"].tolist() == ["2", "1", ""]
    figure(compared)
