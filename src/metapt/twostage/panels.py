"""Panels of test AUROC that the domains share."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes

from metapt.evaluation import figures
from metapt.twostage.quantities import AUROC_LABEL


def dots(
    axis: Axes,
    ours: pd.DataFrame,
    others: pd.DataFrame,
    label: Callable[[str], str],
    xlabel: str = AUROC_LABEL,
    names: tuple[str, str] = ("ours", "paper"),
) -> None:
    """Draw a row per arm of `ours`: mean and standard error over PT seeds, and below it, hollow, those of `others`."""
    ours, others = (
        table.assign(
            label=[label(arm) for arm in table["arm"]],
            standard_error=table["seed_standard_error" if "seed_standard_error" in table else "standard_error"],
        )
        for table in (ours, others[others["arm"].isin(ours["arm"])])
    )
    figures.bars_with_error(
        ours, others, xlabel=f"{xlabel},\nmean ± standard error over PT seeds", names=names, axis=axis
    )
