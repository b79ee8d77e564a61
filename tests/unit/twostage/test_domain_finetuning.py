"""FT of ECGs and of protein graphs by hand: plain training with Adam, and a head on features in evaluation mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg import finetune as ecg_finetune
from metapt.domains.ecg import resnet1d
from metapt.domains.ecg.config import EcgFinetuning
from metapt.domains.ecg.data.dataset import Labelled
from metapt.domains.ecg.finetune import EcgFinetuneProblem, Sets
from metapt.domains.ppi import gin
from metapt.domains.ppi.config import Network, PpiFinetuning
from metapt.domains.ppi.data import dataset as ppi_features
from metapt.domains.ppi.data.dataset import on_device, splits
from metapt.domains.ppi.finetune import PpiFinetuneProblem
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import leaves
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Transfer
from metapt.twostage.heads import FinetuneProblem, auroc, linear_evaluation

from ..ppi.small_graphs import FINE, TEST_SPECIES, small_graphs

ALL = slice(None)


class World(NamedTuple):
    """A domain's FT problem, and what computes the same by hand."""

    problem: FinetuneProblem
    start: Pretrained
    head: Callable[[torch.Generator], Params]
    masks: Callable[[torch.Generator], Any]  # stream -> what `features` draws dropout masks from
    features: Callable[[Params, str, Any, bool, Any], Tensor]  # network, set, indices, whether in training, masks
    labels: dict[str, Tensor]


def ecg(lr: float = 1e-3, **settings: Any) -> World:
    def labelled(name: str, size: int) -> Labelled:
        labels = (torch.rand(size, 5, generator=generator(name, "labels")) < 0.5).float()
        return Labelled(torch.randn(size, 64, 12, generator=generator(name, "signals")), labels)

    sets = Sets(labelled("train", 20), labelled("validation", 30), labelled("test", 40))
    made, encoder = EcgFinetuning(linear_lr=lr, **settings), resnet1d.Encoder(2)

    def features(network: Params, part: str, chosen: Any, training: bool, masks: Any) -> Tensor:
        training = training and made.batch_norm == "train"
        return encoder(network, getattr(sets, part).signals[chosen], training=training)

    return World(
        EcgFinetuneProblem(2, sets, made),
        resnet1d.initial_pretrained(2, generator("encoder")),
        lambda stream: resnet1d.initial_head(2, 5, stream),
        lambda stream: None,
        features,
        {name: part.labels for name, part in sets._asdict().items()},
    )


def ppi(lr: float = 1e-3, **settings: Any) -> World:
    dataset = on_device(small_graphs(90), "cpu")
    parts = splits(dataset.graphs, [TEST_SPECIES])
    numbers = {name: torch.from_numpy(getattr(parts, name)) for name in ("train", "validation", "test")}
    made, encoder = PpiFinetuning(linear_lrs=[lr], **settings), gin.GinEncoder(2, 6)

    def features(network: Params, part: str, chosen: Any, training: bool, masks: Any) -> Tensor:
        graphs = dataset.batch(numbers[part][chosen])
        keep = gin.dropout_masks(2, len(graphs.graph), 6, made.dropout, masks) if training and made.dropout else None
        return encoder(network, graphs, training=training, keep=keep)

    return World(
        PpiFinetuneProblem(Network(layers=2, width=6), dataset, parts, torch.arange(FINE), made),
        gin.initial_pretrained(2, 6, 3, generator("encoder")),
        lambda stream: gin.initial_head(6, FINE, stream),
        lambda stream: torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=stream))),
        features,
        {name: dataset.fine(graphs) for name, graphs in numbers.items()},
    )


DOMAINS: list[Callable[..., World]] = [ecg, ppi]


def logits(head: Params, features: Tensor) -> Tensor:
    return F.linear(features, head["weight"], head["bias"])


