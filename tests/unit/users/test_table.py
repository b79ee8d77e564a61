"""The table of what users bring, in the documentation."""

from .kinds import PAGE, page


def test_the_page_has_the_table_of_the_tests() -> None:
    assert PAGE.read_text() == page(), "write the table anew: python -m tests.unit.users.kinds"
