"""The headroom of a problem of one's own: the known one of a closed form, and none where there is none."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import metapt
from metapt.errors import ConfigError, TrainingError
from metapt.evaluation.headroom import REFERENCE, headroom
from metapt.evaluation.headroom_report import grids, read
from metapt.hypergrad import Params, Pretrained
from metapt.training.optimizers import OptimizerSpec


class Pulled:
    """PT pulls `follows` to the hyperparameter plus the number of its seed, and `ignores` to that number alone."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
        encoder = pretrained.encoder
        return (encoder["follows"] - meta["target"] - batch) ** 2 / 2 + (encoder["ignores"] - batch) ** 2 / 2

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        return encoder["follows"]

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        return features


class Numbers:
    """Minibatches of a seed: a number that is 0.5 times the seed."""

    def __init__(self, seed: int) -> None:
        self.number = torch.tensor(0.5 * seed)

    def pretrain(self) -> Tensor:
        return self.number

    train = validation = pretrain

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


def start(seed: int) -> Pretrained:
    return Pretrained({"follows": torch.zeros(()), "ignores": torch.zeros(())}, {})


def draw(random: torch.Generator) -> Params:
    return {"target": torch.randn((), generator=random)}


def measure(
    part: str = "follows", *, batches: Any = Numbers, draw: Any = draw, evaluate: Any = None, **changes: Any
) -> Any:
    given: dict[str, Any] = {"steps": 60, "optimizer": OptimizerSpec("SGD", {"lr": 0.5}), "settings": 9, "seeds": 3}
    given |= {"reference": {"target": torch.tensor(0.25)}}

    def encoded(pretrained: Pretrained, seed: int) -> float:
        return float(pretrained.encoder[part])

    return metapt.headroom(Pulled(), batches, start, draw, evaluate or encoded, **(given | changes))


@pytest.mark.slow
def test_a_known_headroom_is_found() -> None:
    found = measure("follows")
    targets = np.array([*{row["setting"]: row["target"] for row in found.rows if row["setting"] != REFERENCE}.values()])
    assert len(targets) == 9
    assert found.headroom.most == pytest.approx(targets.max() - 0.25, abs=1e-5)
    assert found.headroom.gain.mean == pytest.approx(targets.max() - 0.25, abs=1e-5)
    variances = np.array([targets.var(ddof=1), np.var([0.0, 0.5, 1.0], ddof=1)])
    shares = found.headroom.shares
    assert shares["settings"].share == pytest.approx(100 * variances[0] / variances.sum(), rel=1e-3)
    assert f"gains {targets.max() - 0.25:.3g} points" in str(found)
    assert str(measure("ignores")).startswith("settings explain 0 % of the variance;\nno setting gains anything.\n")


def test_settings_do_not_depend_on_their_number_and_validation_results_are_kept() -> None:
    def both(pretrained: Pretrained, seed: int) -> tuple[float, float]:
        return -1.0, float(pretrained.encoder["follows"])

    few, many = (measure(evaluate=both, steps=1, settings=number, seeds=[4, 7]).rows for number in (2, 3))
    assert few == many[: len(few)]
    assert {row["pretrain_seed"] for row in many} == {4, 7}
    assert {row["validation"] for row in many} == {-1.0}


def test_a_draw_may_fill_one_dictionary() -> None:
    kept = {"target": torch.tensor(0.25)}

    def filled(random: torch.Generator) -> Params:
        kept["target"].normal_(generator=random)
        return kept

    assert measure(draw=filled, reference=kept, steps=1).rows == measure(steps=1).rows


@pytest.mark.skipif(int(pd.__version__[0]) < 3, reason="pandas 2 reads some last digits of numbers wrongly")
def test_the_rows_in_a_file_are_the_table_that_the_command_reads(tmp_path: Path) -> None:
    """Hyperparameters that are tensors have a column for each element; the reference may have no number for one."""

    def several(random: torch.Generator) -> Params:
        return draw(random) | {"other": torch.randn(2, generator=random)}

    found = measure(draw=several)
    assert {"target", "other[0]", "other[1]"} <= set(found.rows[-1])
    found.to_csv(tmp_path / "table.csv")
    (again,) = grids(read([tmp_path / "table.csv"]))
    np.testing.assert_equal(vars(again), vars(found.headroom.grid))
    assert str(headroom(again)) == str(found)


LIKE_A_COLUMN = "a hyperparameter is named '{}', like a column of the table"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"seeds": 1}, ConfigError, "a headroom of 9 settings with 1 PT seeds; legal: 2 or more of each"),
        ({"seeds": [0, 1, 1]}, ConfigError, r"the PT seeds \[0, 1, 1\] have one twice; legal: different seeds"),
        ({"batches": cache(Numbers)}, ConfigError, "one object twice"),
        ({"draw": lambda random: {"test": torch.zeros(())}}, ConfigError, LIKE_A_COLUMN.format("test")),
        ({"draw": lambda random: {"problem": torch.zeros(())}}, ConfigError, LIKE_A_COLUMN.format("problem")),
        (
            {"optimizer": OptimizerSpec("SGD", {"lr": 1e6})},
            TrainingError,
            "seed 0: the PT loss .* is inf.* smaller range",
        ),
    ],
)
def test_what_has_no_headroom_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        measure(**changes)


@pytest.mark.slow
def test_the_package_is_imported_without_torch() -> None:
    code = "import sys, metapt; assert 'torch' not in sys.modules; assert callable(metapt.headroom)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        metapt.nothing  # noqa: B018
