"""The headroom of a problem of one's own: the known one of a closed form, and none where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import metapt
from metapt.errors import ConfigError, TrainingError
from metapt.evaluation.headroom import REFERENCE, headroom
from metapt.evaluation.headroom_table import grids, read
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


class Based(Pulled):
    """As `Pulled`, with a target named `base` where there is one."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
        return super().pretrain_loss(pretrained, {"target": meta.get("base", meta.get("target"))}, batch)


def measure(part: str, *, problem: Any = None, **changes: Any) -> Any:
    given = {"steps": 60, "optimizer": OptimizerSpec("SGD", {"lr": 0.5}), "reference": {"target": torch.tensor(0.25)}}

    def evaluate(pretrained: Pretrained, seed: int) -> float:
        return float(pretrained.encoder[part])

    return metapt.headroom(
        problem or Pulled(), Numbers, start, draw, evaluate, **(given | {"settings": 9, "seeds": 3} | changes)
    )


def test_a_known_headroom_is_found() -> None:
    found = measure("follows")
    targets = np.array([*{row["setting"]: row["target"] for row in found.rows if row["setting"] != REFERENCE}.values()])
    assert len(targets) == 9
    assert found.headroom.most == pytest.approx(targets.max() - 0.25, abs=1e-5)
    assert found.headroom.gain.mean == pytest.approx(targets.max() - 0.25, abs=1e-5)
    variances = np.array([targets.var(ddof=1), np.var([0.0, 0.5, 1.0], ddof=1)])
    shares = found.headroom.shares
    assert shares["settings"].share == pytest.approx(100 * variances[0] / variances.sum(), rel=1e-3)
    assert str(found).startswith(f"settings explain {shares['settings'].share:.0f} % of the variance;\n")
    assert f"gains {targets.max() - 0.25:.3g} points" in str(found)
    assert "and 4 runs would show a gain of this size." in str(found)


def test_where_hyperparameters_do_nothing_nothing_is_gained() -> None:
    found = measure("ignores")
    assert found.headroom.shares["settings"].share == 0
    assert str(found).startswith("settings explain 0 % of the variance;\nno setting gains anything.\n")


def test_settings_do_not_depend_on_their_number_and_validation_results_are_kept() -> None:
    def evaluate(pretrained: Pretrained, seed: int) -> tuple[float, float]:
        return -1.0, float(pretrained.encoder["follows"])

    given: dict[str, Any] = {"steps": 1, "optimizer": OptimizerSpec("SGD", {"lr": 0.5}), "seeds": [4, 7]}
    few, many = (metapt.headroom(Pulled(), Numbers, start, draw, evaluate, settings=n, **given).rows for n in (2, 3))
    assert few == many[: len(few)]
    assert {row["pretrain_seed"] for row in many} == {4, 7}
    assert {row["validation"] for row in many} == {-1.0}


def test_hyperparameters_that_are_tensors_have_a_column_for_each_element() -> None:
    def several(random: torch.Generator) -> Params:
        return {"target": torch.randn((), generator=random), "other": torch.randn(2, generator=random)}

    given: dict[str, Any] = {"steps": 1, "optimizer": OptimizerSpec("SGD", {"lr": 0.5}), "settings": 2, "seeds": 2}
    rows = metapt.headroom(Pulled(), Numbers, start, several, lambda pretrained, seed: 0.0, **given).rows
    assert {"target", "other[0]", "other[1]"} <= set(rows[0])


def test_the_rows_in_a_file_are_the_table_that_the_command_reads(tmp_path: Path) -> None:
    """The reference may have no number for a hyperparameter of the settings."""
    found = measure("follows", reference={"base": torch.tensor(0.25)}, problem=Based())
    found.to_csv(tmp_path / "table.csv")
    (again,) = grids(read([tmp_path / "table.csv"]))
    np.testing.assert_equal(vars(again), vars(found.headroom.grid))
    assert str(headroom(again)) == str(found)


def test_one_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="a headroom of 9 settings with 1 PT seeds; legal: 2 or more of each"):
        measure("follows", seeds=1)


def test_equal_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the PT seeds \[0, 1, 1\] have one twice; legal: different seeds"):
        measure("follows", seeds=[0, 1, 1])


@pytest.mark.parametrize("name", ["setting", "test", "pretrain_seed", "problem"])
def test_a_hyperparameter_named_like_a_column_is_refused_before_pt(name: str) -> None:
    def named(random: torch.Generator) -> Params:
        return {name: torch.randn((), generator=random)}

    given: dict[str, Any] = {"steps": 1, "optimizer": OptimizerSpec("SGD", {"lr": 0.5}), "settings": 2, "seeds": 2}
    with pytest.raises(ConfigError, match=f"a hyperparameter is named '{name}', like a column of the table"):
        metapt.headroom(Pulled(), Numbers, start, named, lambda pretrained, seed: 0.0, **given)


def test_a_setting_that_diverges_is_named() -> None:
    with pytest.raises(TrainingError, match=r"reference with PT seed 0: the PT loss at step 5 is inf.* smaller range"):
        measure("follows", optimizer=OptimizerSpec("SGD", {"lr": 1e6}))


def test_the_package_is_imported_without_torch() -> None:
    code = "import sys, metapt; assert 'torch' not in sys.modules; assert callable(metapt.headroom)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        metapt.nothing  # noqa: B018
