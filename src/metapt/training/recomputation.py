"""Activation checkpointing (`torch.utils.checkpoint`) in a function that is called with replaced tensors.

torch recomputes such a function in the backward pass, when the modules have their own tensors back. It is then to run
with the tensors, the modes and the buffers that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import checkpoint

from metapt.hypergrad import Params


@contextmanager
def recomputed_with(module: nn.Module, values: Params) -> Iterator[None]:
    """Let what `torch.utils.checkpoint` recomputes of the calls inside the context run as it did then.

    The buffers are copies, so that a recomputation updates no statistics a second time.

    Args:
        module: has all modules that are called.
        values: the tensors that are in the place of its own, by their names in it.

    Raises:
        RuntimeError: inside the context a checkpoint is made with `use_reentrant=True`.
    """
    plain = checkpoint._checkpoint_without_reentrant_generator
    reentrant = checkpoint.CheckpointFunction
    updated = {name for name, _ in module.named_buffers()} & values.keys()

    def generator(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        modes = [(part, part.training) for part in module.modules()]
        before = {name: values[name].clone() for name in updated}

        def again(*arguments: Any, **named: Any) -> Any:
            now = [(part, part.training) for part in module.modules()]
            _set(modes)
            tensors = values | {name: value.clone() for name, value in before.items()}
            try:
                with recomputed_with(module, tensors):
                    return functional_call(module, tensors, (lambda *_: function(*arguments, **named),))
            finally:
                _set(now)

        return plain(again, *arguments, **named)

    checkpoint._checkpoint_without_reentrant_generator = generator  # type: ignore[assignment]
    checkpoint.CheckpointFunction = _Reentrant  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        checkpoint._checkpoint_without_reentrant_generator = plain
        checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]


class _Reentrant:
    """Stands for the checkpoints that torch can neither differentiate twice nor w.r.t. given tensors."""

    @staticmethod
    def apply(*_: Any) -> Tensor:
        raise RuntimeError(
            "torch.utils.checkpoint with use_reentrant=True can't be differentiated twice, as a hypergradient needs "
            "it; legal: checkpoint(..., use_reentrant=False). Of a model of transformers: "
            'gradient_checkpointing_enable({"use_reentrant": False})'
        )


def _set(modes: list[tuple[nn.Module, bool]]) -> None:
    for part, training in modes:
        part.training = training
