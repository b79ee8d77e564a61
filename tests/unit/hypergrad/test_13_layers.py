"""The twice-differentiable layers equal torch's own at a lower cost, and reject what they can't compute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from metapt.hypergrad.layers import fourier, pairs
from metapt.hypergrad.layers.batch_norm import BatchNorm, batch_norm
from metapt.hypergrad.layers.convolution import convolution
from metapt.hypergrad.layers.pairs import Argument, Pair
from metapt.hypergrad.layers.passes import unread
from metapt.hypergrad.layers.recompute import recomputed

from .problems import draw

STRIDE, PADDING = (1, 2), (0, 2)
PARTS = ["weight", "bias", "running_mean", "running_var"]
Function = Callable[..., Tensor]


class Layer(NamedTuple):
    """A layer, what torch computes for it, and the shapes of its inputs; the first is [batch, channels, ...]."""

    ours: Function
    theirs: Function
    shapes: tuple[tuple[int, ...], ...]


def convolutions(stride: Pair, padding: Pair, *shapes: tuple[int, ...]) -> Layer:
    return Layer(
        lambda x, w, b=None: convolution(x, w, stride, padding, b),
        lambda x, w, b=None: F.conv2d(x, w, b, stride, padding),
        shapes,
    )


def norms(*shapes: tuple[int, ...]) -> Layer:
    return Layer(batch_norm, lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), shapes)


def part(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.softplus(convolution(x, w, (1, 1), (0, 1))).mul(b).sum(1, keepdim=True).tanh()


def again(*tensors: Tensor) -> Tensor:
    return recomputed(part, part, *tensors)


LAYERS = {
    "batch norm": norms((2, 3, 2, 2), (3,), (3,)),
    "batch norm of rows": norms((3, 2, 4), (2,), (2,)),
    "batch norm of vectors": norms((5, 2), (2,), (2,)),
    "convolution": convolutions(STRIDE, PADDING, (3, 2, 1, 5), (3, 2, 1, 5)),
    "convolution with bias": convolutions(STRIDE, PADDING, (2, 2, 1, 4), (2, 2, 1, 5), (2,)),
    "convolution of one column": convolutions((1, 2), (0, 0), (3, 2, 2, 4), (3, 2, 1, 1)),
    "convolution of two rows": convolutions((1, 1), (1, 0), (2, 2, 2, 4), (3, 2, 2, 3)),
    "recomputed": Layer(again, part, ((2, 3, 1, 4), (4, 3, 1, 3), (1, 4, 1, 1))),
    "pairs, kernel 15": convolutions((1, 1), (0, 7), (2, 2, 1, 12), (3, 2, 1, 15)),
    "pairs, kernel 15, stride 2": convolutions((1, 2), (0, 7), (2, 1, 1, 16), (2, 1, 1, 15)),
    "pairs, kernel 9 with bias": convolutions((1, 1), (0, 4), (2, 2, 1, 6), (3, 2, 1, 9), (3,)),
    "pairs, even kernel": convolutions((1, 2), (0, 4), (2, 2, 1, 8), (3, 2, 1, 10)),
    "pairs, stride 3": convolutions((1, 3), (0, 6), (2, 1, 1, 18), (2, 1, 1, 13)),
    "fourier": convolutions((1, 1), (0, 5), (2, 2, 1, 40), (3, 2, 1, 11)),
    "fourier, stride 2, one piece": convolutions((1, 2), (0, 5), (2, 2, 1, 17), (2, 2, 1, 11)),
    "fourier, even kernel, stride 4, with bias": convolutions((1, 4), (0, 0), (2, 1, 1, 80), (2, 1, 1, 12), (2,)),
}


def contiguous(values: Tensor) -> Tensor:
    return values.contiguous()


def channels_last(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values


def sliced(values: Tensor) -> Tensor:
    """Every second number of a longer tensor: neither of the layouts."""
    longer = torch.stack([values, values + 1], dim=-1).flatten(-2)
    return longer[..., ::2]


layouts = pytest.mark.parametrize("layout", [contiguous, channels_last, sliced])


def inputs(*shapes: tuple[int, ...], layout: Callable[[Tensor], Tensor] = contiguous) -> list[Tensor]:
    """Leaves of some shapes; each channel of the first has a mean and a scale of its own."""
    first, *others = shapes
    channels = (first[1], *(1 for _ in first[2:]))
    x = draw(0, *first) * draw(1, *channels).exp() + draw(2, *channels)
    return [layout(value).requires_grad_() for value in (x, *(draw(3 + i, *each) for i, each in enumerate(others)))]


def values(seed: int = 0) -> Tensor:
    return draw(seed, 6, 3, 2, 9).requires_grad_()


def equal(ours: object, theirs: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Take transforms for kernels of 11 and 12, else pairs where they are possible; return the passes that took one."""
    passes: list[str | None] = []

    def faster(x: Tensor, w: Tensor, stride: Pair, padding: Pair, wrt: str | None = None) -> bool:
        if pairs.possible(x, w, stride, padding):
            passes.append(wrt)
            return True
        return False

    def transformed(x: Tensor, w: Tensor, *_: Pair) -> bool:
        if found := w.shape[3] in (11, 12):
            passes.append("fourier")
        return found

    monkeypatch.setattr(pairs, "faster", faster)
    monkeypatch.setattr(fourier, "faster", transformed)
    return passes


