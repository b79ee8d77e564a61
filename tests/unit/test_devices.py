"""What a rehearsed device finds: tensors that were left on the CPU, and waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.training.streams import to_device

Rehearse = Callable[..., dict[str, int]]
VALUES = torch.linspace(-1, 2, 6)
ELSEWHERE = "outside of the package"


def on_values(step: Callable[[Tensor], Any]) -> Callable[[str], Callable[[], Any]]:
    """Return what `rehearse` takes, for a step on six numbers."""

    def prepare(device: str) -> Callable[[], Any]:
        values = VALUES.to(device)
        return lambda: step(values)

    return prepare


WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: x * 2 if x[0] > 0 else x,
    "tolist": lambda x: x.tolist(),
    "to the CPU": lambda x: x.cpu().tolist(),
    "nonzero": lambda x: torch.nonzero(x > 0),
    "a mask": lambda x: x[x > 0],
    "equal": lambda x: torch.equal(x, x),
    "repeats": lambda x: torch.repeat_interleave(x.abs().long()),
    "indices on the CPU": lambda x: x[torch.tensor([0, 2])],
    "a list of indices": lambda x: x[[0, 2]],
    "a new constant": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "from the CPU": lambda x: torch.ones(3).to(x.device),
    "from the CPU, not pinned": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "into a tensor of the device": lambda x: x.clone().copy_(VALUES),
}


QUEUED: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2 + torch.arange(6, device=x.device)).sum(),
    "a number of the CPU": lambda x: x * torch.tensor(2.0),
    "indices": lambda x: x[torch.arange(2, device=x.device)],
    "a mask that is filled": lambda x: torch.where(x > 0, x, 0.0),
    "repeats of a known number": lambda x: torch.repeat_interleave(torch.ones_like(x).long(), output_size=6),
    "from pinned memory": lambda x: to_device(torch.ones(3), x.device),
    "random numbers": lambda x: torch.rand(3, device=x.device, generator=torch.Generator(x.device).manual_seed(1)),
    "many at once": lambda x: torch.func.vmap(torch.sin)(x),
}


COUNTED = [*((step, {ELSEWHERE: 1}) for step in WAITS.values()), *((step, {}) for step in QUEUED.values())]


@pytest.mark.parametrize(("step", "found"), COUNTED, ids=[*WAITS, *QUEUED])
def test_waits_are_counted_and_what_is_queued_is_none(
    step: Callable[[Tensor], Any], found: dict[str, int], rehearse: Rehearse
) -> None:
    assert rehearse(on_values(step)) == found


MIXED: dict[str, Callable[[Tensor], Any]] = {
    "a sum": lambda x: x + VALUES,
    "a product": lambda x: torch.outer(x, VALUES),
    "a stack": lambda x: torch.stack([x[0], torch.tensor(1.0)]),
    "an index of the device": lambda x: VALUES[torch.arange(2, device=x.device)],
}


@pytest.mark.parametrize("name", MIXED)
def test_a_tensor_of_the_cpu_among_those_of_the_device_is_an_error(name: str, rehearse: Rehearse) -> None:
    with pytest.raises(AssertionError, match="takes a tensor of the CPU and one of the device"):
        rehearse(on_values(MIXED[name]))
    with pytest.raises(AssertionError):  # as is a result on the CPU
        rehearse(on_values(lambda x: torch.ones(2)))


def test_derivatives_of_any_order_are_those_of_the_cpu(rehearse: Rehearse) -> None:
    def step(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(leaf.exp().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        return torch.func.jvp(torch.sin, (second,), (x,))[1]

    assert rehearse(on_values(step)) == {}
