"""Tables that tests of plans name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from metapt.evaluation.headroom import RUN


def write_runs(path: Path, problems: Sequence[str], hyperparameters: Sequence[str]) -> str:
    """Write a table of runs with a run of each problem, and return its path."""
    run = dict.fromkeys(RUN, "some") | {"pretrain_seed": 0, "finetune_seed": 0, "validation": 70.0, "test": 70.0}
    rows = [run | {"problem": problem} | dict.fromkeys(hyperparameters, 1.0) for problem in problems]
    pd.DataFrame(rows).to_csv(path, index=False)
    return str(path)
