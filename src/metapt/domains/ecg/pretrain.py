"""A PT job on ECGs: one arm and one PT seed."""

from __future__ import annotations

from pathlib import Path

from metapt.domains.ecg import arms
from metapt.domains.ecg.data.dataset import open_dataset
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.domains.ecg.setting import Setting
from metapt.domains.ecg.stages import EcgPretrainSettings
from metapt.machine import Machine
from metapt.twostage.pretraining import checkpoints, write


def run(settings: EcgPretrainSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train. The inputs are `signals`, `records`, and `learned`: pretrained.pt of the arm whose warp it takes."""
    device, learned = machine.device, None
    if "learned" in inputs:
        learned = load_pretrained(inputs["learned"], settings.width, device).meta
    dataset, parts = open_dataset(inputs, settings.samples, device), checkpoints(settings, inputs, __name__, device)
    setting = Setting(settings, dataset, parts, learned)
    words = "" if settings.meta_size is None else f"meta_ft_size={settings.meta_size}"
    write(arms.pretrain(settings.arm_settings, setting), settings, words, outputs)
