"""What a drill judges by: a journal of what happened when, and a book of what was really written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.locks.runtime import SYSTEM

if TYPE_CHECKING:
    import apsw


class Note(NamedTuple):
    at: float
    """By the wall clock, which all processes of the drill share."""
    what: str
    item: str
    attempt: int


class Journal:
    """Lines that any process of the drill adds. Short enough that the system writes each as a whole."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "journal"

    def note(self, what: str, item: str, attempt: int) -> None:
        with self._file.open("a") as file:
            file.write(f"{SYSTEM.wall_us() / 1e6:.6f} {what} {item} {attempt}\n")

    def read(self, what: str = "", item: str = "", attempt: int | None = None) -> list[Note]:
        if not self._file.exists():
            return []
        notes = [_note(line) for line in self._file.read_text().splitlines() if line.count(" ") == 3]
        return [
            note
            for note in notes
            if (not what or note.what == what)
            and (not item or note.item == item)
            and (attempt is None or note.attempt == attempt)
        ]


def _note(line: str) -> Note:
    at, what, item, attempt = line.split()
    return Note(float(at), what, item, int(attempt))


@contextmanager
def open_book(folder: Path) -> Iterator[apsw.Connection]:
    import apsw  # noqa: PLC0415  (a driver is imported where it is used)

    book = apsw.Connection(str(folder / "book.db"))
    try:
        book.set_busy_timeout(10_000)
        book.execute("PRAGMA journal_mode = WAL")
        book.execute(
            "CREATE TABLE IF NOT EXISTS entries "
            "(id INTEGER PRIMARY KEY, item TEXT NOT NULL, fence INTEGER NOT NULL, attempt INTEGER NOT NULL)"
        )
        yield book
    finally:
        book.close()


class Entry(NamedTuple):
    item: str
    fence: int
    attempt: int


def entries(folder: Path) -> list[Entry]:
    """What was written, in order."""
    with open_book(folder) as book:
        return [Entry(*row) for row in book.execute("SELECT item, fence, attempt FROM entries ORDER BY id")]


def stale_accepted(found: list[Entry]) -> int:
    """Writes that were accepted although an earlier one of their item carried a higher fence."""
    highest: dict[str, int] = {}
    stale = 0
    for entry in found:
        stale += entry.fence < highest.get(entry.item, 0)
        highest[entry.item] = max(entry.fence, highest.get(entry.item, 0))
    return stale
