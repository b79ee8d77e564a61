"""An FT job: linear heads on the encoder of an arm and PT seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from metapt.domains.noise.problem import CODE, Batch, NoisyInputs, initial
from torch import Tensor

from metapt.files import reading
from metapt.hypergrad import Params
from metapt.machine import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.pretrained_file import load_pretrained
from metapt.twostage.finetuning import Part, Start, finetune, write
from metapt.twostage.heads import Examples, FinetuneProblem
from metapt.twostage.jobs import FinetuneSettings

AUROC = "test AUROC (%)"


class Heads(FinetuneProblem):
    """Linear heads on noisy features."""

    batch_size, linear_lrs, linear_epochs = 50, (0.05,), 30

    def __init__(self, examples: dict[str, Tensor]) -> None:
        self._examples = examples

    def initial_head(self, generator: torch.Generator) -> Params:
        """Return a head with random weights."""
        return {"weight": 0.1 * torch.randn(1, CODE, generator=generator), "bias": torch.zeros(1)}

    def examples(self, network: Params, part: Literal["train", "validation", "test"]) -> Examples:
        """Return the codes of a part, and its labels."""
        batch = Batch(self._examples[f"{part}_x"], torch.empty(0))
        return Examples(NoisyInputs().encode(network, batch), self._examples[f"{part}_y"][:, None])


def run(settings: FinetuneSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tune and test; `inputs`: `examples`, `pretrained`."""
    with reading(inputs["examples"], "prepare them") as file:
        problem = Heads(torch.load(file, map_location=machine.device))

    def starts(todo: list[Part]) -> Iterator[Start]:
        yield Start(todo, problem, load_pretrained(inputs["pretrained"], initial(0), "the toy's", machine.device)[0])

    checkpoint = Checkpoint(Path(settings.checkpoint), fingerprint(settings, inputs, __name__, machine.device))
    scores = finetune(settings, checkpoint, starts, [])
    write(scores, settings, "", lambda score: {AUROC: score.test_auroc}, outputs)
