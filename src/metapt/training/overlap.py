"""Looks at FT examples: whether validation and training have some in common, and whether minibatches stay as given."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, SubsetRandomSampler
from torch.utils.data import TensorDataset as InMemory

from metapt.errors import ConfigError

log = logging.getLogger("metapt.training.loaders")
_EXAMPLES, _NUMBERS, _SPANS = 4_000, 256, 50
"""What is looked at: examples of a loader, numbers of an example's tensor, and minibatches of a list."""


class Watch:
    """A look at the first pass of the loaders of FT; a warning is logged once if they have examples in common.

    Two examples are the same if the tensors of their minibatches have the same numbers at their places of the first
    dimension, or if they are one item of a data set. With few different examples, as of a table of categories, equal
    numbers are no evidence: so common examples count only where there are more of them than repeated ones.

    Args:
        train, validation: the loaders, as the user gave them.
    """

    def __init__(self, train: Iterable[Any], validation: Iterable[Any]) -> None:
        self._loaders = {"train": train, "validation": validation}
        self._examples = _Examples(self._loaders)
        self._pass: dict[str, int] = {}
        self._over: set[str] = set()

    def see(self, name: str, batch: Any, number: int) -> None:
        """Look at a minibatch of one of the loaders, in the pass `number`."""
        if name in self._over:
            return
        common = 0 if self._pass else _common_items(*self._loaders.values())
        if self._pass.setdefault(name, number) != number:
            self._over.add(name)
            return
        known = _known(self._loaders[name])
        full = self._examples.add(name, examples(batch) if known is None else known)
        if full or known is not None:
            self._over.add(name)
        if common or self._examples.alarming:
            self._over = set(self._loaders)
            log.warning(
                "%d FT validation examples are the same as FT training examples. The FT validation loss is then that "
                "of examples that FT has seen, and the hyperparameters are learned for remembering them. Give "
                "`validation` other examples than `train`, as by torch.utils.data.random_split",
                common or self._examples.common,
            )


class Kept:
    """An FT minibatch in use, with what it held when it was given."""

    def __init__(self, batch: Any) -> None:
        self.batch, self._content = batch, examples(batch)

    def check(self) -> None:
        """Raise ConfigError if it holds something else now."""
        if examples(self.batch) != self._content:
            raise ConfigError(
                "an FT loader fills the tensors of a minibatch anew that is in use; legal: new ones, as by clone()"
            )


def warn_of_repeated(finetuning: Any, batches: Sequence[Any]) -> bool:
    """Log a warning if an FT solver holds out minibatches in turn (`cross_fit`) that have examples in common."""
    distinct = {str(key): batch for key, batch in {id(batch): batch for batch in batches}.items()}
    if not getattr(finetuning, "cross_fit", False):
        return False
    seen = _Examples(distinct)
    for key, batch in distinct.items():
        seen.add(key, examples(batch))
    if seen.alarming:
        log.warning(
            "%d examples are the same in two of the %d minibatches of which cross_fit holds out each in turn, so that "
            "heads are tested on examples that they were fitted to. Give `train` and `validation` different examples, "
            "and `train` passes of a multiple of the FT solver's minibatches, %d",
            seen.common,
            len(distinct),
            len(batches) - 1,
        )
    return seen.alarming


class _Examples:
    """The examples of some sides, how many are common to two of them, and how many are repeated on one."""

    def __init__(self, sides: Iterable[str]) -> None:
        self._sides: dict[str, set[int]] = {side: set() for side in sides}
        self.common = self.repeated = 0

    def add(self, name: str, examples: Iterable[int]) -> bool:
        """Add examples of a side; return whether it has as many as are looked at."""
        own = self._sides[name]
        others = [side for other, side in self._sides.items() if other != name]
        for example in islice(examples, _EXAMPLES - len(own)):
            if example in own:
                self.repeated += 1
            else:
                own.add(example)
                self.common += any(example in side for side in others)
        return len(own) >= _EXAMPLES

    @property
    def alarming(self) -> bool:
        """Whether so many are common that chance does not explain it."""
        last = len(list(self._sides.values())[-1])
        all_are = self.common == last > 3 and not self.repeated
        return all_are or (10 * self.common >= last and self.common > 3 + 2 * self.repeated)


