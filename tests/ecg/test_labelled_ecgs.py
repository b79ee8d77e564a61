"""Objectives on labelled sets of several sizes: the study of one PT run, and the experiment that compares arms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from metapt.config_files import read_one
from metapt.domains.ecg.data.dataset import Dataset, finetune_indices
from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.experiments.labelled_ecgs import differences, draw, right_sides
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.quantities import AUROC
from metapt.evaluation import metrics
from metapt.fetching.source import SOURCES
from metapt.jobs import Job, Place
from metapt.machine import Machine
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC
from metapt.twostage.replicates import pair

EVALUATIONS = ("full_transfer", "linear_evaluation")
SEEDS = (0, 3, 5)
TEST = {"full_transfer": 2.0, "linear_evaluation": -3.0}
"""The difference between the arms in the test."""


def planned(folder: Path, domain: dict[str, Any] | None = None, **keys: Any) -> EcgJobs:
    given = {"source": "ptbxl-1.0.3", "pretrain_seeds": list(SEEDS), "finetune_seeds": 2, "finetune": {"epochs": 4}}
    given |= (domain or {}) | {"labelled_ecgs": {"sizes": [100, 500], **keys}}
    config: Any = DOMAIN.section().model_validate(given)
    return EcgJobs("ecg", config, Place(str(folder), str(folder / "raw"), read_one(SOURCES), []))


def seen(evaluation: str, size: int, seed: int) -> float:
    """Return the difference that an objective sees: that of the test with 500 ECGs, the opposite of it with 100."""
    return TEST[evaluation] * (1 if size == 500 else -1 if seed else 1) + seed / 10


def write(job: Job) -> None:
    arm, seed, rows, steps = job.config["arm"], job.config["seed"], [], []
    second = arm == "simclr-mild"
    for evaluation in EVALUATIONS:
        if job.stage == "finetune":
            for number in (0, 1):
                value = 80 + seed + number + second * TEST[evaluation]
                words = {"replicate": pair(seed, number), "setting": "ft_size=500", "evaluation": evaluation}
                rows.append(metrics.row("ecg", arm, AUROC, value, **words))
        else:
            for size in job.config["study"]["sizes"]:
                best = 70 + 10 * seed + second * seen(evaluation, size, seed)
                words = {"replicate": pair(seed, 0), "setting": f"labelled={size}", "evaluation": evaluation}
                rows.append(metrics.row("ecg", arm, CROSS_VALIDATED_AUROC, best, **words))
                name = f"{evaluation}, labelled={size}"
                steps += [
                    {"replicate": seed, "step": step, "name": name, "value": best - 4 + step} for step in range(1, 5)
                ]
    metrics.write(rows, Path(job.outputs["metrics"]))
    metrics.write_series(steps, Path(job.outputs["series"]))
    Path(job.record).write_text(json.dumps({"machine": {"name": "a machine", "device": "cuda"}}))


@pytest.fixture
def outputs(tmp_path: Path) -> dict[str, Path]:
    """Return the files of the summary of runs with known differences."""
    return summarised(planned(tmp_path))


def summarised(made: EcgJobs) -> dict[str, Path]:
    summary = DOMAIN.summary(made, "labelled_ecgs")
    for job in made.made.values():
        if job.stage in ("finetune", "study"):
            write(job)
        elif job.stage == "pretrain":
            metrics.write([], Path(job.outputs["metrics"]))
            metrics.write_series([], Path(job.outputs["series"]))
            Path(job.record).write_text(json.dumps({"machine": {"name": "a machine", "device": "cuda"}}))
    inputs, files = ({name: Path(path) for name, path in each.items()} for each in (summary.inputs, summary.outputs))
    DOMAIN.experiments["labelled_ecgs"].summarise(summary.config, inputs, files, Machine())
    return files


def test_the_table_says_what_each_objective_sees(outputs: dict[str, Path]) -> None:
    table = [line for line in outputs["table_md"].read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    assert cells[0] == [
        "arm",
        "result",
        "labelled ECGs",
        "difference to SimCLR (points)",
        "PT seeds on the side of the test of FT of the whole network",
        "PT seeds on the side of the test of linear evaluation",
    ]
    arm, spread = "SimCLR, mild warp", np.std([seed / 10 for seed in SEEDS], ddof=1)
    rows = {(row[1], row[2]): row for row in cells}
    for name, mean, sides in (("FT of the whole network", 2, (3, 0)), ("linear evaluation", -3, (0, 3))):
        row = rows[f"test of {name}", "500"]
        assert row[0] == arm
        assert row[3].startswith(f"{mean}.000 ± 0")
        assert row[4:] == [f"{count} of 3" for count in sides]
    mean = 2 + np.mean([seed / 10 for seed in SEEDS])
    found = rows["objective: FT of the whole network", "500"]
    assert found[3:] == [f"{mean:.2f} ± {spread / math.sqrt(3):.2f}", "3 of 3", "0 of 3"]
    assert rows["objective: FT of the whole network", "100"][4:] == ["1 of 3", "2 of 3"]
    assert rows["objective: linear evaluation", "100"][4:] == ["2 of 3", "1 of 3"]
    assert len(cells) == 2 + 2 + 4


def test_its_numbers_are_those_of_the_runs(outputs: dict[str, Path]) -> None:
    numbers = pd.read_csv(outputs["table_csv"])
    assert list(numbers) == ["evaluation", "arm", "pretrain_seed", "labelled", "epoch", "auroc"]
    wide = numbers.pivot(index=["evaluation", "labelled", "epoch", "pretrain_seed"], columns="arm", values="auroc")
    gap = wide["simclr-mild"] - wide["simclr"]
    for evaluation in EVALUATIONS:
        for seed in SEEDS:
            assert gap[evaluation, 500, "test", seed] == pytest.approx(TEST[evaluation])
            for size in (100, 500):
                for epoch in ("1", "2", "3", "best"):
                    assert gap[evaluation, size, epoch, seed] == pytest.approx(seen(evaluation, size, seed))
                assert wide["simclr"][evaluation, size, "2", seed] == 70 + 10 * seed - 2
    assert set(numbers["epoch"]) == {"1", "2", "3", "best", "test"}
    assert imread(outputs["figure_png"])[..., :3].std() > 0.02, "the figure is blank"


def test_a_pt_seed_is_a_replicate_of_the_paired_differences(tmp_path: Path) -> None:
    arms = {"simclr": {"method": "simclr"}, "warm": {"method": "simclr", "pretrain": {"temperature": 1.0}}}
    files = summarised(planned(tmp_path, {"arms": arms}, arms=["simclr", "warm"]))
    rows = pd.read_csv(files["differences"])
    assert set(rows["changed"]) == {"pretrain.temperature: 1.0, not the domain's"}
    assert set(rows["metric"]) == {AUROC, CROSS_VALIDATED_AUROC}
    assert set(rows["n"]) == {len(SEEDS)}


def test_a_side_is_that_of_the_other_pt_seeds() -> None:
    test = pd.Series({0: 10.0, 1: -1.0, 2: -1.0})
    assert right_sides(pd.Series({0: -1.0, 1: 1.0, 2: 1.0}), test) == 3
    assert right_sides(test, test) == 0
    assert right_sides(pd.Series({0: 0.0, 1: math.nan, 2: 0.5}), test) == 1


def test_arms_may_have_other_pt_seeds_and_evaluations(outputs: dict[str, Path]) -> None:
    numbers = pd.read_csv(outputs["table_csv"])
    second = numbers["arm"] == "simclr-mild"
    other = numbers[second & (numbers["evaluation"] == "linear_evaluation") & (numbers["pretrain_seed"] != 3)]
    table = pd.concat([numbers, other.assign(arm="simclr-low_temperature")])
    found = [
        (cell["evaluation"], list(gaps.index))
        for cell, gaps in differences(table, "simclr")
        if (cell["arm"], cell["epoch"]) == ("simclr-low_temperature", "test")
    ]
    assert found == [("linear_evaluation", [0, 5])]
    titles = [axis.get_title("left") for axis in draw(table, "simclr").axes]
    assert titles == [
        "SimCLR, mild warp, FT of the whole network",
        "SimCLR, mild warp, linear evaluation",
        "SimCLR, low temperature, linear evaluation",
    ]


def test_a_single_arm_and_one_that_sees_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"labelled_ecgs\.arms names 1; legal: 2 or more"):
        planned(tmp_path, arms=["simclr", "simclr"])
    with pytest.raises(ValueError, match=r"labelled_ecgs\.arms names 'meta', whose PT sees labels; legal: arms"):
        planned(tmp_path, arms=["simclr", "meta"])


def test_the_labelled_set_of_a_pt_seed_begins_with_its_smaller_ones(dataset: Dataset) -> None:
    sizes = [
        {int(index) for part in finetune_indices(dataset.records, size, 0, "patients") for index in part}
        for size in (10, 25)
    ]
    assert len(sizes[0]) == 10
    assert sizes[0] < sizes[1]
