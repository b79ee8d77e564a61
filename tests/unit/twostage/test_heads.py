"""Linear heads trained together, minibatches, and the choice of the best."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad import Params, Pretrained
from metapt.training.seeds import generator
from metapt.twostage.heads import Examples, FinetuneProblem, Score, auroc, highest, linear_evaluation, minibatches

FEATURES, CLASSES = 6, 3


def examples(name: str, count: int) -> Examples:
    features = torch.randn(count, FEATURES, generator=generator(name, "features"))
    noise = torch.randn(count, CLASSES, generator=generator(name, "noise"))
    return Examples(features, (features[:, :CLASSES] + noise > 0).float())


TRAIN, VALIDATION, TEST = examples("train", 50), examples("validation", 40), examples("test", 60)


def head(seed: int) -> Params:
    random = generator("head", seed)
    return {"weight": torch.randn(CLASSES, FEATURES, generator=random), "bias": torch.randn(CLASSES, generator=random)}


HEADS = [head(seed) for seed in range(3)]


class Given(FinetuneProblem):
    """Heads that are there already, on features that no encoder makes."""

    batch_size = 16

    def __init__(self, seeds: list[int], sets: dict[str, Examples]) -> None:
        self._heads, self._sets = [HEADS[seed] for seed in seeds], sets

    def initial_head(self, generator: torch.Generator) -> Params:
        return self._heads.pop(0)

    def examples(self, network: Params, part: str) -> Examples:
        return self._sets[part]


SETS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}


def trained(seeds: list[int], lrs: list[float], epochs: int = 8, **sets: Examples) -> list[Score]:
    problem = Given(seeds, SETS | sets)
    problem.linear_lrs, problem.linear_epochs = lrs, epochs
    return linear_evaluation(problem, Pretrained({}, {}, {}), [generator("order", seed) for seed in seeds])


def test_heads_and_learning_rates_that_are_trained_together_come_out_as_they_would_alone() -> None:
    lrs = [1e-4, math.inf, 1e-2, 1e-1, 1e-1]  # one diverges, and two are equal
    for seed, score in enumerate(trained([0, 1, 2], lrs)):
        alone = [trained([seed], [lr])[0] for lr in lrs]
        best = alone[highest([each.validation_auroc for each in alone])]
        assert score.learning_rate == best.learning_rate
        assert score.best_epoch == best.best_epoch
        assert score.validation_curve == pytest.approx(best.validation_curve, abs=1e-6)
        assert score.class_aurocs == pytest.approx(best.class_aurocs, abs=1e-6)
    assert all(torch.equal(value, HEADS[0][name]) for name, value in head(0).items()), "the start does not change"


def test_the_best_epoch_of_all_decides_and_its_head_is_tested() -> None:
    (score,), (steady,), (fast,) = (trained([2], lrs) for lrs in ([0.1, 1.0], [0.1], [1.0]))
    assert max(fast.validation_curve) > max(steady.validation_curve)
    assert fast.validation_curve[-1] < steady.validation_curve[-1]
    assert score.learning_rate == 1.0
    assert score.best_epoch < len(score.validation_curve)
    (stopped,) = trained([2], [1.0], epochs=score.best_epoch)
    assert score.class_aurocs == pytest.approx(stopped.class_aurocs, abs=1e-6)
    assert score.test_auroc == pytest.approx(sum(score.class_aurocs) / CLASSES, abs=1e-6)
    assert score.validation_auroc == max(score.validation_curve)


def test_is_adam_on_minibatches() -> None:
    (score,) = trained([0], [0.05], epochs=2)
    params, order = {name: value.requires_grad_() for name, value in head(0).items()}, generator("order", 0)
    optimizer = torch.optim.Adam(params.values(), lr=0.05)

    def outputs(features: Tensor) -> Tensor:
        return F.linear(features, params["weight"], params["bias"])

    aurocs = []
    for _ in range(2):
        for batch in torch.randperm(50, generator=order).split(16):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(outputs(TRAIN.features[batch]), TRAIN.labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        aurocs.append([100 * auroc(outputs(part.features).mT, part.labels.mT) for part in (VALIDATION, TEST)])
    assert score.validation_curve == pytest.approx([float(validation.mean()) for validation, _ in aurocs], abs=1e-6)
    assert score.class_aurocs == pytest.approx(aurocs[score.best_epoch - 1][1].tolist(), abs=1e-6)


def test_a_class_without_both_labels_has_no_part_in_the_means() -> None:
    given = [part.labels.clone() for part in (VALIDATION, TEST)]
    given[0][:, 1], given[1][:, 2] = 0.0, 1.0
    validation, test = (part._replace(labels=labels) for part, labels in zip((VALIDATION, TEST), given, strict=True))
    (found,) = trained([0], [0.1], epochs=2, validation=validation, test=test)
    assert [math.isnan(value) for value in found.class_aurocs] == [False, False, True]
    assert found.test_auroc == pytest.approx(sum(found.class_aurocs[:2]) / 2, abs=1e-6)
    assert math.isfinite(found.validation_auroc)


@pytest.mark.parametrize(
    ("size", "batch_size", "expected"),
    [(10, 4, [4, 4, 2]), (9, 4, [4, 4]), (3, 256, [3]), (4, 1, [1, 1, 1, 1]), (8, 4, [4, 4])],
)
def test_minibatches_of_an_epoch(size: int, batch_size: int, expected: list[int]) -> None:
    streams = [generator("a"), generator("b")]
    batches = list(minibatches(size, batch_size, streams))
    assert [batch.shape for batch in batches] == [(2, length) for length in expected]
    indices = torch.cat(batches, 1)
    assert all(len(row.unique()) == len(row) for row in indices)
    assert not torch.equal(torch.cat(list(minibatches(size, batch_size, streams)), 1), indices)
