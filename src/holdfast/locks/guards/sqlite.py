"""Guards on SQLite: connections of the standard library's sqlite3 and of apsw.

The connection's own busy timeout decides how long a claim waits for another writer.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.locks.guards.sql import CREATE_TABLE, Claim, Statements

if TYPE_CHECKING:
    import apsw

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


class SqliteSession:
    blocking = True

    def __init__(self, conn: sqlite3.Connection | apsw.Connection) -> None:
        self._conn = conn
        self._block: _Block | None = None

    async def open(self, claim: Claim, *, create: bool) -> bool:
        block = _SAVEPOINT if self._conn.in_transaction else _TRANSACTION
        self._conn.execute(block.begin)
        self._block = block
        if create:
            self._conn.execute(f"{CREATE_TABLE} WITHOUT ROWID")
        claiming, values = _STATEMENTS.claiming(claim), (claim.resource, *claim.mark)
        if isinstance(self._conn, sqlite3.Connection):
            return self._conn.execute(claiming, values).rowcount == 1
        self._conn.execute(claiming, values)
        return self._conn.changes() == 1

    async def find(self, resource: str) -> tuple[int, int, str | None]:
        cursor = self._conn.cursor()
        # A plain tuple, whatever the connection makes of its rows.
        if isinstance(cursor, sqlite3.Cursor):
            cursor.row_factory = None
        else:
            cursor.row_trace = None
        # Fetched to the end: an unfinished statement would block the commit.
        rows: list[Any] = cursor.execute(_STATEMENTS.find, (resource,)).fetchall()
        fence, seq, answer = rows[0]
        return fence, seq, answer

    async def store_answer(self, resource: str, answer: str) -> None:
        self._conn.execute(_STATEMENTS.answer, (answer, resource))

    async def commit(self) -> None:
        assert self._block is not None
        # As a statement: it fails if the body has ended the transaction; conn.commit() would not.
        self._conn.execute(self._block.commit)
        self._block = None

    async def rollback(self) -> None:
        block, self._block = self._block, None
        # After some errors (disk full, I/O) SQLite has rolled back the whole transaction by itself.
        if block is not None and self._conn.in_transaction:
            for statement in block.rollback:
                self._conn.execute(statement)
