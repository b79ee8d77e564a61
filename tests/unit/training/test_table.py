"""The tables of what users bring, in the documentation."""

import importlib
from pathlib import Path

from .kinds import ROWS, TESTED


def test_each_row_of_the_page_has_a_test() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"{__package__}.{path.stem}")
    assert ROWS == TESTED
