"""An FT job: all FT seeds of one arm and PT seed at one size of the FT set.

Full transfer trains the whole network, as in the paper's "Implementation details": Adam at 1e-3, 200 epochs,
minibatches of 256. Linear evaluation, which is not in the paper, trains only a head. The best epoch on validation AUROC
is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from metapt.domains.ecg.config import EcgFinetuning
from metapt.domains.ecg.data.dataset import Labelled, finetune_indices, open_dataset
from metapt.domains.ecg.resnet1d import Encoder, initial_head, load_pretrained
from metapt.domains.ecg.stages import EcgFinetuneSettings, mean_auroc
from metapt.errors import DataError
from metapt.hypergrad import Params
from metapt.hypergrad.layers.precision import computing_in
from metapt.machine import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.twostage.finetuning import Part, Start, check_examples, finetune, write
from metapt.twostage.heads import Examples, FinetuneProblem, Score, in_chunks, minibatches
from metapt.twostage.quantities import BEST_EPOCH, VALIDATION_AUROC

CHUNK = 128  # number of ECGs in a forward pass without gradients


class Sets(NamedTuple):
    """The ECGs for training, for the choice of the epoch, and for the test."""

    train: Labelled
    validation: Labelled
    test: Labelled


class EcgFinetuneProblem(FinetuneProblem):
    """FT of an encoder of a width on ECGs, which must pass `check_examples`."""

    def __init__(self, width: int, sets: Sets, settings: EcgFinetuning, capture: bool = False) -> None:
        self.epochs, self.batch_size, self.capture = settings.epochs, settings.batch_size, capture
        self.linear_lrs, self.linear_epochs = [settings.linear_lr], settings.linear_epochs
        self._width, self._sets, self._settings, self._encoder = width, sets, settings, Encoder(width)

    def initial_head(self, generator: torch.Generator) -> Params:
        return initial_head(self._width, self._sets.train.labels.shape[1], generator)

    def sampler(self, generator: torch.Generator) -> Callable[[], Iterator[Labelled]]:
        signals, labels = self._sets.train

        def epoch() -> Iterator[Labelled]:
            for (indices,) in minibatches(len(signals), self.batch_size, [generator], signals.device):
                yield Labelled(signals[indices], labels[indices])

        return epoch

    def trained(self, network: Params, batch: Labelled) -> Examples:
        with computing_in(self._settings.precision, batch.signals.device):
            features = self._encoder(network, batch.signals, training=self._settings.batch_norm == "train")
        return Examples(features, batch.labels)

    @torch.no_grad()
    def examples(self, network: Params, part: Literal["train", "validation", "test"]) -> Examples:
        """Return the features [n, 8 * width] of a part, with BatchNorm in eval mode, and its labels."""
        signals, labels = getattr(self._sets, part)
        return Examples(in_chunks(lambda chunk: self._encoder(network, chunk, training=False), signals, CHUNK), labels)


def run(settings: EcgFinetuneSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tune and test. The inputs are `signals`, `records` and `pretrained`.

    Raises DataError if the test fold is empty, and the errors of `load_pretrained` and `check_examples`.
    """
    dataset = open_dataset(inputs, settings.samples, machine.device)
    if len(dataset.records.test) == 0:
        raise DataError(f"{inputs['records']} has no records of fold 10, to test on: prepare more records.")
    test, classes = dataset.labelled(dataset.records.test), dataset.records.classes

    def starts(parts: list[Part]) -> Iterator[Start]:
        pretrained = load_pretrained(inputs["pretrained"], settings.width, machine.device).pretrained
        chosen = finetune_indices(dataset.records, settings.size, settings.seed, settings.split)
        train, validation = map(dataset.labelled, chosen)
        evaluated = {"validation ECGs": validation.labels, "test ECGs": test.labels}
        check_examples(len(train.signals), evaluated, classes, "ECGs")
        sets = Sets(train, validation, test)
        yield Start(parts, EcgFinetuneProblem(settings.width, sets, settings.finetune, settings.capture), pretrained)

    checkpoint = Checkpoint(Path(settings.checkpoint), fingerprint(settings, inputs, __name__, machine.device))
    setting = f"ft_size={settings.size}"
    if settings.meta_size not in (None, settings.size):
        setting += f" meta_ft_size={settings.meta_size}"
    runs = finetune(settings, checkpoint, starts, [settings.finetune.lr])
    write(runs, settings, setting, partial(_numbers, classes), outputs)


def _numbers(classes: Sequence[str], score: Score) -> dict[str, float]:
    return {
        mean_auroc(len(classes)): score.test_auroc,
        **{f"test AUROC {name} (%)": auroc for name, auroc in zip(classes, score.class_aurocs, strict=True)},
        VALIDATION_AUROC: score.validation_auroc,
        BEST_EPOCH: score.best_epoch,
    }
