"""The results of the runs of an ECG experiment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from metapt.domains.ecg.config import EcgSettings, Simclr, access, resolved
from metapt.domains.ecg.controls import controls
from metapt.domains.ecg.quantities import AUROC, DISPLACEMENT
from metapt.sections import DomainSection, Section
from metapt.twostage.arms import Pair, pairs
from metapt.twostage.results import TwoStageResults

PLAIN = "simclr"  # the arm that others are drawn against


@dataclass(frozen=True)
class EcgResults(TwoStageResults):
    """The results of an ECG experiment."""

    settings: ClassVar[type[DomainSection]] = EcgSettings
    auroc: ClassVar[str] = AUROC
    papers_arms: ClassVar[Mapping[str, str]] = {}  # our name of an arm -> the paper's, where they differ
    papers_pairs: ClassVar[Mapping[tuple[str, str], Collection[str]]] = {}  # of the paper's claims, see `arms.pairs`

    def arm_settings(self) -> dict[str, Section]:
        """Return the settings of the arms that the experiment compares, each with its warp."""
        arms = super().arm_settings()
        return arms | {name: resolved(arm, self.config.arms) for name, arm in arms.items() if isinstance(arm, Simclr)}

    def pairs(self) -> list[Pair]:
        """Return the arms that claims compare: those of the paper's claims, then each arm that learns and its controls.

        The table of differences shows the same pairs.
        """
        found = self.config.arms
        return pairs(self.arm_settings(), self.papers_pairs, lambda arm: controls(arm, found))

    def meta_sizes(self, arm: str, size: int) -> list[int | None]:
        """Return the numbers of FT ECGs at meta-PT time of an arm's runs with this |D_FT|; None: full access."""
        return [None]

    def setting_of_control(self, control: str, setting: str) -> str:
        """Return the setting of a control's runs; a PT run without labels serves all numbers of labels."""
        arm = self.config.arms.get(control)
        unlabelled = arm is not None and access(arm, 0) == "none"
        return "" if unlabelled and setting_words(setting).keys() == {"meta_ft_size"} else setting

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
