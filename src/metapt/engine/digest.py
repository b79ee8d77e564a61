"""The digest of a job's code: a change of the code reruns the job, a change of a comment does not.

The code of a job is the import closure of its entry module. It is read from the syntax trees; nothing is imported.
A module that is imported by a computed name is not seen, so such imports belong into modules that no closure contains.
Of models of the config only the functions, constants and methods that the closure uses belong to it, since the values
of keys are parameters of the jobs.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from metapt.files import reading

PACKAGE = Path(__file__).parents[1]

MODELS = "models of the config, whose values are parameters of the jobs; what else they define counts where it is used"
EXCLUDED = {
    "engine.config": MODELS,
    "sections": MODELS,
    "domains.*.config": MODELS,
    "domains.*.stages": MODELS,
    "engine.jobs": "which jobs there are and where their files lie; what a job gets is among its parameters",
    "twostage.jobs": "as engine.jobs",
    "domains.*.jobs": "as engine.jobs",
    "errors": "what people read when a job ends without numbers",
    "files": "writes what it is given, whole or not at all",
    "engine.records": "as files",
    "engine.digest": "what computes this digest",
    "training.interruption": "when a job ends early",
    "training.progress": "progress bars, and time limits that jobs have among their settings",
}
"""Modules (`*` stands for a name) that change no numbers, with the reason; their imports are not followed."""


_DATA_FILE = re.compile(r"[\w-]+\.(?!py$)\w+")

_Symbol = tuple[str, str]
"""Module, name in it."""


class _Definition(NamedTuple):
    """A function, a constant, or the methods of a class: its syntax tree, and the names in it."""

    tree: str
    names: frozenset[str]


class _Module(NamedTuple):
    """What a module's text says."""

    imports: set[str]  # modules that it may import, also in functions; for `from a import b`, both `a` and `a.b`
    bound: dict[str, _Symbol]  # what the names stand for that it imports from modules
    uses: set[_Symbol]  # names in other modules that it may use: those that are imported, and attributes of modules
    files: list[str]  # names of files in it
    tree: str  # its syntax tree without docstrings


def code_digest(entry: str, package: Path = PACKAGE) -> str:
    """Return 16 digits of a digest of a module's closure: syntax trees without docstrings, and data files named.

    `entry` is a name inside the package, such as "domains.ecg.pretrain". Raises ModuleNotFoundError if there is none.
    """
    digest = hashlib.sha256()
    modules, definitions = _code(entry, package)
    for symbol, tree in definitions.items():
        digest.update(f"{symbol}\n{tree}\n".encode())
    for name, path in modules.items():
        module = _read(path)
        digest.update(f"{name}\n{module.tree}\n".encode())
        for file in module.files:
            if (path.parent / file).is_file():
                digest.update(_content(path.parent / file))
    return digest.hexdigest()[:16]


def closure(entry: str, package: Path = PACKAGE) -> dict[str, Path]:
    """Return the files of `entry` and of the modules that it imports, also in functions and indirectly, by sorted name.

    The packages of a module belong to the closure, since they are imported before it. `EXCLUDED` modules don't, unless
    one is the entry. Raises ModuleNotFoundError if there is no such module.
    """
    return _code(entry, package)[0]


def _code(entry: str, package: Path) -> tuple[dict[str, Path], dict[_Symbol, str]]:
    """Return the closure of a job's entry, and the definitions in models of the config that it uses, both sorted."""
    if _path(entry, package) is None:
        raise ModuleNotFoundError(f"{package.name} has no module {entry!r}")
    modules: dict[str, Path] = {}
    definitions: dict[_Symbol, str] = {}
    todo, used = {entry}, set[_Symbol]()
    while todo or used:
        if todo:
            name = todo.pop()
            path = _path(name, package)
            if path is not None and name not in modules and (name == entry or not excluded(name)):
                modules[name] = path
                todo |= imports(name, package)
                used |= _inside(_read(path).uses, package)
            continue
        symbol = used.pop()
        module, name = symbol
        path = _path(module, package)
        if symbol in definitions or module in modules or excluded(module) != MODELS or path is None:
            continue
        read, defined = _read(path), _defined(_content(path).decode())
        definition = defined.get(name)
        definitions[symbol] = definition.tree if definition else ""
        if definition:
            used |= {(module, each) for each in definition.names if each in {*defined, *read.bound}}
        elif name in read.bound:
            used |= _inside([read.bound[name]], package)
    return dict(sorted(modules.items())), {symbol: tree for symbol, tree in sorted(definitions.items()) if tree}


