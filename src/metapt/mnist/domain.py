"""The face of this domain: what the stages call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from metapt.digest import code_digest
from metapt.evaluation import metrics
from metapt.mnist import bptt_study, fidelity_study, rotation_study, weighting_study
from metapt.mnist.arms import Results, Run
from metapt.mnist.config import BpttStudy, ExampleWeighting, Fidelity, MnistConfig, RotationMean, RotationMeanStd
from metapt.mnist.experiments import summarise
from metapt.mnist.prepare import MnistData, load, prepare
from metapt.mnist.simulate import simulate
from metapt.stages import Machine

__all__ = ["prepare", "simulate", "summarise", "train"]


def train(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Runs one arm of an experiment; see `metapt.domains.Domain`."""
    study = getattr(MnistConfig.model_validate({config["experiment"]: config["settings"]}), config["experiment"])
    run = Run(
        experiment=f"mnist_{config['experiment']}",
        arm=config["arm"],
        device=machine.device,
        threads=machine.threads,
        checkpoint=Path(config["checkpoint"]),
        fingerprint=_fingerprint(config, machine),
        budget_seconds=_budget(inputs["budget"]) if "budget" in inputs else None,
    )
    results = _run(study, run, load(inputs["data"], machine.device))
    metrics.write(results.metrics, outputs["metrics"])
    metrics.write_series(results.series, outputs["series"])
    for checkpoint in results.checkpoints:
        checkpoint.remove()


def _run(study: Any, run: Run, data: MnistData) -> Results:
    match study:
        case RotationMean():
            return rotation_study.train_mean(study, run, data)
        case RotationMeanStd():
            return rotation_study.train_mean_std(study, run, data)
        case ExampleWeighting():
            return weighting_study.train(study, run, data)
        case BpttStudy():
            return bptt_study.train(study, run, data)
        case Fidelity():
            return fidelity_study.train(study, run, data)
    raise TypeError(f"no such study: {type(study).__name__}")


def _fingerprint(config: dict[str, Any], machine: Machine) -> str:
    """What must be equal for a checkpoint to be taken up: settings, code, torch and kind of device."""
    code = code_digest("hypergrad/*.py", "training/*.py", "mnist/*.py")
    return json.dumps([config, code, torch.__version__, machine.device], sort_keys=True)


def _budget(path: Path) -> float:
    """The wall time of another arm, seconds."""
    table = metrics.read(path)
    return float(table.loc[table["metric"] == bptt_study.WALL_TIME, "value"].iloc[0])
