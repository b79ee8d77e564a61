"""FT of a whole network: in one go and by parts, from what does not change, with the best epoch tested."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from metapt.hypergrad import Params, Pretrained
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Transfer
from metapt.twostage.heads import Examples

PLACES = {"validation": slice(20, 30), "test": slice(30, 40)}


def transfer(epochs: int = 12, lr: float = 0.05, encoder: Params | None = None, flipped: bool = False) -> Transfer:
    """Return a run on a product of two matrices, whose minibatches come from a stream; `flipped`: validation labels."""
    start, stream = generator("start"), generator("batches")
    inputs = torch.randn(40, 5, generator=start)
    labels = (inputs[:, :3] + torch.randn(40, 3, generator=start) > 0).float()
    if flipped:
        labels[PLACES["validation"]] = 1 - labels[PLACES["validation"]]
    first = torch.randn(5, 4, generator=start)
    head = {"weight": torch.randn(3, 4, generator=start), "bias": torch.zeros(3)}

    def epoch(network: Params) -> Iterator[Examples]:
        for batch in torch.randperm(20, generator=stream).split(8):
            yield Examples(inputs[batch] @ network["first"], labels[batch])

    def examples(network: Params, part: str) -> Examples:
        return Examples(inputs[PLACES[part]] @ network["first"], labels[PLACES[part]])

    network = Pretrained(encoder or {"first": first}, {}, {})
    return Transfer(network, head, lr=lr, epochs=epochs, epoch=epoch, examples=examples)


def test_a_run_by_parts_is_the_run_in_one_go() -> None:
    parts = transfer()
    parts.train(5)
    first = list(parts.curve)
    whole = transfer().score()
    assert len(first) == 5
    assert parts.score() == whole
    assert whole.validation_curve[:5] == first
    assert len(whole.validation_curve) == 12
    assert whole.validation_auroc > first[0]


def test_the_best_epoch_is_tested_not_the_last() -> None:
    """Validation has the opposite labels of training, so that an early epoch is the best one."""
    long = transfer(flipped=True).score()
    assert long.validation_curve[-1] < long.validation_auroc == max(long.validation_curve)
    assert long.validation_curve[long.best_epoch - 1] == long.validation_auroc
    assert long.class_aurocs == transfer(long.best_epoch, flipped=True).score().class_aurocs
    assert long.test_auroc == pytest.approx(sum(long.class_aurocs) / 3)


def test_a_diverged_network_has_no_score_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    score = transfer(encoder={"first": torch.full((5, 4), math.nan)}).score()
    assert math.isnan(score.test_auroc)
    assert score.best_epoch == 1
    assert "were not finite" in caplog.text
