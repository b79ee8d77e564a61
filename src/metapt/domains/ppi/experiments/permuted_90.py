"""Experiment `permuted_90`: searches of group weights where 90 % of the PT tasks have permuted labels.

Not in the paper.
"""

from metapt.domains.ppi.aurocs import experiment
from metapt.domains.ppi.config import SEARCHED, ArmsSection, Names
from metapt.domains.ppi.settings import permuted
from metapt.sections import key


class Permuted90(ArmsSection):
    """90 % of the PT tasks, the same for all PT seeds, have permuted labels. Not in the paper."""

    arms: Names = key(SEARCHED, "arms, keys of `ppi.arms`", min_length=1)


EXPERIMENT = experiment(
    Permuted90,
    order=15,
    settings=[permuted(90)],
    title="Test AUROC of each arm on protein graphs, with permuted labels of 90 % of the PT tasks",
    figure_title="Test AUROC on protein graphs with permuted labels of 90 % of the PT tasks, for each arm",
)
