"""The domains: packages with the same face, their module `domain`. A new domain is one package and one line in `DOMAINS`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from metapt.errors import ConfigError
from metapt.stages import Machine

DOMAINS = {
    "mnist": "metapt.mnist.domain",
}


class Domain(Protocol):
    """What a domain offers to the stages."""

    def simulate(self, source: str, outputs: dict[str, Path]) -> None:
        """Write the raw files of a generated source."""

    def prepare(self, inputs: dict[str, Path], output: Path) -> None:
        """Turn raw files into one file of device-ready tensors."""

    def train(self, config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        """Run one arm of an experiment.

        `config`: `domain`, `experiment`, `arm` (names), `settings` (the experiment's section, its `arms` reduced to this one) and
        `checkpoint` (path of the file that lets a killed run go on). `inputs`: `data`, and `budget` (metrics of the arm that
        `budget_of` names) where the arm has one. `outputs`: `metrics`, `series`.
        """

    def summarise(self, config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path]) -> None:
        """Make an experiment's tables, figures and claims from its arms' results.

        `config`: `domain`, `experiment`, `arms` (names) and `settings` (the experiment's section). `inputs`: `{arm}/metrics`,
        `{arm}/series` and `{arm}/run` for each arm. `outputs`: `metrics`, `claims`, `table_csv`, `table_md`, `table_tex`,
        `figure_svg`, `figure_png`.
        """


def domain(name: str) -> Domain:
    """The domain's face, imported now.

    Raises:
        ConfigError: there is no such domain.
    """
    if name not in DOMAINS:
        raise ConfigError(f"there is no domain {name!r}; legal: {', '.join(DOMAINS)}.")
    return cast(Domain, import_module(DOMAINS[name]))
