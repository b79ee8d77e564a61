"""The source of minibatches where they come from `torch.utils.data.DataLoader`s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any

import torch
from torch.utils.data import DataLoader

from metapt.errors import ConfigError
from metapt.training.seeds import Seeded, seed_of, seeded


class LoaderBatches:
    """The `Batches` of loaders, each in passes without end.

    Any iterable that can be passed through again will do in place of a `DataLoader`, such as a list of one minibatch.
    A PT minibatch is a `Seeded`: the minibatch of the loader, and a seed for the random draws of its loss.

    All that torch's generator on the CPU decides follows from `seed`, the number of the pass and the number of the
    minibatch in it: the order of a pass, and the draws of a data set in this process or in workers. A generator of the
    loader or its sampler is seeded likewise. What is not restored: draws from `random` and NumPy in this process, and
    draws of a data set in persistent workers, which keep their generators from pass to pass.

    The state consists of those numbers. A resumed run goes through the loaders to the place in their passes where the
    state was taken, so that it loads the minibatches of these passes again.

    Args:
        pretrain: the loader of PT minibatches.
        train: the loader of FT training minibatches.
        validation: the loader of FT validation minibatches, of other examples than `train`.
        hypergradient: the loader of the PT minibatches of hypergradients. None: that of `pretrain`, in passes of its
            own.
        device: where tensors in minibatches are moved; None: they are not.
        seed: of all draws.

    Raises:
        ConfigError: a loader can be passed through only once.
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
        # An FT solver that holds out minibatches recognises a repeated one by identity, so tensors are moved once.
        for name in ("train", "validation"):
            if isinstance(loaders[name], list | tuple):
                loaders[name] = [moved(batch, device) for batch in loaders[name]]
        self._passes = {name: _Passes(name, loader, seed) for name, loader in loaders.items()}
        self._device = device

    def pretrain(self) -> Seeded:
        """Return the minibatch of the next PT step."""
        return self._seeded("pretrain")

    def hypergradient(self) -> Seeded:
        """Return the PT minibatch of the next hypergradient."""
        return self._seeded("hypergradient")

    def train(self) -> Any:
        """Return the next FT training minibatch."""
        return moved(self._passes["train"].next(), self._device)

    def validation(self) -> Any:
        """Return the next FT validation minibatch."""
        return moved(self._passes["validation"].next(), self._device)

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of the present passes, and of the minibatches that they have given."""
        return {name: (passes.number, passes.given) for name, passes in self._passes.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        for name, (number, given) in state.items():
            self._passes[name].go_to(number, given)

    def _seeded(self, name: str) -> Seeded:
        passes = self._passes[name]
        return Seeded(moved(passes.next(), self._device), passes.seed("loss"))


class _Passes:
    """Passes through one loader without end.

    Attributes:
        number: of the present pass.
        given: minibatches that it has given.
    """

    def __init__(self, name: str, loader: Iterable[Any], seed: int) -> None:
        if isinstance(loader, Iterator):
            raise ConfigError(
                f"the minibatches of {name} are a {type(loader).__name__}, which can be passed through only once; "
                "legal: a DataLoader, or a list of minibatches"
            )
        self._name, self._seed = name, seed
        self._loader = loader
        self._generators: list[torch.Generator] = []
        if isinstance(loader, DataLoader):
            self._loader = _own(loader)
            samplers = loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)
            generators = self._loader.generator, *(getattr(sampler, "generator", None) for sampler in samplers)
            self._generators = [each for each in generators if each is not None]
        self.go_to(0, 0)

    def go_to(self, number: int, given: int) -> None:
        """Continue in a pass after some of its minibatches.

        Raises:
            ConfigError: a pass has fewer.
        """
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
        for generator in self._generators:
            generator.manual_seed(self.seed("order"))
        with seeded(self.seed("data")):
            if self._iterator is None:
                self._iterator = iter(self._loader)
            batch = next(self._iterator)
        self.given += 1
        return batch


def _own(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of the same minibatches that shares neither workers nor the generator of their seeds.

    Workers get their seed when they are started, at the first pass or at each one. A generator of its own
    keeps that draw from changing the order of a pass.
    """
    own = copy(loader)
    own._iterator = None  # of persistent workers, if the loader was used before
    own.generator = torch.Generator()
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