def _inside(symbols: Iterable[_Symbol], package: Path) -> set[_Symbol]:
    """Return those of some symbols that are in the package, with the name of the module inside it."""
    prefix = f"{package.name}."
    return {(module.removeprefix(prefix), name) for module, name in symbols if module.startswith(prefix)}


def imports(name: str, package: Path = PACKAGE) -> set[str]:
    """Return the names in the package that a module may import, also in functions, and the module's own packages."""
    path, prefix = _path(name, package), f"{package.name}."
    assert path is not None, f"{package.name} has no module {name!r}"
    packages = {name[:place] for place, letter in enumerate(name) if letter == "."}
    return packages | {each.removeprefix(prefix) for each in _read(path).imports if each.startswith(prefix)}


def excluded(name: str) -> str:
    """Return why a module is in `EXCLUDED`; an empty string if it is not."""
    return next((reason for pattern, reason in EXCLUDED.items() if fnmatchcase(name, pattern)), "")


def _path(name: str, package: Path) -> Path | None:
    path = package.joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def _read(path: Path) -> _Module:
    return _parsed(_content(path).decode())


def _content(path: Path) -> bytes:
    with reading(path, "install metapt again") as file:
        return file.read()


@cache
def _parsed(text: str) -> _Module:
    tree, nodes = _simplified(text)
    imports, words, bound = set[str](), set[str](), dict[str, _Symbol]()
    for node in nodes:
        match node:
            case ast.Import():
                imports |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                assert node.module is not None, "imports are absolute"
                imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                bound |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            case ast.Constant(value=str(word)):
                words.add(word)
    attributes = {
        (".".join(bound[node.value.id]), node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound
    }
    files = sorted(filter(_DATA_FILE.fullmatch, words))
    return _Module(imports, bound, {*bound.values(), *attributes}, files, _dump(tree))


@cache
def _defined(text: str) -> dict[str, _Definition]:
    """Return functions, constants and classes of a module by name; of a class, bases and what its body computes."""
    found: dict[str, _Definition] = {}
    for node in _simplified(text)[0].body:
        match node:
            case ast.FunctionDef():
                found[node.name] = _definition([node])
            case ast.ClassDef():
                found[node.name] = _definition([*node.bases, *(each for each in node.body if _computes(each))])
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id: _definition([node]) for target in targets if isinstance(target, ast.Name)}
    return found


def _dump(node: Any) -> str:
    """Return a syntax tree as text that each version of Python writes alike, which `ast.dump` is not.

    Fields that are empty are left out, since later versions add some; letters beyond ASCII are escaped, since versions
    differ in which of them they print.
    """
    if isinstance(node, list):
        return f"[{', '.join([_dump(each) for each in node])}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    fields = ((name, getattr(node, name, None)) for name in sorted(node._fields) if name != "kind")  # of u"text"
    filled = [f"{name}={_dump(value)}" for name, value in fields if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(filled)})"


def _definition(nodes: list[Any]) -> _Definition:
    names = {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
    return _Definition("\n".join(map(_dump, nodes)), frozenset(names))


def _computes(part: ast.stmt) -> bool:
    """Return whether a part of a class is a constant or a method, but none of a model that only checks values."""
    if not isinstance(part, ast.FunctionDef):
        return isinstance(part, ast.Assign) or (
            isinstance(part, ast.AnnAssign) and "ClassVar" in _dump(part.annotation)
        )
    called = [each.func for each in part.decorator_list if isinstance(each, ast.Call)]
    return part.name != "check" and not any(isinstance(each, ast.Name) and "validator" in each.id for each in called)


def _simplified(text: str) -> tuple[ast.Module, list[ast.AST]]:
    """Return a syntax tree and its nodes, without docstrings, also of attributes, and descriptions of config keys.

    Of f-strings, empty parts are left out, which some versions of Python add.
    """
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            node.values = [each for each in node.values if not (isinstance(each, ast.Constant) and each.value == "")]
        if isinstance(node, ast.Call):
            node.keywords = [each for each in node.keywords if each.arg != "description"]
            if isinstance(node.func, ast.Name) and node.func.id == "key":  # metapt.sections.key(default, description)
                node.args = node.args[:1]
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return tree, nodes


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
