"""The domains: packages with the same face, their module `domain`. A new domain is one package and one line in `DOMAINS`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from metapt.errors import ConfigError
from metapt.stages import Machine

DOMAINS = {
    "mnist": "metapt.domains.mnist.domain",
    "ecg": "metapt.domains.ecg.domain",
    "ppi": "metapt.domains.ppi.domain",
}

ENTRIES = {
    "simulate": "simulate",
    "prepare": "prepare",
    "train": "train_run",
    "pretrain": "pretrain_run",
    "finetune": "finetune_run",
    "summarise": "experiments",
}
"""Stage -> the module of a domain that computes it. A study is computed by the module of its experiment's name."""

Files = dict[str, Path]


def entry(stage: str, config: dict[str, Any]) -> str | None:
    """The module, by its name inside the package, whose import closure makes a job's numbers (see `code_digest`).

    None of a download: its files are known by their published sums, whatever code has fetched them.
    """
    if stage == "download":
        return None
    if "domain" not in config:
        return f"stages.{stage}"
    return f"{config['domain']}.{config['experiment'] if stage == 'study' else ENTRIES[stage]}"


class Domain(Protocol):
    """What a domain offers to the stages: those of these functions that it has a use for."""

    def simulate(self, source: str, outputs: Files) -> None:
        """Write the raw files of a generated source."""

    def prepare(self, inputs: Files, outputs: Files, config: dict[str, Any]) -> None:
        """Turn raw files into what runs read. `config`: `domain`, and what else it reads."""

    def train(self, config: dict[str, Any], inputs: Files, outputs: Files, machine: Machine) -> None:
        """Run one arm of an experiment, PT and FT together.

        `config`: `domain`, `experiment`, `arm` (names), `settings` (the experiment's section, its `arms` reduced to this one) and
        `checkpoint` (path of the file that lets a killed run go on). `inputs`: `data`, and `budget` (metrics of the arm that
        `budget_of` names) where the arm has one. `outputs`: `metrics`, `series`.
        """

    def pretrain(self, config: dict[str, Any], inputs: Files, outputs: Files, machine: Machine) -> None:
        """Pre-train one arm with one PT seed, for all experiments that need it.

        `config`: `domain`, `arm`, `checkpoint` and what else PT reads. `outputs`: `pretrained` (for `finetune`), `metrics`,
        `series`.
        """

    def finetune(self, config: dict[str, Any], inputs: Files, outputs: Files, machine: Machine) -> None:
        """Fine-tune what the PT runs of one arm have left, and test it.

        `config`: `domain`, `arm`, `checkpoint` and what else FT reads. `inputs`: `seed{n}` (`pretrained` of each PT seed), and
        the data. `outputs`: `metrics`, `series`.
        """

    def study(self, config: dict[str, Any], inputs: Files, outputs: Files, machine: Machine) -> None:
        """Compute what an experiment needs beside PT and FT runs. `config`: `domain`, `experiment`, and what else it reads."""

    def summarise(self, config: dict[str, Any], inputs: Files, outputs: Files) -> None:
        """Make an experiment's tables, figures and claims from its runs.

        `config`: `domain`, `experiment`, `settings` (the section of the experiment, or of the domain without other experiments),
        and `arms` (names) where each arm is one run. `inputs`: `{run}/metrics`, `{run}/series` and `{run}/run` for each run.
        `outputs`: `metrics`, `claims`, `table_csv`, `table_md`, `table_tex`, `figure_svg`, `figure_png`.
        """


def domain(name: str, stage: str) -> Domain:
    """The face, imported now, of a domain that has this stage.

    Raises:
        ConfigError: there is no such domain, or it has no such stage.
    """
    if name not in DOMAINS:
        raise ConfigError(f"there is no domain {name!r}; legal: {', '.join(DOMAINS)}.")
    face = import_module(DOMAINS[name])
    if not hasattr(face, stage):
        raise ConfigError(f"the domain {name!r} has no stage {stage!r}; it has {', '.join(face.__all__)}.")
    return cast(Domain, face)