def derivatives(function: Function, given: list[Tensor], *constants: int) -> list[Tensor]:
    """The result of a layer, its derivatives w.r.t. all inputs but some, and their products with vectors."""
    wrt = [value.requires_grad_(i not in constants) for i, value in enumerate(given) if i not in constants]
    y = function(*(value.detach() if i in constants else value for i, value in enumerate(given)))
    first = torch.autograd.grad(y.pow(3).sum(), wrt, create_graph=True)
    vectors = [draw(10 + i, *value.shape).to(value.dtype) for i, value in enumerate(wrt)]
    whole = torch.autograd.grad(first, wrt, vectors, retain_graph=True)
    some = torch.autograd.grad(first, wrt[1:2], vectors, retain_graph=True) if len(wrt) > 1 else ()
    return [y, *first, *whole, *some, *torch.autograd.grad(first[0], wrt[:1], vectors[0])]


@layouts
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_torchs_with_its_first_and_second_derivatives(
    name: str, layout: Callable[[Tensor], Tensor], taken: list[str | None]
) -> None:
    ours, theirs, shapes = LAYERS[name]
    for constants in ((), (0,), (1,)):
        given = inputs(*shapes, layout=layout)
        equal(derivatives(ours, given, *constants), derivatives(theirs, given, *constants), tolerance=1e-10)
    passes = {"pairs": {None, "x", "w"}, "fourier": {"fourier"}}
    assert set(taken) == passes.get(name.split(",")[0], set())


@pytest.mark.parametrize("constant", [False, True], ids=["of the gradient's square", "of a product with a constant"])
@pytest.mark.parametrize("name", ["batch norm", "convolution", "recomputed"])
def test_a_third_derivative_is_an_error_and_no_number(name: str, constant: bool) -> None:
    wrt = inputs(*LAYERS[name].shapes)[:2]
    first = torch.autograd.grad(
        LAYERS[name].ours(*wrt, *inputs(*LAYERS[name].shapes)[2:]).pow(3).sum(), wrt, create_graph=True
    )
    cotangents = [torch.ones_like(value) if constant else value for value in first]
    for value in torch.autograd.grad(first, wrt, cotangents, create_graph=True):
        for at in wrt:  # torch's own guard is passed by in silence where not all leaves are asked for
            with pytest.raises(RuntimeError, match="no third derivative"):
                torch.autograd.grad(value.sum(), at, retain_graph=True)


@layouts
@pytest.mark.parametrize("constants", ["", "x", "wb", "xb"])
def test_batch_norm_in_forward_mode_is_torchs_with_its_statistics(
    layout: Callable[[Tensor], Tensor], constants: str
) -> None:
    results = []
    for function in (batch_norm, lambda x, w, b, m, v, rate: F.batch_norm(x, m, v, w, b, training=True, momentum=rate)):
        mean, variance = draw(4, 3), draw(5, 3).exp()
        given = dict(zip("xwb", inputs((6, 3, 2, 9), (3,), (3,), layout=layout), strict=True))
        with torch.no_grad(), forward_ad.dual_level():
            duals = [
                value.detach()
                if name in constants
                else forward_ad.make_dual(value.detach(), channels_last(draw(30 + i, *value.shape)))
                for i, (name, value) in enumerate(given.items())
            ]
            result, slope = forward_ad.unpack_dual(function(*duals, mean, variance, 0.3))
        results.append([result, slope, mean, variance])
    equal(*results)
    assert not torch.equal(results[0][2], draw(4, 3))


