"""Locks in Postgres: lease rows in tables of our own, changed by the functions of `locks.sql`.

One lane carries everything, until it has been crowded for a while: then a second one, with a connection of its own, takes
half of the keys. It answers those while the first waits for the disk, and the other way round, which few requests do
not pay for: a batch alone costs as much as twenty of them. What acquires and releases a key goes by one lane at a time.
Keys change lanes between two batches of theirs, when nothing of the lane is under way. Where the second connection cannot be had,
or does not answer, the first does without it. Another connection yet listens for wake-ups, from the first acquire on that had to queue.

Grants and renewals are as durable as commits are on that server: with `synchronous_commit = off` a
crash may forget the last ones (later fences are higher all the same, by the clock). A release is not
waited for: a crash may leave the lock held until it expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from holdfast.locks.port import Busy, Grant, Holder, Ownership, Renewal, Standing, WakeCallback, require_token
from holdfast.locks.stores.postgres.history import COLLECT, COLLECT_LIMITS, HISTORY
from holdfast.locks.stores.postgres.lane import Lane
from holdfast.locks.stores.postgres.link import FAILURES
from holdfast.locks.stores.postgres.waiters import Waiters

if TYPE_CHECKING:
    from holdfast.locks.port import LockStore
    from holdfast.locks.runtime import Runtime

#: Requests that make a batch of one lane a crowd, and those that make one of the second lane a waste of it.
CROWD, FEW = 24, 6
#: How many more batches must have been so than not, until a lane is added or left.
TURNS = 20
#: After a second connection that was refused, or did not answer: how long until it is asked for again.
PAUSE_S = 30.0
#: No fence is so high, and no bigint.
FENCE_END = 2**63

_EVICT = "SELECT holdfast_evict($1, $2, $3)"
_FIND = "SELECT * FROM holdfast_holders WHERE key = $1"
# No key sorts after its prefix and the last code point: the scan of the index ends there.
_LIST = """
    SELECT * FROM holdfast_holders WHERE key >= $1 AND key < $1 || chr(1114111) AND key > $2 ORDER BY key LIMIT $3
"""


def open_store(url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> LockStore:
    del prefix  # the keys carry it, and the tables live in a schema that the URL may choose (search_path)
    return PostgresStore(url, holder=holder, runtime=runtime, timeout_s=timeout_s)


class PostgresStore:
    def __init__(self, url: str, *, holder: str, runtime: Runtime, timeout_s: float) -> None:
        self._url = url
        self._holder = holder
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._waiters = Waiters(url, runtime=runtime, timeout_s=timeout_s)
        self._first, self._second = self._lanes = (self._lane(is_first=True), self._lane(is_first=False))
        #: 1 while keys are shared out among both lanes by the last bit of their hash, else 0.
        self._share = 0
        self._turns = 0
        self._asking: asyncio.Task[None] | None = None
        self._ask_at = 0.0
        self._has_answered = False

    def _lane(self, *, is_first: bool) -> Lane:
        return Lane(
            self._url,
            holder=self._holder,
            waiters=self._waiters,
            on_turn=self._on_turn,
            is_first=is_first,
            timeout_s=self._timeout_s,
        )

    async def open(self) -> None:
        self._waiters.open()
        for lane in self._lanes:
            lane.open()
        await self._first.query(COLLECT, *COLLECT_LIMITS)

    async def close(self) -> None:
        """What is under way is still answered; what was not sent ends as not applied."""
        async with AsyncExitStack() as hanging_up:  # also if there is no time to wait for what is under way
            for lane in self._lanes:
                lane.refuse()
                hanging_up.push_async_callback(lane.hang_up)
            if self._asking is not None:
                self._asking.cancel()
                await asyncio.wait([self._asking])
            await self._waiters.close()
            for lane in self._lanes:
                await lane.drain()

    def sibling(self) -> LockStore:
        return PostgresStore(self._url, holder=self._holder, runtime=self._runtime, timeout_s=self._timeout_s)

    def on_wake(self, callback: WakeCallback) -> None:
        self._waiters.wake = callback

    def acquire(
        self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1
    ) -> Awaitable[Grant | Busy]:
        require_token(token)
        assert ttl_ms > 0, "0 marks a release"
        return self._lanes[hash(key) & self._share].ask(key, token, ttl_ms, queue_ms, fences)

    def release(self, key: str, token: str) -> Awaitable[bool]:
        require_token(token)
        return self._lanes[hash(key) & self._share].ask(key, token, 0, 0, 0)

    def renew(self, renewals: Sequence[Renewal]) -> Awaitable[list[Standing]]:
        return self._first.renew(renewals)

    async def evict(self, key: str, fence: int, *, reason: str) -> bool:
        if fence >= FENCE_END:
            return False
        rows = await self._first.query(_EVICT, key, fence, reason)
        return bool(rows[0][0])

    async def find_holder(self, key: str) -> Holder | None:
        rows = await self._first.query(_FIND, key)
        return Holder(**rows[0]) if rows else None

    async def list_holders(self, prefix: str, *, after: str = "", limit: int = 100) -> list[Holder]:
        return [Holder(**row) for row in await self._first.query(_LIST, prefix, after, limit)]

    async def list_history(self, key: str, *, limit: int = 100) -> list[Ownership]:
        newest_first = await self._first.query(HISTORY, key, limit)
        return [Ownership(**row) for row in reversed(newest_first)]

    def _on_turn(self, lane: Lane) -> None:
        """Nothing of that lane is under way: what waits there may change lanes."""
        if not self._share:
            # No more than are needed: whoever waits for a connection counts no crowd that has gone, nor asks as it is closed.
            self._turns = min(TURNS, max(0, self._turns + (1 if len(lane) >= CROWD else -1)))
            if not self._turns:
                self._has_answered = False
            elif self._turns >= TURNS and self._is_second_ready():
                self._turns, self._share = 0, 1
                lane.hand_over(self._second, lambda key: hash(key) & 1 == 1)
        elif lane is self._second:
            self._turns = max(0, self._turns + (1 if len(lane) <= FEW else -1))
            if self._turns >= TURNS or not lane.is_connected:
                self._turns, self._share, self._has_answered = 0, 0, False
                lane.hand_over(self._first, lambda key: True)

    def _is_second_ready(self) -> bool:
        """Whether it has answered since this crowd came. If not, it is asked meanwhile."""
        if self._has_answered and self._second.is_connected:
            return True
        loop = asyncio.get_running_loop()
        if self._asking is None and loop.time() >= self._ask_at:
            self._asking = loop.create_task(self._ask_second(), name="holdfast-postgres-second")
        return False

    async def _ask_second(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._second.prove(loop.time() + self._timeout_s)
            self._has_answered = True
        except FAILURES:  # nobody has waited for it
            self._ask_at = loop.time() + PAUSE_S
        finally:
            self._asking = None
