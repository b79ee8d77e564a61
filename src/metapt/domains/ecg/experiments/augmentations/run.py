"""The views that the learned warp makes of an ECG, and its strength for each ECG and diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metapt.domains.ecg.arms import typical_displacement
from metapt.domains.ecg.augment import Draws, Policy, draw, views
from metapt.domains.ecg.config import NoPretraining
from metapt.domains.ecg.data.dataset import Dataset, open_dataset
from metapt.domains.ecg.data.sources import LEADS
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.domains.ecg.setting import policy_of
from metapt.domains.ecg.stages import DISPLACEMENT, LABEL, ORIGINAL, ViewsSettings, viewed
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.hypergrad import Params
from metapt.machine import Machine
from metapt.training.seeds import generator

_VIEWS = 2
_ECGS = 1000
_BATCH = 256  # ECGs that the warp network normalises together, as in PT
_GRID = 65
_LEAD = LEADS.index("II")


@torch.no_grad()
def strengths(policy: Policy, meta: Params, signals: Tensor) -> Tensor:
    """Return the warp's strength for each ECG, [n], for signals [n, samples, leads]."""
    return torch.cat([policy.strength(meta, part) for part in torch.split(signals, _BATCH)])


def displacements(policy: Policy, strength: Tensor, samples: int) -> NDArray[np.float64]:
    """Return the typical displacement, in samples, at each strength [n], interpolated on a grid."""
    grid = torch.linspace(0.0, float(strength.max()), _GRID)
    values = [float(typical_displacement(policy, point, samples)) for point in grid]
    return np.asarray(np.interp(strength.cpu().double().numpy(), grid.double().numpy(), values))


def run(settings: ViewsSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Make views of a test ECG, and measure the warp's strength for each of up to 1,000 test ECGs.

    The one that is shown is the first of the first class (of PTB-XL: a normal one), or the first if that has none.

    The inputs are `signals`, `records`, and `pretrained/{arm}/{seed}`: pretrained.pt of each PT run. The output
    `metrics` has the mean typical displacement (samples) at the learned strength, by class and PT seed.
    `series`, of the first PT seed, has lead II of the one ECG in mV (`original`); for each arm two views of the
    same draws at the `initial` and at the `learned` strength (step is a sample, replicate a view); the typical
    displacement (the arm's `strength`) and the labels (step is a test ECG). Raises DataError if there is no
    test ECG.
    """
    first = settings.seeds[0]
    dataset = open_dataset(inputs, settings.samples, machine.device)
    samples = dataset.samples
    chosen = dataset.records.test[:_ECGS]
    signals, labels = dataset.signals(chosen), dataset.records.labels[chosen]
    if len(chosen) == 0:
        raise DataError(f"{inputs['records']} has no records of fold 10 to show: prepare more records.")
    shown, classes = int(labels[:, 0].argmax()), dataset.records.classes
    one = slice(shown, shown + 1)
    draws = draw(_VIEWS, samples, settings.pretrain, generator("ecg augmentations"))
    draws = Draws(*(each.to(machine.device) for each in draws))
    series = _series(ORIGINAL, _lead(dataset, signals[shown]))
    for index, name in enumerate(classes):
        series += _series(LABEL + name, labels[:, index])
    rows: list[dict[str, Any]] = []
    for name, arm in settings.arms.items():
        assert not isinstance(arm, NoPretraining)  # see the section's `check`
        policy = policy_of(arm.warp)
        for seed in settings.seeds:
            meta = load_pretrained(inputs[f"pretrained/{name}/{seed}"], settings.width, machine.device).meta
            learned = strengths(policy, meta, signals)
            typical = displacements(policy, learned, samples)
            for index, each in enumerate(classes):
                mean = float(torch.from_numpy(typical[labels[:, index] > 0]).mean())
                words: dict[str, Any] = {"setting": f"class={each}", "evaluation": "augmentations"}
                rows.append(metrics.row(settings.domain, name, DISPLACEMENT, mean, replicate=seed, **words))
            if seed == first:
                start = policy.initial(generator("ecg warp network", seed))
                initial = strengths(policy, {key: each.to(machine.device) for key, each in start.items()}, signals)
                for what, strength in (("initial", initial), ("learned", learned)):
                    pair = views(policy, strength[one], signals[one], draws)
                    series += _series(viewed(name, what), _lead(dataset, pair))
                series += _series(viewed(name, "strength"), typical)
    metrics.write(rows, outputs["metrics"])
    metrics.write_series(series, outputs["series"])


def _lead(dataset: Dataset, signals: Tensor) -> NDArray[np.float64]:
    """Return lead II of normalised signals [..., samples, leads], mV."""
    microvolts = signals[..., _LEAD].double().cpu().numpy() * dataset.deviation + dataset.mean
    return np.asarray(microvolts / 1000)


def _series(name: str, values: NDArray[Any]) -> list[dict[str, Any]]:
    """Return rows of the series table for values [steps] or [replicates, steps]."""
    replicates = enumerate(np.atleast_2d(values).tolist())
    return [row for replicate, each in replicates for row in metrics.series(name, each, replicate)]
