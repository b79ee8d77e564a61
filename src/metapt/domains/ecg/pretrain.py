"""A PT job on ECGs: one arm and one PT seed."""

from __future__ import annotations

from pathlib import Path

from metapt.domains.ecg import arms
from metapt.domains.ecg.setting import setting_of
from metapt.domains.ecg.stages import EcgPretrainSettings
from metapt.machine import Machine
from metapt.twostage.pretraining import checkpoints, write


def run(settings: EcgPretrainSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train. The inputs are `signals`, `records`, and `learned` where the arm takes a learned warp."""
    setting = setting_of(settings, inputs, machine.device, checkpoints(settings, inputs, __name__, machine.device))
    size = settings.meta_size
    words = "" if size is None else f"meta_ft_size={size}"
    write(arms.pretrain(settings.arm_settings, setting), settings, words, outputs)
