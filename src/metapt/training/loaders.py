"""The source of minibatches where they come from `torch.utils.data.DataLoader`s."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from copy import copy, deepcopy
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from metapt.errors import ConfigError
from metapt.training.optimizers import plain
from metapt.training.overlap import Kept, Watch, tensors
from metapt.training.seeds import Seeded, seed_of, seeded

log = logging.getLogger(__name__)


class LoaderBatches:
    """The `Batches` of loaders, each in passes without end.

    Any iterable that can be passed through again will do in place of a `DataLoader`, such as a list of one minibatch.
    Loaders and samplers are copied first: what is changed in yours later has no effect.
    A PT minibatch is a `Seeded`: the minibatch of the loader, and a seed for the random draws of its loss.

    All that torch's generator on the CPU decides follows from `seed`, the number of the pass and the number of the
    minibatch in it: the order of a pass, and the draws of a data set in this process or in workers. Generators of torch
    that are attributes of a loader, its samplers, data sets or `collate_fn`, or of samplers and data sets in these, are
    seeded likewise. What is not restored: any other state of samplers and data sets, draws from `random` and NumPy in
    this process, and draws of a data set in persistent workers, which keep their generators from pass to pass.

    What has a method `set_epoch` (a sampler, batch sampler, data set or loader) is told the number of the pass.

    A warning is logged if FT validation examples are FT training examples, too. An error in a loss gets a note which
    says from which minibatches of which loaders it comes.

    The state consists of those numbers. A resumed run goes through the loaders to the place in their passes where the
    state was taken, so that it loads the minibatches of these passes again.

    Args:
        pretrain: the loader of PT minibatches.
        train: the loader of FT training minibatches.
        validation: the loader of FT validation minibatches, of other examples than `train`.
        hypergradient: the loader of the PT minibatches of hypergradients. None: that of `pretrain`, in passes of its
            own, with copies of its samplers.
        device: where tensors in minibatches are moved; None: they are not.
        seed: of all draws.

    Raises:
        ConfigError: a loader can be passed through only once, or is a single minibatch or a data set.
    """

    def __init__(
        self,
        *,
        pretrain: Iterable[Any],
        train: Iterable[Any],
        validation: Iterable[Any],
        hypergradient: Iterable[Any] | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        loaders = {"pretrain": pretrain, "train": train, "validation": validation}
        loaders["hypergradient"] = pretrain if hypergradient is None else hypergradient
        for name, loader in loaders.items():
            _check(name, loader)
        self._finetuning = train, validation
        self._watch = Watch(train, validation)
        self._in_use: dict[str, _Drawn] = {}
        self._first: Kept | None = None  # FT minibatch since the last one of PT
        # An FT solver that holds out minibatches recognises a repeated one by identity, so tensors are moved once.
        for name in ("train", "validation"):
            if isinstance(loaders[name], list | tuple):
                loaders[name] = [moved(batch, device) for batch in loaders[name]]
        apart = {"hypergradient"} if loaders["hypergradient"] is pretrain else set()
        self._passes = {name: _Passes(name, each, seed, name in apart) for name, each in loaders.items()}
        self._device, self._seed = device, plain(seed)

    def pretrain(self) -> Seeded:
        """Return the minibatch of the next PT step."""
        return self._of_pt("pretrain")

    def hypergradient(self) -> Seeded:
        """Return the PT minibatch of the next hypergradient."""
        return self._of_pt("hypergradient")

    def train(self) -> Any:
        """Return the next FT training minibatch."""
        return self._watched("train")

    def validation(self) -> Any:
        """Return the next FT validation minibatch."""
        return self._watched("validation")

    def state_dict(self) -> dict[str, Any]:
        """Return the seed, the numbers of the present passes, and of the minibatches that they have given."""
        return {"seed": self._seed} | {name: (each.number, each.given) for name, each in self._passes.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            ConfigError: it is of another seed, or a loader gives fewer minibatches.
            KeyError: it is that of other `Batches`.
        """
        if state["seed"] != self._seed:
            raise ConfigError(
                f"the run to be resumed had other minibatches: its seed was {state['seed']}, and that of LoaderBatches "
                f"is {self._seed} now: give it the old one, or the run another file or fingerprint"
            )
        for name, passes in self._passes.items():
            passes.go_to(*state[name])
        self._watch = Watch(*self._finetuning)

    def explain(self, error: Exception) -> None:
        """Add to an error which minibatches were in use.

        Raises:
            ValueError: BatchNorm has got a minibatch of one example.
        """
        drawn = list(self._in_use.values())
        if drawn and _ONE_VALUE in str(error):
            single = next((each for each in drawn if each.size == 1), drawn[0])
            raise ValueError(
                f"BatchNorm in training mode can't take {single}: {error}. Give the DataLoader drop_last=True, or a "
                "batch_size that leaves no single example over"
            ) from error
        if drawn and not any(_NOTE in note for note in getattr(error, "__notes__", ())):
            error.add_note(f"{_NOTE}{'; '.join(map(str, drawn))}")

    def _of_pt(self, name: str) -> Seeded:
        self._in_use.clear()
        self._first = None
        return Seeded(self._next(name), self._passes[name].seed("loss"))

    def _watched(self, name: str) -> Any:
        batch, passes = self._next(name), self._passes[name]
        self._watch.see(name, self._in_use[name].batch, passes.number)
        if not passes.number:
            self._first = self._first or Kept(batch)
            self._first.check()
        return batch

    def _next(self, name: str) -> Any:
        passes = self._passes[name]
        batch = passes.next()
        drawn = self._in_use[name] = _Drawn(name, passes.number, passes.given, passes.size, batch)
        if drawn.size == 0 and not any(map(len, tensors(batch))):
            raise ConfigError(f"{drawn} has no examples; legal: one or more. Look at sampler, data set and collate_fn")
        return moved(batch, self._device)


