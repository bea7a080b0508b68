"""Guards on SQLite: connections of the standard library's sqlite3 and of apsw.

The connection's own busy timeout decides how long a claim waits for another writer. A write to SQLite
takes a fifth of a millisecond, so the flow is written out here: sessions and coroutines, which serve
drivers that wait, would cost more than the claim itself.
"""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Any, ClassVar

from holdfast.locks.fence import Mark
from holdfast.locks.guards.sql import CREATE_TABLE, Guard, Statements, table_is_missing

# The claims are found by `once_per_fence`.
*_CLAIMS, _FIND, _ANSWER = Statements.with_placeholders("?", "?", "?")
# Immediate, so that competitors wait at the beginning and nobody works on a stale snapshot.
_BEGIN = "BEGIN IMMEDIATE;"
_OPENINGS = [_BEGIN + claim for claim in _CLAIMS]


class _SqliteGuard(Guard[Any]):
    __slots__ = ("_nested",)
    _nested: bool
    """The caller's own transaction is open: ours is a savepoint in it."""
    _joins: ClassVar[bool]
    """Whether the driver runs several statements in one call; that saves half of the way through it."""

    def __enter__(self) -> Any:
        conn, lease = self._conn, self._lease
        lease.check()
        # In half the time of its own constructor.
        mark = self.mark = tuple.__new__(Mark, (lease.fence, lease.next_seq() if self._seq is None else self._seq))
        nested = self._nested = conn.in_transaction
        claims = _CLAIMS
        if nested:
            conn.execute("SAVEPOINT holdfast_guard")
        elif self._joins:
            claims = _OPENINGS
        else:
            conn.execute(_BEGIN)
        try:
            try:
                claimed = conn.execute(claims[self.once_per_fence], (self.resource, *mark))
            except Exception as failure:
                if not table_is_missing(failure):
                    raise
                # In the claim's own transaction: whoever comes at the same time waits, then finds it.
                conn.execute(f"{CREATE_TABLE} WITHOUT ROWID")
                claimed = conn.execute(_CLAIMS[self.once_per_fence], (self.resource, *mark))
            if (conn.changes() if self._joins else claimed.rowcount) != 1:
                self.recognise(*self._find())
        except BaseException:
            self._rollback()
            raise
        return conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self.repeated:
            self._rollback()
            return
        try:
            if self.answer is not None:
                self._conn.execute(_ANSWER, (self.answer, self.resource))
            self._lease.check()
            # As a statement: it fails if the body has ended the transaction; conn.commit() would not.
            self._conn.execute("RELEASE holdfast_guard" if self._nested else "COMMIT")
        except BaseException:
            self._rollback()
            raise

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    @abstractmethod
    def _plain_cursor(self) -> Any:
        """One that gives tuples, whatever the connection makes of its rows."""

    def _find(self) -> tuple[int, int, str | None]:
        # Fetched to the end: an unfinished statement would block the commit.
        rows: list[Any] = self._plain_cursor().execute(_FIND, (self.resource,)).fetchall()
        fence, seq, answer = rows[0]
        return fence, seq, answer

    def _rollback(self) -> None:
        conn = self._conn
        # After some errors (disk full, I/O) SQLite has rolled back the whole transaction by itself.
        if not conn.in_transaction:
            return
        if self._nested:
            conn.execute("ROLLBACK TO holdfast_guard")
            conn.execute("RELEASE holdfast_guard")
        else:
            conn.execute("ROLLBACK")


class Sqlite3Guard(_SqliteGuard):
    __slots__ = ()
    _joins = False

    def _plain_cursor(self) -> Any:
        cursor = self._conn.cursor()
        cursor.row_factory = None
        return cursor


class ApswGuard(_SqliteGuard):
    __slots__ = ()
    _joins = True

    def _plain_cursor(self) -> Any:
        cursor = self._conn.cursor()
        cursor.row_trace = None
        return cursor
