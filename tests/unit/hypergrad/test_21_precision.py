"""TF32 is on where a precision asks for it, also in derivatives taken elsewhere; torch's settings are the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from metapt.hypergrad.layers import pairs
from metapt.hypergrad.layers.convolution import convolution
from metapt.hypergrad.layers.precision import computing_in, tf32
from metapt.hypergrad.layers.recompute import recomputed

CPU, GPU = torch.device("cpu"), torch.device("cuda")
Convolve = Callable[[Tensor, Tensor], Tensor]


def allowed() -> tuple[bool, bool]:
    """Return whether torch may use TF32 on a GPU: in convolutions, in products."""
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.fixture(params=[(True, False), (False, True), (False, False)])
def users(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """Settings of a user of the library."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = request.param
    yield request.param
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.set_float32_matmul_precision(products)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """What is allowed in each kernel of a convolution."""
    found: list[tuple[bool, bool]] = []
    monkeypatch.setattr(pairs, "faster", lambda *given: bool(found.append(allowed())))
    return found


def plain(x: Tensor, w: Tensor) -> Tensor:
    return convolution(x, w, (1, 1), (0, 1))


def again(x: Tensor, w: Tensor) -> Tensor:
    return recomputed(plain, plain, x, w)


def arguments(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    x, w = torch.randn(4, 32, 1, 64, generator=draws), torch.randn(32, 32, 1, 3, generator=draws)
    return x.to(device, dtype).requires_grad_(), w.to(device, dtype).requires_grad_()


def derivatives(convolve: Convolve, x: Tensor, w: Tensor, context: Callable[[], object]) -> list[Tensor]:
    """A convolution in a context, and its first and second derivatives outside of it."""
    with context():  # type: ignore[attr-defined]
        y = convolve(x, w)
    first = torch.autograd.grad(y.square().sum(), [x, w], create_graph=True)
    return [y, *first, *torch.autograd.grad(first[1].square().sum(), [x, w])]


def test_inside_tf32_is_allowed_or_forbidden_and_after_it_all_is_as_before(users: tuple[bool, bool]) -> None:
    with tf32(False):
        assert allowed() == (False, False)
        with computing_in("tf32", GPU):
            assert allowed() == (True, True)
        with computing_in("float32", GPU), computing_in("bfloat16", CPU):
            assert allowed() == (False, False)
        with pytest.raises(RuntimeError, match="of the work"), computing_in("tf32", GPU):
            raise RuntimeError("of the work")
        assert allowed() == (False, False)
    assert allowed() == users


def test_float32_leaves_a_users_settings_alone(users: tuple[bool, bool], seen: list[tuple[bool, bool]]) -> None:
    derivatives(plain, *arguments(CPU, torch.float32), lambda: computing_in("float32", GPU))
    assert set(seen) == {users}


def test_on_a_cpu_tf32_changes_nothing(seen: list[tuple[bool, bool]]) -> None:
    before, products = allowed(), torch.get_float32_matmul_precision()
    with computing_in("tf32", CPU):
        assert torch.get_float32_matmul_precision() == products
    derivatives(plain, *arguments(CPU, torch.float32), lambda: computing_in("tf32", CPU))
    assert set(seen) == {before}


@pytest.mark.parametrize("convolve", [plain, again])
def test_derivatives_have_the_precision_of_the_forward_pass(
    convolve: Convolve, users: tuple[bool, bool], seen: list[tuple[bool, bool]]
) -> None:
    derivatives(convolve, *arguments(CPU, torch.float32), lambda: computing_in("tf32", GPU))
    assert len(seen) >= 6
    assert set(seen) == {(True, True)}
    assert allowed() == users


def test_a_derivative_that_fails_leaves_the_settings(users: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    with computing_in("tf32", GPU):
        y = plain(*arguments(CPU, torch.float32))

    def fail(*given: object) -> bool:
        raise RuntimeError("of the kernel")

    monkeypatch.setattr(pairs, "faster", fail)
    with pytest.raises(RuntimeError, match="of the kernel"):
        y.sum().backward()  # type: ignore[no-untyped-call]
    assert allowed() == users


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; torch.cuda.is_available() is false")
@pytest.mark.parametrize("convolve", [plain, again])
def test_on_a_gpu_strict_derivatives_are_exact_and_those_in_tf32_are_not(convolve: Convolve) -> None:
    exact = derivatives(convolve, *arguments(GPU, torch.float64), lambda: tf32(False))
    single = arguments(GPU, torch.float32)
    with tf32(False):
        strict, rounded = (
            derivatives(convolve, *single, lambda precision=precision: computing_in(precision, GPU))  # type: ignore[misc]
            for precision in ("float32", "tf32")
        )

    def errors(values: list[Tensor]) -> list[float]:
        return [float((a - b).norm() / b.norm()) for a, b in zip(values, exact, strict=True)]

    assert max(errors(strict)) < 1e-6
    if torch.cuda.get_device_capability() >= (8, 0):
        assert min(errors(rounded)) > 1e-5
