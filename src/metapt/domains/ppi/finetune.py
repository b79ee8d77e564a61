"""An FT job on protein graphs: the whole network (full transfer), or a head on a frozen encoder (linear evaluation).

The appendix "Meta-Parameterized Multitask PT" prescribes Adam, minibatches of 32, dropout of 0.5 and 50 epochs. The
epoch with the best validation AUROC is tested. BatchNorm uses minibatch statistics in training, and running statistics
in validation and test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from metapt.domains.ppi.config import Network, PpiFinetuning
from metapt.domains.ppi.data.dataset import PpiDataset, Splits, features_of, held_out_tasks, open_dataset, splits
from metapt.domains.ppi.gin import GinEncoder, initial_head, initial_pretrained, load_pretrained
from metapt.domains.ppi.problem import Dropout, LabelledGraphs
from metapt.domains.ppi.stages import AUROC, HELD_OUT, TASK_AUROC, PpiFinetuneSettings
from metapt.hypergrad import Params
from metapt.hypergrad.layers.precision import computing_in
from metapt.machine import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.seeds import generator
from metapt.training.streams import to_device
from metapt.twostage.finetuning import Part, Start, check_examples, finetune, write
from metapt.twostage.heads import Examples, FinetuneProblem, Score, minibatches
from metapt.twostage.quantities import BEST_EPOCH, LEARNING_RATE, VALIDATION_AUROC


def run(settings: PpiFinetuneSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tune and test an arm in a setting, for a PT seed and all FT seeds and evaluations.

    The inputs are `graphs` and, if the arm pre-trains, `pretrained`. Raises DataError as `open_dataset`,
    `splits`, `finetune_tasks`, `sets_of` and `load_pretrained`.
    """
    network, own = settings.network, settings.finetune
    dataset = open_dataset(inputs["graphs"], machine.device)
    tasks = finetune_tasks(settings.setting, dataset.fine_tasks)
    problem = PpiFinetuneProblem(network, sets_of(dataset, splits(dataset.graphs, settings.test_species), tasks), own)
    checkpoint = Checkpoint(Path(settings.checkpoint), fingerprint(settings, inputs, __name__, machine.device))

    def starts(todo: list[Part]) -> Iterator[Start]:
        if "pretrained" in inputs:
            yield Start(todo, problem, load_pretrained(inputs["pretrained"], network, machine.device).pretrained)
            return
        # Without PT each FT seed draws an encoder, as in the released code: results then vary with the encoder.
        for number in sorted({part[1] for part in todo}):
            random = generator("ppi weights", settings.seed, number)
            made = initial_pretrained(network.layers, network.width, 1, random).to(machine.device)
            yield Start([part for part in todo if part[1] == number], problem, made)

    def series(score: Score) -> Iterator[tuple[str, Iterable[int], Iterable[float]]]:
        yield TASK_AUROC, tasks.tolist(), score.class_aurocs

    scores = finetune(settings, checkpoint, starts, own.lrs, own.trial_epochs)
    write(scores, settings, settings.setting, _numbers, outputs, series)


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

    Raises DataError as `check_examples`.
    """
    train, validation, test = (torch.from_numpy(part) for part in (splits.train, splits.validation, splits.test))
    sets = PpiSets(dataset, train, validation, test, tasks.to(dataset.device))
    evaluated = {"validation graphs": sets.labels(validation), "test graphs": sets.labels(test)}
    check_examples(len(train), evaluated, [f"FT task {task}" for task in tasks.tolist()], "graphs")
    return sets


def finetune_tasks(setting: str, count: int) -> Tensor:
    """Return the numbers of the FT tasks in a setting: the tasks held out from PT, or all `count` tasks.

    Raises DataError as `held_out_tasks`.
    """
    return torch.tensor(held_out_tasks(count, HELD_OUT.index(setting)) if setting in HELD_OUT else range(count))


class PpiFinetuneProblem(FinetuneProblem):
    """FT of a GIN on protein graphs."""

    def __init__(self, network: Network, sets: PpiSets, settings: PpiFinetuning) -> None:
        self.epochs, self.batch_size = settings.epochs, settings.batch_size
        self.linear_lrs, self.linear_epochs = settings.linear_lrs, settings.linear_epochs
        self._network, self._sets, self._settings = network, sets, settings
        self._encoder = GinEncoder(network.layers, network.width)

    def initial_head(self, generator: torch.Generator) -> Params:
        return initial_head(self._network.width, len(self._sets.tasks), generator)

    def sampler(self, generator: torch.Generator) -> Callable[[], Iterator[LabelledGraphs]]:
        sets, dataset, train_labels = self._sets, self._sets.dataset, self._sets.labels(self._sets.train)
        masks = torch.Generator(dataset.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
        dropout = Dropout(masks, self._network, self._settings.dropout)

        def epoch() -> Iterator[LabelledGraphs]:
            for (batch,) in minibatches(len(sets.train), self.batch_size, [generator]):
                graphs, labels = dataset.batch(sets.train[batch]), train_labels[to_device(batch, train_labels.device)]
                yield LabelledGraphs(graphs, labels, keep=dropout(len(graphs.graph)))

        return epoch

    def trained(self, network: Params, batch: LabelledGraphs) -> Examples:
        with computing_in(self._settings.precision, batch.labels.device):
            features = self._encoder(network, batch.graphs, training=True, keep=batch.keep)
        return Examples(features, batch.labels)

    def examples(self, network: Params, part: Literal["train", "validation", "test"]) -> Examples:
        """Return the features [n, 2 width] of a part, without dropout, and its labels [n, tasks]."""
        chosen: Tensor = getattr(self._sets, part)
        return Examples(features_of(self._encoder, network, self._sets.dataset, chosen), self._sets.labels(chosen))
