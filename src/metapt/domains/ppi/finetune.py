"""An FT job on protein graphs: the whole network (full transfer), or a head on a frozen encoder (linear evaluation).

The appendix "Meta-Parameterized Multitask PT" prescribes Adam, minibatches of 32, dropout of 0.5 and 50 epochs. The
epoch with the best validation AUROC is tested. BatchNorm uses minibatch statistics in training, and running statistics
in validation and test.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ppi.batches import Dropout
from metapt.domains.ppi.config import Network, PpiFinetuning
from metapt.domains.ppi.data.dataset import PpiDataset, Splits, held_out_tasks, open_dataset, splits
from metapt.domains.ppi.features import features_of
from metapt.domains.ppi.gin import GinEncoder, initial_head, initial_pretrained, load_pretrained, logits
from metapt.domains.ppi.quantities import AUROC, TASK_AUROC
from metapt.domains.ppi.settings import HELD_OUT
from metapt.errors import DataError
from metapt.evaluation.auroc import undefined_classes
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.layers.precision import computing_in
from metapt.machine import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.seeds import generator
from metapt.training.streams import to_device
from metapt.twostage import finetuning
from metapt.twostage.finetuning import Part, Start
from metapt.twostage.heads import Examples, Score, linear_heads, minibatches
from metapt.twostage.quantities import BEST_EPOCH, LEARNING_RATE, VALIDATION_AUROC
from metapt.twostage.transfer import Transfer

log = logging.getLogger(__name__)


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tune and test an arm in a setting, for a PT seed and all FT seeds and evaluations.

    The config holds `domain`, `arm` (its name), `method` (of the arm), `setting`, the PT `seed`, `finetune_seeds` (how
    many), `evaluations`, `network` (see `Network`), `finetune` (see `PpiFinetuning`), `test_species` and `checkpoint`.
    The inputs are `graphs` and, unless the method is `no_pt`, `pretrained`. Raises DataError as `open_dataset`,
    `splits`, `finetune_tasks`, `sets_of` and `load_pretrained`.
    """
    settings, network = PpiFinetuning.model_validate(config["finetune"]), Network.model_validate(config["network"])
    dataset = open_dataset(inputs["graphs"], machine.device)
    tasks = finetune_tasks(config["setting"], dataset.fine_tasks)
    sets = sets_of(dataset, splits(dataset.graphs, config["test_species"]), tasks)
    encoder = GinEncoder(network.layers, network.width)
    checkpoint = Checkpoint(Path(config["checkpoint"]), fingerprint(config, inputs, __name__, machine.device))

    def start_of(given: Pretrained, served: list[Part]) -> Start:
        network = encoder, given.encoder, given.buffers, sets, settings
        return Start(
            parts=served,
            linear=lambda streams: linear_evaluation(*network, streams),
            transfer=lambda lr, stream, label: full_transfer(*network, lr, stream, label),
        )

    def starts(todo: list[Part]) -> Iterator[Start]:
        if config["method"] != "no_pt":
            yield start_of(load_pretrained(inputs["pretrained"], network, machine.device).pretrained, todo)
            return
        # Without PT each FT seed draws an encoder, as in the released code: results then vary with the encoder.
        for number in sorted({part[1] for part in todo}):
            random = generator("ppi weights", config["seed"], number)
            made = initial_pretrained(network.layers, network.width, 1, random).to(machine.device)
            yield start_of(made, [part for part in todo if part[1] == number])

    def series(score: Score) -> Iterator[tuple[str, Iterable[int], Iterable[float]]]:
        yield TASK_AUROC, tasks.tolist(), score.class_aurocs

    scores = finetuning.finetune(config, checkpoint, starts, settings.lrs, settings.trial_epochs)
    finetuning.write(scores, config, config["setting"], _numbers, outputs, series)


def _numbers(score: Score) -> dict[str, float]:
    return {
        AUROC: score.test_auroc,
        VALIDATION_AUROC: score.validation_auroc,
        BEST_EPOCH: score.best_epoch,
        LEARNING_RATE: score.learning_rate,
    }


@dataclass(frozen=True)
class PpiSets:
    """Numbers of the graphs for training, for the choice of epoch and learning rate, and for the test."""

    dataset: PpiDataset  # all graphs
    train: Tensor  # train, validation, test: int64, on the CPU
    validation: Tensor
    test: Tensor
    tasks: Tensor  # numbers of the FT tasks

    def labels(self, indices: Tensor) -> Tensor:
        """Return FT labels [n, tasks] of 0 and 1, float32."""
        return self.dataset.fine(indices)[:, self.tasks]