_epochs: dict[int, int] = {}  # the last number that each object with `set_epoch`, by its `id`, was told by any passes
_ONE_VALUE = "Expected more than 1 value per channel"
_NOTE = "Minibatches in use: "


class _Drawn(NamedTuple):
    """A minibatch: its loader, numbers of the pass and in it, and the usual size of the loader's minibatches."""

    name: str
    number: int
    given: int
    usual: int | None
    batch: Any

    @property
    def size(self) -> int | None:
        """The number of examples, if it has tensors."""
        return next((len(value) for value in tensors(self.batch)), None)

    def __str__(self) -> str:
        shapes = " and ".join(f"{list(value.shape)}" for value in tensors(self.batch)) or type(self.batch).__name__
        short = self.size and self.usual is not None and self.size < self.usual
        rest = f": {self.size} of {self.usual} examples; drop_last=True of a DataLoader leaves them out"
        place = f"minibatch {self.given} of pass {self.number + 1} of the loader `{self.name}`"
        return f"{place} ({shapes}{rest if short else ''})"


class _Passes:
    """Passes through one loader without end.

    Args:
        name, loader, seed: of the minibatches.
        apart: whether other passes go through the same loader.

    Attributes:
        number: of the present pass.
        given: minibatches that it has given.
        size: of its minibatches, if the loader says so.
    """

    def __init__(self, name: str, loader: Iterable[Any], seed: int, apart: bool) -> None:
        self._name, self._source, self._seed, self._apart = name, loader, seed, apart
        self.size = _usual_size(loader)
        self.go_to(0, 0)

    def go_to(self, number: int, given: int) -> None:
        """Continue in a pass after some of its minibatches, with the loader as it was given.

        Raises:
            ConfigError: a pass has fewer.
        """
        self._loader = _own(self._source, self._apart)
        parts = _parts(self._loader)
        self._generators = _generators(parts)
        self._with_epochs = [each for each in parts if callable(getattr(each, "set_epoch", None))]
        self.number, self.given = number, 0
        self._iterator: Iterator[Any] | None = None
        while self.given < given:
            self.next()
            if self.number != number:
                raise ConfigError(
                    f"the run to be resumed had taken {given} minibatches of {self._name} in a pass, and the loader "
                    "gives fewer now: give the loader that the run had, or remove the checkpoint"
                )

    def seed(self, purpose: str) -> int:
        """Return the seed that belongs to the present place in the passes."""
        return seed_of("loader", self._name, purpose, self._seed, self.number, self.given)

    def next(self) -> Any:
        """Return the next minibatch.

        Raises:
            ConfigError: a pass has none.
        """
        try:
            return self._next()
        except StopIteration:
            if not self.given:
                raise ConfigError(
                    f"the loader of {self._name} gives no minibatch: it has fewer examples than a minibatch, or none"
                ) from None
        self.number, self.given, self._iterator = self.number + 1, 0, None
        return self.next()

    def _next(self) -> Any:
        # Samplers and data sets draw when the first minibatch, or each one, is asked for.
        for generator, purpose in self._generators.items():
            generator.manual_seed(self.seed(purpose))
        for each in self._with_epochs:
            if self._iterator is None or _epochs.get(id(each)) != self.number:
                each.set_epoch(self.number)
                _epochs[id(each)] = self.number
        try:
            with seeded(self.seed("data")):
                if self._iterator is None:
                    self._iterator = iter(self._loader)
                batch = next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:
            place = f"minibatch {self.given + 1} of pass {self.number + 1} of the loader `{self._name}`"
            error.add_note(f"{_NOTE}none, since the loader failed to give {place}")
            raise
        self.given += 1
        return batch


