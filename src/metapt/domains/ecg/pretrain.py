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
    size, width, device, learned = settings.meta_size, settings.width, machine.device, inputs.get("learned")
    setting = Setting(
        dataset=open_dataset(inputs, settings.samples, device),
        width=width,
        pretrain=settings.pretrain,
        seed=settings.seed,
        meta_size=size,
        split=settings.split,
        checkpoint=checkpoints(settings, inputs, __name__, device),
        learned=None if learned is None else load_pretrained(learned, width, device).meta,
        finetune_settings=settings.finetune,
        capture=settings.capture,
    )
    words = "" if size is None else f"meta_ft_size={size}"
    write(arms.pretrain(settings.arm_settings, setting), settings, words, outputs)
