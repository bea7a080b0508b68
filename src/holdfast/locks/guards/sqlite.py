"""Guards on SQLite: connections of the standard library's sqlite3 and of apsw.

The connection's own busy timeout decides how long a claim waits for another writer. A write to SQLite
takes a fifth of a millisecond, so the flow is written out here: sessions and coroutines, which serve
drivers that wait, would cost more than the claim itself.

Numbers are for operations that arrive late or again. Nothing travels to SQLite, and whoever writes is alone:
so an operation has no number until somebody asks for one, and under a mark with its own fence it has nothing
to write but the caller's data. Another page for the disk would be more than half of what a guard costs.
"""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Any

from holdfast.locks.fence import Mark
from holdfast.locks.guards.sql import CREATE_TABLE, Guard, Statements, table_is_missing

_NO_NUMBER = 0
# The claims are found by `once_per_fence`.
*_CLAIMS, _FIND, _ANSWER = Statements.with_placeholders("?", "?", "?")
# Immediate, so that competitors wait at the beginning and nobody works on a stale snapshot.
_BEGIN = "BEGIN IMMEDIATE"
# Short, because apsw reads the text of a statement each time, to find it among those that it has prepared.
_OURS = "SELECT 1 FROM holdfast_fences WHERE resource=? AND fence=? AND seq>=?"
_BEGIN_IF_OURS = f"{_BEGIN};{_OURS}"


class _SqliteGuard(Guard[Any]):
    __slots__ = ("_claimed", "_ended", "_inside", "_nested")
    _claimed: tuple[str, int, int]
    """The values as they were when the mark was claimed: it may have got its number after that."""
    _ended: bool
    """It has committed, or may have: a number that it gets now would tell nothing."""
    _inside: bool
    """It was entered, and has not been undone: a number that it gets is claimed at once, with what was written so far."""
    _nested: bool
    """The caller's own transaction is open: ours is a savepoint in it."""

    @property
    def mark(self) -> Mark:
        """What was offered. Whoever asks may want to repeat the operation, so it gets a number now if it has none."""
        if hasattr(self, "values") and self.values[2] == _NO_NUMBER and not self._ended:
            self._number()
        return super().mark

    def __enter__(self) -> Any:
        lease, conn, seq = self._lease, self._conn, self._seq
        lease.check()
        nested = self._nested = conn.in_transaction
        if seq is None:
            # In a transaction that has only read until now, the mark's own write is what keeps competitors out.
            seq = lease.next_seq() if nested or lease.numbered or self.once_per_fence else _NO_NUMBER
        self._ended = self._inside = False
        self.values = self._claimed = (self.resource, lease.fence, seq)
        conn.execute("SAVEPOINT holdfast_guard" if nested else _BEGIN)
        try:
            self._claim()
        except BaseException:
            self._rollback()
            raise
        self._inside = True
        return conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self.repeated:
            self._undo()
            return
        try:
            if self.answer is not None:
                self._keep_answer(self.answer)
            elif self.values is not self._claimed:
                self._claim_number()
            self._lease.check()
            # As a statement: it fails if the body has ended the transaction; conn.commit() would not.
            self._conn.execute("RELEASE holdfast_guard" if self._nested else "COMMIT")
            self._ended = True
        except BaseException:
            self._undo()
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

    def _number(self) -> None:
        self.values = (self.resource, self._lease.fence, self._lease.next_seq())
        if self._inside:
            self._claim_number()

    def _claim_number(self) -> None:
        """The one that it got inside: when it gets it, and again at the end, for a savepoint of the body may have taken it back."""
        # If the body has ended the transaction, the mark would outlive what may have been rolled back; the commit fails.
        if self._conn.in_transaction and not self._raise_mark():
            fence, seq, answer = self._find()
            # Under its own fence, a guard inside this one has got a higher number.
            if fence != self.values[1]:
                self.recognise(fence, seq, answer)

    def _claim(self) -> None:
        try:
            accepted = self._raise_mark()
        except Exception as failure:
            if not table_is_missing(failure):
                raise
            # In the claim's own transaction: whoever comes at the same time waits, then finds it.
            self._conn.execute(f"{CREATE_TABLE} WITHOUT ROWID")
            accepted = self._raise_mark()
        if not accepted:
            self.recognise(*self._find())

    def _raise_mark(self) -> bool:
        if self.values[2] == _NO_NUMBER and self._plain_cursor().execute(_OURS, self.values).fetchall():
            return True
        return self._changed(self._conn.execute(_CLAIMS[self.once_per_fence], self.values)) == 1

    def _keep_answer(self, answer: str) -> None:
        if self.values[2] == _NO_NUMBER:
            self._number()
        elif self.values is not self._claimed:
            self._claim_number()
        # Outside of a transaction it would be kept although the commit fails.
        if self._conn.in_transaction:
            self._conn.execute(_ANSWER, (answer, self.resource))

    def _find(self) -> tuple[int, int, str | None]:
        # Fetched to the end: an unfinished statement would block the commit.
        rows: list[Any] = self._plain_cursor().execute(_FIND, (self.resource,)).fetchall()
        fence, seq, answer = rows[0]
        return fence, seq, answer

    def _undo(self) -> None:
        # Only what is still open was certainly not committed. The body may have done it; and what fails or interrupts
        # a commit may come after it: a hook, an error of the disk.
        self._inside, self._ended = False, not self._conn.in_transaction
        self._rollback()

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
        conn, lease = self._conn, self._lease
        if self._seq is not None or self.once_per_fence or lease.numbered or conn.in_transaction:
            return super().__enter__()
        lease.check()
        self._ended = self._inside = self._nested = False
        values = self.values = self._claimed = (self.resource, lease.fence, _NO_NUMBER)
        try:
            try:
                ours = conn.execute(_BEGIN_IF_OURS, values).get
            except Exception as failure:
                if not table_is_missing(failure):
                    raise
                ours = None
            if ours is None:
                self._claim()
        except BaseException:
            self._rollback()
            raise
        self._inside = True
        return conn

    def _changed(self, cursor: Any) -> int:
        return int(self._conn.changes())

    def _plain_cursor(self) -> Any:
        cursor = self._conn.cursor()
        cursor.row_trace = None
        return cursor
