"""Fine-tuning of a narrow encoder on short signals, each class of which is an oscillation in a lead of its own."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor

from metapt.domains.ecg import finetune
from metapt.domains.ecg.config import EcgFinetuning
from metapt.domains.ecg.finetune import EcgFinetuneProblem, Labelled, Sets, check
from metapt.domains.ecg.resnet1d import Encoder, initial_head, initial_pretrained, logits
from metapt.errors import DataError
from metapt.evaluation.auroc import auroc, mean_auroc
from metapt.hypergrad import Params, Pretrained
from metapt.training.seeds import generator
from metapt.twostage.finetuning import full_transfer, linear_evaluation
from metapt.twostage.heads import Score

WIDTH = 4
SAMPLES = 64
SIZES = {"train": 48, "validation": 30, "test": 60}


def labelled(name: str, size: int, strength: float) -> Labelled:
    labels = (torch.rand(size, 5, generator=generator(name, "labels")) < 0.5).float()
    labels[0], labels[-1] = 0.0, 1.0
    signals = torch.randn(size, SAMPLES, 12, generator=generator(name, "signals"))
    wave = torch.sin(torch.arange(SAMPLES) * 0.5).view(1, SAMPLES, 1)
    signals[..., :5] += strength * labels.unsqueeze(1) * wave
    return Labelled(signals, labels)


def sets(strength: float = 2.0, **sizes: int) -> Sets:
    return Sets(*(labelled(name, size, strength) for name, size in (SIZES | sizes).items()))


def settings(**values: object) -> EcgFinetuning:
    return EcgFinetuning.model_validate({"epochs": 4, "batch_size": 16, "linear_epochs": 6, **values})


@pytest.fixture
def pretrained() -> Pretrained:
    return initial_pretrained(WIDTH, generator("encoder"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool, Params]]:
    """Return what the encoder is called with in FT: number of ECGs, whether in training mode, statistics after it."""
    seen: list[tuple[int, bool, Params]] = []

    class Watched(Encoder):
        def __call__(self, parameters: Params, signals: Tensor, *, training: bool) -> Tensor:
            features = super().__call__(parameters, signals, training=training)
            statistics = {name: value.clone() for name, value in parameters.items() if "running" in name}
            seen.append((len(signals), training, statistics))
            return features

    monkeypatch.setattr(finetune, "Encoder", Watched)
    return seen


def transfer(pretrained: Pretrained, sets: Sets, settings: EcgFinetuning, seed: int = 0) -> Score:
    problem = EcgFinetuneProblem(WIDTH, sets, settings)
    return full_transfer(problem, pretrained, settings.lr, generator("ft", seed)).score()


def linear(pretrained: Pretrained, sets: Sets, settings: EcgFinetuning, seeds: list[int]) -> list[Score]:
    problem = EcgFinetuneProblem(WIDTH, sets, settings)
    return linear_evaluation(problem, pretrained, [generator("ft", seed) for seed in seeds])


def checked(data: Sets) -> None:
    check(data.train, {"validation ECGs": data.validation, "test ECGs": data.test})


def test_both_learn(pretrained: Pretrained) -> None:
    data = sets(train=96, strength=5.0)
    whole = transfer(pretrained, data, settings(epochs=15, lr=1e-2))
    (head,) = linear(pretrained, data, settings(linear_epochs=100), [0])
    assert whole.test_auroc > 90
    assert head.test_auroc > 65
    for score, epochs in ((whole, 15), (head, 100)):
        assert len(score.validation_curve) == epochs
        assert score.validation_auroc == max(score.validation_curve)
        assert score.best_epoch == 1 + score.validation_curve.index(score.validation_auroc)
        assert score.test_auroc == pytest.approx(sum(score.class_aurocs) / 5)


@pytest.mark.parametrize("batch_norm", ["train", "eval"])
def test_what_it_starts_from_is_not_changed_and_statistics_of_the_copy_are_in_training_mode(
    pretrained: Pretrained, batch_norm: str, calls: list[tuple[int, bool, Params]]
) -> None:
    before = [{name: value.clone() for name, value in part.items()} for part in pretrained]
    transfer(pretrained, sets(), settings(batch_norm=batch_norm, epochs=1))
    moved = {not torch.equal(value, pretrained.buffers[name]) for name, value in calls[-1][2].items()}
    assert moved == {batch_norm == "train"}
    linear(pretrained, sets(), settings(), [0, 1])
    for part, unchanged in zip(pretrained, before, strict=True):
        for name, value in part.items():
            assert torch.equal(value, unchanged[name])
            assert not value.requires_grad
            assert value.grad is None


def test_equal_generators_give_equal_scores_and_others_do_not(pretrained: Pretrained) -> None:
    data = sets()
    first = transfer(pretrained, data, settings())
    assert transfer(pretrained, data, settings(precision="tf32")) == first, "a CPU has no TF32"
    assert transfer(pretrained, data, settings(), seed=1) != first
    assert linear(pretrained, data, settings(), [0, 1]) == linear(pretrained, data, settings(), [0, 1])


def test_is_plain_training_with_adam(pretrained: Pretrained) -> None:
    data, ours = sets(train=20), settings(epochs=2, batch_size=8, batch_norm="eval", lr=1e-2)
    stream = generator("ft", 0)
    head = {name: value.requires_grad_() for name, value in initial_head(WIDTH, stream).items()}
    body = {name: value.clone().requires_grad_() for name, value in pretrained.encoder.items()}
    optimizer = torch.optim.Adam([*body.values(), *head.values()], lr=1e-2)
    encoder, curve = Encoder(WIDTH), []

    def outputs(part: Labelled) -> Tensor:
        return logits(head, encoder({**body, **pretrained.buffers}, part.signals, training=False))

    for _ in range(2):
        for batch in torch.randperm(20, generator=stream).split(8):
            optimizer.zero_grad()
            part = Labelled(data.train.signals[batch], data.train.labels[batch])
            torch.nn.functional.binary_cross_entropy_with_logits(outputs(part), part.labels).backward()
            optimizer.step()
        curve.append(100 * float(mean_auroc(outputs(data.validation), data.validation.labels)))
    assert transfer(pretrained, data, ours).validation_curve == pytest.approx(curve, abs=1e-9)


def test_the_head_is_scored_as_it_is(pretrained: Pretrained) -> None:
    """One linear step by hand: features in eval mode, unchanged."""
    data, stream = sets(train=8), generator("ft", 0)
    (score,) = linear(pretrained, data, settings(linear_epochs=1, batch_size=8, linear_lr=0.5), [0])
    network = {**pretrained.encoder, **pretrained.buffers}
    train, test = (Encoder(WIDTH)(network, part.signals, training=False).detach() for part in (data.train, data.test))
    head = {name: value.requires_grad_() for name, value in initial_head(WIDTH, stream).items()}
    optimizer = torch.optim.Adam(head.values(), lr=0.5)
    torch.nn.functional.binary_cross_entropy_with_logits(logits(head, train), data.train.labels).backward()
    optimizer.step()
    expected = 100 * auroc(logits(head, test).mT, data.test.labels.mT)
    assert score.class_aurocs == pytest.approx(expected.tolist(), abs=1e-6)


def test_training_in_bfloat16_is_that_in_float32_but_for_rounding(pretrained: Pretrained) -> None:
    data = sets(train=96, strength=5.0)
    exact, rounded = (
        transfer(pretrained, data, settings(epochs=5, lr=1e-2, precision=precision))
        for precision in ("float32", "bfloat16")
    )
    assert rounded.validation_curve != exact.validation_curve
    assert rounded.validation_curve[0] == pytest.approx(exact.validation_curve[0], abs=5)
    assert rounded.test_auroc == pytest.approx(exact.test_auroc, abs=10)


def test_the_best_epoch_is_tested_not_the_last(pretrained: Pretrained) -> None:
    """Validation ECGs have the opposite labels of the training set, so that an early epoch is the best one."""
    data = sets(train=96)
    data = data._replace(validation=Labelled(data.validation.signals, 1 - data.validation.labels))
    long = transfer(pretrained, data, settings(epochs=12, lr=3e-3))
    assert long.best_epoch < 12
    assert long.validation_curve[-1] < long.validation_auroc - 5
    short = transfer(pretrained, data, settings(epochs=long.best_epoch, lr=3e-3))
    assert long.class_aurocs == short.class_aurocs


def test_each_set_is_seen_as_often_as_it_should_be(
    pretrained: Pretrained, calls: list[tuple[int, bool, Params]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "CHUNK", 25)
    transfer(pretrained, sets(), settings(epochs=2))
    epoch = [(16, True)] * 3 + [(25, False), (5, False)]
    assert [call[:2] for call in calls] == [*epoch, *epoch, (25, False), (25, False), (10, False)]
    calls.clear()
    linear(pretrained, sets(), settings(), [0, 1, 2])
    assert sum(size for size, *_ in calls) == sum(SIZES.values())


def test_a_class_without_both_labels_is_left_out_and_named_once(
    pretrained: Pretrained, caplog: pytest.LogCaptureFixture
) -> None:
    data = sets()
    data.validation.labels[:, 1] = 0.0
    data.test.labels[:, 4] = 1.0
    with caplog.at_level(logging.WARNING):
        checked(data)
    assert [record.getMessage() for record in caplog.records] == [
        "the AUROC on the validation ECGs leaves out MI: all 30 have the same label",
        "the AUROC on the test ECGs leaves out HYP: all 60 have the same label",
    ]
    for score in (transfer(pretrained, data, settings()), *linear(pretrained, data, settings(), [0])):
        assert [math.isnan(value) for value in score.class_aurocs] == [False, False, False, False, True]
        assert score.test_auroc == pytest.approx(sum(score.class_aurocs[:4]) / 4)


@pytest.mark.parametrize(
    ("size", "unlabelled", "words"),
    [
        (1, None, "2 or more ECGs, and here on 1"),
        (48, "validation", "no class has both labels among the 30 validation ECGs"),
        (48, "test", "no class has both labels among the 60 test ECGs"),
    ],
)
def test_ecgs_that_can_not_be_learned_from_or_judged_are_refused(size: int, unlabelled: str | None, words: str) -> None:
    data = sets(train=size)
    if unlabelled:
        getattr(data, unlabelled).labels.zero_()
    with pytest.raises(DataError, match=words):
        checked(data)


def test_a_diverged_network_has_no_score_and_says_so(pretrained: Pretrained, caplog: pytest.LogCaptureFixture) -> None:
    broken = pretrained._replace(encoder={name: value * math.nan for name, value in pretrained.encoder.items()})
    for score in (transfer(broken, sets(), settings()), *linear(broken, sets(), settings(), [0])):
        assert math.isnan(score.test_auroc)
        assert score.best_epoch == 1
    assert "were not finite" in caplog.text
