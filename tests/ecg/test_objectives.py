"""The experiment `objectives` on runs of a headroom whose validation curves agree with the test as was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.image import imread

from metapt.config_files import read_one
from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.quantities import AUROC
from metapt.errors import ConfigError
from metapt.evaluation import metrics
from metapt.fetching.source import SOURCES
from metapt.jobs import Job, Place
from metapt.machine import Machine
from metapt.twostage.quantities import VALIDATION_AUROC
from metapt.twostage.replicates import pair

ORDER = {"simclr": 0, "headroom-0-00": 3, "headroom-0-01": 1, "headroom-0-02": 4, "headroom-0-03": 2}
"""The rank of the test AUROC of each arm."""


def planned(folder: Path, **sections: Any) -> EcgJobs:
    given = {"source": "ptbxl-1.0.3", "finetune_seeds": 2, **sections}
    config: Any = DOMAIN.section().model_validate(given)
    return EcgJobs("ecg", config, Place(str(folder), str(folder / "raw"), read_one(SOURCES), []))


def write(job: Job) -> None:
    """Write the files of an FT job: validation has the wrong order after one epoch, and the right one after two."""
    rank, seed = ORDER[job.config["arm"]], job.config["seed"]
    rows, steps = [], []
    for evaluation in ("full_transfer", "linear_evaluation"):
        for number in (0, 1):
            words = {"replicate": pair(seed, number), "setting": "ft_size=500", "evaluation": evaluation}
            for metric, value in ((AUROC, 80.0 + rank), (VALIDATION_AUROC, 70.0 + rank)):
                rows.append(metrics.row("ecg", job.config["arm"], metric, value, **words))
            name = f"{evaluation}, {VALIDATION_AUROC}"
            # The FT seeds differ by 100, so that one of them alone would have another order.
            curve = [70.0 - rank, 70.0 + rank + 100 * (-1) ** (number + rank), 50.0, 50.0]
            steps += [
                {"replicate": pair(seed, number), "step": step, "name": name, "value": value}
                for step, value in enumerate(curve, start=1)
            ]
    metrics.write(rows, Path(job.outputs["metrics"]))
    metrics.write_series(steps, Path(job.outputs["series"]))
    Path(job.record).write_text(json.dumps({"machine": {"name": "a machine", "device": "cuda"}}))


def test_an_objective_agrees_with_the_test_as_its_curve_does(tmp_path: Path) -> None:
    made = planned(tmp_path, headroom={"settings": 4, "pretrain_seeds": [0, 3]}, objectives={})
    summary = DOMAIN.summary(made, "objectives")
    for job in made.made.values():
        if job.stage == "finetune":
            write(job)
    inputs, outputs = (
        {name: Path(path) for name, path in paths.items()} for paths in (summary.inputs, summary.outputs)
    )
    DOMAIN.experiments["objectives"].summarise(summary.config, inputs, outputs, Machine())

    numbers = pd.read_csv(outputs["table_csv"])
    assert list(numbers) == ["evaluation", "setting", "pretrain_seed", "epoch", "validation"]
    assert len(numbers) == 2 * 4 * 2 * 3, (
        "two evaluations, four settings, two PT seeds, and epochs 1 to 3, of which 4 is not read"
    )
    assert set(numbers["pretrain_seed"]) == {0, 3}
    table = [line for line in outputs["table_md"].read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    assert cells[0] == [
        "objective",
        "FT epochs",
        "correlation with the test AUROC, FT of the whole network",
        "correlation with the test AUROC, linear evaluation",
    ]
    assert ["linear evaluation", "1", "-1.00 ± 0.00", "-1.00 ± 0.00"] in cells
    assert ["FT of the whole network", "2", "1.00 ± 0.00", "1.00 ± 0.00"] in cells
    assert cells[-1] == ["test AUROC of one PT seed", "–", "1.00 ± 0.00", "1.00 ± 0.00"]
    assert imread(outputs["figure_png"])[..., :3].std() > 0.02, "the figure is blank"


def test_it_reads_the_runs_of_the_headroom_and_makes_none_of_its_own(tmp_path: Path) -> None:
    made = planned(tmp_path, headroom={"settings": 4}, objectives={})
    DOMAIN.summary(made, "headroom")
    before = set(made.made)
    DOMAIN.summary(made, "objectives")
    assert set(made.made) - before == {"ecg/objectives"}


def test_without_a_headroom_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        (ConfigError, ValueError), match=r"objectives compares the settings of ecg\.headroom, which is not"
    ):
        planned(tmp_path, objectives={})
