"""A job of one arm of an experiment, PT and FT together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from metapt.domains.mnist.arms import Results, Run
from metapt.domains.mnist.config import BpttStudy, ExampleWeighting, Fidelity, RotationMean, RotationMeanStd
from metapt.domains.mnist.data.prepare import load
from metapt.domains.mnist.quantities import WALL_TIME
from metapt.domains.mnist.studies import bptt as bptt_study
from metapt.domains.mnist.studies import fidelity as fidelity_study
from metapt.domains.mnist.studies import rotation as rotation_study
from metapt.domains.mnist.studies import weighting as weighting_study
from metapt.evaluation import metrics
from metapt.stages import Machine
from metapt.training.checkpoint import fingerprint

# The settings of each experiment, and what trains one of its arms: (settings, Run, MnistData) -> Results.
_STUDIES: dict[str, tuple[type[BaseModel], Callable[..., Results]]] = {
    "rotation_mean": (RotationMean, rotation_study.train_mean),
    "rotation_mean_std": (RotationMeanStd, rotation_study.train_mean_std),
    "example_weighting": (ExampleWeighting, weighting_study.train),
    "bptt": (BpttStudy, bptt_study.train),
    "fidelity": (Fidelity, fidelity_study.train),
}


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Train; see `metapt.registry.Domain.train`."""
    settings, train_arm = _STUDIES[config["experiment"]]
    arm = Run(
        experiment=f"mnist_{config['experiment']}",
        arm=config["arm"],
        device=machine.device,
        threads=machine.threads,
        checkpoint=Path(config["checkpoint"]),
        fingerprint=fingerprint(config, inputs, __name__, machine.device),
        budget_seconds=_budget(inputs["budget"]) if "budget" in inputs else None,
    )
    # Only the arm that is trained is among the settings, so they are no whole config: `budget_of` may name one that isn't there.
    results = train_arm(settings.model_validate(config["settings"]), arm, load(inputs["data"], machine.device))
    metrics.write(results.metrics, outputs["metrics"])
    metrics.write_series(results.series, outputs["series"])
    for checkpoint in results.checkpoints:
        checkpoint.remove()


def _budget(path: Path) -> float:
    """The wall time of another arm, seconds."""
    table = metrics.read(path)
    return float(table.loc[table["metric"] == WALL_TIME, "value"].iloc[0])
