"""Fine-tuning on protein graphs and its test: of the whole network (full transfer), or of a head alone (linear evaluation).

Appendix "Meta-Parameterized Multitask PT": Adam, minibatches of 32, dropout of 0.5, 50 epochs; the best epoch on validation
AUROC is tested. BatchNorm takes the minibatch's statistics in training, its running ones in validation and test.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from metapt.domains.ppi.config import FinetuneSettings
from metapt.domains.ppi.data.dataset import PpiDataset, Splits, held_out_tasks
from metapt.domains.ppi.features import features_of
from metapt.domains.ppi.gin import Encoder, dropout_masks, initial_head, logits
from metapt.domains.ppi.problem import mean_loss
from metapt.domains.ppi.settings import HELD_OUT
from metapt.errors import DataError
from metapt.evaluation.auroc import mean_auroc, undefined_classes
from metapt.hypergrad import Params
from metapt.hypergrad.params import leaves
from metapt.training.progress import steps
from metapt.twostage.finetuning import Examples, Score, copied, highest, linear_heads, minibatches, score

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sets:
    """What FT trains on, what chooses epoch and learning rate, and what is reported: numbers of graphs, on any device.

    Attributes:
        dataset: all graphs.
        tasks: numbers of the FT tasks.
    """

    dataset: PpiDataset
    train: Tensor
    validation: Tensor
    test: Tensor
    tasks: Tensor

    def labels(self, indices: Tensor) -> Tensor:
        """[n, tasks] of 0 and 1, float32."""
        return self.dataset.fine(indices)[:, self.tasks]


def sets_of(dataset: PpiDataset, splits: Splits, tasks: Tensor) -> Sets:
    """The species split; the hard half of the test species is the test set. Tasks that an AUROC leaves out are named in the log.

    Raises:
        DataError: fewer than 2 graphs to train on, or no task with both labels in validation or test.
    """
    train, validation, test = (torch.from_numpy(part) for part in (splits.train, splits.validation, splits.test))
    sets = Sets(dataset, train, validation, test, tasks)
    if len(sets.train) < 2:
        raise DataError(f"FT trains on 2 or more graphs, and here on {len(sets.train)}; prepare more graphs.")
    for name, chosen in (("validation", sets.validation), ("test", sets.test)):
        undefined = undefined_classes(sets.labels(chosen))
        if len(undefined) == len(tasks):
            raise DataError(
                f"no FT task has both labels among the {len(chosen)} {name} graphs, so that no AUROC is defined; prepare more "
                "graphs, or FT tasks that more proteins carry."
            )
        if undefined:
            numbers = ", ".join(str(int(tasks[index])) for index in undefined)
            log.warning("the %s AUROC leaves out FT task %s: all %d graphs have the same label", name, numbers, len(chosen))
    return sets


def finetune_tasks(setting: str, count: int) -> Tensor:
    """FT tasks, of `count`, that FT in a setting is on: those that PT did not know of, or all. Raises as `held_out_tasks`."""
    return torch.tensor(held_out_tasks(count, HELD_OUT.index(setting)) if setting in HELD_OUT else range(count))


def full_transfer(
    encoder: Encoder,
    start: Params,
    buffers: Params,
    sets: Sets,
    settings: FinetuneSettings,
    lr: float,
    generator: torch.Generator,
    label: str | None = None,
) -> Score:
    """Trains encoder and a new linear head.

    Args:
        encoder: the network.
        start: its parameters; like the buffers, not changed.
        buffers: BatchNorm's statistics.
        sets: graphs on the device of `start`.
        settings: see `FinetuneSettings`.
        lr: learning rate.
        generator: of head, minibatches and dropout, on the CPU.
        label: shows the progress under this name.

    Raises:
        DataError: no task has both labels in validation or test.
    """
    dataset = sets.dataset
    masks = torch.Generator(dataset.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    network = leaves(copied(start))
    head = leaves({name: value.to(dataset.device) for name, value in _head(encoder, sets, generator).items()})
    optimizer = torch.optim.Adam([*network.values(), *head.values()], lr=lr)
    network |= copied(buffers)

    labels, validation_labels = sets.labels(sets.train), sets.labels(sets.validation)
    curve: list[float] = []
    for epoch in steps(0, settings.epochs, label) if label else range(settings.epochs):
        for batch in minibatches(len(sets.train), settings.batch_size, [generator]):
            graphs = dataset.batch(sets.train[batch[0]])
            nodes = len(graphs.graph)
            keep = dropout_masks(encoder.layers, nodes, encoder.width, settings.dropout, masks) if settings.dropout else None
            features = encoder(network, graphs, training=True, keep=keep)
            loss = mean_loss(logits(head, features), labels[batch[0].to(labels.device)])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        outputs = logits(head, features_of(encoder, network, dataset, sets.validation))
        curve.append(100 * float(mean_auroc(outputs, validation_labels).value))
        if highest(curve) == epoch:
            best_network, best_head = copied(network), copied(head)
    outputs = logits(best_head, features_of(encoder, best_network, dataset, sets.test))
    return score(curve, outputs, sets.labels(sets.test), lr)


def linear_evaluation(
    encoder: Encoder,
    start: Params,
    buffers: Params,
    sets: Sets,
    settings: FinetuneSettings,
    generators: list[torch.Generator],
) -> list[Score]:
    """Trains linear heads on the features of the frozen encoder, one for each generator and learning rate, all at once.

    Each generator's learning rate is the best of `settings.linear_lrs` by its own validation AUROC. Takes and raises what
    `full_transfer` does; a head comes out as it would alone.
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


def _head(encoder: Encoder, sets: Sets, generator: torch.Generator) -> Params:
    return initial_head(encoder.width, len(sets.tasks), generator)
