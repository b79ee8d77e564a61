"""What FT on few or many labelled ECGs says about an encoder: one PT run, several sizes of the labelled set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from metapt.domains.ecg.cross_validation import check_folds, validation_curves
from metapt.domains.ecg.quantities import labelled_ecgs
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.domains.ecg.setting import study_setting
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.training import progress
from metapt.twostage.heads import highest
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC
from metapt.twostage.replicates import pair


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Cross-validate FT of an encoder on labelled sets of several sizes.

    The config holds `arm` (its name), `seed`, `evaluations`, `finetune` (see `EcgFinetuning`), `width`, `samples`,
    `split`, `pretrain` and `meta_size` as of a PT job, and `study`: `sizes` and `folds`. The inputs are `signals`,
    `records` and `pretrained`. The labelled set of a PT seed begins with its smaller ones.

    The output `metrics` has, by size and evaluation, the mean over folds of the AUROC of the best epoch, and `series`
    the mean over folds after each epoch. Raises DataError as `check_folds`.
    """
    study, seed, evaluations = config["study"], config["seed"], config["evaluations"]
    setting = study_setting(config, inputs, seed, machine.device)
    pretrained = load_pretrained(inputs["pretrained"], config["width"], machine.device).pretrained
    settings = [replace(setting, meta_size=size) for size in study["sizes"]]
    for each in settings:
        check_folds(each, study["folds"])
    cells = [(each, evaluation) for each in settings for evaluation in evaluations]
    rows, series = [], []
    for index in progress.steps(0, len(cells)):
        each, evaluation = cells[index]
        curves = validation_curves(each, study["folds"], evaluation, pretrained)
        best = fmean(curve[highest(curve)] for curve in curves)
        words: dict[str, Any] = {"setting": labelled_ecgs(each.meta_size), "evaluation": evaluation}
        words["replicate"] = pair(seed, 0)
        rows.append(metrics.row(config["domain"], config["arm"], CROSS_VALIDATED_AUROC, best, **words))
        # A rehearsal leaves epochs out, so that folds have as many as it took.
        means = [fmean(values) for values in zip(*curves, strict=False)]
        name = f"{evaluation}, {labelled_ecgs(each.meta_size)}"
        series += [
            {"replicate": seed, "step": step, "name": name, "value": value} for step, value in enumerate(means, start=1)
        ]
    metrics.write(rows, outputs["metrics"])
    metrics.write_series(series, outputs["series"])
