"""An FT job: all FT seeds of one arm and PT seed at one size of the FT set.

Full transfer trains the whole network, as in the paper's "Implementation details": Adam at 1e-3, 200 epochs,
minibatches of 256. Linear evaluation, which is not in the paper, trains only a head. The best epoch on validation AUROC
is tested.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metapt.domains.ecg.config import EcgFinetuning
from metapt.domains.ecg.data.dataset import Dataset, finetune_indices, open_dataset
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.problem import classification_loss
from metapt.domains.ecg.quantities import AUROC, CLASS_AUROCS
from metapt.domains.ecg.resnet1d import Encoder, initial_head, load_pretrained, logits
from metapt.errors import DataError
from metapt.evaluation.auroc import undefined_classes
from metapt.hypergrad import Params
from metapt.hypergrad.layers.precision import computing_in
from metapt.machine import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.twostage.finetuning import Part, Start, finetune, write
from metapt.twostage.heads import Examples, Score, in_chunks, linear_heads, minibatches
from metapt.twostage.quantities import BEST_EPOCH, VALIDATION_AUROC
from metapt.twostage.transfer import Transfer

log = logging.getLogger(__name__)
CHUNK = 128  # number of ECGs in a forward pass without gradients


class Labelled(NamedTuple):
    """Normalised signals [n, samples, 12], and labels [n, 5] of 0 and 1 in float, on one device."""

    signals: Tensor
    labels: Tensor


class Sets(NamedTuple):
    """The ECGs for training, for the choice of the epoch, and for the test."""

    train: Labelled
    validation: Labelled
    test: Labelled


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tune and test.

    The config holds `arm` (its name), `meta_size` (labelled ECGs that PT saw, or None), `size` (labelled ECGs in FT),
    `split` (of them; see `finetune_indices`), the PT `seed`, `finetune_seeds` (how many), `evaluations`, `width`,
    `samples`, `finetune` (see `EcgFinetuning`) and `checkpoint`. The inputs are `signals`, `records` and `pretrained`.
    Raises DataError if the test fold is empty, and the errors of `load_pretrained` and `check`.
    """
    settings = EcgFinetuning.model_validate(config["finetune"])
    dataset = open_dataset(inputs, config["samples"], machine.device)
    if len(dataset.records.test) == 0:
        raise DataError(f"{inputs['records']} has no records of fold 10, to test on: prepare more records.")
    test = _labelled(dataset, dataset.records.test)
    encoder, width = Encoder(config["width"]), config["width"]

    def starts(parts: list[Part]) -> Iterator[Start]:
        pretrained = load_pretrained(inputs["pretrained"], width, machine.device).pretrained
        train, validation = (
            _labelled(dataset, chosen)
            for chosen in finetune_indices(dataset.records, config["size"], config["seed"], config["split"])
        )
        check(train, {"validation ECGs": validation, "test ECGs": test})
        given = encoder, pretrained.encoder, pretrained.buffers, width, Sets(train, validation, test), settings
        yield Start(
            parts,
            linear=lambda generators: linear_evaluation(*given, generators),
            transfer=lambda lr, generator, label: full_transfer(*given, generator, label),
        )

    checkpoint = Checkpoint(Path(config["checkpoint"]), fingerprint(config, inputs, __name__, machine.device))
    setting = f"ft_size={config['size']}"
    if config["meta_size"] not in (None, config["size"]):
        setting += f" meta_ft_size={config['meta_size']}"
    write(finetune(config, checkpoint, starts, [settings.lr]), config, setting, _numbers, outputs)


def _labelled(dataset: Dataset, chosen: np.ndarray) -> Labelled:
    return Labelled(dataset.signals(chosen), dataset.labels(chosen))


def _numbers(score: Score) -> dict[str, float]:
    return {
        AUROC: score.test_auroc,
        **dict(zip(CLASS_AUROCS.values(), score.class_aurocs, strict=True)),
        VALIDATION_AUROC: score.validation_auroc,
        BEST_EPOCH: score.best_epoch,
    }


def full_transfer(
    encoder: Encoder,
    start: Params,
    buffers: Params,
    width: int,
    sets: Sets,
    settings: EcgFinetuning,
    generator: torch.Generator,
    label: str | None = None,
) -> Transfer:
    """Return a run that trains the encoder (from `start` and `buffers`, which don't change) and a new linear head.

    The generator, on the CPU, draws head and minibatches; the progress is shown under `label`. The sets must pass
    `check`.
    """
    signals, labels = sets.train
    training = settings.batch_norm == "train"

    def losses(network: Params, head: Params) -> Iterator[Tensor]:
        for (indices,) in minibatches(len(signals), settings.batch_size, [generator], signals.device):
            with computing_in(settings.precision, signals.device):
                features = encoder(network, signals[indices], training=training)
            yield classification_loss(head, features, labels[indices])

    def outputs(network: Params, head: Params, name: str) -> tuple[Tensor, Tensor]:
        part = sets.validation if name == "validation" else sets.test
        return logits(head, _features(encoder, network, part.signals)), part.labels

    head = {name: value.to(signals.device) for name, value in initial_head(width, generator).items()}
    return Transfer(
        start, buffers, head, lr=settings.lr, epochs=settings.epochs, losses=losses, outputs=outputs, label=label
    )


def linear_evaluation(
    encoder: Encoder,
    start: Params,
    buffers: Params,
    width: int,
    sets: Sets,
    settings: EcgFinetuning,
    generators: list[torch.Generator],
) -> list[Score]:
    """Train linear heads on the features of the frozen encoder, one for each generator, all at once.

    Each head is the same as if it were trained alone. Arguments are those of `full_transfer`.
    """
    network = {**start, **buffers}
    train, validation, test = (Examples(_features(encoder, network, part.signals), part.labels) for part in sets)
    return linear_heads(
        train,
        validation,
        test,
        [initial_head(width, generator) for generator in generators],
        lrs=[settings.linear_lr],
        epochs=settings.linear_epochs,
        batch_size=settings.batch_size,
        generators=generators,
    )


def check(train: Labelled, evaluated: Mapping[str, Labelled]) -> None:
    """Check that FT can train on these ECGs, and that the AUROC is defined on those that are evaluated, by name.

    Warn of classes that the AUROC leaves out. Raises DataError for fewer than 2 ECGs to train on, and if no class has
    both labels among the ECGs that are evaluated.
    """
    if len(train.signals) < 2:
        raise DataError(
            f"FT trains on 2 or more labelled ECGs, and here on {len(train.signals)}; take a larger FT set."
        )
    for name, (_, labels) in evaluated.items():
        undefined = undefined_classes(labels)
        if len(undefined) == len(CLASSES):
            raise DataError(
                f"no class has both labels among the {len(labels)} {name}, so that no AUROC is defined; take more."
            )
        if undefined:
            names = ", ".join(CLASSES[index] for index in undefined)
            log.warning("the AUROC on the %s leaves out %s: all %d have the same label", name, names, len(labels))


@torch.no_grad()
def _features(encoder: Encoder, network: Params, signals: Tensor) -> Tensor:
    """Return features [n, 8 * width] with BatchNorm in eval mode."""
    return in_chunks(lambda chunk: encoder(network, chunk, training=False), signals, CHUNK)
