"""An FT job: linear heads on the encoder of an arm and PT seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from metapt.domains.noise.problem import CODE, Batch, NoisyInputs, initial
from torch import Tensor

from metapt.files import reading
from metapt.hypergrad import Params
from metapt.machine import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.pretrained_file import load_pretrained
from metapt.twostage.finetuning import Part, Start, finetune, write
from metapt.twostage.heads import Examples, Score, linear_heads

AUROC = "test AUROC (%)"


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tune and test.

    Args:
        config: `arm`, `evaluations`, the PT `seed`, the number `finetune_seeds`, `checkpoint`.
        inputs: `examples`, `pretrained`.
    """
    with reading(inputs["examples"], "prepare them") as file:
        examples: dict[str, Tensor] = torch.load(file, map_location=machine.device)

    def starts(todo: list[Part]) -> Iterator[Start]:
        encoder = load_pretrained(inputs["pretrained"], initial(0), "the toy's", machine.device).pretrained.encoder
        yield Start(todo, lambda streams: _linear(encoder, examples, streams))

    checkpoint = Checkpoint(Path(config["checkpoint"]), fingerprint(config, inputs, __name__, machine.device))
    write(finetune(config, checkpoint, starts, []), config, "", lambda score: {AUROC: score.test_auroc}, outputs)


def _linear(encoder: Params, examples: dict[str, Tensor], streams: list[torch.Generator]) -> list[Score]:
    parts = [
        Examples(
            NoisyInputs().encode(encoder, Batch(examples[f"{name}_x"], torch.empty(0))), examples[f"{name}_y"][:, None]
        )
        for name in ("train", "validation", "test")
    ]
    heads = [{"weight": 0.1 * torch.randn(1, CODE, generator=stream), "bias": torch.zeros(1)} for stream in streams]
    return linear_heads(*parts, heads, lrs=[0.05], epochs=30, batch_size=50, generators=streams)
