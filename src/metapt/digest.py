"""The digest of a job's code: a change of the code reruns the job, a change of a comment does not.

The code of a job is the import closure of its entry module. It is read from the syntax trees; nothing is imported.
A module that is imported by a computed name is not seen, so such imports belong into modules that no closure contains.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent

EXCLUDED = {
    "config": "models of the config, whose values are parameters of the jobs",
    "sections": "as config",
    "domains.*.config": "as config",
    "jobs": "which jobs there are and where their files lie; what a job gets is among its parameters",
    "domains.*.jobs": "as jobs",
    "errors": "what people read when a job ends without numbers",
    "files": "writes what it is given, whole or not at all",
    "records": "as files",
    "digest": "what computes this digest",
    "training.interruption": "when a job ends early",
    "training.progress": "progress bars",
}
"""Modules (`*` stands for a name) that change no numbers, with the reason; their imports are not followed."""


_DATA_FILE = re.compile(r"[\w-]+\.(?!py$)\w+")


class _Module(NamedTuple):
    """Modules that a module's text may import, names of files in it, and its syntax tree without docstrings."""

    imports: tuple[str, ...]
    files: tuple[str, ...]
    tree: str


def code_digest(entry: str, package: Path = PACKAGE) -> str:
    """Return 16 digits of a digest of a module's closure: syntax trees without docstrings, and data files named.

    `entry` is a name inside the package, such as "domains.ecg.pretrain". Raises ModuleNotFoundError if there is none.
    """
    digest = hashlib.sha256()
    for name, path in closure(entry, package).items():
        module = _read(path)
        digest.update(f"{name}\n{module.tree}\n".encode())
        for file in module.files:
            if (path.parent / file).is_file():
                digest.update((path.parent / file).read_bytes())
    return digest.hexdigest()[:16]


def closure(entry: str, package: Path = PACKAGE) -> dict[str, Path]:
    """Return the files of `entry` and of the modules that it imports, also in functions and indirectly, by sorted name.

    The packages of a module belong to the closure, since they are imported before it. `EXCLUDED` modules don't, unless
    one is the entry. Raises ModuleNotFoundError if there is no such module.
    """
    if _path(entry, package) is None:
        raise ModuleNotFoundError(f"{package.name} has no module {entry!r}")
    found: dict[str, Path] = {}
    todo = {entry}
    while todo:
        name = todo.pop()
        path = _path(name, package)
        if path is not None and name not in found and (name == entry or not excluded(name)):
            found[name] = path
            todo |= imports(name, package)
    return dict(sorted(found.items()))


def imports(name: str, package: Path = PACKAGE) -> set[str]:
    """Return the names in the package that a module may import, also in functions, and the module's own packages."""
    path, prefix = _path(name, package), f"{package.name}."
    assert path is not None, f"{package.name} has no module {name!r}"
    return {each.removeprefix(prefix) for each in _read(path).imports if each.startswith(prefix)} | {*_packages(name)}


def excluded(name: str) -> bool:
    """Return whether a module is in `EXCLUDED`."""
    return any(fnmatchcase(name, pattern) for pattern in EXCLUDED)


def _path(name: str, package: Path) -> Path | None:
    path = package.joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def _packages(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _read(path: Path) -> _Module:
    return _parsed(path.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> _Module:
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    _drop_docstrings(nodes)
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return _Module(tuple(_imports(nodes)), tuple(sorted(filter(_DATA_FILE.fullmatch, words))), ast.dump(tree))


def _imports(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the modules that may be imported; for `from a import b`, both `a` and `a.b`."""
    for node in nodes:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.module is not None, "imports are absolute"
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _drop_docstrings(nodes: list[ast.AST]) -> None:
    """Drop docstrings of modules, classes, functions and attributes, and descriptions of config keys."""
    for node in nodes:
        if isinstance(node, ast.Call):
            node.keywords = [each for each in node.keywords if each.arg != "description"]
            if isinstance(node.func, ast.Name) and node.func.id == "key":  # metapt.sections.key(default, description)
                node.args = node.args[:1]
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
