"""The domains, and the record that describes one to the rest of metapt.

A new domain is a package in `metapt.domains`, whose module `domain` holds its record, and one line in `DOMAINS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from pydantic import Field, create_model

from metapt.engine.jobs import Job, Jobs
from metapt.errors import ConfigError
from metapt.evaluation.experiment import SUMMARY, Experiment, Needs
from metapt.sections import DomainSection, SummarySettings, plain

DOMAINS = (
    "mnist",
    "ecg",
    "ppi",
)


@cache
def domain(name: str) -> Domain:
    """Return the record of a domain, `DOMAIN` in its module `domain`. Raises ConfigError if its name does not suit."""
    if "_" in name:
        raise ConfigError(
            f"the domain {name} must have a name without an underscore, which separates it from experiments in targets."
        )
    found: Domain = import_module(f"metapt.domains.{name}.domain").DOMAIN
    return found


@dataclass(frozen=True)
class Domain:
    """A domain."""

    name: str  # of its package and of its section of the config
    title: str  # its name in the report
    settings: type[DomainSection]  # the model of its section, without experiments
    jobs: type[Jobs[Any]]  # the class of its jobs
    experiments: Mapping[str, Experiment]  # records by key, in their order
    simulated: Mapping[str, list[str]]  # names of the raw files that `data/simulate.py` generates, by source
    prepared: Mapping[str, str]  # names of the files that `data/prepare.py` writes, by output

    def section(self) -> type[DomainSection]:
        """Return the model of the domain's section with its experiments; one that is left out is not run."""
        fields: dict[str, Any] = {
            key: (each.section | None, Field(None, description=each.title)) for key, each in self.experiments.items()
        }
        return create_model(
            f"{self.name.capitalize()}Config", __base__=self.settings, __doc__=self.settings.__doc__, **fields
        )

    def summary(self, jobs: Jobs[Any], key: str) -> Job:
        """Return the job that makes an experiment's tables, figure and verdicts; `jobs` keeps it and its needs."""
        section = getattr(jobs.config, key)
        needs = self.experiments[key].needs(jobs, section)
        folder = jobs.folder(key)
        settings = SummarySettings(
            domain=self.name,
            experiment=key,
            settings=_settings(jobs.config, [*section.arm_names(), *needs.arms]),
            section=plain(section),
        )
        job = Job(
            stage="summarise",
            name=f"{self.name}/{key}",
            entry=summary_module(f"domains.{self.name}.experiments", key),
            config=plain(settings),
            inputs=_inputs(needs, jobs.sharing, section.arm_names()),
            outputs={name: f"{folder}/{file}" for name, file in SUMMARY.items()},
            record=f"{folder}/run.json",
            log=f"{folder}/log.txt",
        )
        return jobs.once(job.name, lambda: job)


def discover(package: str) -> dict[str, Experiment]:
    """Return the records `EXPERIMENT` of a package's experiments by key, in their order.

    An experiment is a module, or a package whose module `report` holds the record and whose module `run` does a job.
    """
    inside = package.removeprefix("metapt.")
    keys = [each.name for each in iter_modules(import_module(package).__path__)]
    found = {key: import_module(f"metapt.{summary_module(inside, key)}").EXPERIMENT for key in keys}
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def summary_module(package: str, key: str) -> str:
    """Return the module inside metapt that holds the record of an experiment in a package of them."""
    found = find_spec(f"metapt.{package}.{key}")
    is_package = found is not None and found.submodule_search_locations is not None
    return f"{package}.{key}.report" if is_package else f"{package}.{key}"


def _settings(config: DomainSection, arms: list[str]) -> dict[str, Any]:
    """Return the settings of a domain without its experiments, and of its arms `arms` and those that they take from."""
    experiments = [key for key, _ in config.experiments()]
    settings = {key: value for key, value in plain(config).items() if key not in experiments and value is not None}
    if "arms" in settings:
        values = [value for name in arms for value in settings["arms"].get(name, {}).values()]
        kept = {*arms, *(value["of"] for value in values if isinstance(value, dict) and "of" in value)}
        settings["arms"] = {name: arm for name, arm in settings["arms"].items() if name in kept}
    return settings


def _inputs(needs: Needs, sharing: Mapping[str, str], arms: Sequence[str]) -> dict[str, str]:
    """Return the inputs of a summary; a PT run that several of its `arms` share stands there for each of them."""
    inputs = dict(needs.files)
    for run in needs.runs:
        stage, arm, *rest = run.name.split("/")[1:]
        served = [each for each in arms if sharing.get(each) == arm] if stage == "pretrain" else []
        for each in served or [arm]:
            name = "/".join([stage, each, *rest])
            inputs |= {f"{name}/{what}": run.outputs[what] for what in ("metrics", "series")}
            inputs[f"{name}/record"] = run.record
    return inputs
