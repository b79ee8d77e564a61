"""What the stages call in this domain. Its modules are imported when they are needed, since torch takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metapt.stages import Machine

__all__ = ["prepare", "simulate", "summarise", "train"]


def simulate(source: str, outputs: dict[str, Path]) -> None:
    """Write MNIST's files of generated digits; see `metapt.domains.mnist.data.simulate.simulate`."""
    from metapt.domains.mnist.data.simulate import simulate

    simulate(source, outputs)


def prepare(inputs: dict[str, Path], outputs: dict[str, Path], config: dict[str, Any]) -> None:
    """Turn the raw files into the prepared file `data`; see `metapt.domains.mnist.data.prepare`."""
    from metapt.domains.mnist.data.prepare import prepare

    prepare(inputs, outputs["data"])


def train(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Train one arm of an experiment; see `metapt.domains.mnist.train_run.run`."""
    from metapt.domains.mnist import train_run

    train_run.run(config, inputs, outputs, machine)


def summarise(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path]) -> None:
    """Make an experiment's tables, figure and claims; see `metapt.domains.mnist.experiments.summarise`."""
    from metapt.domains.mnist.experiments import summarise

    summarise(config, inputs, outputs)