def _check(name: str, loader: Any) -> None:
    """Raise a ConfigError if this is something else than a loader."""
    kind = type(loader).__name__
    if isinstance(loader, type):
        what, legal = f"the class {loader.__name__}", f"an object of it, {loader.__name__}(...)"
    elif isinstance(loader, Iterator):
        what, legal = f"a {kind}, which can be passed through only once", "a DataLoader, or a list of minibatches"
    elif isinstance(loader, Dataset):
        what = f"a data set, a {kind}, which gives single examples"
        legal = "DataLoader(dataset, batch_size=...), with batch_size=None if each of its items is a minibatch"
    elif isinstance(loader, tuple) and any(map(_is_array, loader)):
        what = "a tuple of tensors, which can be the parts of one minibatch"
        legal = "[(x, y)] for one minibatch of x and y, list(tensors) for several"
    elif isinstance(loader, list) and any(map(_is_array, loader)) and len({*map(_kind, loader)}) > 1:
        what = "a list of unlike tensors, which are the parts of one minibatch"
        legal = "[(x, y)], a list of minibatches"
    elif isinstance(loader, Mapping | str) or _is_array(loader) or (hasattr(loader, "to") and [*tensors(loader)]):
        what, legal = f"a {kind}, which is one minibatch", "[minibatch], a list of minibatches, or a DataLoader"
    elif not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        what, legal = f"a {kind}", "a DataLoader, or a list of minibatches"
    elif isinstance(loader, DataLoader) and _gives_examples(loader):
        what = "a DataLoader with batch_size=None, which gives single examples"
        legal = "DataLoader(dataset, batch_size=...)"
    else:
        return
    raise ConfigError(f"the minibatches of {name} are {what}; legal: {legal}")


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__")


def _kind(value: Any) -> tuple[Any, ...]:
    return type(value), getattr(value, "dtype", None), getattr(value, "ndim", None)


def _gives_examples(loader: DataLoader[Any]) -> bool:
    """Return whether a loader takes single examples of tensors, of which one, such as a label, is a number."""
    data = loader.dataset
    return loader.batch_sampler is None and isinstance(data, TensorDataset) and 1 in {t.dim() for t in data.tensors}


