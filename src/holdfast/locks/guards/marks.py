"""Marks in one SQLite file, for a resource that has no transaction to keep its mark in."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple, Protocol

import apsw

from holdfast.locks.errors import Unavailable
from holdfast.locks.fence import NO_MARK, Mark, Ruling, rule

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
        self._alone = threading.Lock()
        self._connection = apsw.Connection(self._path)
        self._connection.set_busy_timeout(BUSY_MS_MAX)
        self._connection.pragma("journal_mode", "wal")
        # Less than FULL lets a power cut take back marks, and an overtaken holder in.
        self._connection.pragma("synchronous", "full")
        self._connection.execute(_SCHEMA)

    def offer(self, resource: str, mark: Mark, *, once_per_fence: bool = False) -> Offer:
        try:
            return self._offer(resource, mark, once_per_fence=once_per_fence)
        except apsw.BusyError as why:
            raise Unavailable(self._path, "locked by another process for too long", applied=False) from why
        except apsw.Error as why:
            raise Unavailable(self._path, str(why), applied=None) from why

    def close(self) -> None:
        self._connection.close()

    def _offer(self, resource: str, mark: Mark, *, once_per_fence: bool) -> Offer:
        with self._alone:
            # IMMEDIATE: a transaction that begins by reading could not become a writer later.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                row = self._connection.execute("SELECT fence, seq FROM mark WHERE resource = ?", (resource,)).get
                current = Mark(*row) if row else NO_MARK
                ruling = rule(current, mark, once_per_fence=once_per_fence)
                if ruling.accepted and not ruling.repeated:
                    self._connection.execute(_RAISE, (resource, *mark))
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        return Offer(mark if ruling.accepted else current, ruling)
