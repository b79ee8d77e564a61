"""Experiments on searches of group weights, where a share of the PT tasks has permuted labels. Not in the paper."""

from __future__ import annotations

from metapt.domains.ppi.aurocs import experiment
from metapt.domains.ppi.config import SEARCHED, ArmsSection, Names
from metapt.domains.ppi.settings import permuted
from metapt.evaluation.experiment import Experiment
from metapt.sections import key


class SearchesSection(ArmsSection):
    """A share of the PT tasks, the same for all PT seeds, has permuted labels. Not in the paper."""

    arms: Names = key(SEARCHED, "arms, keys of `ppi.arms`", min_length=1)


def searches(percent: int, order: int) -> Experiment:
    """Return the record of the experiment `permuted_{percent}`."""
    share = f"permuted labels of {percent} % of the PT tasks"
    return experiment(
        SearchesSection,
        order=order,
        settings=[permuted(percent)],
        title=f"Test AUROC of each arm on protein graphs, with {share}",
        figure_title=f"Test AUROC on protein graphs with {share}, for each arm",
    )
