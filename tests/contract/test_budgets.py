"""The project's size: a number here is raised on purpose only."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGETS = [
    ("src", "*.py", 28_488, 195, 400),
    ("tests", "*.py", 31_106, 188, 575),
    ("workflow", "*.smk", 353, 4, 190),
]
"""Folder, files, lines of all files, number of files, lines of one file."""


@pytest.mark.parametrize(("folder", "pattern", "lines", "count", "longest"), BUDGETS)
def test_files_stay_within_their_budget(folder: str, pattern: str, lines: int, count: int, longest: int) -> None:
    sizes = [len(path.read_bytes().splitlines()) for path in (ROOT / folder).rglob(pattern)]
    assert sum(sizes) <= lines
    assert len(sizes) <= count
    assert max(sizes) <= longest


def test_the_table_of_keys_is_short() -> None:
    assert len((ROOT / "config" / "README.md").read_text(encoding="utf-8").splitlines()) <= 600
