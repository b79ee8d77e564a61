"""The headroom of a problem of one's own: what other hyperparameters of pre-training (PT) could gain at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from metapt.errors import ConfigError, TrainingError
from metapt.evaluation.headroom import REFERENCE, RUN, Headroom, grid
from metapt.evaluation.headroom import headroom as measured
from metapt.files import write_csv
from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.hypergrad.nested import cloned
from metapt.hypergrad.params import detached
from metapt.training.batches import Batches
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator


@dataclass(frozen=True)
class OwnHeadroom:
    """The headroom of a problem; its text says it in a few lines.

    Attributes:
        rows: a row for each run, see `metapt.evaluation.headroom`.
        headroom: variance shares, gains and responses.
    """

    rows: list[dict[str, Any]] = field(repr=False)
    headroom: Headroom

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as a table that `metapt headroom` reads; a number that a run has not is left empty.

        Raises MachineError if the file can't be written.
        """
        names = dict.fromkeys(name for row in self.rows for name in row)
        write_csv({name: [row.get(name) for row in self.rows] for name in names}, Path(path))

    def __str__(self) -> str:
        return str(self.headroom)


def headroom(
    problem: MetaProblem,
    batches: Callable[[int], Batches],
    pretrained: Callable[[int], Pretrained],
    draw: Callable[[torch.Generator], Params],
    evaluate: Callable[[Pretrained, int], float | tuple[float, float]],
    *,
    steps: int,
    optimizer: OptimizerSpec,
    reference: Params | None = None,
    settings: int = 24,
    seeds: int | Sequence[int] = 4,
    seed: int = 0,
    name: str = "own problem",
) -> OwnHeadroom:
    """Measure what other hyperparameters of PT could gain, by plain PT with random ones.

    Each setting of the hyperparameters is pre-trained with each PT seed, and fine-tuned. The PT runs of a seed differ
    in the hyperparameters only.

    Args:
        problem: provides the PT loss.
        batches: returns the minibatches of a PT seed, from their beginning; only `pretrain` is called.
        pretrained: returns the initial encoder, PT head and buffers of a PT seed.
        draw: returns random hyperparameters (the meta-parameters of the problem), drawn from the given generator on the
            CPU. Draw them from all values that you would try.
        evaluate: fine-tunes the encoder that PT with a seed has left, and returns the test result, or validation and
            test result; higher is better. It must be the same function for all settings, random draws included.
        steps: PT steps of a run.
        optimizer: the optimiser of PT.
        reference: hyperparameters that the settings are compared with, such as those that you use; None: no gain is
            measured.
        settings: number of random settings, 2 or more.
        seeds: PT seeds, or their number; 2 or more.
        seed: seed of the random settings.
        name: name of the problem in the table.

    Returns:
        The runs and the headroom.

    Raises:
        ConfigError: there are fewer than two settings or seeds, a seed stands twice, a hyperparameter is named like a
            column of the table, or `batches` returns one object twice.
        TrainingError: the PT of a setting diverges.
    """
    chosen = list(range(seeds) if isinstance(seeds, int) else seeds)
    if settings < 2 or len(chosen) < 2:
        raise ConfigError(f"a headroom of {settings} settings with {len(chosen)} PT seeds; legal: 2 or more of each.")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"the PT seeds {chosen} have one twice; legal: different seeds.")
    tried = {} if reference is None else {REFERENCE: cloned(reference)}
    for number in range(settings):
        tried[f"headroom-{seed}-{number:02d}"] = cloned(draw(generator("headroom", seed, number)))
    for taken in {hyperparameter for meta in tried.values() for hyperparameter in _numbers(meta)} & set(RUN):
        raise ConfigError(f"a hyperparameter is named {taken!r}, like a column of the table; give it another name.")
    rows: list[dict[str, Any]] = []
    first: dict[int, Batches] = {}  # of each seed
    for setting, meta in tried.items():
        for own in chosen:
            minibatches = batches(own)
            if any(minibatches is each for each in first.values()):
                raise ConfigError("batches returns one object twice, which goes on where it was; legal: new ones.")
            first.setdefault(own, minibatches)
            trainer = Pretrainer(problem, minibatches, pretrained(own), optimizer)
            try:
                trainer.run(meta, steps, f"{setting}, PT seed {own}")
            except TrainingError as error:
                raise TrainingError(f"{setting} with PT seed {own}: {error} Or draw from a smaller range.") from error
            found = evaluate(Pretrained(*map(detached, trainer.pretrained)), own)
            validation, test = found if isinstance(found, tuple) else (found, found)
            words: dict[str, Any] = {"experiment": "headroom", "domain": "own", "problem": name, "evaluation": "FT"}
            words |= {"setting": setting, **_numbers(meta), "pretrain_seed": own, "finetune_seed": 0}
            rows.append(words | {"validation": float(validation), "test": float(test)})
    return OwnHeadroom(rows, measured(grid(rows)))


def _numbers(meta: Params) -> dict[str, float]:
    """Return hyperparameters as numbers by name; elements of a tensor as `name[0]`, `name[1]`, ..."""
    found: dict[str, float] = {}
    for name, value in meta.items():
        values = value.detach().flatten().tolist()
        found |= {name: values[0]} if value.dim() == 0 else {f"{name}[{i}]": each for i, each in enumerate(values)}
    return found
