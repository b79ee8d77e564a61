"""Calls of the system on files below a folder, counted, of which one can be made to fail."""

from __future__ import annotations

import builtins
import io
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

NAMELESS = ("read", "write", "fsync", "close")
"""Calls on an open file: their errors do not say which."""


class Calls:
    """The calls so far by kind: open, read, write, fsync, close, rename, unlink, mkdir."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = f"{folder}/"
        self.begin()
        self._open = io.open
        for module in (builtins, io):
            patch.setattr(module, "open", self._opened)
        alike = {"replace": "rename", "remove": "unlink"}
        for name in ("open", "rename", "replace", "unlink", "remove", "mkdir"):
            patch.setattr(os, name, self._counted(alike.get(name, name), getattr(os, name)))
        patch.setattr(os, "fsync", lambda descriptor: self.call("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))

    def begin(self, kind: str = "", number: int = 0, error: int = 0) -> None:
        """Count from 0; the call of this kind and number is to fail."""
        self.counts: Counter[str] = Counter()
        self._fails = kind, number, error

    def call(self, kind: str, path: Any) -> None:
        """Count a call on a file, and fail it if it is its turn."""
        if isinstance(path, int) or not os.fsdecode(path).startswith(self._folder):
            return
        self.counts[kind] += 1
        fails, number, error = self._fails
        if (kind, self.counts[kind]) == (fails, number):
            raise OSError(error, os.strerror(error), *([] if kind in NAMELESS else [os.fspath(path)]))

    def _counted(self, kind: str, whole: Any) -> Any:
        def counted(path: Any, *arguments: Any, **words: Any) -> Any:
            self.call(kind, path)
            return whole(path, *arguments, **words)

        return counted

    def _opened(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        if isinstance(file, int) or not os.fsdecode(file).startswith(self._folder):
            return self._open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if opener is None:  # else it calls os.open
            self.call("open", file)
        raw = _File(self, os.fspath(file), mode.replace("b", "").replace("t", ""), opener=opener)
        if buffering == 0:
            return raw
        of = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        buffered = of(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


class _File(io.FileIO):
    def __init__(self, calls: Calls, *arguments: Any, **words: Any) -> None:
        self._calls = calls
        super().__init__(*arguments, **words)

    def write(self, data: Any) -> int:
        self._calls.call("write", self.name)
        return super().write(data)

    def readinto(self, buffer: Any) -> int:
        self._calls.call("read", self.name)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._calls.call("read", self.name)
        return super().readall()

    def close(self) -> None:
        closed = self.closed
        super().close()
        if not closed:
            self._calls.call("close", self.name)
