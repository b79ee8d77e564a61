"""Small problems in float64 for the loops, with minibatches whose state can be saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad import Params, Pretrained
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.streams import to_device

from ..hypergrad.problems import DTYPE, Batch, Classifier, Normed, draw


def copied(params: Params) -> Params:
    return {name: value.detach().clone().requires_grad_() for name, value in params.items()}


def same(a: Any, b: Any) -> bool:
    """Return whether two nested states are equal to the last bit."""
    if isinstance(a, Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


class Streams:
    """Minibatches drawn from a generator for each set; `made(set, count, generator)` is the `count`-th of its set."""

    sets: tuple[str, ...] = ("pretrain", "train", "validation")

    def __init__(self, made: Callable[[str, int, torch.Generator], Any]) -> None:
        self.made = made
        self.generators = {name: torch.Generator().manual_seed(i) for i, name in enumerate(self.sets)}
        self.counts = dict.fromkeys(self.generators, 0)

    def _next(self, name: str) -> Any:
        self.counts[name] += 1
        return self.made(name, self.counts[name] - 1, self.generators[name])

    def pretrain(self) -> Any:
        return self._next("pretrain")

    def train(self) -> Any:
        return self._next("train")

    def validation(self) -> Any:
        return self._next("validation")

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts),
            "states": {name: value.get_state() for name, value in self.generators.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = dict(state["counts"])
        for name, value in state["states"].items():
            self.generators[name].set_state(value)


class OwnStreams(Streams):
    """The same, with PT minibatches of their own for hypergradients."""

    sets = (*Streams.sets, "hypergradient")

    def hypergradient(self) -> Any:
        return self._next("hypergradient")


def classification(name: str, count: int, generator: torch.Generator) -> Batch:
    inputs = torch.randn(8, 4, generator=generator, dtype=DTYPE)
    return Batch(inputs, (inputs @ draw(0, 4, 3)).argmax(dim=1))


def loop_of(problem: Any, batches: Any = None, step_problem: Any = None, **settings: Any) -> MetaPretraining:
    """Return the loop of a problem from its own start, on minibatches of `classification` unless others are given."""
    given = problem, batches or Streams(classification), problem.pretrained, problem.meta, problem.head
    return MetaPretraining(*given, MetaSettings(**settings), step_problem)


class Regressed(Classifier):
    """The same with labels that a ridge head can regress on."""

    def targets(self, batch: Batch) -> Tensor:
        return F.one_hot(batch.targets, 3).to(batch.inputs.dtype) + 0 * batch.inputs[:, :3]


class Placed(Normed):
    """A problem on a device, with its minibatches."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.pretrained = self.pretrained.to(device)
        self.meta, self.head = ({k: v.to(device) for k, v in part.items()} for part in (self.meta, self.head))
        self.batches = Streams(lambda *key: Batch(*(to_device(value, device) for value in classification(*key))))


class Telling:
    """A problem whose encoder's first weight identifies the sequence of PT minibatches: w <- w / 2 - batch.

    These are the steps of SGD with lr 1. The second weight becomes phi.
    """

    def __init__(self) -> None:
        self.pretrained = Pretrained({"w": torch.zeros(2, dtype=DTYPE)}, {})
        self.meta, self.head = {"phi": draw(1, 1)}, {"h": draw(2, 2)}

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
        first, second = pretrained.encoder["w"]
        return first.square() / 4 + first * batch + (second - meta["phi"]).square().sum() / 2

    def encode(self, encoder: Params, batch: Tensor) -> Tensor:
        return encoder["w"]

    def head_loss(self, head: Params, features: Tensor, batch: Tensor) -> Tensor:
        return (head["h"] @ features - batch).square()


def number(name: str, count: int, generator: torch.Generator) -> Tensor:
    """A minibatch that is a number."""
    return torch.randn((), generator=generator, dtype=DTYPE)


class Line:
    """PT has its minimum at w[0] = `place(phi)`, w[1] = 0 (with curvature `stiffness`); FT has it at w[0] = the batch.

    After one PT step of SGD with lr 1, w[0] is at the minimum, and the hypergradient is (place(phi) - batch) *
    place'(phi).
    """

    def __init__(self, place: Callable[[Tensor], Tensor] = lambda phi: phi, stiffness: float = 0.5) -> None:
        self.place, self.stiffness = place, stiffness
        self.pretrained = Pretrained({"w": torch.tensor([0.0, 1.0], dtype=DTYPE)}, {})

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
        w = pretrained.encoder["w"]
        return (w[0] - self.place(meta["phi"]) - batch).square().sum() / 2 + self.stiffness * w[1].square() / 2

    def encode(self, encoder: Params, batch: Tensor) -> Tensor:
        return encoder["w"][0]

    def head_loss(self, head: Params, features: Tensor, batch: Tensor) -> Tensor:
        return (features - batch).square() / 2
