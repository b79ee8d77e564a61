"""Convert raw examples to tensors."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from metapt.domains.noise.problem import FEATURES, USEFUL
from torch import Tensor

from metapt.errors import DataError
from metapt.files import atomic_path, reading
from metapt.machine import Machine
from metapt.sections import JobSettings


def run(settings: JobSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write features `x` and targets `y` for PT, and features and classes of the FT sets.

    Raises:
        DataError: the raw file is no table of examples.
    """
    features, targets = [f"f{i}" for i in range(FEATURES)], [f"t{i}" for i in range(USEFUL)]
    try:
        with reading(inputs["examples.csv"]) as file:
            table = pd.read_csv(file).set_index("set")
        found = {"x": _tensor(table.loc["pretrain", features]), "y": _tensor(table.loc["pretrain", targets])}
        for name in ("train", "validation", "test"):
            found |= {f"{name}_x": _tensor(table.loc[name, features]), f"{name}_y": _tensor(table.loc[name, "class"])}
    except (ValueError, KeyError) as error:
        raise DataError(f"{inputs['examples.csv']} is no table of examples ({error}); remove it.") from error
    with atomic_path(outputs["examples"]) as path, path.open("wb") as file:
        torch.save(found, file)


def _tensor(part: pd.DataFrame | pd.Series) -> Tensor:  # type: ignore[type-arg]
    return torch.tensor(part.to_numpy(dtype="float32"))
