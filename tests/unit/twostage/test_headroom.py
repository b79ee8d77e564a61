"""The table of runs of each domain holds each FT run once, with its hyperparameters, and is enough for all the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from metapt.domains.ecg import stages as ecg
from metapt.domains.mnist import quantities as mnist
from metapt.domains.mnist.experiments.headroom.report import MnistHeadroom
from metapt.domains.ppi import stages as ppi
from metapt.engine.config import validate
from metapt.engine.domain import domain
from metapt.evaluation import metrics
from metapt.evaluation.headroom import REFERENCE, RUN
from metapt.evaluation.headroom_report import read, text
from metapt.evaluation.tables import write_blocks
from metapt.twostage.headroom import HeadroomSection
from metapt.twostage.quantities import LINEAR_EVALUATION, VALIDATION_AUROC, pair

SEEDS = [4, 7, 9]
SECTIONS: dict[str, dict[str, Any]] = {
    "mnist": {"source": "mnist", "headroom": {}},
    "ecg": {"width": 8, "headroom": {}},
    "ppi": {"network": {"layers": 3, "width": 16}, "headroom": {"groups": 4}},
}
METRICS = {
    "mnist": (mnist.ACCURACY, mnist.VALIDATION_ACCURACY),
    "ecg": (ecg.AUROC, VALIDATION_AUROC),
    "ppi": (ppi.AUROC, VALIDATION_AUROC),
}
CELLS = {"mnist": "", "ecg": "ft_size=500", "ppi": "full_access"}
PROBLEMS = {"mnist": "mnist rotation", "ecg": "ecg width 8", "ppi": "ppi 3x16 full_access"}
REFERENCES = {"mnist": REFERENCE, "ecg": "simclr", "ppi": "graph_supervised"}


def results(name: str) -> Any:
    """Return results of six settings, three PT and two FT seeds; each setting beats the one before it by a point."""
    given = SECTIONS[name] | {"headroom": SECTIONS[name]["headroom"] | {"settings": 6, "pretrain_seeds": SEEDS}}
    config: Any = getattr(validate({name: given}), name)
    section, record = config.headroom, domain(name).experiments["headroom"]
    rows = []
    for place, arm in enumerate([REFERENCES[name], *section.made_arms()]):
        for seed in SEEDS:
            for number, setting in ((0, CELLS[name]), (1, CELLS[name]), (0, "of another experiment")):
                words = {"replicate": pair(seed, number), "setting": setting, "evaluation": LINEAR_EVALUATION}
                for metric, value in zip(METRICS[name], (80 + place + seed, 70 + place + number), strict=True):
                    rows.append(metrics.row(f"{name}_headroom", arm, metric, value, **words))
    return record.results(f"{name}_headroom", config, section, metrics.validate(rows), pd.DataFrame(), {}, {})


@pytest.mark.parametrize("name", SECTIONS)
def test_a_table_has_a_row_for_each_run_and_the_claims_are_on_the_gain(name: str, tmp_path: Path) -> None:
    found, record = results(name), domain(name).experiments["headroom"]
    blocks, rows = record.tables(found)
    assert list(rows["problem"].unique()) == [PROBLEMS[name]]
    write_blocks(blocks, tmp_path / "table", rows)
    again = pd.read_csv(tmp_path / "table.csv")
    assert len(again) == 7 * 3 * 2
    assert set(RUN) < set(again)
    hyperparameters = again.drop(columns=RUN)
    assert hyperparameters[again["setting"] != REFERENCE].notna().all(axis=None)
    first = again.iloc[0]
    assert first["test"] == 80 + first["pretrain_seed"] + 1 + sorted(found.section.made_arms()).index(first["setting"])
    assert again["validation"].mean() == pytest.approx(70 + 3 + 0.5)
    assert text(read([tmp_path / "table.csv"])).count("settings explain ") == 1
    gains: list[Any] = [claim.measure() for claim in record.comparisons(found)]
    assert [(gain.mean, gain.n) for gain in gains] == [(pytest.approx(6.0), 3)]


class Section(HeadroomSection):
    def ranges(self) -> dict[str, tuple[float, float]]:
        return {"a": (0.01, 100.0), "b": (1.0, 2.0)}


def test_draws_keep_to_their_range_and_depend_on_seed_and_number_alone() -> None:
    few, many, other = (Section(settings=n, seed=seed).drawn() for n, seed in ((5, 0), (4000, 0), (5, 1)))
    assert few == {name: many[name] for name in few}
    assert not set(few) & set(other)
    assert list(few.values()) != list(other.values())
    a, b = np.array([list(drawn.values()) for drawn in many.values()]).T
    assert 0.01 <= a.min() < 0.011
    assert 95 < a.max() <= 100
    assert np.log10(a).mean() == pytest.approx(0.0, abs=0.07)
    assert abs(np.corrcoef(np.log(a), np.log(b))[0, 1]) < 0.05
    uniform = MnistHeadroom(settings=4000).drawn().values()
    assert np.mean([drawn["mean"] for drawn in uniform]) == pytest.approx(90, abs=3)
