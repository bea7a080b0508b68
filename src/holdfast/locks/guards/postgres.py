"""Guards on Postgres: connections of asyncpg (also from its pool) and of psycopg, sync and async.

A claim of its own would be a fourth round trip beside BEGIN, the write and COMMIT: about 30 % of a
small transaction. So BEGIN travels with an UPDATE that raises a lower mark, which is what nearly every
claim comes to (and costs a fifth less than the whole claim, an INSERT ON CONFLICT). It is a statement
that the server has prepared (planning it each time costs half of what the round trip did), when it
said that it misses it; this also serves poolers that change the server's session under a client.
Only where nothing was raised the claim itself follows, in the same transaction: it makes the first
mark of a resource, and it locks the row of a mark that is not lower.
"""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from types import TracebackType
from typing import Any

from holdfast.locks.guards.sql import CREATE_TABLE, Claim, Guard, Statements, sqlstate, table_is_missing

_DOLLARS = Statements.with_placeholders("$1", "$2", "$3")
_PERCENTS = Statements.with_placeholders("%s", "%s", "%s")

_RAISE = "UPDATE holdfast_fences SET fence = $2, seq = $3, answer = NULL WHERE resource = $1 AND "
_LOWER_PAIR = "(fence, seq) < ($2, $3)"
_LOWER_FENCE = "fence < $2"

#: How long one who is cancelled a second time waits for the rollback.
ROLLBACK_S_MAX = 2.0

_NOT_PREPARED = "26000"
_RAISED = "UPDATE 1"
_CLAIMED = "INSERT 0 1"

# IF NOT EXISTS alone fails when two sessions create at once; the lock goes with the transaction.
CREATE_LOCK = "SELECT pg_advisory_xact_lock(7525352680829580148)"


