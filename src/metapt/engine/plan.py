"""The plan of a config: all its jobs, and an estimate of the time that those which are left need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from metapt.engine.config import Config, experiments
from metapt.engine.config_files import read_one
from metapt.engine.domain import DOMAINS, domain
from metapt.engine.jobs import Job, Place
from metapt.engine.schema import did_you_mean
from metapt.errors import ConfigError
from metapt.evaluation.results import explained
from metapt.sections import PageDomain, PageExperiment, PageSettings, plain

SOURCES = Path(__file__).with_name("sources.yaml")
"""The public data that the package lists."""


class Plan:
    """The jobs of a validated config, by name, given the content of sources.yaml.

    `summaries` is the name of the job that summarises an experiment, by experiment.
    """

    def __init__(self, config: Config, sources: Mapping[str, Any]) -> None:
        place = Place(config.results, config.data.folder, sources, config.data.mirrors, config.require_gpu)
        self.jobs: dict[str, Job] = {}
        self.summaries: dict[str, str] = {}
        for name in DOMAINS:
            section = getattr(config, name)
            if section is None:
                continue
            record = domain(name)
            jobs = record.jobs(name, section, place)
            for key, _ in section.experiments():
                self.summaries[f"{name}_{key}"] = record.summary(jobs, key).name
            self.jobs |= jobs.made
        self.jobs["page"] = self._page(config)
        self._codes: dict[str, str | None] = {}
        self._makers = {path: job for job in self.jobs.values() for path in (*job.outputs.values(), job.record)}

    def maker(self, path: str) -> Job:
        """Return the job that makes a file. Raises ConfigError if no job of this config makes it."""
        if path not in self._makers:
            hint = did_you_mean(path, list(self._makers))
            raise ConfigError(
                f"no job of this config makes the file {path}{hint}: name an output of an experiment in the config, or "
                "take a config with the experiment that makes it."
            )
        return self._makers[path]

    def summary(self, experiment: str) -> Job:
        """Return the job that summarises an experiment. Raises ConfigError if the experiment is not in the config."""
        if experiment not in self.summaries:
            name, _, key = experiment.partition("_")
            raise ConfigError(
                f"{experiment} is not in the config: add `{key}: {{}}` to the section {name}, "
                "or name a config that has it."
            )
        return self.jobs[self.summaries[experiment]]

    def code(self, job: Job) -> str | None:
        """Return the digest of a job's code, computed once for each entry module."""
        if job.entry not in self._codes:
            self._codes[job.entry] = job.code
        return self._codes[job.entry]

    def needed(self, name: str) -> Iterator[Job]:
        """Yield a job and all jobs that it depends on, directly or not, each once and after its own dependencies."""
        seen: set[str] = set()

        def visit(job: Job) -> Iterator[Job]:
            if job.name not in seen:
                seen.add(job.name)
                for before in self.before(job):
                    yield from visit(before)
                yield job

        yield from visit(self.jobs[name])

    def before(self, job: Job) -> list[Job]:
        """Return the jobs that a job depends on directly, each once."""
        makers = [self._makers[path] for path in job.inputs.values() if path in self._makers]
        return list({each.name: each for each in makers}.values())

    def _page(self, config: Config) -> Job:
        files = ("metrics", "claims", "table_md", "differences", "table_html", "figure_svg")
        inputs: dict[str, str] = {}
        shown = []
        for name in dict.fromkeys(experiment.partition("_")[0] for experiment in experiments(config)):
            record, section = domain(name), getattr(config, name)
            of_domain = []
            for key, own in section.experiments():
                about, end = record.experiments[key], self.summary(f"{name}_{key}")
                arms = explained(own, getattr(section, "arms", {}))
                of_domain.append(PageExperiment(key=key, title=about.title, figure=about.figure_title, arms=arms))
                read = {what: end.outputs[what] for what in files} | {"record": end.record}
                read |= {each: path for each, path in end.inputs.items() if each.endswith(("/metrics", "/record"))}
                inputs |= {f"{name}_{key}/{what}": path for what, path in read.items()}
            source = getattr(section, "source", "")
            shown.append(
                PageDomain(
                    name=name, title=record.title, source=source, stand_in=section.stand_in, experiments=of_domain
                )
            )
        return Job(
            stage="page",
            name="page",
            entry="evaluation.page",
            config=plain(PageSettings(domains=shown)),
            inputs=inputs,
            outputs={
                "metrics": f"{config.results}/metrics.csv",
                "claims": f"{config.results}/claims.csv",
                "headline": f"{config.results}/headline.md",
                "page": f"{config.results}/index.html",
            },
            record=f"{config.results}/run.json",
            log=f"{config.results}/log.txt",
            mem_mb=1000,
        )


def planned(config: Config) -> Plan:
    """Return the plan of a config, with the public data that the package lists."""
    return Plan(config, read_one(SOURCES))


class Remaining:
    """The wall times of finished jobs, by kind. A job takes as long as the most similar ones on average."""

    def __init__(self) -> None:
        self._seconds: defaultdict[Hashable, list[float]] = defaultdict(list)

    def finished(self, job: Job, seconds: float) -> None:
        """Note the wall time of a job."""
        for kind in _kinds(job):
            self._seconds[kind].append(seconds)

    def seconds(self, jobs: Iterable[tuple[Job, float, float]]) -> float | None:
        """Return the wall time (s) that jobs still need; None where none of a job's sort has finished yet.

        Each comes with the share of the machine that it holds, above 0 to 1, and the seconds that it has run. They are
        taken to fill the machine; the longest one is a lower bound.
        """
        rest = []
        for job, share, elapsed in jobs:
            known = next((self._seconds[kind] for kind in _kinds(job) if kind in self._seconds), None)
            if known is None:
                return None
            rest.append((max(fmean(known) - elapsed, 0.0), share))
        return max(sum(seconds * share for seconds, share in rest), max((seconds for seconds, _ in rest), default=0.0))


def duration(seconds: float) -> str:
    """Return a duration in words, in two units at most.

    >>> duration(3.4), duration(119.7), duration(7500)
    ('3 s', '2 min 0 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _kinds(job: Job) -> list[Hashable]:
    """Return names of the kinds of a job, the most special first."""
    return [(job.entry, job.config.get("arm")), job.entry, job.trains]