def test_a_derivative_of_batch_norms_forward_derivative_is_that_of_finite_differences() -> None:
    def slope(*values: Tensor) -> Tensor:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(value, draw(30 + i, *value.shape)) for i, value in enumerate(values)]
            return forward_ad.unpack_dual(batch_norm(*duals)).tangent

    assert torch.autograd.gradcheck(slope, inputs((6, 3), (3,), (3,)))


@pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5), (4, 3, 2, 5)], ids=["2d", "3d", "4d"])
@pytest.mark.parametrize("training", [True, False])
def test_the_module_is_torchs_module(shape: tuple[int, ...], training: bool) -> None:
    ours = BatchNorm(3).double()
    theirs: nn.Module = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(3).double()
    state = dict(zip(PARTS, (draw(1, 3), draw(2, 3), draw(3, 3), draw(4, 3).exp()), strict=True))
    outputs = []
    for module in (ours, theirs):
        module.load_state_dict({**module.state_dict(), **state})
        module.train(training)
        module(draw(5, *shape))
        outputs.append(module(draw(6, *shape)))
    equal(*outputs)
    equal(ours.state_dict(), dict(theirs.state_dict()))
    assert ours.num_batches_tracked == (2 if training else 0)


def test_one_value_per_channel_has_no_variance() -> None:
    with pytest.raises(ValueError, match=r"more than one value per channel; got an input of shape \(1, 3, 1, 1\)"):
        batch_norm(torch.ones(1, 3, 1, 1), torch.ones(3), torch.zeros(3))


