"""A PT job: one arm and one PT seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from metapt.domains.ecg import arms
from metapt.domains.ecg.config import Arm
from metapt.domains.ecg.setting import setting_of
from metapt.machine import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.twostage.pretraining import write


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train.

    The config holds `arm` (its name), `arm_settings`, `seed`, `meta_size` (labelled ECGs that PT sees, or None),
    `split` (of them, see `finetune_indices`; or None), `width`, `samples`, `pretrain` (see `EcgPretraining`),
    `checkpoint`, and for a search with whole runs `finetune` (see `EcgFinetuning`). The inputs are `signals` and
    `records`, and `learned` where the arm takes a learned warp; see `setting_of`.
    """
    bound = fingerprint(config, inputs, __name__, machine.device)
    path = Path(config["checkpoint"])

    def checkpoint(part: str) -> Checkpoint:
        return Checkpoint(path.with_name(f"{path.stem}{part}.pt"), bound)

    arm: Arm = TypeAdapter(Arm).validate_python(config["arm_settings"])
    result = arms.pretrain(arm, setting_of(config, inputs, machine.device, config["seed"], checkpoint))
    size = config["meta_size"]
    write(result, config, "" if size is None else f"meta_ft_size={size}", outputs)
