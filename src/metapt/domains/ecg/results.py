"""The results of the runs of an ECG experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from metapt.domains.ecg.config import EcgSettings
from metapt.domains.ecg.quantities import AUROC, DISPLACEMENT
from metapt.sections import DomainSection
from metapt.twostage.results import TwoStageResults

CONTROL, LEARNED = "simclr", "meta"  # the arm that others are compared with, and the paper's meta arm


@dataclass(frozen=True)
class EcgResults(TwoStageResults):
    """The results of an ECG experiment."""

    settings: ClassVar[type[DomainSection]] = EcgSettings
    auroc: ClassVar[str] = AUROC
    papers_arms: ClassVar[Mapping[str, str]] = {}  # our name of an arm -> the paper's, where they differ

    def compared(self) -> list[tuple[str, str]]:
        """Return the pairs in the table of differences: each arm and the control, the meta arm and each other arm."""
        arms = self.arms
        pairs = [(arm, CONTROL) for arm in arms if CONTROL in arms and arm != CONTROL]
        return pairs + [(LEARNED, arm) for arm in arms if LEARNED in arms and arm not in (LEARNED, CONTROL)]

    def meta_sizes(self, arm: str, size: int) -> list[int | None]:
        """Return the numbers of FT ECGs at meta-PT time of an arm's runs with this |D_FT|; None: full access."""
        return [None]

    def runs(self, arm: str, size: int, evaluation: str, meta_size: int | None = None) -> pd.Series[float]:
        """Return the test AUROC (%) of each FT run by pair of seeds. Raises NotMeasuredError without one."""
        return self.finetuning(arm, finetune_setting(size, meta_size), evaluation)

    def trajectories(self, arm: str) -> dict[int, pd.DataFrame]:
        """Return PT seed -> step and value of the warp's displacement, for the PT runs that have learned it."""
        series = self.pretraining_series(arm, DISPLACEMENT)
        return {int(seed): series[series["seed"] == seed].sort_values("step") for seed in np.unique(series["seed"])}


def finetune_setting(size: int, meta_size: int | None = None) -> str:
    """Return the words for |D_FT|, and the number of FT ECGs at meta-PT time if it differs (0: none are used)."""
    return f"ft_size={size}" if meta_size is None else f"ft_size={size} meta_ft_size={meta_size}"


def setting_words(setting: str) -> dict[str, str]:
    """Return the words of a setting.

    >>> setting_words("ft_size=500 meta_ft_size=50")
    {'ft_size': '500', 'meta_ft_size': '50'}
    """
    return dict(word.split("=", 1) for word in setting.split())
