"""Guards on SQLAlchemy: Connection and Session, AsyncConnection and AsyncSession; SQLite and Postgres.

SQLAlchemy begins a transaction by itself at the first statement (a Session also when an object is
added). Such a transaction counts as the caller's: the guard sets a savepoint in it and leaves the
commit to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, CursorResult, NestedTransaction, RootTransaction, text
from sqlalchemy.orm import Session, SessionTransaction

from holdfast.locks.guards.postgres import CREATE_LOCK
from holdfast.locks.guards.sql import CREATE_TABLE, Claim, Statements

if TYPE_CHECKING:  # at run time it needs greenlet, which only asyncio users have
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

T = TypeVar("T")
Transaction = RootTransaction | NestedTransaction | SessionTransaction

_NAMED = Statements.with_placeholders(":first", ":second", ":third")
# Made once: SQLAlchemy caches what it compiles by the object. Not every driver below it counts the
# rows of an INSERT, so a claim returns one.
_TEXTS = {statement: text(statement + " RETURNING 1" * statement.startswith("INSERT")) for statement in _NAMED}


class SqlalchemySession:
    def __init__(self, conn: Connection | Session | AsyncConnection | AsyncSession) -> None:
        self._asynchronous = None if isinstance(conn, Connection | Session) else conn
        self._target = _synchronous(conn)
        self._transaction: Transaction | None = None

    @property
    def blocking(self) -> bool:
        return self._asynchronous is None

    async def open(self, claim: Claim, *, create: bool) -> bool:
        return await self._run(lambda: self._open(claim, create=create))

    async def find(self, resource: str) -> tuple[int, int, str | None]:
        row = await self._run(lambda: self._execute(_NAMED.find, resource).one())
        return row[0], row[1], row[2]

    async def store_answer(self, resource: str, answer: str) -> None:
        await self._run(lambda: self._execute(_NAMED.answer, answer, resource))

    async def commit(self) -> None:
        assert self._transaction is not None
        await self._run(self._transaction.commit)
        self._transaction = None

    async def rollback(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None and self._is_unfinished(transaction):
            await self._run(transaction.rollback)

    def _is_unfinished(self, transaction: Transaction) -> bool:
        """Whether the body has left it to us. After a failed flush a Session's transaction is no longer
        active, and still the Session's own: it does nothing more until that one is rolled back."""
        current = (self._target.get_transaction(), self._target.get_nested_transaction())
        return transaction.is_active or transaction in current

    async def _run(self, work: Callable[[], T]) -> T:
        if self._asynchronous is None:
            return work()
        return await self._asynchronous.run_sync(lambda _: work())

    def _open(self, claim: Claim, *, create: bool) -> bool:
        nested = self._target.in_transaction()
        if not nested:
            self._transaction = self._target.begin()
        conn = self._connection()
        if conn.dialect.name == "sqlite":
            _begin_immediate(conn)
        elif conn.dialect.name != "postgresql":
            raise TypeError(f"a guard works on SQLite and Postgres, not on {conn.dialect.name}")
        elif getattr(conn.connection.dbapi_connection, "autocommit", False) is True:
            raise ValueError("this connection is in AUTOCOMMIT: claim and writes would not be one transaction")
        if nested:
            self._transaction = self._target.begin_nested()
        if create:
            self._create_table(conn)
        return self._execute(_NAMED.claiming(claim), *claim.values).first() is not None

    def _create_table(self, conn: Connection) -> None:
        if conn.dialect.name == "sqlite":
            conn.exec_driver_sql(f"{CREATE_TABLE} WITHOUT ROWID")
        else:
            conn.exec_driver_sql(CREATE_LOCK)
            conn.exec_driver_sql(CREATE_TABLE)

    def _execute(self, statement: str, *values: str | int) -> CursorResult[*tuple[Any, ...]]:
        named = dict(zip(("first", "second", "third"), values, strict=False))
        return self._connection().execute(_TEXTS[statement], named)

    def _connection(self) -> Connection:
        return self._target.connection() if isinstance(self._target, Session) else self._target


def _synchronous(conn: Connection | Session | AsyncConnection | AsyncSession) -> Connection | Session:
    if isinstance(conn, Connection | Session):
        return conn
    if hasattr(conn, "sync_session"):
        return conn.sync_session
    if conn.sync_connection is None:
        raise ValueError("this AsyncConnection is not started: use `async with engine.connect()`")
    return conn.sync_connection


def _begin_immediate(conn: Connection) -> None:
    """SQLAlchemy's begin() reaches SQLite only with the first write, and a SAVEPOINT sent before
    that would be a transaction of its own, committed by its RELEASE."""
    driver = conn.connection.driver_connection
    assert driver is not None
    if not driver.in_transaction:
        conn.exec_driver_sql("BEGIN IMMEDIATE")
