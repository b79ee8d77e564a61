"""Generate examples as a CSV file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from metapt.domains.noise.problem import FEATURES, USEFUL

from metapt.files import atomic_path
from metapt.machine import Machine
from metapt.sections import SimulateSettings
from metapt.training.seeds import generator

SIZES = {"pretrain": 5000, "train": 100, "validation": 100, "test": 1000}


def run(settings: SimulateSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write `examples.csv`: set, features f0 to f7, PT targets t0 to t3, class."""
    random = generator("noise", "examples")
    mixed = torch.randn(FEATURES - USEFUL, USEFUL, generator=random).abs()
    x = torch.randn(sum(SIZES.values()), FEATURES, generator=random)
    targets = x[:, :USEFUL] + 0.5 * x[:, USEFUL:] @ mixed
    table = pd.DataFrame({f"f{i}": x[:, i] for i in range(FEATURES)} | {f"t{i}": targets[:, i] for i in range(USEFUL)})
    table["class"] = (x[:, :USEFUL].sum(1) > 0).int()
    table.insert(0, "set", [name for name, size in SIZES.items() for _ in range(size)])
    with atomic_path(outputs["examples.csv"]) as path:
        table.to_csv(path, index=False)
