"""The face of this domain: what the stages call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from metapt.digest import code_digest
from metapt.evaluation import metrics
from metapt.mnist import bptt_study, fidelity_study, rotation_study, weighting_study
from metapt.mnist import prepare as preparation
from metapt.mnist.arms import Results, Run
from metapt.mnist.config import BpttStudy, ExampleWeighting, Fidelity, RotationMean, RotationMeanStd
from metapt.mnist.experiments import summarise
from metapt.mnist.simulate import simulate
from metapt.stages import Machine

__all__ = ["prepare", "simulate", "summarise", "train"]

# The settings of each experiment, and what trains one of its arms: (settings, Run, MnistData) -> Results.
_STUDIES: dict[str, tuple[type[BaseModel], Callable[..., Results]]] = {
    "rotation_mean": (RotationMean, rotation_study.train_mean),
    "rotation_mean_std": (RotationMeanStd, rotation_study.train_mean_std),
    "example_weighting": (ExampleWeighting, weighting_study.train),
    "bptt": (BpttStudy, bptt_study.train),
    "fidelity": (Fidelity, fidelity_study.train),
}


def prepare(inputs: dict[str, Path], outputs: dict[str, Path], config: dict[str, Any]) -> None:
    """Turns the raw files into the prepared file `data`; see `metapt.mnist.prepare`."""
    preparation.prepare(inputs, outputs["data"])


def train(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Trains one arm of an experiment; see `metapt.domains.Domain`."""
    settings, train_arm = _STUDIES[config["experiment"]]
    run = Run(
        experiment=f"mnist_{config['experiment']}",
        arm=config["arm"],
        device=machine.device,
        threads=machine.threads,
        checkpoint=Path(config["checkpoint"]),
        fingerprint=_fingerprint(config, machine),
        budget_seconds=_budget(inputs["budget"]) if "budget" in inputs else None,
    )
    # Only the arm that is trained is among the settings, so they are no whole config: `budget_of` may name one that isn't there.
    results = train_arm(settings.model_validate(config["settings"]), run, preparation.load(inputs["data"], machine.device))
    metrics.write(results.metrics, outputs["metrics"])
    metrics.write_series(results.series, outputs["series"])
    for checkpoint in results.checkpoints:
        checkpoint.remove()


def _fingerprint(config: dict[str, Any], machine: Machine) -> str:
    """What must be equal for a checkpoint to be taken up: settings, code, torch and kind of device."""
    code = code_digest("hypergrad/*.py", "training/*.py", "mnist/*.py")
    return json.dumps([config, code, torch.__version__, machine.device], sort_keys=True)


def _budget(path: Path) -> float:
    """The wall time of another arm, seconds."""
    table = metrics.read(path)
    return float(table.loc[table["metric"] == bptt_study.WALL_TIME, "value"].iloc[0])
