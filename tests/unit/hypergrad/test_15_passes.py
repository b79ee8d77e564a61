"""What a pass leaves out is nobody else's: threads, losses that take gradients, tensors that share memory, hooks."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from metapt.hypergrad import Neumann, Params, Pretrained
from metapt.hypergrad.layers.convolution import convolution
from metapt.hypergrad.layers.passes import unread

from .problems import called, counted, draw, same_bits

Convolve = Callable[[Tensor, Tensor], Tensor]


def ours(x: Tensor, w: Tensor) -> Tensor:
    return convolution(x, w, (1, 1), (0, 1))


def theirs(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, None, (1, 1), (0, 1))


class Convolved:
    """PT with two convolutions on inputs whose scale is the meta-parameter, with a ridge; FT is least squares."""

    def __init__(self, convolve: Convolve = ours) -> None:
        self.convolve = convolve
        self.pretrained = Pretrained({"one": draw(1, 4, 3, 1, 3), "two": draw(2, 2, 4, 1, 3)}, {"shift": draw(3, 2)})
        self.meta = {"scale": draw(4, 3)}

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
        inputs = torch.tanh(batch * meta["scale"].view(3, 1, 1))
        ridge = sum(value.square().sum() for value in pretrained.vector())
        return (self.encode(pretrained.encoder, inputs) - pretrained.head["shift"]).pow(4).mean() + 0.01 * ridge

    def encode(self, encoder: Params, batch: Tensor) -> Tensor:
        return self.convolve(F.softplus(self.convolve(batch, encoder["one"])), encoder["two"]).mean((2, 3))

    def head_loss(self, head: Params, features: Tensor, batch: Tensor) -> Tensor:
        return (features - head["target"]).square().mean()


class Kernels(TorchDispatchMode):
    """Counts convolutions and their adjoints."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if "convolution" in name:
            self.counts[name] += sum(args[-1]) if name == "convolution_backward" else 1
        return func(*args, **(kwargs or {}))


def by_grad(*wanted: int) -> Callable[..., object]:
    """The gradients w.r.t. some of the inputs."""
    return lambda loss, inputs, leaves: torch.autograd.grad(loss, [inputs[i] for i in wanted], create_graph=True)


def by_backward(*wanted: int) -> Callable[..., object]:
    """The gradients that `backward` leaves at some of the leaves, or at all."""

    def take(loss: Tensor, inputs: list[Tensor], leaves: list[Tensor]) -> object:
        loss.backward(inputs=[leaves[i] for i in wanted] or None)
        return [value.grad for value in leaves]

    return take


WAYS = [
    pytest.param(by_grad(0, 1, 2), 2, id="grad"),
    pytest.param(by_grad(0), 1, id="grad x"),
    pytest.param(by_grad(1), 1, id="grad w"),
    pytest.param(by_grad(2), 0, id="grad b"),
    pytest.param(by_backward(), 2, id="backward"),
    pytest.param(by_backward(0), 1, id="backward x"),
    pytest.param(by_backward(1, 2), 1, id="backward w b"),
]


@pytest.mark.parametrize("leaf", [True, False], ids=["leaves", "not leaves"])
@pytest.mark.parametrize(("take", "kernels"), WAYS)
def test_a_pass_takes_the_derivatives_that_it_returns_and_no_others(take: Any, kernels: int, leaf: bool) -> None:
    results = []
    for function in (
        lambda x, w, b: convolution(x, w, (1, 1), (0, 1), b),
        lambda x, w, b: F.conv2d(x, w, b, (1, 1), (0, 1)),
    ):
        leaves = [value.requires_grad_() for value in (draw(1, 5, 3, 1, 8), draw(2, 4, 3, 1, 3), draw(3, 4))]
        inputs = leaves if leaf else [1 * value for value in leaves]
        loss = function(*inputs).pow(3).sum()
        with Kernels() as counted:
            results.append((take(loss, inputs, leaves), counted.counts["convolution_backward"]))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1] == kernels


def test_an_unread_gradient_is_no_number_in_its_own_pass_and_its_derivatives_are_right() -> None:
    wrt = [value.requires_grad_() for value in (draw(1, 5, 3, 1, 8), draw(2, 4, 3, 1, 3), draw(3, 4, 3, 1, 3))]
    loss, another = ((ours(wrt[0], wrt[1]) * ours(wrt[0], wrt[2])).sum() for _ in range(2))
    expected = torch.autograd.grad(loss, wrt, create_graph=True)
    with unread(loss, [wrt[1]]):
        gradient = torch.autograd.grad(loss, wrt, create_graph=True)
        assert same_bits(torch.autograd.grad(another, wrt), expected)
    assert same_bits(torch.autograd.grad(loss, wrt, retain_graph=True), expected)
    assert gradient[1].isnan().all()
    assert same_bits(gradient[::2], expected[::2])
    vectors = [draw(20 + i, *value.shape) for i, value in enumerate(wrt)]
    assert same_bits(*(torch.autograd.grad(value, wrt, vectors, retain_graph=True) for value in (gradient, expected)))


PRETRAIN, VALIDATION = draw(5, 6, 3, 1, 8), draw(6, 5, 3, 1, 8)
keeps = pytest.mark.parametrize("keep", [False, True], ids=["gradient not kept", "gradient kept"])