def examples(batch: Any) -> list[int]:
    """Return a number for each example of a minibatch, the same for examples of the same numbers.

    If the first dimension is not that of examples, as in a graph, all examples are those of this minibatch only.
    Examples at which a mask is false are left out.
    """
    found = list(tensors(batch))
    sizes = {len(value) for value in found}
    if not sizes or 0 in sizes:
        return []
    if len(sizes) > 1:
        whole = hash(tuple(hash(_bytes(value).numpy().tobytes()) for value in found))
        return [hash((whole, index)) for index in range(len(found[0]))]
    data = torch.cat([_bytes(value) for value in found], 1)
    masks = [value[: len(data)].cpu() for value in found if value.dtype is torch.bool and value.dim() == 1]
    if masks:
        data = data[torch.stack(masks).all(0)]
    width, content = data.shape[1], data.numpy().tobytes()
    return [hash(content[start : start + width]) for start in range(0, len(content), width)]


def tensors(batch: Any, depth: int = 4) -> Iterator[Tensor]:
    """Give the tensors of a minibatch that have examples: of itself, its items, its values, or its attributes."""
    if isinstance(batch, Tensor):
        fit = batch.layout is torch.strided and not (batch.is_complex() or batch.is_quantized or batch.is_meta)
        if batch.dim() and fit:
            yield batch.detach()
    elif depth:
        parts = batch.values() if isinstance(batch, Mapping) else batch
        if not isinstance(batch, Mapping | tuple | list):
            parts = getattr(batch, "__dict__", {}).values()
        for part in parts:
            yield from tensors(part, depth - 1)


def _bytes(value: Tensor) -> Tensor:
    """Return the bytes of the first examples, [examples, bytes], of some of the numbers if there are many."""
    flat = value[:_EXAMPLES].reshape(min(len(value), _EXAMPLES), -1)
    return flat[:, :: max(1, -(-flat.shape[1] // _NUMBERS))].contiguous().cpu().view(torch.uint8)


def _known(loader: Any) -> Iterable[int] | None:
    """Return the examples of a loader that has them in memory; None for another."""
    if isinstance(loader, list | tuple):
        return (example for batch in loader for example in examples(batch))
    data, items = _items(loader)
    if isinstance(data, InMemory):
        found = examples(data.tensors)
        return (found[index] for index in items if index < len(found))
    return None


def _common_items(first: Any, second: Any) -> int:
    """Return the number of examples of the second loader that are, as objects in memory, among those of the first."""
    return sum(_common(a, b) for where, b in _spans(second) for other, a in _spans(first) if where == other)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    if isinstance(first, range) and isinstance(second, range):
        return len(range(max(first.start, second.start), min(first.stop, second.stop)))
    return len(set(first).intersection(second))


def _spans(loader: Any) -> list[tuple[Hashable, Sequence[int]]]:
    """Return where the first examples of a loader lie, a data set or memory, and their numbers there."""
    if isinstance(loader, list | tuple):
        return [_span(found) for batch in loader[:_SPANS] if (found := list(tensors(batch)))]
    data, items = _items(loader)
    found = list(tensors(data.tensors)) if isinstance(data, InMemory) else []
    if not found:
        return [(id(data), items)]
    where, places = _span(found)
    return [(where, places if isinstance(items, range) else [places[index] for index in items])]


def _span(values: Sequence[Tensor]) -> tuple[Hashable, range]:
    """Return in which memory tensors lie, and the numbers of their examples there."""
    places = [divmod(int(each.storage_offset()), max(1, each.stride(0))) for each in values]  # and where in an example
    starts = {start for start, _ in places}
    memory = [each.untyped_storage().data_ptr() for each in values]
    where: list[Hashable] = [(each.stride(), each.shape[1:]) for each in values]
    where += [*memory, *(offset for _, offset in places)]
    if len(starts) > 1 or len({len(each) for each in values}) > 1:
        where += [(each.storage_offset(), len(each)) for each in values]
    return tuple(where), range(min(starts), min(starts) + len(values[0]))


def _items(loader: Any) -> tuple[Any, Sequence[int]]:
    """Return the data set of a DataLoader, and which of its items are in a pass; None and () if that is not known."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader) or type(batch_sampler) not in (BatchSampler, type(None)):
        return None, ()
    sampler = loader.sampler if batch_sampler is None else batch_sampler.sampler
    data, items = loader.dataset, cast(Sequence[int], ())
    if isinstance(sampler, SequentialSampler | RandomSampler):
        items = range(len(cast(Sized, data)))
    elif isinstance(sampler, SubsetRandomSampler):
        items = list(sampler.indices)
    else:
        return None, ()
    while type(data) is Subset:
        items, data = [data.indices[index] for index in items], data.dataset
    return data, items
