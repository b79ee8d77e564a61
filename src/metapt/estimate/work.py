"""What a job is made of: steps that are timed once each, and how many of them. In these words a domain's `costs.py` tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from metapt.sections import Section

OPEN = "open the data"
"""The step that every training job begins with; its memory is there beside that of the others."""


@dataclass(frozen=True)
class Step:
    """A piece of work that is timed, on random data of the real shapes.

    Attributes:
        name: in words; no two steps of a domain have the same.
        prepare: called with a share (0 to 1] of the real size, returns a function that does the step on that much.
        smallest: the share that will do, with twice of it, where the whole takes too long: what it takes lies on a line.
    """

    name: str
    prepare: Callable[[float], Callable[[], object]]
    smallest: float = 1.0


@dataclass(frozen=True)
class Run:
    """A job of the workflow.

    Attributes:
        name: as its folder under the results folder; a run that several experiments need has one name.
        kind: domain and stage, in words.
        steps: name of a step -> how often it is done.
        seconds: what is not made of steps, as seen in measured runs.
        threads: that it keeps busy; its steps are timed in one, and shared out.
        alone: whether the workflow lets no other job run beside it, since its time is a result.
        trains: whether it is a training job, which asks for a GPU where `require_gpu` is set.
        held_bytes: of data that stay in memory all the while.
        output_bytes: that it leaves on the disk.
        after: names of the runs that it waits for.
    """

    name: str
    kind: str
    steps: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    threads: int = 1
    alone: bool = False
    trains: bool = True
    held_bytes: float = 0.0
    output_bytes: float = 0.0
    after: tuple[str, ...] = ()


class Costs(Protocol):
    """The face of a domain's module `costs`; `section` is the domain's section of the config."""

    def runs(self, section: Section, experiment: str) -> list[Run]:
        """All jobs behind an experiment, each once: training, studies, the summary. Preparation is `data_runs`."""

    def data_runs(self, section: Section, raw_bytes: Mapping[str, int]) -> list[Run]:
        """The jobs that fetch or generate, and prepare the data; what they leave is raw and prepared data.

        `raw_bytes`: of the sources whose publisher says their size.
        """

    def steps(self, section: Section, device: str) -> list[Step]:
        """The steps that are named in the runs of this section."""


SUMMARY_SECONDS = 2.5
"""Tables, figure and claims of an experiment."""
SUMMARY_BYTES = 500e3
RUN_BYTES = 40e3
"""Metrics, series, log and record of a run."""


def summary(domain: str, experiment: str, after: list[Run]) -> Run:
    """The job that makes an experiment's tables and figure of its runs."""
    return Run(
        f"{domain}/{experiment}",
        "tables and figures",
        seconds=SUMMARY_SECONDS,
        trains=False,
        output_bytes=SUMMARY_BYTES,
        after=tuple(run.name for run in after),
    )


def added(*parts: Mapping[str, float]) -> dict[str, float]:
    """Steps of several parts together.

    >>> added({"PT step": 3}, {"PT step": 2, "update": 1})
    {'PT step': 5, 'update': 1}
    """
    total: dict[str, float] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total
