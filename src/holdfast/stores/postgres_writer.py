"""Writes to Postgres: whatever has queued up is decided together and committed as one transaction.

One connection writes, and takes the plane's advisory lock first, which ends with the transaction. So at any
time one transaction of one plane is being written. What that costs: two planes do not write faster than
one, they take turns, and each turn is as long as a batch's round trips and its commit. What it buys: numbers of
events become visible in their order without gaps; no deadlocks; nothing that was checked can have changed. Batches
grow with load, so a turn carries more, not less, when many are waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import asyncpg

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.locks.stores.postgres_link import FAILURES, ROLLED_BACK, ended_at
from holdfast.stores.batch import BatchLedger, Needs
from holdfast.stores.postgres_flush import Moved, flush
from holdfast.stores.postgres_link import LOST, connect, hang_up, translated
from holdfast.stores.postgres_load import load

BATCH_MAX = 2000
"""Jobs, changes and records per transaction: in a longer one the first would wait too long for the last."""
TRIES_MAX = 3
LOCK = "hashtextextended('holdfast_plane ' || current_schema(), 0)"
_BEGIN = f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})"


@dataclass(slots=True, eq=False)
class Call:
    ask: Callable[[Needs], None]
    verb: Callable[[BatchLedger], Any]
    """Returns its answer, or an error to be raised to whoever asked."""
    done: asyncio.Future[Any]
    deadline: float
    size: int


class _InDoubt(Exception):
    """The connection was lost while the commit was under way."""

    def __init__(self, lost: Exception) -> None:
        super().__init__()
        self.lost = lost


_EVERYBODYS = (*LOST, *ROLLED_BACK, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError, Moved)
"""Failures that no single call is to blame for."""


class Writer:
    """`words` says what other planes are told of a batch; `committed` is called before those who asked are answered."""

    def __init__(
        self,
        url: str,
        subject: str,
        *,
        channel: str,
        timeout_s: float,
        now: Callable[[], float],
        words: Callable[[BatchLedger], list[str]],
        committed: Callable[[BatchLedger], None],
    ) -> None:
        self._url = url
        self._subject = subject
        self._channel = channel
        self._timeout_s = timeout_s
        self._now = now
        self._words = words
        self._committed = committed
        self._urgent: deque[Call] = deque()
        self._calls: deque[Call] = deque()
        self._connection: asyncpg.Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._open = True

    async def call(
        self, ask: Callable[[Needs], None], verb: Callable[[BatchLedger], Any], *, size: int, urgent: bool
    ) -> Any:
        """The verb's answer, once it is durable. `size` is how much it wants to write, roughly."""
        loop = asyncio.get_running_loop()
        if not self._open:
            raise self._away("the store is not open")
        call = Call(ask, verb, loop.create_future(), loop.time() + self._timeout_s, size)
        (self._urgent if urgent else self._calls).append(call)
        if self._task is None:
            # A task begins with the next turn of the loop: calls of one turn share a transaction.
            self._task = asyncio.create_task(self._run(), name="holdfast-postgres-writer")
        return await call.done

    async def close(self) -> None:
        """What is under way is still answered; what was not begun ends as not applied."""
        self._open = False
        self._fail([*self._urgent, *self._calls], lambda: self._away("the store was closed"))
        self._urgent.clear()
        self._calls.clear()
        if self._task is not None:
            await asyncio.wait([self._task])
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection, timeout_s=self._timeout_s)

    async def _run(self) -> None:
        try:
            while self._urgent or self._calls:
                await self._write(self._take())
        finally:
            self._task = None

    def _take(self) -> list[Call]:
        now = asyncio.get_running_loop().time()
        taken: list[Call] = []
        size = 0
        for lane in (self._urgent, self._calls):
            while lane and size < BATCH_MAX:
                call = lane.popleft()
                size += call.size
                if call.deadline <= now:
                    self._fail([call], lambda: self._away("no answer in time"))
                elif not call.done.done():  # else whoever asked has gone
                    taken.append(call)
        return taken

    async def _write(self, calls: list[Call]) -> None:
        if not calls:
            return
        try:
            ledger, answers = await self._transact(calls)
        except _InDoubt as doubt:
            lost = doubt.lost
            self._fail(calls, lambda: translated(lost, self._subject, applied=None))
        except Exception as failure:  # noqa: BLE001  (whatever it is, it is one caller's: the others are to be served)
            why = failure
            if len(calls) > 1 and not isinstance(failure, _EVERYBODYS):
                await self._write_one_by_one(calls)
            else:
                self._fail(calls, lambda: translated(why, self._subject, applied=False))
        else:
            # Before those who asked go on, but not in their way: what a listener does wrong is its own.
            asyncio.get_running_loop().call_soon(self._committed, ledger)
            for call, answer in zip(calls, answers, strict=True):
                if isinstance(answer, HoldfastError):
                    self._fail([call], lambda answer=answer: answer)  # type: ignore[misc]
                elif not call.done.done():
                    call.done.set_result(answer)

    async def _write_one_by_one(self, calls: list[Call]) -> None:
        """One of them cannot be stored, and spoilt it for all. Nothing was applied."""
        for call in calls:
            await self._write([call])

    async def _transact(self, calls: list[Call]) -> tuple[BatchLedger, list[Any]]:
        """Until the commit is sent nothing has happened, so until then it may be tried again."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        for attempt in range(1, TRIES_MAX + 1):
            try:
                connection = await self._connected()
                with ended_at(connection, deadline):
                    return await self._try(connection, calls)
            except (*ROLLED_BACK, *LOST, Moved):
                if attempt == TRIES_MAX or not self._open or asyncio.get_running_loop().time() >= deadline:
                    raise
        raise AssertionError("unreachable")

    async def _try(self, connection: asyncpg.Connection, calls: list[Call]) -> tuple[BatchLedger, list[Any]]:
        try:
            await connection.execute(_BEGIN)
            needs = Needs()
            for call in calls:
                call.ask(needs)
            ledger = await load(connection, needs, self._now())
            answers = [call.verb(ledger) for call in calls]
            await flush(connection, ledger, channel=self._channel, words=self._words(ledger))
        except BaseException:
            await self._roll_back(connection)
            raise
        try:
            done = await connection.execute("COMMIT")
        except LOST as lost:
            connection.terminate()
            raise _InDoubt(lost) from None
        except BaseException:
            connection.terminate()
            raise
        if done != "COMMIT":
            raise Moved
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
            self._connection = await connect(self._url, timeout_s=self._timeout_s)
        return self._connection

    def _away(self, detail: str) -> StoreUnavailable:
        return StoreUnavailable(self._subject, detail, applied=False)

    def _fail(self, calls: list[Call], error: Callable[[], HoldfastError]) -> None:
        """Each with an error of its own: raising one adds to it where it was raised."""
        for call in calls:
            if not call.done.done():
                call.done.set_exception(error())
