"""An FT job on protein graphs: the whole network (full transfer), or a head on a frozen encoder (linear evaluation).

The appendix "Meta-Parameterized Multitask PT" prescribes Adam, minibatches of 32, dropout of 0.5 and 50 epochs. The
epoch with the best validation AUROC is tested. BatchNorm uses minibatch statistics in training, and running statistics
in validation and test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

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
from metapt.twostage.heads import Examples, FinetuneProblem, Score, Split, minibatches
from metapt.twostage.quantities import BEST_EPOCH, LEARNING_RATE, VALIDATION_AUROC


def run(settings: PpiFinetuneSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tune and test an arm in a setting, for a PT seed and all FT seeds and evaluations.

    The inputs are `graphs` and, if the arm pre-trains, `pretrained`. Raises DataError as `open_dataset`,
    `splits`, `finetune_tasks`, `PpiFinetuneProblem` and `load_pretrained`.
    """
    network, own = settings.network, settings.finetune
    dataset = open_dataset(inputs["graphs"], machine.device)
    tasks = finetune_tasks(settings.setting, dataset.fine_tasks)
    problem = PpiFinetuneProblem(network, dataset, splits(dataset.graphs, settings.test_species), tasks, own)
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

    def series(score: Score) -> dict[str, dict[int, float]]:
        return {TASK_AUROC: dict(zip(tasks.tolist(), score.class_aurocs, strict=True))}

    scores = finetune(settings, checkpoint, starts, own.lrs, own.trial_epochs)
    write(scores, settings, settings.setting, _numbers, outputs, series)


def _numbers(score: Score) -> dict[str, float]:
    return {
        AUROC: score.test_auroc,
        VALIDATION_AUROC: score.validation_auroc,
        BEST_EPOCH: score.best_epoch,
        LEARNING_RATE: score.learning_rate,
    }


def finetune_tasks(setting: str, count: int) -> Tensor:
    """Return the numbers of the FT tasks in a setting: the tasks held out from PT, or all `count` tasks.

    Raises DataError as `held_out_tasks`.
    """
    return torch.tensor(held_out_tasks(count, HELD_OUT.index(setting)) if setting in HELD_OUT else range(count))


class PpiFinetuneProblem(FinetuneProblem):
    """FT of a GIN on some FT tasks of protein graphs; the test set is the hard half of the test species.

    Raises DataError as `check_examples`.
    """

    def __init__(
        self, network: Network, dataset: PpiDataset, splits: Splits, tasks: Tensor, settings: PpiFinetuning
    ) -> None:
        self.epochs, self.batch_size = settings.epochs, settings.batch_size
        self.linear_lrs, self.linear_epochs = settings.linear_lrs, settings.linear_epochs
        self._network, self._dataset, self._settings = network, dataset, settings
        self._encoder = GinEncoder(network.layers, network.width)
        self._tasks = tasks.to(dataset.device)
        self._graphs: dict[Split, Tensor] = {part: torch.from_numpy(getattr(splits, part)) for part in get_args(Split)}
        evaluated = {"validation graphs": self._labels("validation"), "test graphs": self._labels("test")}
        check_examples(len(splits.train), evaluated, [f"FT task {task}" for task in tasks.tolist()], "graphs")

    def _labels(self, part: Split) -> Tensor:
        """Return the labels [n, tasks] of a part, 0 and 1, float32."""
        return self._dataset.fine(self._graphs[part])[:, self._tasks]

    def initial_head(self, generator: torch.Generator) -> Params:
        return initial_head(self._network.width, len(self._tasks), generator)

    def sampler(self, generator: torch.Generator) -> Callable[[], Iterator[LabelledGraphs]]:
        dataset, train, train_labels = self._dataset, self._graphs["train"], self._labels("train")
        masks = torch.Generator(dataset.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
        dropout = Dropout(masks, self._network, self._settings.dropout)

        def epoch() -> Iterator[LabelledGraphs]:
            for (batch,) in minibatches(len(train), self.batch_size, [generator]):
                graphs, labels = dataset.batch(train[batch]), train_labels[to_device(batch, train_labels.device)]
                yield LabelledGraphs(graphs, labels, keep=dropout(len(graphs.graph)))

        return epoch

    def trained(self, network: Params, batch: LabelledGraphs) -> Examples:
        with computing_in(self._settings.precision, batch.labels.device):
            features = self._encoder(network, batch.graphs, training=True, keep=batch.keep)
        return Examples(features, batch.labels)

    def examples(self, network: Params, part: Split) -> Examples:
        """Return the features [n, 2 width] of a part, without dropout, and its labels [n, tasks]."""
        return Examples(features_of(self._encoder, network, self._dataset, self._graphs[part]), self._labels(part))
