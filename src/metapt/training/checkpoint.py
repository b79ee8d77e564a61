"""Checkpoints of unfinished runs: written atomically, verified when loaded, and bound to the run that wrote them.

A checkpoint consists of two generations of one file. The old one is renamed to `.previous`, then the new one is put in
its place by an atomic rename. If the process is killed at any moment, one of them is complete.
"""

from __future__ import annotations

import dataclasses
import enum
import glob
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch

from metapt.engine import records
from metapt.engine.digest import code_digest
from metapt.errors import ConfigError, DataError
from metapt.files import atomic_path, regular
from metapt.hypergrad.distributed import ALONE, Processes
from metapt.training.interruption import end_if_told
from metapt.training.recorder import goes_on

if TYPE_CHECKING:
    from metapt.sections import JobSettings  # needs pydantic, which the library does without

log = logging.getLogger(__name__)
_DIGEST_BYTES = 32
_ZIP = b"PK\x03\x04"  # the first bytes of a file of torch.save
_REMOVE = "name another file, or remove this one, and the run begins anew."


def fingerprint(settings: JobSettings, inputs: dict[str, Path], module: str, device: str) -> str:
    """Return what must be equal for a run to resume from a checkpoint, as JSON.

    The precision that torch is set to in float32 products counts, too.

    Args:
        settings: of the job; the path of its checkpoint does not count, since results may be moved.
        inputs: files that the run reads; their contents count.
        module: `__name__` of the module whose import closure is the code of the job (see `code_digest`).
        device: kind of the device.
    """
    contents = {name: records.content(path) for name, path in inputs.items()}
    code, products = code_digest(module.removeprefix("metapt.")), torch.get_float32_matmul_precision()
    own = settings.model_dump(mode="json", exclude={"checkpoint"})
    return json.dumps([own, contents, code, torch.__version__, device, products], sort_keys=True)


def described(value: object, place: str = "") -> dict[str, str]:
    """Return texts that are equal in two processes if settings are, by their places in `value`.

    Objects are described by their type, dataclasses also by their fields. Long texts are replaced by their SHA-256.

    >>> described({"lr": 0.1, "betas": (0.9, 0.99)})
    {'lr': '0.1', 'betas.0': '0.9', 'betas.1': '0.99'}
    """
    parts: Mapping[Any, Any] = {}
    if value is None or isinstance(value, str | int | float | complex | enum.Enum | torch.dtype | torch.device | Path):
        own = str(value)
    elif hasattr(value, "tolist"):  # a tensor, or what NumPy has
        own = f"{value.dtype} {value.tolist()}"  # type: ignore[attr-defined]
    elif isinstance(value, type | FunctionType):
        own = value.__qualname__
    elif isinstance(value, Mapping):
        own, parts = "", value
    elif isinstance(value, Sequence | Set):
        own, parts = "", dict(enumerate(sorted(value, key=str) if isinstance(value, Set) else value))
    else:
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        own, parts = type(value).__qualname__, {each.name: getattr(value, each.name) for each in fields if each.compare}
    found = {place: own if len(own) < 100 else hashlib.sha256(own.encode()).hexdigest()} if own and place else {}
    for key, part in parts.items():
        found |= described(part, f"{place}.{key}" if place else str(key))
    return found


