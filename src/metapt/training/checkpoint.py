"""Checkpoints of unfinished runs: written whole or not at all, checked on load, bound to the run that wrote them.

A checkpoint is two generations of one file. The newest goes in by an atomic rename after the one before it has been kept as
`.previous`; whatever moment a process is killed at, one of them is whole.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from metapt import records
from metapt.digest import code_digest
from metapt.errors import DataError
from metapt.files import atomic_path
from metapt.training.interruption import end_if_told

log = logging.getLogger(__name__)
_DIGEST_BYTES = 32


def fingerprint(config: dict[str, Any], inputs: dict[str, Path], module: str, device: str) -> str:
    """What must be equal for a checkpoint to be taken up: settings, contents of inputs, code, torch and kind of device.

    `module`: the name of the module whose import closure is the job's code (see `code_digest`), as its `__name__`.
    """
    contents = {name: records.content(path) for name, path in inputs.items()}
    return json.dumps([config, contents, code_digest(module.removeprefix("metapt.")), torch.__version__, device], sort_keys=True)


class Checkpoint:
    """The resumable state of one run.

    Args:
        path: the file; its folder is made when needed.
        fingerprint: what must be equal for a saved state to be taken up again: config, code digest, versions.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path = path
        self.fingerprint = fingerprint
        self._worth_keeping = False  # whether what is at `path` is a whole state of this run

    @property
    def _previous(self) -> Path:
        return self.path.with_name(self.path.name + ".previous")

    def save(self, state: dict[str, Any]) -> None:
        """Writes `state` (tensors and plain values).

        Raises:
            MachineError: there is no space.
            Interrupted: the job has been told to end; the state is saved.
        """
        buffer = io.BytesIO()
        torch.save({"fingerprint": self.fingerprint, "state": state}, buffer)
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
        """The newest whole state of this very run, or None; says so in the log when a file had to be passed over.

        Raises:
            DataError: there is a folder in the file's place.
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
            content = path.read_bytes()
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
        except Exception:  # what torch raises on other bytes is not a closed list
            saved = None
        if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict) or "fingerprint" not in saved:
            log.warning("the checkpoint %s is no checkpoint of metapt and is passed over", path)
            return None
        if saved["fingerprint"] != self.fingerprint:
            log.warning("the checkpoint %s belongs to another config, code or version and is passed over", path)
            return None
        state: dict[str, Any] = saved["state"]
        return state

    def remove(self) -> None:
        """Removes both generations; the run has finished."""
        self.path.unlink(missing_ok=True)
        self._previous.unlink(missing_ok=True)
        self._sweep()

    def _sweep(self) -> None:
        """Removes what processes that were killed while they saved have left (see `atomic_path` for its names)."""
        for unfinished in self.path.parent.glob(f".????????.{glob.escape(self.path.name)}"):
            unfinished.unlink(missing_ok=True)
