"""The least time that a training step could take: its arithmetic at the best rate seen, and its state moved once.

    limit = FLOP / (best rate of a convolution or matrix product) + bytes / bandwidth

FLOP are those of the step's convolutions and products, counted while it runs (an addition and a multiplication: two).
The best rate is that of large kernels of the same precision, timed in the same round as the step, so that other load
on the machine falls on both. Bytes are those of parameters, gradients and Adam's two moments, each read and written
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from metapt.hypergrad.layers import fourier, pairs

Step = Callable[[], object]


class Limit:
    """The limit of steps of given sizes.

    Args:
        dtype: of the operands of convolutions and products.
        device: on which the rates are measured.
        rows: batch of the convolutions that are timed; enough that each takes some milliseconds.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu", rows: int = 8) -> None:
        self._device = device
        self._kernels = [*_convolutions(dtype, device, rows), *_products(dtype, device)]
        self._source = torch.ones(2**24, device=device)  # 64 MiB, more than caches hold
        self._target = torch.empty_like(self._source)

    def rate(self) -> float:
        """Return the best rate of any kernel now, FLOP per second."""
        return max(flop / self._seconds(kernel) for flop, kernel in self._kernels)

    def bandwidth(self) -> float:
        """Return the bytes per second that a copy reads and writes."""
        return 2 * self._source.nbytes / self._seconds(lambda: self._target.copy_(self._source))

    def seconds(self, flop: float, moved: float = 0.0) -> float:
        """Return the least time of a step with so many FLOP and bytes to move."""
        return flop / self.rate() + (moved / self.bandwidth() if moved else 0.0)

    def _seconds(self, step: Step) -> float:
        """Return the shortest of three times."""
        step()
        times = []
        for _ in range(3):
            self._synchronise()
            start = time.perf_counter()
            step()
            self._synchronise()
            times.append(time.perf_counter() - start)
        return min(times)

    def _synchronise(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def flop(step: Step) -> int:
    """Return the FLOP of the convolutions and matrix products of a step's second call.

    Convolutions are counted as torch computes them, without the zeros of `metapt.hypergrad.layers.pairs` and the
    transforms of `fourier`, which needs fewer: a step with those can be faster than its limit.
    """
    step()  # the first hypergradient of a run also checks the problem
    before = pairs.faster, fourier.faster
    pairs.faster = fourier.faster = lambda *arguments: False
    try:
        with _Counter() as counter:
            step()
    finally:
        pairs.faster, fourier.faster = before
    return counter.flop


def moved(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of a step of Adam: parameters, gradients and two moments, each read and written once."""
    return 4 * 2 * sum(value.nbytes for value in parameters)


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.flop = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.flop += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def _convolutions(dtype: torch.dtype, device: str, rows: int) -> list[tuple[float, Step]]:
    """Return (FLOP, kernel) of the convolutions of a ResNet of width 32, forward."""
    made: list[tuple[float, Step]] = []
    for channels, columns in ((64, 250), (128, 125), (256, 63)):
        x = torch.randn(rows, channels, 1, columns, device=device, dtype=dtype).contiguous(
            memory_format=torch.channels_last
        )
        w = torch.randn(channels, channels, 1, 15, device=device, dtype=dtype).contiguous(
            memory_format=torch.channels_last
        )
        made.append((2.0 * rows * columns * 15 * channels**2, _convolution(x, w)))
    return made


def _convolution(x: Tensor, w: Tensor) -> Step:
    return lambda: torch.conv2d(x, w, None, (1, 1), (0, 7))


def _products(dtype: torch.dtype, device: str, size: int = 640) -> list[tuple[float, Step]]:
    """Return (FLOP, kernel) of a square product; in float32 on a CPU with MKL and with oneDNN."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    settings = ("highest", "medium") if device == "cpu" and dtype is torch.float32 else (None,)
    return [(2.0 * size**3, _product(left, right, setting)) for setting in settings]


def _product(left: Tensor, right: Tensor, setting: str | None) -> Step:
    def run() -> None:
        before = torch.get_float32_matmul_precision()
        if setting is not None:
            torch.set_float32_matmul_precision(setting)
        try:
            torch.mm(left, right)
        finally:
            torch.set_float32_matmul_precision(before)

    return run
