"""A PT job: one arm, one PT seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from metapt.domains.ecg.arms import PretrainRun, Setting, pretrain
from metapt.domains.ecg.config import Arm, PretrainSettings
from metapt.domains.ecg.data.dataset import open_dataset
from metapt.domains.ecg.runs import EXPERIMENT, Learned, save_pretrained
from metapt.evaluation import metrics
from metapt.stages import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-trains; see `metapt.registry.Domain.pretrain`.

    Args:
        config: `arm` (its name), `arm_settings`, `seed`, `meta_size` (labelled ECGs that PT sees, or None), `split` (of
            them, see `finetune_indices`; or None), `width`, `samples`, `pretrain` (see `PretrainSettings`), `checkpoint` (path).
        inputs: `signals`, `records`.
        outputs: `pretrained`, `metrics`, `series`.
        machine: device.
    """
    bound = fingerprint(config, inputs, __name__, machine.device)
    path = Path(config["checkpoint"])

    def checkpoint(part: str) -> Checkpoint:
        return Checkpoint(path.with_name(f"{path.name.removesuffix('.pt')}{part}.pt"), bound)

    setting = Setting(
        dataset=open_dataset(inputs, config["samples"], machine.device),
        width=config["width"],
        pretrain=PretrainSettings.model_validate(config["pretrain"]),
        seed=config["seed"],
        meta_size=config["meta_size"],
        split=config["split"],
        checkpoint=checkpoint,
    )
    arm: Arm = TypeAdapter(Arm).validate_python(config["arm_settings"])
    result = pretrain(arm, setting)
    save_pretrained(Learned(result.pretrained, result.meta), outputs["pretrained"])
    metrics.write(_rows(config, result), outputs["metrics"])
    metrics.write_series(result.series, outputs["series"])
    for each in result.checkpoints:
        each.remove()


def _rows(config: dict[str, Any], result: PretrainRun) -> list[dict[str, Any]]:
    setting = "" if config["meta_size"] is None else f"meta_ft_size={config['meta_size']}"
    return [
        metrics.row(EXPERIMENT, config["arm"], name, value, replicate=config["seed"], setting=setting, evaluation="pretraining")
        for name, value in result.figures.items()
    ]
