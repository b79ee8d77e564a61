"""What the runs of each experiment become: tables beside the paper's numbers, a figure, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from metapt.domains.ecg import figures as drawn
from metapt.domains.ecg import tables, warp_figures
from metapt.domains.ecg.claims import claims
from metapt.domains.ecg.results import Results, read
from metapt.evaluation import figures, metrics
from metapt.evaluation.claims import judge
from metapt.evaluation.tables import Tables, write_blocks
from metapt.files import atomic_path
from metapt.twostage import cost


class Experiment(NamedTuple):
    """What makes an experiment's tables and its figure; its claims are in `metapt.domains.ecg.claims`."""

    tables: Callable[[Results], Tables]
    figure: Callable[[Results], Figure]


EXPERIMENTS = {
    "full_access": Experiment(tables.auroc_tables, drawn.over_sizes),
    "unroll_steps": Experiment(tables.auroc_tables, drawn.over_sizes),
    "partial_access": Experiment(tables.auroc_tables, drawn.over_meta_sizes),
    "augmentations": Experiment(tables.augmentation_tables, warp_figures.augmentations),
    "warp_study": Experiment(tables.warp_tables, warp_figures.warp),
    "cost": Experiment(lambda r: cost.tables(tables.costs(r)), lambda r: cost.figure(tables.costs(r))),
}


def summarise(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path]) -> None:
    """Makes an experiment's tables, figure and claims; see `metapt.registry.Domain`.

    Args:
        config: `domain`, `experiment` (a key of `EXPERIMENTS`), `settings` (the section `ecg`).
        inputs: `pretrain/{arm}/{access}/{seed}/metrics`, `/series` and `/run`; `finetune/{arm}/{access}/n{size}/metrics`;
            `study/{arm}/{seed}/metrics`; and `views`, as far as the experiment has them.
        outputs: `metrics`, `claims`, `table_csv` (its .md and .tex lie beside it), `figure_svg` (with its .png).

    Raises:
        DataError: a file is missing or not what its name says, or arms have other PT seeds than those they are compared to.
    """
    results = read(config, inputs)
    experiment = EXPERIMENTS[results.key]
    metrics.write(results.metrics, outputs["metrics"])
    blocks, numbers = experiment.tables(results)
    write_blocks(blocks, outputs["table_csv"].with_suffix(""), numbers)
    figures.save(experiment.figure(results), outputs["figure_svg"].with_suffix(""))
    with atomic_path(outputs["claims"]) as path:
        judge(claims(results), results.metrics).to_csv(path, index=False)
