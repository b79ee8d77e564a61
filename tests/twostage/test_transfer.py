"""FT of a whole network in one go and by parts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from metapt.hypergrad import Params
from metapt.training.seeds import generator
from metapt.twostage.transfer import Transfer

EPOCHS = 12


def transfer(label: str | None = None) -> Transfer:
    """Return a run on a product of two matrices, whose minibatches come from a stream."""
    start, stream = generator("start"), generator("batches")
    inputs = torch.randn(40, 5, generator=start)
    labels = (inputs[:, :3] + torch.randn(40, 3, generator=start) > 0).float()
    encoder, head = (
        {name: torch.randn(*shape, generator=start)} for name, shape in (("first", (5, 4)), ("second", (4, 3)))
    )

    def logits(network: Params, head: Params, chosen: Tensor) -> Tensor:
        return inputs[chosen] @ network["first"] @ head["second"]

    def losses(network: Params, head: Params) -> Iterator[Tensor]:
        for batch in torch.randperm(20, generator=stream).split(8):
            yield torch.nn.functional.binary_cross_entropy_with_logits(logits(network, head, batch), labels[batch])

    def outputs(network: Params, head: Params, name: str) -> tuple[Tensor, Tensor]:
        chosen = torch.arange(20, 30) if name == "validation" else torch.arange(30, 40)
        return logits(network, head, chosen), labels[chosen]

    return Transfer(encoder, {}, head, lr=0.05, epochs=EPOCHS, losses=losses, outputs=outputs, label=label)


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