def sets_of(dataset: PpiDataset, splits: Splits, tasks: Tensor) -> PpiSets:
    """Return the FT sets of a split by species; the test set is the hard half of the test species.

    Tasks without a defined AUROC are named in the log. Raises DataError if there are fewer than 2 training graphs, or
    no task has both labels in validation or test.
    """
    train, validation, test = (torch.from_numpy(part) for part in (splits.train, splits.validation, splits.test))
    sets = PpiSets(dataset, train, validation, test, tasks.to(dataset.device))
    if len(sets.train) < 2:
        raise DataError(f"FT trains on 2 or more graphs, and here on {len(sets.train)}; prepare more graphs.")
    for name, chosen in (("validation", sets.validation), ("test", sets.test)):
        undefined = undefined_classes(sets.labels(chosen))
        if len(undefined) == len(tasks):
            raise DataError(
                f"no FT task has both labels among the {len(chosen)} {name} graphs, so that no AUROC is defined; "
                "prepare more graphs, or FT tasks that more proteins carry."
            )
        if undefined:
            numbers = ", ".join(str(int(tasks[index])) for index in undefined)
            log.warning(
                "the %s AUROC leaves out FT task %s: all %d graphs have the same label", name, numbers, len(chosen)
            )
    return sets


def finetune_tasks(setting: str, count: int) -> Tensor:
    """Return the numbers of the FT tasks in a setting: the tasks held out from PT, or all `count` tasks.

    Raises DataError as `held_out_tasks`.
    """
    return torch.tensor(held_out_tasks(count, HELD_OUT.index(setting)) if setting in HELD_OUT else range(count))


def full_transfer(
    encoder: GinEncoder,
    start: Params,
    buffers: Params,
    sets: PpiSets,
    settings: PpiFinetuning,
    lr: float,
    generator: torch.Generator,
    label: str | None = None,
) -> Transfer:
    """Return a run that trains the encoder (from `start` and `buffers`, which don't change) and a new linear head.

    The generator, on the CPU, draws head, minibatches and dropout; the progress is shown under `label`.
    """
    dataset, train_labels = sets.dataset, sets.labels(sets.train)
    masks = torch.Generator(dataset.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    dropout = Dropout(masks, Network(layers=encoder.layers, width=encoder.width), settings.dropout)

    def losses(network: Params, head: Params) -> Iterator[Tensor]:
        for (batch,) in minibatches(len(sets.train), settings.batch_size, [generator]):
            graphs = dataset.batch(sets.train[batch])
            with computing_in(settings.precision, graphs.graph.device):
                features = encoder(network, graphs, training=True, keep=dropout(len(graphs.graph)))
            own_labels = train_labels[to_device(batch, train_labels.device)]
            yield F.binary_cross_entropy_with_logits(logits(head, features), own_labels)

    def outputs(network: Params, head: Params, name: str) -> tuple[Tensor, Tensor]:
        chosen = sets.validation if name == "validation" else sets.test
        return logits(head, features_of(encoder, network, dataset, chosen)), sets.labels(chosen)

    head = {name: value.to(dataset.device) for name, value in _head(encoder, sets, generator).items()}
    return Transfer(start, buffers, head, lr=lr, epochs=settings.epochs, losses=losses, outputs=outputs, label=label)


def linear_evaluation(
    encoder: GinEncoder,
    start: Params,
    buffers: Params,
    sets: PpiSets,
    settings: PpiFinetuning,
    generators: list[torch.Generator],
) -> list[Score]:
    """Train a linear head on the features of the frozen encoder for each generator and learning rate, all at once.

    Each generator's learning rate is the one of `settings.linear_lrs` with the best validation AUROC. A head's result
    does not depend on the others. Arguments are those of `full_transfer`.
    """
    network = {**start, **buffers}
    train, validation, test = (
        Examples(features_of(encoder, network, sets.dataset, chosen), sets.labels(chosen))
        for chosen in (sets.train, sets.validation, sets.test)
    )
    return linear_heads(
        train,
        validation,
        test,
        [_head(encoder, sets, generator) for generator in generators],
        lrs=settings.linear_lrs,
        epochs=settings.linear_epochs,
        batch_size=settings.batch_size,
        generators=generators,
    )


def _head(encoder: GinEncoder, sets: PpiSets, generator: torch.Generator) -> Params:
    return initial_head(encoder.width, len(sets.tasks), generator)
