"""The results of the runs of an ECG experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pandas as pd

from metapt.domains.ecg.config import Arm, EcgSettings, resolved
from metapt.domains.ecg.jobs import sees_labels
from metapt.domains.ecg.quantities import AUROC, DISPLACEMENT
from metapt.evaluation.figures import Style
from metapt.sections import DomainSection
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.results import Cell, TwoStageResults

STYLES: dict[str, Style] = {
    "no_pt": (6, 6, "-"),
    "simclr": (0, 0, "-"),
    "simclr-mild": (0, 5, "--"),
    "optsla": (5, 4, "-"),
    "meta": (1, 1, "-"),
    "meta-frozen": (1, 2, ":"),
    "meta-permuted_labels": (1, 4, "--"),
    "meta-random_sign": (1, 0, "--"),
    "meta-k0": (4, 4, "--"),
    "meta-k5": (3, 3, "--"),
    "meta-k10": (2, 5, "--"),
    "meta-identity": (1, 6, "--"),
    "no_pt-released": (6, 3, ":"),
    "simclr-released": (0, 3, ":"),
    "meta-released": (1, 5, ":"),
    "meta-stable": (2, 2, "-"),
    "meta-stable-start": (2, 0, "--"),
    "meta-stable-frozen": (2, 1, ":"),
    "meta-refitted": (5, 3, "--"),
    "random_search": (3, 3, "-"),
    "best_of_4": (0, 2, ":"),
    "simclr-joint": (4, 1, "-"),
    "bissl": (3, 6, "-"),
    "bissl-start": (3, 0, "--"),
}
"""How figures draw arms of the default config."""


@dataclass(frozen=True)
class EcgResults(TwoStageResults):
    """The results of an ECG experiment."""

    settings: ClassVar[type[DomainSection]] = EcgSettings
    styles: ClassVar[Mapping[str, Style]] = STYLES

    @cached_property
    def auroc(self) -> str:
        """Return the metric by which FT runs are compared, whose name has the number of classes."""
        names = (str(name) for name in self.metrics["metric"].unique())
        return next((name for name in names if name.startswith("mean test AUROC over ")), AUROC)

    def resolved(self, arm: Arm) -> Arm:
        """Return an arm with its warp."""
        return resolved(arm, self.config.arms)

    def cells(self) -> list[Cell]:
        """Return the cells of each evaluation, arm, |D_FT| and meta-PT size (NaN under full access), in this order."""
        return [
            Cell(
                arm,
                finetune_setting(size, seen),
                evaluation,
                {"evaluation": evaluation, "arm": arm, "size": size, "meta_size": math.nan if seen is None else seen},
            )
            for evaluation in self.config.evaluations
            for arm in self.arms
            for size in self.section.finetune_sizes
            for seen in self.meta_sizes(arm, size)
        ]

    def where(self, cell: Cell) -> str:
        """Return the end of a claim's sentence."""
        return f"{EVALUATIONS[cell.evaluation]}, |D_FT| = {cell.words['size']}"

    def papers_cells(self) -> pd.DataFrame:
        """Return the paper's AUROC of our arms as evaluation, arm, size, meta_size, mean, standard_error."""
        numbers = self.papers_aurocs(self.arms)
        settings = [setting_words(setting) for setting in numbers.pop("setting")]
        return numbers.assign(
            size=[int(setting["ft_size"]) for setting in settings],
            meta_size=[float(setting.get("meta_ft_size", "nan")) for setting in settings],
        )

    def meta_sizes(self, arm: str, size: int) -> list[int | None]:
        """Return the numbers of FT ECGs at meta-PT time of an arm's runs with this |D_FT|; None: full access."""
        return [None]

    def setting_of_control(self, control: str, setting: str) -> str:
        """Return the setting of a control's runs; a PT run without labels serves all numbers of labels."""
        arm = self.config.arms.get(control)
        unlabelled = arm is not None and not sees_labels(arm)
        return "" if unlabelled and setting_words(setting).keys() == {"meta_ft_size"} else setting

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
