"""What the stages call in this domain. Its modules are imported when they are needed, since torch takes seconds."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from metapt.errors import ConfigError
from metapt.stages import Machine

__all__ = ["finetune", "prepare", "pretrain", "simulate", "study", "summarise"]

STUDIES = ("warp_study", "augmentations")


def simulate(source: str, outputs: dict[str, Path]) -> None:
    """Writes PTB-XL's files of generated ECGs; see `metapt.domains.ecg.data.simulate.simulate`."""
    import_module("metapt.domains.ecg.data.simulate").simulate(source, outputs)


def prepare(inputs: dict[str, Path], outputs: dict[str, Path], config: dict[str, Any]) -> None:
    """Turns the raw files into the prepared ones; see `metapt.domains.ecg.data.prepare`."""
    import_module("metapt.domains.ecg.data.prepare").prepare(inputs, outputs)


def pretrain(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-trains an arm with a PT seed; see `metapt.domains.ecg.pretrain_run.run`."""
    from metapt.domains.ecg import pretrain_run

    pretrain_run.run(config, inputs, outputs, machine)


def finetune(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tunes an arm's encoders and tests them; see `metapt.domains.ecg.finetune_run.run`."""
    from metapt.domains.ecg import finetune_run

    finetune_run.run(config, inputs, outputs, machine)


def study(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Computes what an experiment needs beside PT and FT; see `run` in the module of the experiment's name.

    Raises:
        ConfigError: there is no such study.
    """
    if config["experiment"] not in STUDIES:
        raise ConfigError(f"ecg has no study {config['experiment']!r}; legal: {', '.join(STUDIES)}.")
    import_module(f"metapt.domains.ecg.{config['experiment']}").run(config, inputs, outputs, machine)


def summarise(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path]) -> None:
    """Makes an experiment's tables, figure and claims; see `metapt.domains.ecg.experiments.summarise`."""
    import_module("metapt.domains.ecg.experiments").summarise(config, inputs, outputs)
