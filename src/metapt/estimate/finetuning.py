"""Steps of linear evaluation, which the domains share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from metapt.estimate.work import Step
from metapt.evaluation.auroc import mean_auroc
from metapt.twostage.finetuning import Examples, linear_heads

_MINIBATCHES = 200
_VALIDATION = 32


def heads_step(name: str, features: int, classes: int, batch: int, seeds: int, lrs: list[float], device: str) -> Step:
    """A step of all linear heads of a PT seed, on features [n, features]."""

    def prepare(share: float) -> Callable[[], object]:
        def examples(count: int) -> Examples:
            return Examples(torch.randn(count, features, device=device), labels(count, classes, device))

        train, validation = examples(_MINIBATCHES * batch), examples(_VALIDATION)
        heads = [{"weight": torch.zeros(classes, features), "bias": torch.zeros(classes)} for _ in range(seeds)]

        def work() -> None:
            generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
            linear_heads(train, validation, validation, heads, lrs=lrs, epochs=1, batch_size=batch, generators=generators)

        return work

    return Step(name, prepare)


HEADS_STEPS = _MINIBATCHES
"""Steps in one call of `heads_step`."""


def auroc_step(name: str, examples: int, classes: int, heads: int, device: str) -> Step:
    """The mean AUROC of so many heads on so many validation examples."""

    def prepare(share: float) -> Callable[[], object]:
        outputs, truth = torch.randn(heads, examples, classes, device=device), labels(examples, classes, device)
        return lambda: mean_auroc(outputs, truth)

    return Step(name, prepare)


def labels(count: int, classes: int, device: str) -> torch.Tensor:
    """[count, classes] of 0 and 1, about a third of ones, and both in each class."""
    drawn = (torch.rand(count, classes) < 1 / 3).float()
    drawn[0], drawn[1] = 0, 1
    return drawn.to(device)