def _usual_size(loader: Any) -> int | None:
    """Return the size of all minibatches of a loader but the last one of a pass, if it can be seen beforehand."""
    if isinstance(loader, list | tuple):
        return next((len(value) for value in tensors(loader[:1])), None)
    sizes = (getattr(each, "batch_size", None) for each in (loader, getattr(loader, "batch_sampler", None)))
    return next((size for size in sizes if isinstance(size, int)), None)


_KINDS = DataLoader, Sampler, Dataset


def _parts(loader: Any) -> list[Any]:
    """Return a loader with its loaders, samplers, data sets and `collate_fn`, and those that they have."""
    found = {id(loader): loader}
    for each in (left := [loader]):
        parts = [getattr(each, name, None) for name in ("batch_sampler", "sampler", "dataset", "collate_fn")]
        inner = getattr(each, "datasets", None)  # of a ConcatDataset, StackDataset or ChainDataset
        parts += inner.values() if isinstance(inner, Mapping) else inner if isinstance(inner, list | tuple) else []
        parts += [part for part in getattr(each, "__dict__", {}).values() if isinstance(part, _KINDS)]
        new = {id(part): part for part in parts if part is not None and id(part) not in found}
        found |= new
        left += new.values()
    return left


def _generators(parts: list[Any]) -> dict[torch.Generator, str]:
    """Return the generators that are attributes of the parts of a loader, each with a purpose for its seed."""
    found: dict[torch.Generator, str] = {}
    for part in parts:
        own = [value for value in getattr(part, "__dict__", {}).values() if isinstance(value, torch.Generator)]
        for number, value in enumerate(own):  # with the seed of the order all others would draw the same numbers
            orders = isinstance(part, DataLoader | Sampler) and number == 0
            found.setdefault(value, "order" if orders else f"draws {len(found)}")
    return found


def _own(loader: Any, apart: bool) -> Any:
    """Return a loader of the same minibatches that shares neither workers nor the generator of their seeds.

    Workers get their seed when they are started, at the first pass or at each one. A generator of its own
    keeps that draw from changing the order of a pass. Nor does it share what may keep its place or the number of a
    pass: samplers, an iterable data set, and what another loader than torch's has in its own attributes.
    """
    if isinstance(loader, list | tuple):
        return loader
    try:
        own = copy(loader)
    except TypeError:  # such as one with a file
        return loader
    if not isinstance(loader, DataLoader):
        inner = {name: each for name, each in getattr(own, "__dict__", {}).items() if isinstance(each, DataLoader)}
        for name, each in inner.items():
            object.__setattr__(own, name, _own(each, apart))
        return own
    own._iterator = None  # of persistent workers, if the loader was used before
    own.generator = torch.Generator()
    data = [loader.dataset, *(part for part in _parts(loader) if isinstance(part, Dataset))]
    samplers = {name: getattr(loader, name) for name in ("sampler", "batch_sampler")}
    try:
        own.__dict__ |= deepcopy(samplers, {id(part): part for part in data})
    except TypeError as error:
        if apart:
            log.warning(
                "a sampler can't be copied (%s), so that hypergradients and PT share its place in a pass; give "
                "LoaderBatches a loader for hypergradient=",
                error,
            )
    if isinstance(loader.dataset, IterableDataset):
        own.__dict__["dataset"] = copy(loader.dataset)
    return own


def moved(batch: Any, device: torch.device | str | None) -> Any:
    """Return a minibatch with its tensors on a device: a tensor, a tuple, list or mapping, or an object with `to`.

    Other objects, and tensors that are on the device already, are returned as they are; so is all if `device` is None.
    """
    if device is None:
        return batch
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        values = [moved(value, device) for value in batch.values()]
        return batch if _same(values, batch.values()) else dict(zip(batch, values, strict=True))
    if isinstance(batch, tuple | list):
        values = [moved(value, device) for value in batch]
        if _same(values, batch):
            return batch
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch


def _same(values: Iterable[Any], others: Iterable[Any]) -> bool:
    """Return whether the values are the others, not copies of them."""
    return all(value is other for value, other in zip(values, others, strict=True))