def call(problem: Any, keep: bool = False, terms: int = 1, **given: Any) -> Any:
    batches = {"pretrain_batch": PRETRAIN, "validation_batch": VALIDATION, "head": {"target": draw(7, 2)}}
    return called(problem, inverse=Neumann(terms, 0.01), keep_gradient=keep, **batches, **given)


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Python goes from thread to thread as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def together(*functions: Callable[[], None]) -> None:
    """Runs each in a thread; the first error of any is raised here."""
    with ThreadPoolExecutor(len(functions)) as threads:
        for future in [threads.submit(function) for function in functions]:
            future.result()


@keeps
@pytest.mark.usefixtures("many_switches")
def test_threads_that_share_the_weights_get_the_hypergradient_of_one_thread(keep: bool) -> None:
    problem = Convolved()
    expected = call(problem, keep).gradient["scale"]

    def repeat() -> None:
        for _ in range(10):
            assert torch.equal(call(problem, keep).gradient["scale"], expected)

    together(repeat, repeat, repeat)


@pytest.mark.usefixtures("many_switches")
def test_a_gradient_beside_a_hypergradient_in_another_thread_is_right() -> None:
    problem = Convolved()
    weights = [value.requires_grad_() for value in problem.pretrained.vector()]
    done = threading.Event()

    def gradient() -> tuple[Tensor, ...]:
        return torch.autograd.grad(problem.pretrain_loss(problem.pretrained, problem.meta, PRETRAIN), weights)

    expected = gradient()

    def hypergradients() -> None:
        for _ in range(20):
            call(problem)
        done.set()

    def gradients() -> None:
        while not done.is_set():
            assert same_bits(gradient(), expected)

    together(hypergradients, gradients)


@keeps
def test_a_meta_parameter_in_the_memory_of_the_encoder_has_its_own_derivative(keep: bool) -> None:
    class Taught(Convolved):
        """A teacher, which is the meta-parameter, says what the features should be."""

        def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
            teacher = {"one": meta["teacher"], "two": pretrained.encoder["two"].detach()}
            gap = self.encode(pretrained.encoder, batch) + pretrained.head["shift"] - self.encode(teacher, batch)
            return gap.square().sum()

    problem = Taught()
    same = problem.pretrained.encoder["one"]
    given = ({"teacher": value} for value in (same, same.clone()))
    result, expected = (call(problem, keep, meta=meta).gradient["teacher"] for meta in given)
    assert torch.equal(result, expected)
    assert expected.norm() > 1e-3


class SharpnessAware(Convolved):
    """The PT loss at weights that are perturbed along its own gradient (Foret et al. 2021)."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
        loss = super().pretrain_loss(pretrained, meta, batch)
        slopes = iter(torch.autograd.grad(loss, pretrained.vector()))
        parts = ({name: value + 0.1 * next(slopes).detach() for name, value in part.items()} for part in pretrained[:2])
        return super().pretrain_loss(Pretrained(*parts), meta, batch)


class SharpnessAwareAnew(SharpnessAware):
    """The same, evaluated once more in the backward pass."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
        arguments = (super().pretrain_loss, pretrained, meta, batch)
        loss: Tensor = torch.utils.checkpoint.checkpoint(lambda f, *args: f(*args), *arguments, use_reentrant=False)
        return loss


class Hooked(Convolved):
    """A hook reads the gradient of a weight."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Tensor) -> Tensor:
        pretrained.encoder["one"].register_hook(lambda value: value / value.norm())
        return super().pretrain_loss(pretrained, meta, batch)


class Normalised(Convolved):
    """Weights are changed before they are used."""

    def encode(self, encoder: Params, batch: Tensor) -> Tensor:
        return super().encode({name: value / value.norm() for name, value in encoder.items()}, batch)


@keeps
@pytest.mark.parametrize("kind", [SharpnessAware, SharpnessAwareAnew, Hooked, Normalised])
def test_a_loss_that_takes_gradients_or_hooks_or_other_weights_has_torchs_hypergradient(
    kind: type[Convolved], keep: bool
) -> None:
    expected = call(kind(theirs)).gradient["scale"]
    torch.testing.assert_close(call(kind(), keep).gradient["scale"], expected)
    if issubclass(kind, SharpnessAware):
        assert (expected - call(Convolved()).gradient["scale"]).norm() > 1e-2 * expected.norm()


def test_the_search_for_nan_finds_none() -> None:
    expected = call(Convolved()).gradient["scale"]
    with torch.autograd.set_detect_anomaly(True):
        assert torch.equal(call(Convolved()).gradient["scale"], expected)


def test_a_meta_update_takes_the_kernels_that_it_needs() -> None:
    fine_tuning = (2, 3)  # both layers forward, their weights' derivatives, and that of the second one's input
    loss = (2, 0)
    gradient = (0, 1)  # with respect to the second layer's input; values w.r.t. weights only where they are kept
    # Cx and Cw of the second layer, Cw of the first, then both layers; the first one's input does not depend on weights
    product = (1 + 1 + 1, 1 + 1 + 2 + 1)
    mixed = (1 + 1 + 1, 1 + 1 + 2)  # the same with respect to the first layer's input and not to weights
    for keep in (False, True):
        for terms in (0, 1, 3):
            with Kernels() as kernels:
                call(counted(Convolved()), keep, terms=terms)
            parts = [fine_tuning, loss, gradient, *[product] * terms, mixed]
            expected = [sum(part) for part in zip(*parts, strict=True)]
            assert kernels.counts == {"convolution": expected[0], "convolution_backward": expected[1] + 2 * keep}, (
                keep,
                terms,
            )
