"""Fine-tuning of a narrow encoder on short signals, each class of which is an oscillation in a lead of its own."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor

from metapt.domains.ecg import finetune
from metapt.domains.ecg.config import EcgFinetuning
from metapt.domains.ecg.finetune import Labelled, Sets, check, full_transfer, linear_evaluation
from metapt.domains.ecg.resnet1d import Encoder, initial_head, initial_pretrained, logits
from metapt.errors import DataError
from metapt.evaluation.auroc import auroc, mean_auroc
from metapt.hypergrad import Params, Pretrained
from metapt.training.seeds import generator
from metapt.twostage.heads import Score

WIDTH = 4
SAMPLES = 64


def labelled(name: str, size: int, strength: float) -> Labelled:
    labels = (torch.rand(size, 5, generator=generator(name, "labels")) < 0.5).float()
    labels[0], labels[-1] = 0.0, 1.0
    signals = torch.randn(size, SAMPLES, 12, generator=generator(name, "signals"))
    wave = torch.sin(torch.arange(SAMPLES) * 0.5).view(1, SAMPLES, 1)
    signals[..., :5] += strength * labels.unsqueeze(1) * wave
    return Labelled(signals, labels)


def sets(train: int = 48, validation: int = 30, test: int = 60, strength: float = 2.0) -> Sets:
    sizes = {"train": train, "validation": validation, "test": test}
    return Sets(*(labelled(name, size, strength) for name, size in sizes.items()))


def settings(**values: object) -> EcgFinetuning:
    return EcgFinetuning.model_validate({"epochs": 4, "batch_size": 16, "linear_epochs": 6, **values})


@pytest.fixture
def pretrained() -> Pretrained:
    return initial_pretrained(WIDTH, generator("encoder"))


def transfer(pretrained: Pretrained, sets: Sets, settings: EcgFinetuning, seed: int = 0) -> Score:
    start, _, buffers = pretrained
    return full_transfer(Encoder(WIDTH), start, buffers, WIDTH, sets, settings, generator("ft", seed)).score()


def linear(pretrained: Pretrained, sets: Sets, settings: EcgFinetuning, seeds: list[int]) -> list[Score]:
    generators = [generator("ft", seed) for seed in seeds]
    return linear_evaluation(Encoder(WIDTH), pretrained.encoder, pretrained.buffers, WIDTH, sets, settings, generators)


def checked(data: Sets) -> None:
    check(data.train, {"validation ECGs": data.validation, "test ECGs": data.test})


def copied(pretrained: Pretrained) -> list[dict[str, Tensor]]:
    return [{name: value.clone() for name, value in part.items()} for part in pretrained]


def test_both_learn(pretrained: Pretrained) -> None:
    data = sets(train=96, strength=5.0)
    whole = transfer(pretrained, data, settings(epochs=15, lr=1e-2))
    (head,) = linear(pretrained, data, settings(linear_epochs=100), [0])
    assert whole.test_auroc > 90
    assert head.test_auroc > 65
    for score, epochs in ((whole, 15), (head, 100)):
        assert len(score.validation_curve) == epochs
        assert score.validation_auroc == max(score.validation_curve) == score.validation_curve[score.best_epoch - 1]
        assert score.best_epoch == 1 + score.validation_curve.index(score.validation_auroc)
        assert score.test_auroc == pytest.approx(sum(score.class_aurocs) / 5)


@pytest.mark.parametrize("batch_norm", ["train", "eval"])
def test_what_it_starts_from_is_not_changed(pretrained: Pretrained, batch_norm: str) -> None:
    before = copied(pretrained)
    transfer(pretrained, sets(), settings(batch_norm=batch_norm, epochs=2))
    linear(pretrained, sets(), settings(), [0, 1])
    for part, unchanged in zip(pretrained, before, strict=True):
        for name, value in part.items():
            assert torch.equal(value, unchanged[name])
            assert not value.requires_grad
            assert value.grad is None


@pytest.mark.parametrize("batch_norm", ["train", "eval"])
def test_training_mode_updates_statistics_of_its_copy_only(
    pretrained: Pretrained, batch_norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Params] = []

    class Watched(Encoder):
        def __call__(self, parameters: Params, signals: Tensor, *, training: bool) -> Tensor:
            features = super().__call__(parameters, signals, training=training)
            seen.append({name: parameters[name].detach().clone() for name in pretrained.buffers})
            return features

    start, _, buffers = pretrained
    full_transfer(
        Watched(WIDTH), start, buffers, WIDTH, sets(), settings(batch_norm=batch_norm, epochs=1), generator("ft")
    ).score()
    changed = [name for name, value in buffers.items() if not torch.equal(seen[-1][name], value)]
    assert changed == (list(buffers) if batch_norm == "train" else [])


def test_equal_generators_give_equal_scores_and_others_do_not(pretrained: Pretrained) -> None:
    data = sets()
    first = transfer(pretrained, data, settings())
    assert transfer(pretrained, data, settings()) == first
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
        order = torch.randperm(20, generator=stream)
        for batch in (order[:8], order[8:16], order[16:]):
            optimizer.zero_grad()
            part = Labelled(data.train.signals[batch], data.train.labels[batch])
            torch.nn.functional.binary_cross_entropy_with_logits(outputs(part), part.labels).backward()
            optimizer.step()
        curve.append(100 * float(mean_auroc(outputs(data.validation), data.validation.labels)))
    assert transfer(pretrained, data, ours).validation_curve == pytest.approx(curve, abs=1e-9)


def test_training_in_bfloat16_is_that_in_float32_but_for_rounding(pretrained: Pretrained) -> None:
    data = sets(train=96, strength=5.0)
    exact, rounded = (
        transfer(pretrained, data, settings(epochs=5, lr=1e-2, precision=precision))
        for precision in ("float32", "bfloat16")
    )
    assert rounded.validation_curve != exact.validation_curve
    assert rounded.validation_curve[0] == pytest.approx(exact.validation_curve[0], abs=5)
    assert rounded.test_auroc == pytest.approx(exact.test_auroc, abs=10)


def test_on_a_cpu_training_in_tf32_is_that_in_float32(pretrained: Pretrained) -> None:
    data = sets(train=32)
    scores = [transfer(pretrained, data, settings(epochs=2, precision=name)) for name in ("float32", "tf32")]
    assert scores[0].validation_curve == scores[1].validation_curve
    assert scores[0].class_aurocs == scores[1].class_aurocs


def test_heads_that_are_trained_together_come_out_as_they_would_alone(pretrained: Pretrained) -> None:
    data, ours = sets(train=50), settings(linear_epochs=20)
    together = linear(pretrained, data, ours, [0, 1, 2])
    for seed, score in enumerate(together):
        (alone,) = linear(pretrained, data, ours, [seed])
        assert alone.best_epoch == score.best_epoch
        assert alone.validation_curve == pytest.approx(score.validation_curve, abs=1e-6)
        assert alone.class_aurocs == pytest.approx(score.class_aurocs, abs=1e-6)
    assert together[0] != together[1]


def worsening(data: Sets) -> Sets:
    """Return a validation set with the opposite labels of the training set, so that the first epoch is the best one."""
    return data._replace(validation=Labelled(data.validation.signals, 1 - data.validation.labels))


def test_the_best_epoch_is_tested_not_the_last(pretrained: Pretrained) -> None:
    data = worsening(sets(train=96))
    long = transfer(pretrained, data, settings(epochs=12, lr=3e-3))
    assert long.best_epoch < 12
    assert long.validation_curve[-1] < long.validation_auroc - 5
    short = transfer(pretrained, data, settings(epochs=long.best_epoch, lr=3e-3))
    assert long.class_aurocs == short.class_aurocs

    scores = linear(pretrained, data, settings(linear_epochs=60), [0, 1])
    for seed, score in enumerate(scores):
        assert score.validation_curve[-1] < score.validation_auroc - 5
        (alone,) = linear(pretrained, data, settings(linear_epochs=score.best_epoch), [seed])
        assert alone.class_aurocs == pytest.approx(score.class_aurocs, abs=1e-6)


def test_each_set_is_seen_as_often_as_it_should_be(pretrained: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "CHUNK", 25)
    seen: list[tuple[int, bool]] = []

    class Watched(Encoder):
        def __call__(self, parameters: Params, signals: Tensor, *, training: bool) -> Tensor:
            seen.append((len(signals), training))
            return super().__call__(parameters, signals, training=training)

    start, _, buffers = pretrained
    full_transfer(Watched(WIDTH), start, buffers, WIDTH, sets(), settings(epochs=2), generator("ft")).score()
    epoch = [(16, True)] * 3 + [(25, False), (5, False)]
    assert seen == [*epoch, *epoch, (25, False), (25, False), (10, False)]
    seen.clear()
    linear_evaluation(
        Watched(WIDTH), start, buffers, WIDTH, sets(), settings(), [generator("ft", seed) for seed in range(3)]
    )
    assert sum(size for size, _ in seen) == 48 + 30 + 60


def test_a_batch_may_be_larger_than_the_set(pretrained: Pretrained) -> None:
    data = sets(train=6, validation=4)
    assert transfer(pretrained, data, settings(batch_size=256)) == transfer(pretrained, data, settings(batch_size=6))


def test_one_ecg_is_nothing_to_train_on() -> None:
    with pytest.raises(DataError, match="2 or more labelled ECGs, and here on 1"):
        checked(sets(train=1))


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
    score = transfer(pretrained, data, settings())
    assert [math.isnan(value) for value in score.class_aurocs] == [False, False, False, False, True]
    assert score.test_auroc == pytest.approx(sum(score.class_aurocs[:4]) / 4)
    assert linear(pretrained, data, settings(), [0])[0].test_auroc > 0


@pytest.mark.parametrize("name", ["validation", "test"])
def test_no_class_with_both_labels_is_an_error(name: str) -> None:
    data = sets()
    getattr(data, name).labels.zero_()
    with pytest.raises(DataError, match=f"no class has both labels among the .. {name} ECGs"):
        checked(data)


def test_a_diverged_network_has_no_score_and_says_so(pretrained: Pretrained, caplog: pytest.LogCaptureFixture) -> None:
    broken = pretrained._replace(encoder={name: value * math.nan for name, value in pretrained.encoder.items()})
    for score in (transfer(broken, sets(), settings()), *linear(broken, sets(), settings(), [0])):
        assert math.isnan(score.test_auroc)
        assert score.best_epoch == 1
    assert "were not finite" in caplog.text


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


def test_the_display_of_progress_changes_nothing(pretrained: Pretrained) -> None:
    start, _, buffers = pretrained
    arguments = (Encoder(WIDTH), start, buffers, WIDTH, sets(), settings(epochs=2))
    shown, hidden = (full_transfer(*arguments, generator("ft"), label=label).score() for label in ("FT", None))
    assert shown == hidden