class Checkpoint:
    """The saved state of one run.

    Args:
        path: the file; its folder is created when needed.
        fingerprint: of the run (see `fingerprint`); a saved state of another fingerprint is not loaded.
    """

    def __init__(self, path: Path | str, fingerprint: str) -> None:
        self.path, self.fingerprint = Path(path), fingerprint
        self._previous = self.path.with_name(self.path.name + ".previous")
        self._worth_keeping = False  # whether `path` is a complete state of this run
        self._read_back = False  # whether a state of this run was read back

    @contextmanager
    def taken_up(self, saved: dict[str, Any], settings: dict[str, str]) -> Iterator[None]:
        """Check that a loaded state has the `settings` of this run, as `described`, among its own.

        Raises:
            ConfigError: it has others; or, in place of an error within the context, it lacks what the run needs.
        """
        was = saved.get("settings", {})
        differ = [key for key in was | settings if was.get(key) != settings.get(key)]
        if differ:
            changes = [f"{key} was {was.get(key, 'not set')} and is {settings.get(key, 'not set')}" for key in differ]
            raise ConfigError(
                f"{self.path} is a checkpoint of a run with other settings: {'; '.join(changes[:3])}. Give this run "
                "those, or another fingerprint, or remove the checkpoint."
            )
        try:
            yield
        except (KeyError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{self.path} is a checkpoint of a run with other parts ({type(error).__name__}: {error}), such as "
                "other parameters, another loop, or no recorder: remove it, or give this run another fingerprint."
            ) from error

    def save(self, state: dict[str, Any], processes: Processes = ALONE) -> None:
        """Write `state`, which contains tensors and plain values; of several processes the first one does.

        Raises:
            ConfigError: it contains other values, which could not be loaded; the first state is read back to see that.
            MachineError: the disk is full.
            Interrupted: a signal came inside `interruption.noticed()`; the state is saved.
        """
        if processes.rank == 0:
            self._write(state)
        processes.gather(None)  # all wait until it is written
        end_if_told()

    def _write(self, state: dict[str, Any]) -> None:
        content = {"fingerprint": self.fingerprint, "process": _process(os.getpid()), "state": state}
        try:
            payload = _written(content, read_back=not self._read_back)
        except Exception as error:  # of any kind that the values raise
            found = _foreign(self.fingerprint, "fingerprint") or _foreign(state, "state")
            if found is None:
                raise
            raise ConfigError(
                f"the state of the run can't be kept in a checkpoint: {found}; legal: tensors, Python's numbers and "
                "texts, and lists, tuples and dictionaries of them. Convert it where the run gets it."
            ) from error
        self._read_back = True
        with atomic_path(self.path) as temporary:
            with open(temporary, "wb") as file:
                file.write(hashlib.sha256(payload).digest())
                file.write(payload)
            if self._worth_keeping:
                with suppress(FileNotFoundError):  # a second job of the same run may have moved or removed it
                    os.replace(self.path, self._previous)
        self._worth_keeping = True

    def load(self) -> dict[str, Any] | None:
        """Return the newest complete state of this run, or None; log a warning for each file that is passed over.

        If another process has saved it, the measurements that run do not count as whole (see `goes_on`).

        Raises:
            DataError: there is a folder in place of the file, or a whole file that is no checkpoint or can't be loaded.
        """
        self._sweep()
        found = [path for path in (self.path, self._previous) if path.exists()]
        for path in found:
            state = self._read(path)
            if state is not None:
                self._worth_keeping = path == self.path
                if path != self.path:
                    log.warning("%s is missing or passed over, so the run goes on from the older %s", self.path, path)
                return state
        if found:
            log.warning("no checkpoint of this run is left, so it starts anew")
        return None

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            with open(path, "rb", opener=regular) as file:
                content = file.read()
        except IsADirectoryError as error:
            raise DataError(f"{path} is a folder, and a checkpoint belongs there: remove it.") from error
        except OSError as error:
            log.warning("the checkpoint %s can't be read (%s) and is passed over", path, error.strerror)
            return None
        payload = memoryview(content)[_DIGEST_BYTES:]
        if content.startswith(_ZIP):
            raise DataError(
                f"{path} is no checkpoint of metapt, but a file of torch.save or another zip file: {_REMOVE}"
            )
        if hashlib.sha256(payload).digest() != content[:_DIGEST_BYTES]:
            log.warning("the checkpoint %s is cut or altered and is passed over", path)
            return None
        try:
            saved = torch.load(io.BytesIO(payload), _here, weights_only=True)
        except Exception as error:  # torch documents no closed list of errors for other bytes
            why = str(error).partition("\n")[0]
            raise DataError(f"{path} is whole, and torch can't load it ({why}): {_REMOVE}") from error
        if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict) or "fingerprint" not in saved:
            raise DataError(f"{path} is no checkpoint of metapt: {_REMOVE}")
        if saved["fingerprint"] != self.fingerprint:
            log.warning(
                "the checkpoint %s belongs to another config, data, code, version of torch, device or precision "
                "of products and is passed over",
                path,
            )
            return None
        if saved.get("process") != _process(os.getpid()):
            goes_on()
        state: dict[str, Any] = saved["state"]
        return state

    def remove(self) -> None:
        """Remove both generations, when the run has finished; log a warning for one that can't be removed."""
        for path in (self.path, self._previous):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("the checkpoint %s of a finished run can't be removed (%s)", path, error.strerror)
        self._sweep()

    def _sweep(self) -> None:
        """Remove unfinished files of processes that were killed while saving (for their names see `atomic_path`)."""
        for unfinished in self.path.parent.glob(f".????????.{glob.escape(self.path.name)}"):
            with suppress(OSError):  # it is in nobody's way
                unfinished.unlink()


def _written(value: object, read_back: bool) -> memoryview:
    """Return the bytes of a value; with `read_back` raise torch's error if it could not be loaded."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    if read_back:
        buffer.seek(0)
        torch.load(buffer, map_location="meta", weights_only=True)  # without the numbers, which need memory
    return buffer.getbuffer()


def _foreign(value: object, place: str = "") -> str | None:
    """Return place and type of the first value that torch does not read back, or None."""
    try:
        _written(value, read_back=True)
    except Exception:
        parts: Iterable[tuple[str, Any]] = ()
        if isinstance(value, Mapping):
            keys = [(f"a key of {place}", key) for key in value]
            parts = keys + [(f"{place}[{key!r}]", each) for key, each in value.items()]
        elif isinstance(value, list | tuple):
            parts = ((f"{place}[{index}]", each) for index, each in enumerate(value))
        found = (_foreign(part, where) for where, part in parts)
        return next(filter(None, found), f"{place} is a {type(value).__module__}.{type(value).__qualname__}")
    return None


def _here(storage: Any, place: str) -> Any:
    """Return what one of several processes has written from its GPU on this one's; None leaves it where it was."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return storage.cuda() if several and place.startswith("cuda") else None


@cache
def _process(number: int) -> str:
    """Return a name of the process with this number that no other process has, not even one with the same number."""
    return f"{number} {uuid4().hex}"
