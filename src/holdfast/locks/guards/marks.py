"""Marks in one SQLite file, for a resource that has no transaction to keep its mark in."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple, Protocol

import apsw

from holdfast.locks.errors import Unavailable
from holdfast.locks.fence import NO_MARK, Mark, Ruling, rule
from holdfast.locks.stores.sqlite.file import FORKING

BUSY_MS_MAX = 2000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS mark (
    resource TEXT NOT NULL PRIMARY KEY,
    fence INTEGER NOT NULL,
    seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID
"""
_RAISE = """
INSERT INTO mark (resource, fence, seq) VALUES (?, ?, ?)
ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence, seq = excluded.seq
"""


class Offer(NamedTuple):
    current: Mark
    """The mark after the offer: the offered one if it was accepted."""
    ruling: Ruling


class Marks(Protocol):
    def offer(self, resource: str, mark: Mark, *, once_per_fence: bool = False) -> Offer:
        """Judge the mark by `fence.rule` and, if it is accepted, keep it, in one atomic step.

        When it returns, the mark survives a crash and a power cut. Blocks; usable from any thread.
        Raises `Unavailable` if the marks cannot be kept.
        """


class SqliteMarks:
    """Several processes of one host may share the file."""

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)
        # One connection, one user at a time: a second writer would wait for the first anyway.
        self.turn = threading.Lock()
        self._closed = False
        self._connection: apsw.Connection | None = _connected(self._path)
        FORKING.close_in_child(self)

    def let_go(self) -> None:
        """In a forked child, as of a server that loads its application first. It opens a connection of its own."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def offer(self, resource: str, mark: Mark, *, once_per_fence: bool = False) -> Offer:
        try:
            return self._offer(resource, mark, once_per_fence=once_per_fence)
        except apsw.BusyError as why:
            raise Unavailable(self._path, "locked by another process for too long", applied=False) from why
        except apsw.Error as why:
            raise Unavailable(self._path, str(why), applied=None) from why

    def close(self) -> None:
        with self.turn:
            self._closed = True
            self.let_go()

    def _offer(self, resource: str, mark: Mark, *, once_per_fence: bool) -> Offer:
        with self.turn:
            if self._closed:
                raise Unavailable(self._path, "the marks are closed", applied=False)
            connection = self._connection = self._connection or _connected(self._path)
            # IMMEDIATE: a transaction that begins by reading could not become a writer later.
            connection.execute("BEGIN IMMEDIATE")
            try:
                row = connection.execute("SELECT fence, seq FROM mark WHERE resource = ?", (resource,)).get
                current = Mark(*row) if row else NO_MARK
                ruling = rule(current, mark, once_per_fence=once_per_fence)
                if ruling.accepted and not ruling.repeated:
                    connection.execute(_RAISE, (resource, *mark))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        return Offer(mark if ruling.accepted else current, ruling)


def _connected(path: str) -> apsw.Connection:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(BUSY_MS_MAX)
    connection.pragma("journal_mode", "wal")
    # Less than FULL lets a power cut take back marks, and an overtaken holder in.
    connection.pragma("synchronous", "full")
    connection.execute(_SCHEMA)
    return connection