@pytest.mark.parametrize(
    ("domain", "own"),
    [(ecg, {"batch_norm": "train"}), (ecg, {"batch_norm": "eval"}), (ppi, {"dropout": 0.5}), (ppi, {"dropout": 0.0})],
)
def test_ft_of_the_network_is_plain_training_with_adam(domain: Callable[..., World], own: dict[str, Any]) -> None:
    world = domain(epochs=2, batch_size=8, **own)
    before, copied = copy.deepcopy(world.start), copy.deepcopy(world.start)
    score = Transfer(world.problem, world.start, 1e-2, generator("ft")).score()
    body, buffers, stream = leaves(copied.encoder), copied.buffers, generator("ft")
    masks = world.masks(stream)
    head = leaves(world.head(stream))
    optimizer = torch.optim.Adam([*body.values(), *head.values()], lr=1e-2, fused=True)
    aurocs: dict[str, list[Tensor]] = {"validation": [], "test": []}
    for _ in range(2):
        for batch in torch.randperm(len(world.labels["train"]), generator=stream).split(8):
            optimizer.zero_grad()
            features = world.features({**body, **buffers}, "train", batch, True, masks)
            F.binary_cross_entropy_with_logits(logits(head, features), world.labels["train"][batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for part, found in aurocs.items():
            outputs = logits(head, world.features({**body, **buffers}, part, ALL, False, None))
            found.append(100 * auroc(outputs.mT, world.labels[part].mT))
    assert score.validation_curve == pytest.approx([float(each.mean()) for each in aurocs["validation"]], abs=1e-9)
    assert score.class_aurocs == pytest.approx(aurocs["test"][score.best_epoch - 1].tolist(), abs=1e-9)
    for part, unchanged in zip(world.start, before, strict=True):
        assert all(torch.equal(value, unchanged[name]) and not value.requires_grad for name, value in part.items())


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_head_is_trained_on_features_in_evaluation_whatever_the_chunks(
    domain: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of Adam by hand. The features are worked out once for all heads."""
    for module in (ecg_finetune, ppi_features):
        monkeypatch.setattr(module, "CHUNK", 7)
    world = domain(lr=0.5, linear_epochs=1, batch_size=100)
    network, head = {**world.start.encoder, **world.start.buffers}, leaves(world.head(generator("ft")))
    features = {part: world.features(network, part, ALL, False, None).detach() for part in world.labels}
    seen, examples = [], world.problem.examples
    for part, labels in world.labels.items():
        found = examples(network, part)  # type: ignore[arg-type]
        torch.testing.assert_close(found.features, features[part])
        assert torch.equal(found.labels, labels)
        assert not found.features.requires_grad
    monkeypatch.setattr(world.problem, "examples", lambda *given: seen.append(given[1]) or examples(*given))
    score, _ = linear_evaluation(world.problem, world.start, [generator("ft"), generator("other")])
    assert sorted(seen) == sorted(world.labels)
    F.binary_cross_entropy_with_logits(logits(head, features["train"]), world.labels["train"]).backward()  # type: ignore[no-untyped-call]
    torch.optim.Adam(head.values(), lr=0.5).step()
    expected = 100 * auroc(logits(head, features["test"]).mT, world.labels["test"].mT)
    assert score.class_aurocs == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("domain", DOMAINS)
def test_training_is_in_bfloat16_but_for_rounding_and_evaluation_is_not(domain: Callable[..., World]) -> None:
    found = []
    for precision in ("float32", "bfloat16"):
        world = domain(precision=precision)
        network = {**world.start.encoder, **{name: value.clone() for name, value in world.start.buffers.items()}}
        evaluated = world.problem.examples(network, "test").features
        batch = next(iter(world.problem.sampler(generator("ft"))()))
        found.append((evaluated, world.problem.trained(network, batch).features))
    (exact, trained), (same, rounded) = found
    assert torch.equal(exact, same)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, trained)
    torch.testing.assert_close(rounded, trained, rtol=0, atol=0.1 * float(trained.abs().max()))