class AsyncpgGuard(Guard[Any]):
    """What `Guard` promises, on asyncpg. Written out: every layer above the driver would be felt."""

    __slots__ = ("_began", "_savepoint")
    _began: bool
    """The transaction is ours: begun by a message, ended by COMMIT or ROLLBACK."""
    # asyncpg is optional and untyped, so its objects are Any here.
    _savepoint: Any
    """The caller's own transaction is open: a block of asyncpg's in it."""
    _isolation = None
    """Asked for by asyncpg, of its outermost transaction. None: whatever the session's default is."""

    async def __aenter__(self) -> Any:
        conn, lease = self._conn, self._lease
        lease.check()
        self.values = (self.resource, lease.fence, lease.next_seq() if self._seq is None else self._seq)
        self._began, self._savepoint = False, None
        try:
            raised = await (self._claim_in_savepoint() if conn.is_in_transaction() else self._begin_and_claim())
            if not raised:
                self.recognise(*await conn.fetchrow(_DOLLARS.find, self.resource))
        except BaseException:
            await self._rollback()
            raise
        return conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self.repeated:
            # A repeat already has its effect: a body that overlooked `repeated` must not add another.
            await self._rollback()
            return
        try:
            if self.answer is not None:
                await self._conn.execute(_DOLLARS.answer, self.answer, self.resource)
            self._lease.check()
            await self._commit()
        except BaseException:
            await self._rollback()
            raise

    def __enter__(self) -> Any:
        raise TypeError(f"{type(self._conn).__name__} is asynchronous: use `async with`")

    def __exit__(self, *_: object) -> None:
        raise AssertionError("never entered")

    async def _begin_and_claim(self) -> bool:
        create = prepare = ""
        while True:
            self._began = True
            try:
                status = await self._conn.execute(f"BEGIN;{create}{prepare}{_raise(self)}")
            except Exception as failure:
                if sqlstate(failure) == _NOT_PREPARED and not prepare:
                    prepare = f"{_prepare(self)};"
                elif table_is_missing(failure) and not create:
                    create = f"{CREATE_LOCK};{CREATE_TABLE};"
                else:
                    raise
                await self._rollback()
            else:
                self._note_in_driver(self)
                return status == _RAISED or await self._claim()

    async def _claim(self) -> bool:
        status = await self._conn.execute(_DOLLARS.claiming(self), *self.values)
        return bool(status == _CLAIMED)

    async def _claim_in_savepoint(self, *, create: bool = False) -> bool:
        conn = self._conn
        savepoint = conn.transaction()
        await savepoint.start()
        self._savepoint = savepoint
        try:
            if create:
                await conn.execute(f"{CREATE_LOCK};{CREATE_TABLE}")
            return await self._claim()
        except Exception as failure:
            if create or not table_is_missing(failure):
                raise
            await self._rollback()
            return await self._claim_in_savepoint(create=True)

    async def _commit(self) -> None:
        if self._savepoint is not None:
            savepoint, self._savepoint = self._savepoint, None
            await savepoint.commit()
            return
        # COMMIT of a failed transaction is a silent rollback, and without one it is nothing.
        if not self._conn.is_in_transaction():
            raise RuntimeError("the body ended the guard's transaction: nothing more is committed")
        self._note_in_driver(None)
        status = await self._conn.execute("COMMIT;")
        self._began = False
        if status != "COMMIT":
            raise RuntimeError("the body broke the guard's transaction: nothing is committed")

    async def _rollback(self) -> None:
        savepoint, self._savepoint = self._savepoint, None
        began, self._began = self._began, False
        if self._conn.is_closed():
            return
        if savepoint is not None:
            await savepoint.rollback()
        elif began:
            self._note_in_driver(None)
            try:
                await self._conn.execute("ROLLBACK;")
            except asyncio.CancelledError:
                await self._rollback_or_close()
                raise

    async def _rollback_or_close(self) -> None:
        """Cancelled again, while the rollback waited for the server to give up what the body had asked: perhaps it was
        not even sent. Whoever has the connection next must not go on in this transaction."""
        try:
            async with asyncio.timeout(ROLLBACK_S_MAX):
                await self._conn.execute("ROLLBACK;")
        except (Exception, asyncio.CancelledError):  # noqa: BLE001  (the first cancellation is what is told)
            self._conn.terminate()

    def _note_in_driver(self, outermost: AsyncpgGuard | None) -> None:
        """Have `conn.transaction()` in the body nest: asyncpg refuses it in a transaction that it has
        not begun. There is no public way to tell it; tests/locks/test_guards_transactions.py watches this one."""
        conn = self._conn
        getattr(conn, "_con", conn)._top_xact = outermost  # noqa: SLF001


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
        if self._conn.info.pipeline_status.name != "OFF":
            # What a statement changed is known later there: an accepted claim would look like a repeated one.
            raise ValueError(
                "this connection is in pipeline mode, where no claim can be judged: enter the guard outside of it"
            )
        if create or not self._is_plain():
            return await self._open_stepwise(claim, create=create)
        try:
            return await self._open_at_once(claim)
        except Exception as failure:
            if sqlstate(failure) != _NOT_PREPARED:
                raise
        await self.rollback()
        return await self._open_at_once(claim, f"{_prepare(claim)};")

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

    async def _open_at_once(self, claim: Claim, prepare: str = "") -> bool:
        # Without autocommit psycopg would send a BEGIN before ours, as a round trip of its own.
        self._autocommit = self._conn.autocommit
        if not self._autocommit:
            await _settled(self._conn.set_autocommit(True))
        self._began = True
        cursor = await _settled(self._conn.execute(f"BEGIN;{prepare}{_raise(claim)}"))
        while cursor.nextset():
            pass
        return cursor.rowcount == 1 or await self._claim(claim)

    async def _claim(self, claim: Claim) -> bool:
        cursor = await _settled(self._conn.execute(_PERCENTS.claiming(claim), claim.values))
        return bool(cursor.rowcount == 1)

    async def _open_stepwise(self, claim: Claim, *, create: bool) -> bool:
        block = self._conn.transaction()
        await _settled(block.__enter__() if self.blocking else block.__aenter__())
        self._block = block
        if create:
            await _settled(self._conn.execute(CREATE_LOCK))
            await _settled(self._conn.execute(CREATE_TABLE))
        return await self._claim(claim)

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
    lower = _LOWER_FENCE if claim.once_per_fence else _LOWER_PAIR
    return f"PREPARE {_name(claim)} (text, bigint, bigint) AS {_RAISE}{lower}"


def _raise(claim: Claim) -> str:
    resource, fence, seq = claim.values
    return f"EXECUTE {_name(claim)}({_quoted(resource)},{fence:d},{seq:d})"


def _name(claim: Claim) -> str:
    return "holdfast_raise_once" if claim.once_per_fence else "holdfast_raise"


def _quoted(text: str) -> str:
    """A literal that no setting and no client encoding of the session can misread."""
    if text.isascii():
        escaped = text.replace("\\", "\\\\").replace("'", "''")
        return f"E'{escaped}'"
    return f"convert_from(decode('{text.encode().hex()}','hex'),'UTF8')"
