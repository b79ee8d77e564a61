"""Experiment `augmentations`: what the learned warp makes of an ECG, and how strong it is for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor

from metapt.domains.ecg import config as ecg
from metapt.domains.ecg.arms import policy_of, typical_displacement
from metapt.domains.ecg.augment import Draws, crop_and_jitter, draw, warp
from metapt.domains.ecg.data.dataset import Dataset
from metapt.domains.ecg.data.sources import CLASSES, FREQUENCY, LEADS
from metapt.domains.ecg.policy import Policy
from metapt.domains.ecg.quantities import DISPLACEMENT
from metapt.domains.ecg.runs import EXPERIMENT, load_pretrained
from metapt.domains.ecg.studies.warp_study import study_setting
from metapt.errors import ConfigError, DataError
from metapt.evaluation import metrics
from metapt.files import atomic_path
from metapt.hypergrad import Params
from metapt.stages import Machine
from metapt.training.seeds import generator

_VIEWS = 2
_ECGS = 1000
_BATCH = 256  # ECGs that the warp network normalises together, as in PT
_GRID = 65
_LEAD = LEADS.index("II")


@torch.no_grad()
def strengths(policy: Policy, meta: Params, signals: Tensor) -> Tensor:
    """The warp's strength for each ECG, [n], for signals [n, samples, leads]."""
    return torch.cat([policy.strength(meta, part) for part in torch.split(signals, _BATCH)])


def displacements(policy: Policy, strength: Tensor, samples: int) -> NDArray[np.float64]:
    """The typical displacement at each of the strengths [n], in samples, interpolated between those of a grid."""
    grid = torch.linspace(0.0, float(strength.max()), _GRID)
    values = [float(typical_displacement(policy, point, samples)) for point in grid]
    return np.asarray(np.interp(strength.cpu().double().numpy(), grid.double().numpy(), values))


@torch.no_grad()
def views(policy: Policy, strength: Tensor, signal: Tensor, draws: Draws) -> Tensor:
    """Views [k, samples, leads] of a signal [samples, leads] at a strength (a scalar), one for each of k draws."""
    count = len(draws.velocity)
    field = policy.displacement(strength.expand(count), draws.velocity)
    return warp(crop_and_jitter(signal.expand(count, -1, -1), draws), field)


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Views of one test ECG, and the warp's strength for each of up to 1,000 test ECGs.

    Args:
        config: `arms`: the settings of each; `seeds`: PT seeds; `meta_size`, `split`, `width`, `samples`, `pretrain` as of their
            PT runs.
        inputs: `signals`, `records`; `pretrained/{arm}/{seed}`: what PT has left.
        outputs: `views`, an .npz file of the first PT seed: `time` [samples], s; lead II of the first normal ECG, mV, as it is,
            `original` [samples], and as two views of the same draws, `{arm}/initial` and `{arm}/learned` [2, samples];
            `{arm}/strength` [n], the typical displacement at each ECG's learned strength, samples; `{arm}/labels` [n, 5].
            `metrics`: means of that displacement by superclass (of the ECGs that have it), replicate is the PT seed.

    Raises:
        ConfigError: an arm has no warp.
        DataError: there is no normal test ECG.
    """
    first = config["seeds"][0]
    setting = study_setting(config, inputs, first, machine.device)
    dataset, samples = setting.dataset, setting.dataset.samples
    chosen = dataset.records.test[:_ECGS]
    signals, labels = dataset.signals(chosen), dataset.records.labels[chosen]
    shown = _first_normal(labels)
    draws = draw(_VIEWS, samples, len(LEADS), setting.pretrain.jitter, generator("ecg augmentations"))
    draws = Draws(*(each.to(machine.device) for each in draws))
    arrays: dict[str, NDArray[Any]] = {"time": np.arange(samples) / FREQUENCY, "original": _lead(dataset, signals[shown])}
    rows: list[dict[str, Any]] = []
    for name, settings in config["arms"].items():
        policy = policy_of(_warp(name, settings))
        for seed in config["seeds"]:
            meta = load_pretrained(inputs[f"pretrained/{name}/{seed}"], config["width"], machine.device).meta
            learned = strengths(policy, meta, signals)
            typical = displacements(policy, learned, samples)
            rows += [
                metrics.row(
                    EXPERIMENT,
                    name,
                    DISPLACEMENT,
                    float(torch.from_numpy(typical[labels[:, index] > 0]).mean()),
                    replicate=seed,
                    setting=f"class={each}",
                    evaluation="augmentations",
                )
                for index, each in enumerate(CLASSES)
            ]
            if seed == first:
                initial = strengths(policy, setting.initial_meta(policy), signals)
                for words, strength in (("initial", initial), ("learned", learned)):
                    arrays[f"{name}/{words}"] = _lead(dataset, views(policy, strength[shown], signals[shown], draws))
                arrays |= {f"{name}/strength": typical, f"{name}/labels": labels}
    with atomic_path(outputs["views"]) as path:
        np.savez(path, allow_pickle=False, **arrays)
    metrics.write(rows, outputs["metrics"])


def _warp(name: str, settings: dict[str, Any]) -> ecg.Warp:
    arm: ecg.Arm = TypeAdapter(ecg.Arm).validate_python(settings)
    if isinstance(arm, ecg.NoPretraining):
        raise ConfigError(f"ecg.augmentations.arms names {name}, which has no warp; legal: arms that pre-train.")
    return arm.warp


def _first_normal(labels: NDArray[np.float32]) -> int:
    normal = np.flatnonzero(labels[:, CLASSES.index("NORM")])
    if len(normal) == 0:
        raise DataError(f"there is no normal ECG among the first {len(labels)} of fold 10 to show; prepare more records.")
    return int(normal[0])


def _lead(dataset: Dataset, signals: Tensor) -> NDArray[np.float64]:
    """Lead II of normalised signals [..., samples, leads], mV."""
    microvolts = signals[..., _LEAD].double().cpu().numpy() * dataset.deviation + dataset.mean
    return np.asarray(microvolts / 1000)
