"""Every row of the promises names the tests that show it, and they are there."""

from __future__ import annotations

import re

from test_docs import _SHOWN_BY, ROOT, functions_of

PAGE = (ROOT / "docs/reference/promises.md").read_text()
TABLES = ("| store and setting |", "| sync | replicas |", "| after a server that forgot its last moments |")


def rows(begin: str) -> list[str]:
    """The last cells of the table that begins so."""
    [table] = re.findall(rf"^{re.escape(begin)}.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [row.rstrip(" |").rpartition("|")[2].strip() for row in table.splitlines()]


def test_every_row_names_a_test_that_shows_it() -> None:
    told = {begin: rows(begin) for begin in TABLES}

    assert [len(cells) for cells in told.values()] == [9, 10, 4]
    assert [
        cell for cells in told.values() for cell in cells if not _SHOWN_BY.search(cell) and cell != "the same"
    ] == []


def test_what_the_page_names_exists() -> None:
    named = set(_SHOWN_BY.findall(PAGE))

    assert len(named) > 15
    assert {(path, name) for path, name in named if name not in functions_of(ROOT / path)} == set()
