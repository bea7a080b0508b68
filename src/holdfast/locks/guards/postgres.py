"""Guards on Postgres: connections of asyncpg (also from its pool) and of psycopg, sync and async.

A claim of its own would be a fourth round trip beside BEGIN, the write and COMMIT: about 30 % of a
small transaction. So BEGIN and the claim travel as one message, and the claim is a statement that
the server has prepared (planning it each time costs half of what the round trip did). The
statement is prepared when the server says that it is missing; this also serves poolers that
change the server's session under a client.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

from holdfast.locks.guards.sql import CREATE_TABLE, Claim, Statements, sqlstate

_DOLLARS = Statements.with_placeholders("$1", "$2", "$3")
_PERCENTS = Statements.with_placeholders("%s", "%s", "%s")

_NOT_PREPARED = "26000"

# IF NOT EXISTS alone fails when two sessions create at once; the lock goes with the transaction.
CREATE_LOCK = "SELECT pg_advisory_xact_lock(7525352680829580148)"


class AsyncpgSession:
    blocking = False

    # asyncpg is optional and untyped, so its objects are Any here.
    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._transaction: Any = None

    async def open(self, claim: Claim, *, create: bool) -> bool:
        if create or self._conn.is_in_transaction():
            return await self._open_stepwise(claim, create=create)
        try:
            return await self._open_at_once(_execute(claim))
        except Exception as failure:
            if sqlstate(failure) != _NOT_PREPARED:
                raise
        await self.rollback()
        return await self._open_at_once(f"{_prepare(claim)};{_execute(claim)}")

    async def find(self, resource: str) -> tuple[int, int, str | None]:
        fence, seq, answer = await self._conn.fetchrow(_DOLLARS.find, resource)
        return fence, seq, answer

    async def store_answer(self, resource: str, answer: str) -> None:
        await self._conn.execute(_DOLLARS.answer, answer, resource)

    async def commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def rollback(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None and not self._conn.is_closed():
            await transaction.rollback()

    async def _open_stepwise(self, claim: Claim, *, create: bool) -> bool:
        transaction = self._conn.transaction()
        await transaction.start()
        self._transaction = transaction
        if create:
            await self._conn.execute(CREATE_LOCK)
            await self._conn.execute(CREATE_TABLE)
        status = await self._conn.execute(_DOLLARS.claiming(claim), claim.resource, *claim.mark)
        return bool(status == "INSERT 0 1")

    async def _open_at_once(self, claiming: str) -> bool:
        # Through asyncpg's own transaction object, so that `conn.transaction()` nests in the body.
        # It has no public way to send more than BEGIN; tests/locks/test_guards_sql.py watches this one.
        transaction = self._conn.transaction()
        opening = _Opening(transaction._connection, claiming)  # noqa: SLF001
        transaction._connection = opening  # noqa: SLF001
        await transaction.start()
        transaction._connection = opening.conn  # noqa: SLF001
        self._transaction = transaction
        if opening.failure is not None:
            raise opening.failure
        return bool(opening.status == "INSERT 0 1")


class _Opening:
    """Stands in for a connection while a transaction starts, and sends the claim along with BEGIN.

    A failure is kept rather than raised: BEGIN may have succeeded before it, so the transaction
    must count as started, to be rolled back.
    """

    conn: Any
    claiming: str
    status: str
    failure: BaseException | None

    def __init__(self, conn: Any, claiming: str) -> None:
        self.__dict__.update(conn=conn, claiming=claiming, status="", failure=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.conn, name)

    def __setattr__(self, name: str, value: object) -> None:
        # What the transaction notes on its connection must reach the real one.
        setattr(self.conn, name, value)

    async def execute(self, begin: str) -> None:
        try:
            self.__dict__["status"] = await self.conn.execute(begin + self.claiming)
        except BaseException as failure:  # noqa: BLE001  (raised by the session)
            self.__dict__["failure"] = failure


class PsycopgSession:
    """For both kinds of connection: what the asynchronous one returns is awaited."""

    def __init__(self, conn: Any) -> None:
        self.blocking = not hasattr(conn, "__aenter__")
        self._conn = conn
        self._block: Any = None
        """The caller's own transaction is open: a block of psycopg's, with a savepoint."""
        self._began = False
        """The transaction is ours: begun by a message, ended by commit() or rollback()."""
        self._autocommit = False

    async def open(self, claim: Claim, *, create: bool) -> bool:
        if create or not self._is_plain():
            return await self._open_stepwise(claim, create=create)
        try:
            return await self._open_at_once(_execute(claim))
        except Exception as failure:
            if sqlstate(failure) != _NOT_PREPARED:
                raise
        await self.rollback()
        return await self._open_at_once(f"{_prepare(claim)};{_execute(claim)}")

    async def find(self, resource: str) -> tuple[int, int, str | None]:
        # A plain tuple, whatever the connection makes of its rows.
        cursor = self._conn.cursor(row_factory=lambda _: tuple)
        await _settled(cursor.execute(_PERCENTS.find, (resource,)))
        fence, seq, answer = await _settled(cursor.fetchone())
        return fence, seq, answer

    async def store_answer(self, resource: str, answer: str) -> None:
        await _settled(self._conn.execute(_PERCENTS.answer, (answer, resource)))

    async def commit(self) -> None:
        if self._block is not None:
            await self._leave_block()
            return
        # COMMIT of a failed transaction is a silent rollback, and without one it is nothing.
        status = self._conn.info.transaction_status.name
        if status != "INTRANS":
            raise RuntimeError(f"the body ended or broke the guard's transaction ({status}): nothing more is committed")
        await _settled(self._conn.commit())
        await self._end()

    async def rollback(self) -> None:
        if self._block is not None:
            await self._leave_block(Exception("rolled back"))
        elif self._began and not self._conn.closed:
            await _settled(self._conn.rollback())
            await self._end()

    def _is_plain(self) -> bool:
        """Nothing is open, and a bare BEGIN is what the connection itself would send."""
        conn = self._conn
        return (
            conn.info.transaction_status.name == "IDLE"
            and conn.isolation_level is None
            and conn.read_only is None
            and conn.deferrable is None
        )

    async def _open_at_once(self, claiming: str) -> bool:
        # Without autocommit psycopg would send a BEGIN before ours, as a round trip of its own.
        self._autocommit = self._conn.autocommit
        if not self._autocommit:
            await _settled(self._conn.set_autocommit(True))
        self._began = True
        cursor = await _settled(self._conn.execute(f"BEGIN;{claiming}"))
        while cursor.nextset():
            pass
        return bool(cursor.rowcount == 1)

    async def _open_stepwise(self, claim: Claim, *, create: bool) -> bool:
        block = self._conn.transaction()
        await _settled(block.__enter__() if self.blocking else block.__aenter__())
        self._block = block
        if create:
            await _settled(self._conn.execute(CREATE_LOCK))
            await _settled(self._conn.execute(CREATE_TABLE))
        values = (claim.resource, *claim.mark)
        cursor = await _settled(self._conn.execute(_PERCENTS.claiming(claim), values))
        return bool(cursor.rowcount == 1)

    async def _leave_block(self, error: Exception | None = None) -> None:
        block, self._block = self._block, None
        leave = block.__exit__ if self.blocking else block.__aexit__
        await _settled(leave(error and type(error), error, None))

    async def _end(self) -> None:
        self._began = False
        if not self._autocommit:
            await _settled(self._conn.set_autocommit(False))


async def _settled(outcome: Any) -> Any:
    return await outcome if isawaitable(outcome) else outcome


def _prepare(claim: Claim) -> str:
    return f"PREPARE {_name(claim)} (text, bigint, bigint) AS {_DOLLARS.claiming(claim)}"


def _execute(claim: Claim) -> str:
    return f"EXECUTE {_name(claim)}({_quoted(claim.resource)},{claim.mark.fence:d},{claim.mark.seq:d})"


def _name(claim: Claim) -> str:
    return "holdfast_claim_once" if claim.once_per_fence else "holdfast_claim"


def _quoted(text: str) -> str:
    """A literal that no setting and no client encoding of the session can misread."""
    if text.isascii():
        escaped = text.replace("\\", "\\\\").replace("'", "''")
        return f"E'{escaped}'"
    return f"convert_from(decode('{text.encode().hex()}','hex'),'UTF8')"
