"""What the stages call in this domain. Its modules are imported when they are needed, since torch takes seconds."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from metapt.errors import ConfigError
from metapt.stages import Machine

__all__ = ["finetune", "prepare", "pretrain", "simulate", "study", "summarise"]

STUDIES = ("representations",)


def simulate(source: str, outputs: dict[str, Path]) -> None:
    """Writes STRING's files of generated species; see `metapt.domains.ppi.data.simulate.simulate`."""
    import_module("metapt.domains.ppi.data.simulate").simulate(source, outputs)


def prepare(inputs: dict[str, Path], outputs: dict[str, Path], config: dict[str, Any]) -> None:
    """Turns raw files into graphs with labels; see `metapt.domains.ppi.data.prepare.prepare`."""
    import_module("metapt.domains.ppi.data.prepare").prepare(inputs, outputs, config)


def pretrain(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-trains an arm with a PT seed; see `metapt.domains.ppi.pretrain_run.run`."""
    import_module("metapt.domains.ppi.pretrain_run").run(config, inputs, outputs, machine)


def finetune(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tunes an arm's encoders and tests them; see `metapt.domains.ppi.finetune_run.run`."""
    import_module("metapt.domains.ppi.finetune_run").run(config, inputs, outputs, machine)


def study(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Computes what an experiment needs beside PT and FT; see `run` in the module of the experiment's name.

    Raises:
        ConfigError: there is no such study.
    """
    if config["experiment"] not in STUDIES:
        raise ConfigError(f"ppi has no study {config['experiment']!r}; legal: {', '.join(STUDIES)}.")
    import_module(f"metapt.domains.ppi.{config['experiment']}").run(config, inputs, outputs, machine)


def summarise(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path]) -> None:
    """Makes an experiment's tables, figure and claims; see `metapt.domains.ppi.experiments.summarise`."""
    import_module("metapt.domains.ppi.experiments").summarise(config, inputs, outputs)
