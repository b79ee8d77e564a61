"""An FT job: one arm and size of the FT set, all its PT seeds and FT seeds, both evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metapt.domains.ecg.config import FinetuneSettings
from metapt.domains.ecg.data.dataset import Dataset, finetune_indices, open_dataset
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.finetune import Labelled, Sets, full_transfer, linear_evaluation
from metapt.domains.ecg.resnet1d import Encoder
from metapt.domains.ecg.runs import EXPERIMENT, load_pretrained
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.hypergrad import Pretrained
from metapt.stages import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Part, Score, Scores, parts
from metapt.twostage.pairs import pair

MEAN_AUROC = "mean test AUROC over 5 classes (%)"
VALIDATION_AUROC = "validation AUROC (%)"
BEST_EPOCH = "best epoch"


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tunes and tests; see `metapt.registry.Domain.finetune`.

    Args:
        config: `arm` (its name), `meta_size` (labelled ECGs that PT saw, or None), `size` (labelled ECGs in FT),
            `split` (of them; see `finetune_indices`), `pretrain_seeds`, `finetune_seeds` (numbers of them), `evaluations`,
            `width`, `samples`, `finetune` (see `FinetuneSettings`), `checkpoint` (path).
        inputs: `signals`, `records`, and `seed{n}`: pretrained.pt of each PT seed.
        outputs: `metrics`, `series`.
        machine: device.

    Raises:
        DataError: the test fold is empty; as `load_pretrained` and `full_transfer`.
        ConfigError: as `finetune_indices`.
    """
    settings = FinetuneSettings.model_validate(config["finetune"])
    dataset = open_dataset(inputs, config["samples"], machine.device)
    if len(dataset.records.test) == 0:
        raise DataError(f"{inputs['records']} has no records of fold 10, to test on: prepare more records.")
    test = _labelled(dataset, dataset.records.test)
    encoder, width = Encoder(config["width"]), config["width"]
    scores = Scores(Checkpoint(Path(config["checkpoint"]), fingerprint(config, inputs, __name__, machine.device)))
    for seed in range(config["pretrain_seeds"]):
        todo = [part for part in parts(config, [seed]) if part not in scores]
        if not todo:
            continue
        start = load_pretrained(inputs[f"seed{seed}"], width, machine.device).pretrained
        chosen = finetune_indices(dataset.records, config["size"], seed, config["split"])
        train, validation = (_labelled(dataset, part) for part in chosen)
        _evaluate(encoder, start, width, Sets(train, validation, test), settings, config["arm"], todo, scores)
    metrics.write(_rows(config, scores), outputs["metrics"])
    metrics.write_series(_series(config, scores), outputs["series"])
    scores.remove()


def _labelled(dataset: Dataset, chosen: np.ndarray) -> Labelled:
    return Labelled(dataset.signals(chosen), dataset.labels(chosen))


def _evaluate(
    encoder: Encoder,
    start: Pretrained,
    width: int,
    sets: Sets,
    settings: FinetuneSettings,
    arm: str,
    todo: list[Part],
    scores: Scores,
) -> None:
    """Parts of one PT seed: linear evaluation all together, full transfer one after the other."""
    linear = [part for part in todo if part[0] == "linear_evaluation"]
    if linear:
        generators = [generator("ecg finetune", *part) for part in linear]
        found = linear_evaluation(encoder, start.encoder, start.buffers, width, sets, settings, generators)
        scores.add(dict(zip(linear, found, strict=True)))
    for part in todo:
        if part[0] == "full_transfer":
            label = f"FT of {arm}, seeds {part[1]} and {part[2]}"
            stream = generator("ecg finetune", *part)
            score = full_transfer(encoder, start.encoder, start.buffers, width, sets, settings, stream, label)
            scores.add({part: score})


def _rows(config: dict[str, Any], scores: Scores) -> list[dict[str, Any]]:
    setting = f"ft_size={config['size']}"
    if config["meta_size"] not in (None, config["size"]):
        setting += f" meta_ft_size={config['meta_size']}"
    return [
        metrics.row(EXPERIMENT, config["arm"], metric, value, replicate=pair(*part[1:]), setting=setting, evaluation=part[0])
        for part in parts(config)
        for metric, value in _numbers(scores[part]).items()
    ]


def _numbers(score: Score) -> dict[str, float]:
    return {
        MEAN_AUROC: score.test_auroc,
        **{f"test AUROC {name} (%)": value for name, value in zip(CLASSES, score.class_aurocs, strict=True)},
        VALIDATION_AUROC: score.validation_auroc,
        BEST_EPOCH: score.best_epoch,
    }


def _series(config: dict[str, Any], scores: Scores) -> list[dict[str, Any]]:
    """The validation AUROC after each epoch."""
    return [
        {"replicate": pair(*part[1:]), "step": epoch, "name": f"{part[0]}, {VALIDATION_AUROC}", "value": value}
        for part in parts(config)
        for epoch, value in enumerate(scores[part].validation_curve, 1)
    ]
