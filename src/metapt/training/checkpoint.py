"""Checkpoints of unfinished runs: written atomically, verified when loaded, and bound to the run that wrote them.

A checkpoint consists of two generations of one file. The old one is renamed to `.previous`, then the new one is put in
its place by an atomic rename. If the process is killed at any moment, one of them is complete.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from metapt import records
from metapt.digest import code_digest
from metapt.errors import ConfigError, DataError
from metapt.files import atomic_path, regular
from metapt.training import measure
from metapt.training.interruption import end_if_told

log = logging.getLogger(__name__)
_DIGEST_BYTES = 32


def fingerprint(config: dict[str, Any], inputs: dict[str, Path], module: str, device: str) -> str:
    """Return what must be equal for a run to resume from a checkpoint, as JSON.

    The library of float32 matrix products counts, too (see `metapt.training.products`).

    Args:
        config: settings of the run; the path of its checkpoint does not count.
        inputs: files that the run reads; their contents count.
        module: `__name__` of the module whose import closure is the code of the job (see `code_digest`).
        device: kind of the device.
    """
    contents = {name: records.content(path) for name, path in inputs.items()}
    code, products = code_digest(module.removeprefix("metapt.")), torch.get_float32_matmul_precision()
    settings = {key: value for key, value in config.items() if key != "checkpoint"}  # results may be moved
    return json.dumps([settings, contents, code, torch.__version__, device, products], sort_keys=True)


class Checkpoint:
    """The saved state of one run.

    Args:
        path: the file; its folder is created when needed.
        fingerprint: of the run (see `fingerprint`); a saved state of another fingerprint is not loaded.
    """

    def __init__(self, path: Path | str, fingerprint: str) -> None:
        self.path = Path(path)
        self.fingerprint = fingerprint
        self._worth_keeping = False  # whether `path` is a complete state of this run

    @property
    def _previous(self) -> Path:
        return self.path.with_name(self.path.name + ".previous")

    @contextmanager
    def taken_up(self) -> Iterator[None]:
        """Raise ConfigError in place of the error of a state that lacks what a run with other parts needs."""
        try:
            yield
        except (KeyError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{self.path} is a checkpoint of a run with other parts ({type(error).__name__}: {error}), such as "
                "other parameters, another loop, or no recorder: remove it, or give this run another fingerprint."
            ) from error

    def save(self, state: dict[str, Any]) -> None:
        """Write `state`, which contains tensors and plain values.

        Raises:
            MachineError: the disk is full.
            Interrupted: the job was told to end; the state is saved.
        """
        buffer = io.BytesIO()
        torch.save({"fingerprint": self.fingerprint, "process": _process(os.getpid()), "state": state}, buffer)
        payload = buffer.getbuffer()
        with atomic_path(self.path) as temporary:
            with open(temporary, "wb") as file:
                file.write(hashlib.sha256(payload).digest())
                file.write(payload)
            if self._worth_keeping:
                with suppress(FileNotFoundError):  # a second job of the same run may have moved or removed it
                    os.replace(self.path, self._previous)
        self._worth_keeping = True
        end_if_told()

    def load(self) -> dict[str, Any] | None:
        """Return the newest complete state of this run, or None; log a warning for each file that is passed over.

        If another process has saved it, the measurements that run do not count as whole (see `measure.goes_on`).

        Raises:
            DataError: there is a folder in place of the file.
        """
        self._sweep()
        found = [path for path in (self.path, self._previous) if path.exists()]
        for path in found:
            state = self._read(path)
            if state is not None:
                self._worth_keeping = path == self.path
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
        if hashlib.sha256(payload).digest() != content[:_DIGEST_BYTES]:
            log.warning("the checkpoint %s is cut or altered and is passed over", path)
            return None
        try:
            saved = torch.load(io.BytesIO(payload), weights_only=True)
        except Exception:  # torch documents no closed list of errors for other bytes
            saved = None
        if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict) or "fingerprint" not in saved:
            log.warning("the checkpoint %s is no checkpoint of metapt and is passed over", path)
            return None
        if saved["fingerprint"] != self.fingerprint:
            log.warning(
                "the checkpoint %s belongs to another config, data, code, version of torch, device or library of "
                "matrix products and is passed over",
                path,
            )
            return None
        if saved.get("process") != _process(os.getpid()):
            measure.goes_on()
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


@cache
def _process(number: int) -> str:
    """Return a name of the process with this number that no other process has, not even one with the same number."""
    return f"{number} {uuid4().hex}"
