"""Guards on SQLite: connections of the standard library's sqlite3 and of apsw.

The connection's own busy timeout decides how long a claim waits for another writer.
"""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Any, NamedTuple

from holdfast.locks.fence import Mark
from holdfast.locks.guards.sql import CREATE_TABLE, Guard, Statements, table_is_missing

_STATEMENTS = Statements.with_placeholders("?", "?", "?")


class _Block(NamedTuple):
    begin: str
    commit: str
    rollback: tuple[str, ...]


# Immediate, so that competitors wait at the beginning and nobody works on a stale snapshot.
_TRANSACTION = _Block("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
_SAVEPOINT = _Block(
    "SAVEPOINT holdfast_guard",
    "RELEASE holdfast_guard",
    ("ROLLBACK TO holdfast_guard", "RELEASE holdfast_guard"),
)


class SqliteGuard(Guard[Any]):
    """What `Guard` promises, written out without coroutines.

    A write to SQLite takes a fifth of a millisecond, so the common flow through a session, which
    serves drivers that wait, would cost more here than the claim itself.
    """

    _block: _Block | None = None

    def __enter__(self) -> Any:
        conn, lease = self._conn, self._lease
        lease.check()
        self.mark = Mark(lease.fence, lease.next_seq() if self._seq is None else self._seq)
        block = self._block = _SAVEPOINT if conn.in_transaction else _TRANSACTION
        conn.execute(block.begin)
        try:
            try:
                raised = self._claim()
            except Exception as failure:
                if not table_is_missing(failure):
                    raise
                # In the claim's own transaction: whoever comes at the same time waits, then finds it.
                conn.execute(f"{CREATE_TABLE} WITHOUT ROWID")
                raised = self._claim()
            if not raised:
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
                self._conn.execute(_STATEMENTS.answer, (self.answer, self.resource))
            self._lease.check()
            assert self._block is not None
            # As a statement: it fails if the body has ended the transaction; conn.commit() would not.
            self._conn.execute(self._block.commit)
        except BaseException:
            self._rollback()
            raise

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _claim(self) -> bool:
        conn, mark = self._conn, self.mark
        claim = _STATEMENTS.claim_once if self.once_per_fence else _STATEMENTS.claim
        done = conn.execute(claim, (self.resource, mark.fence, mark.seq))
        changed: int = done.rowcount if isinstance(conn, sqlite3.Connection) else conn.changes()
        return changed == 1

    def _find(self) -> tuple[int, int, str | None]:
        cursor = self._conn.cursor()
        # A plain tuple, whatever the connection makes of its rows.
        if isinstance(cursor, sqlite3.Cursor):
            cursor.row_factory = None
        else:
            cursor.row_trace = None
        # Fetched to the end: an unfinished statement would block the commit.
        rows: list[Any] = cursor.execute(_STATEMENTS.find, (self.resource,)).fetchall()
        fence, seq, answer = rows[0]
        return fence, seq, answer

    def _rollback(self) -> None:
        block, self._block = self._block, None
        # After some errors (disk full, I/O) SQLite has rolled back the whole transaction by itself.
        if block is not None and self._conn.in_transaction:
            for statement in block.rollback:
                self._conn.execute(statement)
