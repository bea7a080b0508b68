"""Batches of writes to Postgres: decided together and committed as one transaction.

One connection writes, and takes the plane's advisory lock first, which ends with the transaction. So at any
time one transaction of one plane is being written. What that costs: two planes do not write faster than
one, they take turns, and each turn is as long as a batch's round trips and its commit. What it buys: numbers of
events become visible in their order without gaps; no deadlocks; nothing that was checked can have changed. Batches
grow with load, so a turn carries more, not less, when many are waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from holdfast.errors import HoldfastError
from holdfast.locks.stores.postgres.link import FAILURES, ROLLED_BACK, ended_at, hang_up
from holdfast.stores.batch import BatchLedger, Needs
from holdfast.stores.batch_writer import Batch, InDoubt, asked
from holdfast.stores.postgres.flush import Moved, flush
from holdfast.stores.postgres.link import LOST, answered, connect, is_unstorable, translated
from holdfast.stores.postgres.load import load
from holdfast.stores.postgres.timeline import Timeline, look

BATCH_MAX = 2000
"""Jobs, changes and records per transaction: in a longer one the first would wait too long for the last."""
TRIES_MAX = 3
LOCK = "hashtextextended('holdfast_plane ' || current_schema(), 0)"
_PLANS = {"plan_cache_mode": "force_generic_plan"}
"""Rows are looked for by their ids, many at once: there is one way to do that, and to find it out anew takes a while."""
_BEGIN = f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})"


class PostgresBatches:
    """`words` says what other planes are told of a batch, `told` of which event this one's listeners were told last."""

    def __init__(
        self,
        url: str,
        subject: str,
        *,
        channel: str,
        timeout_s: float,
        now: Callable[[], float],
        words: Callable[[BatchLedger], list[str]],
        told: Callable[[], int],
    ) -> None:
        self._url = url
        self._subject = subject
        self._channel = channel
        self._timeout_s = timeout_s
        self._now = now
        self._words = words
        self._told = told
        self._connection: asyncpg.Connection | None = None
        self._timeline = Timeline("", "")
        self._open = True

    async def close(self) -> None:
        self._open = False
        connection, self._connection = self._connection, None
        await hang_up(connection, timeout_s=self._timeout_s)

    def is_everybodys(self, failure: Exception) -> bool:
        # Of a server that is full, or lets nobody in, it would be of no use to ask for each of them apart.
        is_servers = isinstance(failure, (*FAILURES, Moved))
        return is_servers and not (
            is_unstorable(failure) or isinstance(failure, asyncpg.IntegrityConstraintViolationError)
        )

    def translated(self, failure: Exception, *, applied: bool | None) -> HoldfastError:
        return translated(failure, self._subject, applied=applied)

    async def write(self, batch: Batch) -> tuple[BatchLedger, list[Any]]:
        """Until the commit is sent nothing has happened, so until then it may be tried again."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        for attempt in range(1, TRIES_MAX + 1):
            try:
                connection = await self._connected()
                with ended_at(connection, deadline):
                    return await self._try(connection, batch)
            except (*ROLLED_BACK, *LOST, Moved):
                if attempt == TRIES_MAX or not self._open or asyncio.get_running_loop().time() >= deadline:
                    raise
        raise AssertionError("unreachable")

    async def _try(self, connection: asyncpg.Connection, batch: Batch) -> tuple[BatchLedger, list[Any]]:
        try:
            await connection.execute(_BEGIN)
            if self._timeline.forgotten_max:
                self._timeline = await look(connection)  # another plane may have written under it by now
            batch.join()  # another plane may have had the lock for a while
            ledger, needs = BatchLedger(self._now()), Needs()
            await load(connection, asked(batch.calls, needs), ledger)
            # Workers that were given jobs together report a moment apart: a second look costs less than a second transaction.
            joined = batch.join()
            if joined:
                await load(connection, asked(joined, needs.of_who_follows()), ledger)
            # Not before any of them has called: a lease is renewed from then on, and its worker counts from when it asked.
            ledger.now = self._now()
            # A standby that was promoted may lack the last of it: of what comes under numbers that were told already nobody would hear,
            # and whoever reads on from the last of them would miss it.
            ledger.last_number = max(ledger.last_number, self._told()) + self._timeline.forgotten_max
            answers = [call.verb(ledger) for call in batch.calls]
            # Once the statement is sent, which is most of the work.
            asyncio.get_running_loop().call_soon(batch.meanwhile)
            await flush(connection, ledger, channel=self._channel, words=self._words(ledger))
            if ledger.events:
                await self._timeline.keep(connection)
        except BaseException as failure:
            await self._roll_back(connection)
            if isinstance(failure, asyncpg.ReadOnlySQLTransactionError):
                connection.terminate()  # it would say so as long as it stands, also when this server can be written again
            raise
        try:
            done = await connection.execute("COMMIT")
        except LOST as lost:
            connection.terminate()
            raise InDoubt(lost) from None
        except BaseException:
            connection.terminate()
            raise
        if done != "COMMIT":
            raise Moved
        if ledger.events:
            self._timeline.kept()
        return ledger, answers

    async def _roll_back(self, connection: asyncpg.Connection) -> None:
        if connection.is_closed():
            return
        try:
            await connection.execute("ROLLBACK")
        except (*FAILURES, TimeoutError):
            connection.terminate()

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = None
            connection = await connect(self._url, timeout_s=self._timeout_s, more=_PLANS)
            try:
                timeline = await answered(connection, look(connection), timeout_s=self._timeout_s)
                if not self._open:  # the closing had no time to wait for it
                    raise asyncpg.InterfaceError("the store was closed")
            except BaseException:
                connection.terminate()
                raise
            self._connection, self._timeline = connection, timeline
        return self._connection
