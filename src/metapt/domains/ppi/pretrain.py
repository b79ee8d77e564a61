"""A PT job: one arm, one setting, one PT seed."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from metapt.domains.ppi.arms import pretrain
from metapt.domains.ppi.config import weights_of
from metapt.domains.ppi.data.dataset import open_dataset
from metapt.domains.ppi.gin import load_pretrained
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, task_weights
from metapt.domains.ppi.stages import OTHERS, PLANTED, RELATIVES, WEIGHT, PpiPretrainSettings
from metapt.evaluation import metrics
from metapt.files import reading
from metapt.machine import Machine
from metapt.twostage import pretraining
from metapt.twostage.auroc import auroc


def run(settings: PpiPretrainSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train an arm. Raises DataError as `open_dataset`, `splits` and `load_pretrained`.

    The inputs are `graphs`, `tasks`, and `weights`: pretrained.pt of the arm whose task weights this arm takes.
    """
    device, learned = machine.device, None
    if weights_of(settings.arm_settings) is not None:
        learned = load_pretrained(inputs["weights"], settings.network, device).meta[WEIGHTS]
    parts = pretraining.checkpoints(settings, inputs, __name__, device)
    setting = PpiSetting(settings, open_dataset(inputs["graphs"], device), parts, learned)
    result = pretrain(settings.arm_settings, setting)
    if result.meta:
        weights = task_weights(result.meta).cpu().double().numpy()
        with reading(inputs["tasks"], "prepare the data again") as file:
            table = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            described = [task["description"] for task in table if task["kind"] == "coarse"]
        result.numbers |= weight_numbers(weights, described, setting)
        result.series += metrics.series(WEIGHT, weights)
    pretraining.write(result, settings, settings.setting, outputs)


def weight_numbers(weights: NDArray[np.float64], described: list[str], setting: PpiSetting) -> dict[str, float]:
    """Compare learned weights [PT tasks] with known properties of the tasks, whose descriptions are given.

    The properties are planted use and relation to FT tasks. One that all tasks share is left out.
    """
    found = {}
    planted = np.array([text.startswith("planted: ") for text in described])  # of generated terms, see `data.simulate`
    useful = np.array([text.startswith("planted: useful") for text in described])
    if 0 < useful.sum() < planted.sum():
        found[PLANTED] = float(auroc(torch.from_numpy(weights[planted]), torch.from_numpy(useful[planted])))
    relatives = setting.relatives()
    if relatives.any() and not relatives.all():
        found[RELATIVES] = float(weights[relatives].mean())
        found[OTHERS] = float(weights[~relatives].mean())
    return found
