"""What a user gets wrong in a problem is said at the first call; what is right is left alone, random streams too."""

from __future__ import annotations

import copy
from collections import Counter, UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch_geometric.data import Data

import metapt
from metapt import LoaderBatches, OptimizerSpec
from metapt.errors import ConfigError
from metapt.hypergrad import SGD, Identity, Params, Pretrained, RidgeHead, Unroll, exact_hypergradient, hypergradient
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.pretraining import Pretrainer

from . import problems, toys
from .kinds import heard, refused, right, warned
from .problems import DTYPE, Batch, Classifier, Normed, Regressed, Streams, classification, draw
from .toys import META, X, Y, problem


def loop_of(problem: Any, batches: Any = None, **changes: Any) -> MetaPretraining:
    settings = {"iterations": 3, "inverse": Identity(), "finetuning": Unroll(1)} | changes
    return problems.loop_of(problem, batches, **settings)


def changed(base: type = Classifier, **methods: Callable[..., Any]) -> Any:
    """A problem of which some methods are replaced; each gets the original as its first argument."""

    def replaced(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *arguments: method(getattr(base, name).__get__(self), *arguments)

    return type("Changed", (base,), {name: replaced(name, method) for name, method in methods.items()})()


def result(function: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Replace a method by a function of its result."""
    return lambda whole, *given: function(whole(*given))


def in_training(whole: Any, encoder: Params, batch: Batch) -> Tensor:
    return functional_call(whole.__self__.module.train(), encoder, batch.inputs)


class Forgetful(Normed):
    """BatchNorm's buffers are left out of `Pretrained.buffers`, so that the module keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained = self.pretrained._replace(buffers={})


class NeverInTraining(Normed):
    """`encode` leaves the module in evaluation mode."""

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        features = functional_call(self.module, {**pretrained.encoder, **pretrained.buffers}, batch.inputs)
        return features @ pretrained.head["weight"].T


OTHERS = Pretrained(*({k: v.requires_grad_() for k, v in part.items()} for part in Classifier().pretrained))
APART = {"pretrain_outputs": lambda whole, pt, *_: pt.head["bias"].expand(8, 3)}  # without `encode`


def wrong_pt(function: Callable[[Tensor], Any]) -> Any:
    return changed(pretrain_loss=result(function))


def wrong_ft(method: Callable[..., Any]) -> Any:
    return changed(head_loss=method)


def other_ridge(whole: Any, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
    return whole(pretrained, {**meta, "ridge": draw(0, 1)}, batch)


WRONG: dict[str, tuple[Any, str]] = {
    "PT loss of shape 8": (wrong_pt(lambda x: x.expand(8)), r"pretrain_loss .* \[8\]; legal: a scal"),
    "PT loss of shape 1": (wrong_pt(lambda x: x.reshape(1)), r"pretrain_loss .* shape \[1\]"),
    "FT loss of a shape": (wrong_ft(result(lambda x: x.expand(2, 3))), r"head_loss .* \[2, 3\]; legal: a scalar"),
    "PT loss a number": (wrong_pt(Tensor.item), "pretrain_loss returned a float; legal: a tensor"),
    "features in a tuple": (
        changed(encode=result(lambda x: (x,)), **APART),
        "encode returned a tuple; legal: a tensor",
    ),
    "PT loss that draws": (
        wrong_pt(lambda x: x * (1 + torch.rand((), dtype=DTYPE))),
        "pretrain_loss returned two different numbers in two equal calls; .* Draw random numbers when the minibatch is",
    ),
    "encode that draws": (
        changed(encode=result(F.dropout), **APART),
        "encode returned two different tensors in two eq",
    ),
    "buffers left out": (Forgetful(), "a call of pretrain_loss changes what encode returns: .*Pretrained.buffers"),
    "no training mode": (NeverInTraining(), r"a call of encode changes what pretrain_loss returns: .*module.train\(\)"),
    "encode in training": (changed(Normed, encode=in_training), r"changes the buffer '1.running_mean'; .*eval\(\)"),
    "a meta-parameter unused": (
        changed(pretrain_loss=other_ridge),
        "pretrain_loss does not depend on the meta-parameter 'ridge', so that it can't be learned",
    ),
    "PT loss without a graph": (wrong_pt(Tensor.detach), r"pretrain_loss .* depends on none of its par.*detach\(\)"),
    "PT loss of other weights": (
        changed(pretrain_loss=lambda whole, pt, meta, batch: whole(OTHERS, meta, batch)),
        "pretrain_loss depends on no parameter of `pretrained`, so that PT changes nothing",
    ),
    "FT loss without a graph": (wrong_ft(result(Tensor.detach)), "head_loss .* depends on none of its parameters"),
    "FT loss without features": (wrong_ft(lambda whole, h, z, b: whole(h, z.detach(), b)), "no argument features"),
    "FT loss without a head": (wrong_ft(lambda whole, h, z, b: z.square().mean()), "no parameter of the FT head"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_problem_is_said_at_its_first_hypergradient(name: str) -> None:
    problem, sentence = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=sentence):
        loop_of(problem).iterate()


def arguments(problem: Any) -> dict[str, Any]:
    return {"problem": problem, "pretrained": problem.pretrained, "meta": problem.meta, "head": problem.head}


BATCH = classification("", 0, torch.Generator().manual_seed(0))


def once(**given: Any) -> None:
    batches = {"pretrain_batch": BATCH, "train_batches": [BATCH], "validation_batch": BATCH}
    hypergradient(**given, **batches, inverse=Identity(), finetuning=Unroll(1))


def exactly(**given: Any) -> None:
    batches = {"pretrain_batches": [BATCH], "train_batches": [BATCH], "validation_batches": [BATCH]}
    exact_hypergradient(**given, **batches, pretrain_optimizer=SGD(0.1), finetune_optimizer=SGD(0.1))


def looped(**given: Any) -> None:
    MetaPretraining(batches=Streams(classification), settings=MetaSettings(1, inverse=Identity()), **given)


KINDS: list[tuple[dict[str, Any], str]] = [
    ({"problem": Classifier}, "the problem is the class Classifier; give an instance"),
    ({"problem": nn.Linear(1, 1)}, "the problem, a Linear, has no method pretrain_loss and no method encode"),
    ({"pretrained": nn.Linear(1, 1)}, r"pretrained is a Linear; legal: Pretrained\("),
    ({"pretrained": Pretrained(nn.Linear(1, 1), {})}, r"the encoder is a Linear; .*module.named_parameters\(\)"),
    ({"pretrained": Pretrained({"a": torch.ones(1)}, {}, {"n": 3})}, "'n' of the set of buffers is of type int"),
    ({"meta": torch.ones(3)}, "the set of meta-parameters is a Tensor; legal: a dictionary"),
    ({"meta": {"share": 0.5}}, "'share' of the set of meta-parameters is of type float; legal: a tensor"),
    ({"head": None}, "the FT head is a NoneType"),
    ({"meta": {"w": torch.ones(3, dtype=torch.complex64)}}, "'w' is complex; legal: real parameters"),
    ({"head": {"w": torch.ones(3, dtype=torch.complex64)}}, "'w' is complex; legal: real parameters"),
]
PT = Classifier().pretrained
VALUES: list[tuple[dict[str, Any], str]] = [
    ({"pretrained": PT._replace(encoder={})}, "the encoder has no parameters that are trained: .* Unfreeze some"),
    ({"meta": {"w": torch.zeros(0)}}, "the set of meta-parameters has no parameters"),
    ({"meta": {"w": torch.arange(3)}}, "'w' of the set of meta-parameters is of type torch.int64"),
    ({"head": {"b": torch.tensor([torch.nan])}}, "'b' of the FT head has values that are not finite"),
    ({"pretrained": PT._replace(head={"h": torch.tensor([torch.inf])})}, "'h' of the PT head has values"),
]


@pytest.mark.parametrize(
    ("call", "error", "changes", "sentence"),
    [
        *((call, TypeError, *each) for call in (once, exactly, looped) for each in KINDS),
        *((looped, ConfigError, *each) for each in VALUES),
    ],
)
def test_arguments_of_another_kind_are_named(call: Any, error: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        call(**(arguments(Classifier()) | changes))


def plain_step(problem: Any, pretrained: Pretrained, meta: Params, **_: Any) -> None:
    Pretrainer(problem, Streams(classification), pretrained, MetaSettings(1).pretrain_optimizer).step(meta)


def head_step(problem: Any, **_: Any) -> None:
    loop_of(problem, head_steps_between_updates=1, pretrain_steps=2).iterate()


OF_PT = "PT loss of shape 8", "PT loss of shape 1", "PT loss without a graph"
EACH = *OF_PT, "FT loss of a shape", "PT loss a number", "FT loss without a graph", "features in a tuple"
CALLS = {
    once: EACH,
    exactly: EACH,
    plain_step: (*OF_PT, "PT loss of other weights"),
    head_step: ("FT loss of a shape",),
}


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, names in CALLS.items() for name in names])
def test_each_call_sees_what_costs_nothing_to_see(call: Callable[..., None], name: str) -> None:
    problem, sentence = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=sentence):
        call(**arguments(problem))


def noisy(value: Tensor) -> Tensor:
    """Let equal calls differ in the last digits, as sums of a GPU do."""
    return value * (1 + 1e-10 * torch.rand_like(value))


def never(*given: Any) -> Tensor:
    raise NotImplementedError


def of_slope_0(whole: Any, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
    return whole(pretrained, {**meta, "ridge": -meta["ridge"].relu() - 20}, batch)


RIGHT = {
    "derivative of 0": (changed(pretrain_loss=of_slope_0), Unroll(1)),
    "last digits": (changed(pretrain_loss=result(noisy), encode=result(noisy)), Unroll(1)),
    "ridge head": (changed(Regressed, head_loss=never), RidgeHead()),
}


@pytest.mark.parametrize(("problem", "finetuning"), RIGHT.values(), ids=RIGHT)
def test_what_is_right_is_left_alone(problem: Any, finetuning: Any) -> None:
    loop_of(problem, finetuning=finetuning).run()


@pytest.mark.parametrize("make", [Normed, lambda: changed(pretrain_loss=result(lambda x: x + 0 * torch.rand_like(x)))])
def test_the_checks_change_nothing(make: Callable[[], Any]) -> None:
    """Parameters, buffers, streams and torch's own random state stay, so that a checked run has the same bits."""
    checked, unchecked = loop_of(make()), loop_of(make())
    unchecked._checked = True
    states = []
    for loop in (checked, unchecked):
        torch.manual_seed(5)
        loop.run()
        states.append((copy.deepcopy(loop.state_dict()), torch.get_rng_state()))
    assert problems.same(*states)


def test_a_problem_is_checked_once_in_a_run() -> None:
    problem, calls = Classifier(), []
    for name in ("pretrain_loss", "encode", "head_loss"):
        whole = getattr(problem, name)
        setattr(problem, name, lambda *given, name=name, whole=whole: calls.append(name) or whole(*given))
    loop, counts = loop_of(problem), []
    for _ in range(3):
        calls.clear()
        loop.iterate()
        counts.append(Counter(calls))
    assert counts[0] > counts[1] == counts[2]


class Refilled:
    def __iter__(self) -> Iterator[Any]:
        x = torch.empty_like(toys.X[:2])
        return ((x.copy_(part), toys.Y[:2]) for part in toys.X.split(2)[:3])


def drawn(toy: Any) -> list[Any]:
    batches = metapt.LoaderBatches(pretrain=[0], train=Refilled(), validation=[1])
    return [batches.train() for _ in range(2)]


@pytest.mark.parametrize(
    "use", [drawn, lambda toy: metapt.finetune_head(toy, toy.pretrained, toy.head, Refilled())], ids=["call", "fit"]
)
@refused("an FT loader that fills the same tensors", "in use", "clone()")
def test_minibatches_that_lie_in_the_same_tensors(use: Callable[[Any], object]) -> None:
    use(toys.problem())


def normed(norm: nn.Module) -> Any:
    """Run meta-PT with noise of a learned size before an encoder with a norm."""

    def pretrain_loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        noisy = torch.autograd.grad(x.square().sum() / 2, x)[0] + meta["w"].exp().sum() * draw(3, *x.shape)
        return toys.pretrain_loss(encoder, head, {"w": torch.zeros(2, dtype=DTYPE)}, (noisy, batch[1]))

    toy = toys.problem(nn.Sequential(norm, toys.linear(10)), pretrain_loss=pretrain_loss)
    return toys.loop(toy).run


statistics = warned("BatchNorm whose running statistics depend on the hyperparameters", "BatchNorm", "constants")


def test_statistics_that_depend_on_the_hyperparameters() -> None:
    statistics(normed(nn.BatchNorm1d(3, dtype=DTYPE)))()
    with heard() as messages:
        normed(nn.LayerNorm(3, dtype=DTYPE))()
        normed(nn.BatchNorm1d(3, dtype=DTYPE, track_running_stats=False))()
        toys.loop(toys.problem(nn.Sequential(nn.BatchNorm1d(3, dtype=DTYPE), toys.linear(10)))).run()
    assert not messages


class Graph(nn.Module):
    """Adds the neighbours' features by an adjacency that is sparse."""

    def __init__(self, adjacency: Tensor) -> None:
        super().__init__()
        self.layer = toys.linear(10)
        self.register_buffer("adjacency", adjacency)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.sparse.mm(self.adjacency, self.layer(x)))


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_tensors_among_buffers_and_in_minibatches(layout: str) -> None:
    x, y, dense = draw(0, 40, 3), draw(1, 40, 2), (draw(3, 40, 40) > 1).to(DTYPE)
    adjacency = getattr(dense, layout)()

    def pretrained(matrix: Tensor) -> Tensor:
        def loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
            return toys.pretrain_loss(lambda x: torch.sparse.mm(batch[2], encoder(x)), head, meta, batch)

        toy = toys.problem(Graph(matrix), pretrain_loss=loss, encode=lambda encoder, batch: encoder(x)[: len(batch[0])])
        return toys.gradient(toy, (x, y), pretrain_batch=(x, y, matrix), inverse=Identity())

    torch.testing.assert_close(pretrained(adjacency), pretrained(dense))
    loaded = Graph(2 * adjacency)
    Pretrained.from_modules(Graph(adjacency), nn.Identity()).load_into(loaded, nn.Identity())
    assert torch.equal(loaded.adjacency.to_dense(), dense)


@pytest.mark.parametrize(
    ("meta", "error", "words"),
    [
        ({"w": torch.zeros(2, dtype=DTYPE)}, RuntimeError, 'no derivative of .* argument weight.*reduction="none"'),
        ({0: torch.zeros(2, dtype=DTYPE)}, TypeError, "the set of meta-parameters has the name 0; legal: texts"),
    ],
)
def test_weights_of_torchs_losses_and_names_that_are_numbers(meta: Any, error: Any, words: str) -> None:
    def loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        return F.cross_entropy(head(encoder(batch[0])), (batch[1][:, 0] > 0).long(), weight=meta["w"].exp())

    with pytest.raises(error, match=words):
        toys.loop(toys.problem(pretrain_loss=loss), meta=meta).run()


# Data and tensors that are the user's: what changes them in place is refused, and they stay


@pytest.mark.parametrize(
    "changes",
    [
        {"finetune_head": nn.Sequential(nn.LeakyReLU(0.2, inplace=True), toys.linear(22, 3, 1))},
        {"encode": lambda encoder, batch: encoder(batch[0].mul_(0.5))},
        {"encode": lambda encoder, batch: encoder(batch.__setitem__(0, batch[0] * 0.5) or batch[0])},
    ],
)
@refused("a first layer of the FT head with `inplace=True`", "in place", "inplace=False")
def test_a_head_is_not_fitted_to_what_each_step_changes(changes: dict[str, Any]) -> None:
    toy = problem(**changes)
    metapt.finetune_head(toy, toy.pretrained, toy.head, [[X.clone(), Y]])


CLIPS = "a loss or an encoder that changes its minibatch in place"
CLIPPING = {name: refused(CLIPS, "in place", name) for name in toys.FUNCTIONS}


@dataclass
class Example:
    x: Tensor
    y: Tensor

    def __getitem__(self, index: int) -> Tensor:
        return (self.x, self.y)[index]


@dataclass(slots=True)
class Slotted(Example):
    pass


class Molecules(Data):
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__({0: "x", 1: "y"}.get(key, key))


class Named(dict[str, Any]):
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__({0: "x", 1: "y"}.get(key, key))


class Wrapped(UserDict[Any, Any]):
    """A mapping whose copy shares its parts."""

    __copy__ = None

    def __getitem__(self, key: Any) -> Any:
        return self.data[{0: "x", 1: "y"}.get(key, key)]


Change = Callable[[Any], object]
CENTRE: Change = lambda batch: batch[0].sub_(batch[0].mean())  # noqa: E731
BATCHES: dict[str, Callable[[], tuple[Any, Change]]] = {
    "tuple": lambda: ((X.clone(), Y.clone()), CENTRE),
    "mapping": lambda: (Named(x=X.clone(), y=Y.clone()), CENTRE),
    "mapping of one's own": lambda: (Wrapped(x=X.clone(), y=Y.clone()), CENTRE),
    "part taken": lambda: (Named(x=X.clone(), y=Y.clone(), id=X[:, 0].clone()), lambda batch: batch.pop("id")),
    "object": lambda: (Example(X.clone(), Y.clone()), CENTRE),
    "object with slots": lambda: (Slotted(X.clone(), Y.clone()), CENTRE),
    "graph": lambda: (Molecules(X.clone(), y=Y.clone()), CENTRE),
    "array": lambda: ((X.clone(), Y.clone(), X.numpy().copy()), lambda batch: batch[2].__isub__(batch[2].mean())),
    "data": lambda: ([X.clone(), Y.clone()], lambda batch: batch[0].data.clamp_(-0.5, 0.5)),
}


def tensors(batch: Any) -> list[Any]:
    batch = batch.to_dict() if isinstance(batch, Molecules) else batch
    parts = batch.values() if isinstance(batch, Mapping) else getattr(batch, "__dict__", {}).values() or batch
    return [torch.as_tensor(np.array(value)) for value in parts]


@pytest.mark.parametrize(
    ("function", "kind", "use"),
    [
        *(("pretrain_loss", kind, "plain") for kind in BATCHES),
        *((function, "tuple", use) for function in toys.FUNCTIONS for use in ("check", "run")),
        *(
            (function, kind, "run")
            for function in ("encode", "finetune_loss")
            for kind in ("object", "array", "data", "part taken")
        ),
    ],
)
def test_a_minibatch_that_is_changed_in_place_is_refused_and_stays(function: str, kind: str, use: str) -> None:
    batch, change = BATCHES[kind]()

    def changing(*given: Any) -> Tensor:
        with torch.no_grad():
            change(given[-1])
        return toys.FUNCTIONS[function](*given)

    toy, before = problem(**{function: changing}), tensors(copy.deepcopy(batch))
    batches = LoaderBatches(pretrain=[batch], train=[copy.deepcopy(batch)], validation=[batch])
    settings = MetaSettings(2, inverse=Identity(), finetuning=Unroll(0))
    arguments = toy, batches, toy.pretrained, META, toy.head, settings
    calls: dict[str, Callable[[], object]] = {
        "plain": lambda: Pretrainer(*arguments[:3], OptimizerSpec()).run(META, 2),
        "check": lambda: metapt.check(*arguments),
        "run": lambda: MetaPretraining(*arguments).run(),
    }
    CLIPPING[function](calls[use])()
    assert all(torch.equal(old, new) for old, new in zip(before, tensors(batch), strict=True))


@refused("a loss that changes hyperparameters or weights in place", "meta-parameter 'w'", "in place")
def test_hyperparameters_that_are_clamped_in_the_loss_are_refused() -> None:
    def clamped(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
        with torch.no_grad():
            meta["w"].clamp_(0.1, 1)
        return toys.pretrain_loss(encoder, head, meta, batch)

    toys.loop(problem(pretrain_loss=clamped)).run()


@pytest.mark.parametrize("part", [lambda loop: loop.meta, lambda loop: loop.pretrained.encoder])
@refused("hyperparameters or weights that a loop of your own assigns anew", "assigned anew", "in place")
def test_what_the_optimiser_does_not_have_is_refused(part: Callable[[Any], Params]) -> None:
    loop = toys.loop(problem())
    values = part(loop)
    values |= {name: value.detach().clone().requires_grad_() for name, value in values.items()}
    loop.run()


@right("labels in float64, as of NumPy, with modules in float32", 1e-6)
def test_labels_of_more_digits_than_the_head() -> Any:
    def square(head: Any, features: Tensor, batch: Any) -> Tensor:
        return ((head(features) - batch[1][:, :1]) ** 2).mean()

    parts = {name: module.float() for name, module in toys.modules().items()}
    toy = problem(**parts, finetune_loss=square)
    sets = [(X.float(), Y), (X.float(), Y.float())]
    return tuple(metapt.finetune_head(toy, toy.pretrained, toy.head, [each], l2=1e-3) for each in sets)
