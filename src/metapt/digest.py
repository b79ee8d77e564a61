"""A digest of the source that changes a stage's numbers, so that a change of it reruns the stage and a comment doesn't."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent


@cache
def code_digest(*globs: str, without: tuple[str, ...] = (), package: Path = PACKAGE) -> str:
    """SHA-256 (first 16 hex digits) over the syntax trees of modules, docstrings left out, and over the text of other files.

    Args:
        globs: files as patterns relative to the package's folder, as in `code_digest("hypergrad/*.py", "mnist/*.py")`.
        without: files that these find and that change no numbers.
        package: the folder.

    Raises:
        FileNotFoundError: a pattern finds nothing.
    """
    digest = hashlib.sha256()
    for pattern in globs:
        paths = sorted(package.glob(pattern))
        if not paths:
            raise FileNotFoundError(f"no file fits {pattern!r} in {package}")
        for path in paths:
            name = path.relative_to(package).as_posix()
            if name not in without:
                digest.update(f"{name}\n{_content(path)}\n".encode())
    return digest.hexdigest()[:16]


def _content(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    tree = ast.parse(text)
    _drop_docstrings(tree)
    return ast.dump(tree)


def _drop_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if (
                ast.get_docstring(node) is not None
            ):
                del node.body[0]
