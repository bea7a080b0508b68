"""Guards on SQLite: connections of the standard library's sqlite3 and of apsw.

The connection's own busy timeout decides how long a claim waits for another writer. A write to SQLite
takes a fifth of a millisecond, so the flow is written out here: sessions and coroutines, which serve
drivers that wait, would cost more than the claim itself. Through apsw, BEGIN travels with an UPDATE that
raises a lower mark, as on Postgres; only where nothing was raised the claim itself follows.
"""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Any

from holdfast.locks.guards.sql import CREATE_TABLE, Guard, Statements, table_is_missing

# The claims are found by `once_per_fence`.
*_CLAIMS, _FIND, _ANSWER = Statements.with_placeholders("?", "?", "?")
# Immediate, so that competitors wait at the beginning and nobody works on a stale snapshot.
_BEGIN = "BEGIN IMMEDIATE"
# What nearly every claim comes to, a fifth cheaper. Short, because apsw reads the text of a statement
# each time, to find it among those that it has prepared.
_RAISE = f"{_BEGIN};UPDATE holdfast_fences SET fence=?2,seq=?3,answer=NULL WHERE resource=?1 AND"  # noqa: S608  (constants)
_RAISE_PAIR = f"{_RAISE}(fence,seq)<(?2,?3)"
_RAISE_FENCE = f"{_RAISE} fence<?2"


class _SqliteGuard(Guard[Any]):
    __slots__ = ("_nested",)
    _nested: bool
    """The caller's own transaction is open: ours is a savepoint in it."""

    def __enter__(self) -> Any:
        lease, conn = self._lease, self._conn
        lease.check()
        self.values = (self.resource, lease.fence, lease.next_seq() if self._seq is None else self._seq)
        self._nested = conn.in_transaction
        conn.execute("SAVEPOINT holdfast_guard" if self._nested else _BEGIN)
        try:
            self._claim()
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

    @abstractmethod
    def _changed(self, cursor: Any) -> int:
        """How many rows the last statement changed, which came from `cursor`."""

    def _claim(self) -> None:
        conn, claim = self._conn, _CLAIMS[self.once_per_fence]
        try:
            claimed = conn.execute(claim, self.values)
        except Exception as failure:
            if not table_is_missing(failure):
                raise
            # In the claim's own transaction: whoever comes at the same time waits, then finds it.
            conn.execute(f"{CREATE_TABLE} WITHOUT ROWID")
            claimed = conn.execute(claim, self.values)
        if self._changed(claimed) != 1:
            self.recognise(*self._find())

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

    def _changed(self, cursor: Any) -> int:
        return int(cursor.rowcount)

    def _plain_cursor(self) -> Any:
        cursor = self._conn.cursor()
        cursor.row_factory = None
        return cursor


class ApswGuard(_SqliteGuard):
    """apsw runs several statements in one call, which saves half of the way through it."""

    __slots__ = ()

    def __enter__(self) -> Any:
        conn = self._conn
        if conn.in_transaction:
            return super().__enter__()
        lease, seq = self._lease, self._seq
        lease.check()
        values = self.values = (self.resource, lease.fence, lease.next_seq() if seq is None else seq)
        self._nested = False
        try:
            try:
                conn.execute(_RAISE_FENCE if self.once_per_fence else _RAISE_PAIR, values)
                raised = conn.changes() == 1
            except Exception as failure:
                if not table_is_missing(failure):
                    raise
                raised = False
            if not raised:
                self._claim()
        except BaseException:
            self._rollback()
            raise
        return conn

    def _changed(self, cursor: Any) -> int:
        return int(self._conn.changes())

    def _plain_cursor(self) -> Any:
        cursor = self._conn.cursor()
        cursor.row_trace = None
        return cursor
