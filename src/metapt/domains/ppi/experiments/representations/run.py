"""The job of the experiment `representations`: similarity of the arms' features on the same FT graphs."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metapt.domains.ppi.data.dataset import Splits, features_of, open_dataset, splits
from metapt.domains.ppi.experiments.representations import FeaturesSettings
from metapt.domains.ppi.gin import GinEncoder, load_pretrained
from metapt.domains.ppi.stages import FULL_ACCESS, REPRESENTATIONS, cka_with
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.training.seeds import generator


def run(settings: FeaturesSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Compare the features before FT of all arms with the same PT seed by CKA; see `linear_cka`.

    The inputs are `graphs`, and `pretrained/{arm}/{seed}`: pretrained.pt of each PT run. The output `metrics` has
    "CKA with {other}" of each arm, other arm and PT seed. Raises DataError as `open_dataset`, `splits` and
    `load_pretrained`.
    """
    network = settings.network
    dataset = open_dataset(inputs["graphs"], machine.device)
    chosen = compared(splits(dataset.graphs, settings.test_species), settings.graphs)
    encoder = GinEncoder(network.layers, network.width)

    def features(path: Path) -> Tensor:
        start = load_pretrained(path, network, machine.device).pretrained
        return features_of(encoder, {**start.encoder, **start.buffers}, dataset, chosen)

    encoders: dict[int, dict[str, Path]] = {}  # PT seed -> arm -> path
    for name, path in inputs.items():
        if name.startswith("pretrained/"):
            _, arm, number = name.split("/")
            encoders.setdefault(int(number), {})[arm] = path
    rows = []
    for seed, paths in encoders.items():
        found = {arm: features(path) for arm, path in paths.items()}
        words: dict[str, Any] = {"replicate": seed, "setting": FULL_ACCESS, "evaluation": REPRESENTATIONS}
        rows += [
            metrics.row(settings.domain, arm, cka_with(other), linear_cka(found[arm], found[other]), **words)
            for arm, other in permutations(found, 2)
        ]
    metrics.write(rows, outputs["metrics"])
    metrics.write_series([], outputs["series"])


def compared(parts: Splits, count: int) -> Tensor:
    """Return the numbers of at most `count` FT graphs, drawn from all three parts; the same in all runs."""
    graphs = torch.from_numpy(np.concatenate([parts.train, parts.validation, parts.test]))
    return graphs[torch.randperm(len(graphs), generator=generator("ppi representations"))[:count]]


@torch.no_grad()
def linear_cka(first: Tensor, second: Tensor) -> float:
    """Return the linear CKA of features [n, p] and [n, q] of the same examples (Kornblith et al. 2019), in [0, 1].

        ||X^T Y||_F^2 / (||X^T X||_F ||Y^T Y||_F),   X and Y with their columns centred,

    which is HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) for K = X X^T and L = Y Y^T, without a matrix of examples by
    examples. It is invariant to rotation, translation and scaling of either network's features, computed in float64,
    and NaN if features are not finite, or one network's are the same for all examples.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 5.0]])
    >>> round(linear_cka(x, 3 * x + 1), 12)
    1.0
    """
    x, y = _centred(first), _centred(second)
    return float((x.T @ y).square().sum() / (torch.linalg.matrix_norm(x.T @ x) * torch.linalg.matrix_norm(y.T @ y)))


def _centred(features: Tensor) -> Tensor:
    values = features.double()
    # Without this step, equal features would leave rounding errors of the mean, in an arbitrary direction.
    values = values - values[:1]
    return values - values.mean(0)