@pytest.mark.parametrize("wrong", PARTS)
@pytest.mark.parametrize("channels", [2, 4])
def test_a_tensor_of_other_channels_is_refused(wrong: str, channels: int) -> None:
    parts = {name: torch.ones(channels if name == wrong else 3) for name in PARTS}
    with pytest.raises(ValueError, match=rf"{wrong} has shape \({channels},\), for values of shape \(6, 3, 2, 9\)"):
        batch_norm(torch.ones(6, 3, 2, 9), **parts)
    with pytest.raises(ValueError, match=r"values of shape \(3,\)"):
        batch_norm(torch.ones(3), torch.ones(3), torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_under_autocast_a_convolution_is_torchs_with_its_first_and_second_derivatives(dtype: torch.dtype) -> None:
    results = []
    for function in (convolution, F.conv2d):
        wrt = [value.detach().to(dtype).requires_grad_() for value in (values(), draw(7, 4, 3, 1, 5), draw(11, 4))]
        with torch.autocast("cpu", torch.bfloat16):
            y = function(*wrt[:2], stride=STRIDE, padding=PADDING, bias=wrt[2])
        first = torch.autograd.grad(y.to(dtype).pow(3).sum(), wrt, create_graph=True)
        results.append([y, *first, *torch.autograd.grad(first, wrt, [torch.ones_like(value) for value in wrt])])
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype is theirs.dtype
        assert (ours - theirs).norm() <= (2e-2 if dtype is torch.float32 else 1e-12) * theirs.norm()


STRIDED = """
import torch
from metapt.hypergrad.layers.convolution import convolution

for inputs in (1, 2, 3, 4, 8, 12, 16):
    x = torch.randn(8, 500, inputs).transpose(1, 2).unsqueeze(2)
    w, dy = torch.randn(2 * inputs, inputs, 1, 1), torch.randn(8, 250, 2 * inputs).transpose(1, 2).unsqueeze(2)
    gradients = []
    for kind in [torch.double] + [torch.float] * 20:
        weight = w.to(kind, memory_format=torch.channels_last).requires_grad_()
        (dw,) = torch.autograd.grad(convolution(x.to(kind), weight, (1, 2), (0, 0)), weight, dy.to(kind))
        gradients.append(dw.double())
        kept = [torch.empty(size) for size in range(1, 60)]
    assert all((dw - gradients[0]).norm() <= 1e-5 * gradients[0].norm() for dw in gradients), inputs
"""


@pytest.mark.slow
def test_a_strided_convolution_of_few_channels_and_one_column_keeps_within_its_memory() -> None:
    """In a process of its own, which glibc ends when it sees that the heap is damaged."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_CHECK_": "3"}
    ended = subprocess.run(
        [sys.executable, "-c", STRIDED], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_the_second_derivative_of_batch_norm_never_calls_its_kernel_without_a_weight() -> None:
    """On a GPU the kernel returns empty sums for channels-last values if it gets none."""

    given: list[bool] = []

    class Weights(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.native_batch_norm_backward.default:
                given.append(args[2] is not None)
            return func(*args, **(kwargs or {}))

    inputs = [torch.randn(shape, requires_grad=True) for shape in ((6, 3, 1, 4), (3,), (3,))]
    with Weights():
        first = torch.autograd.grad(batch_norm(*inputs).pow(3).sum(), inputs, create_graph=True)
        torch.autograd.grad(sum(part.square().sum() for part in first), inputs)
    assert len(given) > 1
    assert all(given)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "shape"),
    [
        pytest.param((1, 15), (1, 1), (0, 7), (2, 4, 1, 13), id="odd columns"),
        pytest.param((1, 15), (1, 2), (0, 7), (2, 4, 1, 14), id="odd outputs"),
        pytest.param((1, 15), (1, 1), (0, 6), (2, 4, 1, 16), id="fewer outputs than inputs"),
        pytest.param((1, 3), (1, 1), (0, 1), (2, 4, 1, 16), id="mostly zeros"),
        pytest.param((1, 1), (1, 2), (0, 0), (2, 4, 1, 16), id="one column"),
        pytest.param((1, 15), (1, 1), (0, 7), (2, 4, 2, 16), id="two rows"),
        pytest.param((3, 15), (1, 1), (1, 7), (2, 4, 1, 16), id="high kernel"),
    ],
)
def test_other_convolutions_take_no_pairs(
    taken: list[str | None], kernel: Pair, stride: Pair, padding: Pair, shape: tuple[int, ...]
) -> None:
    x, w = draw(1, *shape), draw(2, 5, 4, *kernel)
    equal(convolution(x, w, stride, padding), F.conv2d(x, w, None, stride, padding))
    assert not taken


@pytest.mark.parametrize(
    ("inputs", "outputs", "passes"),
    [
        (8, 8, (True, True, True)),
        (8, 16, (False, True, True)),
        (32, 64, (False, False, True)),
        (64, 64, (False, False, False)),
    ],
)
def test_pairs_are_taken_where_a_pass_is_narrow(
    monkeypatch: pytest.MonkeyPatch, inputs: int, outputs: int, passes: tuple[bool, ...]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    x, w = torch.zeros(1, inputs, 1, 16), torch.zeros(outputs, inputs, 1, 15)
    kinds: tuple[Argument | None, ...] = (None, "x", "w")
    assert tuple(pairs.faster(x, w, (1, 1), (0, 7), kind) for kind in kinds) == passes
    assert not any(pairs.faster(x.double(), w.double(), (1, 1), (0, 7), kind) for kind in kinds)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not any(pairs.faster(x, w, (1, 1), (0, 7), kind) for kind in kinds)


def test_transforms_are_taken_for_long_kernels_of_many_channels_on_a_cpu() -> None:
    x, w = torch.zeros(1, 64, 1, 70), torch.zeros(64, 64, 1, 15)
    assert fourier.faster(x, w, (1, 1), (0, 7))
    assert fourier.faster(x, w, (1, 2), (0, 7))
    for others in (
        (x.double(), w.double(), (1, 1), (0, 7)),
        (x.to("meta"), w, (1, 1), (0, 7)),
        (x[:0], w, (1, 1), (0, 7)),
        (x[:, :63], w[:, :63], (1, 1), (0, 7)),
        (x, w[:63], (1, 1), (0, 7)),
        (x, w[..., :7], (1, 1), (0, 3)),
        (x.expand(1, 64, 2, 70), w, (1, 1), (0, 7)),
        (x, w, (1, 1), (1, 7)),
        (x, w, (1, 3), (0, 7)),
        (x, w, (1, 32), (0, 7)),
    ):
        assert not fourier.faster(*others)


@pytest.mark.parametrize("stride", [1, 2, 4, 16])
@pytest.mark.parametrize("width", [9, 10, 15])
def test_transforms_are_right_at_each_end_of_a_row(width: int, stride: int) -> None:
    for columns in (width, 31, 32, 33, 63, 64, 65, 79, 80):
        for padding in (0, 1, width // 2, width + 3):
            geometry = (1, stride), (0, padding)
            x, w = draw(1, 2, 3, 1, columns), draw(2, 4, 3, 1, width)
            y = F.conv2d(x, w, None, *geometry)
            dy = draw(3, *y.shape)
            dx, dw, _ = torch.ops.aten.convolution_backward(
                dy, x, w, None, *geometry, (1, 1), False, (0, 0), 1, (True, True, False)
            )
            equal(fourier.forward(x, w, None, *geometry), y, tolerance=1e-10)
            equal(fourier.input_gradient(dy, x, w, *geometry), dx, tolerance=1e-10)
            equal(fourier.weight_gradient(dy, x, w, *geometry), dw, tolerance=1e-10)


@pytest.mark.parametrize("stride", [1, 2])
def test_float32_in_transforms_is_nearly_as_exact_as_torchs(stride: int) -> None:
    given = inputs((8, 64, 1, 125), (64, 64, 1, 15), layout=channels_last)
    layer = convolutions((1, stride), (0, 7))
    found = derivatives(layer.ours, [value.detach().float() for value in given])
    for ours, exact in zip(found, derivatives(layer.theirs, given), strict=True):
        assert (ours - exact).norm() <= 2e-6 * exact.norm()


def test_transforms_that_are_first_taken_of_fake_tensors_are_right_of_others() -> None:
    x, w = draw(1, 1, 64, 1, 40).float(), draw(2, 64, 64, 1, 13).float()
    with FakeTensorMode() as fake:
        convolution(*map(fake.from_tensor, (x, w)), (1, 1), (0, 6))
    equal(convolution(x, w, (1, 1), (0, 6)), F.conv2d(x, w, None, (1, 1), (0, 6)), tolerance=1e-4)


def test_float32_on_pairs_is_as_exact_as_torchs(taken: list[str | None]) -> None:
    layer = convolutions((1, 1), (0, 7))
    given = inputs((8, 8, 1, 100), (8, 8, 1, 15), layout=channels_last)
    single = [value.detach().float() for value in given]
    found = (derivatives(*how) for how in ((layer.ours, single), (layer.theirs, single), (layer.theirs, given)))
    for ours, theirs, exact in zip(*found, strict=True):
        assert (ours - exact).norm() <= 2 * (theirs - exact).norm() + 1e-7 * exact.norm()
    assert taken


def test_a_gradient_that_is_not_read_is_not_computed_and_its_derivatives_are_right() -> None:
    tensors = inputs(*LAYERS["recomputed"].shapes)
    loss = again(*tensors).pow(3).sum()
    expected = torch.autograd.grad(loss, tensors, create_graph=True)
    with unread(loss, tensors[1:]):
        first = torch.autograd.grad(loss, tensors, create_graph=True)
    assert first[1].isnan().all()
    torch.testing.assert_close(first[0], expected[0])
    vectors = [draw(20 + i, *value.shape) for i, value in enumerate(tensors)]
    torch.testing.assert_close(
        *(torch.autograd.grad(value, tensors, vectors, retain_graph=True) for value in (first, expected))
    )


def test_only_the_first_call_updates_anything() -> None:
    calls: list[str] = []

    def sine(name: str) -> Function:
        return lambda x: calls.append(name) or x.sin()  # type: ignore[func-returns-value]

    x = draw(1, 4).requires_grad_()
    gradient = torch.autograd.grad(recomputed(sine("first"), sine("again"), x).sum(), x, create_graph=True)[0]
    equal(torch.autograd.grad(gradient.sum(), x)[0], -x.sin())
    assert calls == ["first", *["again"] * (len(calls) - 1)]
    assert len(calls) in (3, 4)


def test_it_computes_again_in_the_precision_of_autocast() -> None:
    x, w, b = (value.detach().float().requires_grad_() for value in inputs(*LAYERS["recomputed"].shapes))
    results = []
    for function in (again, part):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, w, b)
        results.append(torch.autograd.grad(y.float().sum(), [x, w, b]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_saved_tensors_are_those_at_the_border_of_the_part() -> None:
    def bytes_held(function: object) -> int:
        held: dict[int, int] = {}

        def pack(value: Tensor) -> Tensor:
            held[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return value

        tensors = inputs(*LAYERS["recomputed"].shapes)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            loss = function(*tensors).sum()  # type: ignore[operator]
            torch.autograd.grad(loss, tensors, create_graph=True)
        return sum(held.values())

    assert bytes_held(again) < 0.7 * bytes_held(part)
