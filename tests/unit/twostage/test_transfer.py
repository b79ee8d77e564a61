"""FT of a whole network in one go and by parts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from metapt.hypergrad import Params, Pretrained
from metapt.training.seeds import generator
from metapt.twostage.heads import Examples
from metapt.twostage.transfer import Transfer

EPOCHS = 12
PLACES = {"validation": slice(20, 30), "test": slice(30, 40)}


def transfer() -> Transfer:
    """Return a run on a product of two matrices, whose minibatches come from a stream."""
    start, stream = generator("start"), generator("batches")
    inputs = torch.randn(40, 5, generator=start)
    labels = (inputs[:, :3] + torch.randn(40, 3, generator=start) > 0).float()
    encoder = {"first": torch.randn(5, 4, generator=start)}
    head = {"weight": torch.randn(3, 4, generator=start), "bias": torch.zeros(3)}

    def epoch(network: Params) -> Iterator[Examples]:
        for batch in torch.randperm(20, generator=stream).split(8):
            yield Examples(inputs[batch] @ network["first"], labels[batch])

    def examples(network: Params, part: str) -> Examples:
        return Examples(inputs[PLACES[part]] @ network["first"], labels[PLACES[part]])

    network = Pretrained(encoder, {}, {})
    return Transfer(network, head, lr=0.05, epochs=EPOCHS, epoch=epoch, examples=examples)


def test_a_run_by_parts_is_the_run_in_one_go() -> None:
    parts = transfer()
    parts.train(5)
    first = list(parts.curve)
    whole = transfer().score()
    assert len(first) == 5
    assert parts.score() == whole
    assert whole.validation_curve[:5] == first
    assert len(whole.validation_curve) == EPOCHS
    assert whole.validation_auroc > first[0]
