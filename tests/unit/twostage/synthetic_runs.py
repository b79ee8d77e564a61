"""Files of an experiment's PT and FT runs with given numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd
import pytest

from metapt.engine import records
from metapt.engine.config_files import read_one
from metapt.engine.domain import domain
from metapt.engine.execute import work_of
from metapt.engine.jobs import Job, Place
from metapt.engine.plan import SOURCES
from metapt.evaluation import figures, metrics
from metapt.evaluation.comparisons import judge
from metapt.evaluation.tables import write_blocks
from metapt.machine import Machine
from metapt.sections import SummarySettings
from metapt.twostage.quantities import pair

SEED_SPREAD = (-0.5, 0.1, 0.4, -0.2, 0.2)
"""What a PT seed adds to the AUROC of every arm, so that it cancels in paired differences."""
SOURCES_READ = read_one(SOURCES)
Rows = list[dict[str, Any]]


class Runs:
    """The files of an experiment's runs, with numbers that a test may change before `write`.

    Attributes:
        job, experiment, settings: the summary, its record, and what it reads.
        inputs: its inputs, once they are written.
        machine: arm -> name of the machine.
    """

    domain: ClassVar[str]
    usual: ClassVar[dict[str, Any]] = {}  # keys of the section

    def __init__(self, folder: Path, key: str, **settings: Any) -> None:
        record = domain(self.domain)
        self.key, self.folder = key, folder
        self.config: Any = record.section().model_validate({"pretrain_seeds": 5, key: {}} | self.usual | settings)
        jobs = record.jobs(self.domain, self.config, Place(str(folder), str(folder / "raw"), SOURCES_READ, []))
        self.job, self.experiment = record.summary(jobs, key), record.experiments[key]
        self.settings = SummarySettings.model_validate(self.job.config)
        self.inputs = {name: Path(path) for name, path in self.job.inputs.items()}
        self.made = list(jobs.made.values())
        self.machine: Callable[[str], str] = lambda arm: "a machine"

    def write(self) -> Self:
        for job in self.made:
            if job.trains and job.outputs["metrics"] in self.job.inputs.values():
                rows, steps = getattr(self, f"_{job.stage}")(job)
                metrics.write(rows, Path(job.outputs["metrics"]))
                metrics.write_series(steps, Path(job.outputs["series"]))
                machine = {"name": self.machine(job.config.get("arm", "")), "device": "cuda"}
                records.write(Path(job.record), {"machine": machine})
        return self

    def finetunings(self, job: Job) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield replicate and evaluation of a job's FT runs, and what is added to the AUROC for the FT seed."""
        count = self.config.finetune_seeds
        for evaluation in self.config.evaluations:
            for ft in range(count):
                yield (
                    {"replicate": pair(job.config["seed"], ft), "evaluation": evaluation},
                    0.3 * (ft - (count - 1) / 2),
                )

    def results(self) -> Any:
        """Return what the experiment reads of its runs."""
        return self.experiment.results.read(self.experiment.section, self.settings, self.inputs)

    def judged(self) -> pd.DataFrame:
        """Return the verdicts, by text of the claims."""
        results = self.results()
        return judge(results.name, self.experiment.comparisons(results)).set_index("claim")

    def tabled(self) -> tuple[pd.DataFrame, str]:
        """Return the table's numbers, read from its CSV, and its text."""
        blocks, numbers = self.experiment.tables(self.results())
        write_blocks(blocks, self.folder / "table", numbers)
        return pd.read_csv(self.folder / "table.csv"), (self.folder / "table.md").read_text()

    def summarise(self) -> dict[str, Path]:
        """Write the runs, and return the files of their summary; its figure is only built, and not written."""
        self.write()
        outputs = {name: Path(path) for name, path in self.job.outputs.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(figures, "save", lambda figure, path: None)
            work_of(self.job)(self.inputs, outputs, Machine())
        return outputs


def series(name: str, *replicates: Iterable[float]) -> Rows:
    return [row for number, values in enumerate(replicates) for row in metrics.series(name, values, number)]
