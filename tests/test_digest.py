"""The digest of the code changes with what a module does, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from metapt.digest import code_digest

SOURCE = '''"""A module."""

def double(x):
    """Twice x."""
    return 2 * x
'''


def digest(folder: Path, source: str, **options: tuple[str, ...]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "module.py").write_text(source)
    code_digest.cache_clear()
    return code_digest("*.py", package=folder, **options)


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("return", "# a comment\n\n    return"),
        SOURCE.replace("Twice x.", "x, doubled."),
        SOURCE.replace('    """Twice x."""\n', ""),
        SOURCE.replace("2 * x", "(2*x)"),
    ],
    ids=["comment", "docstring", "no docstring", "layout"],
)
def test_words_and_layout_do_not_count(source: str, tmp_path: Path) -> None:
    assert digest(tmp_path, source) == digest(tmp_path, SOURCE)


def test_code_counts(tmp_path: Path) -> None:
    assert digest(tmp_path, SOURCE.replace("2", "3")) != digest(tmp_path, SOURCE)


def test_a_module_more_counts_unless_it_is_left_out(tmp_path: Path) -> None:
    before = digest(tmp_path, SOURCE)
    (tmp_path / "other.py").write_text("x = 1")
    assert digest(tmp_path, SOURCE) != before
    assert digest(tmp_path, SOURCE, without=("other.py",)) == before


def test_a_table_counts_as_it_is(tmp_path: Path) -> None:
    table = tmp_path / "numbers.csv"
    table.write_text("a\n1\n")
    before = code_digest("*.csv", package=tmp_path)
    table.write_text("a\n2\n")
    code_digest.cache_clear()
    assert code_digest("*.csv", package=tmp_path) != before


def test_a_pattern_that_finds_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere/\*\.py"):
        code_digest("nowhere/*.py", package=tmp_path)
