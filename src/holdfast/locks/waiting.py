"""Waiting for a busy lock: keep a place in the store's queue, sleep until woken, poll as the floor."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.locks.errors import LockBusy, Unavailable
from holdfast.locks.port import Busy, Grant, LockStore

if TYPE_CHECKING:
    from holdfast.locks.policy import LockClass
    from holdfast.locks.runtime import Runtime

QUEUE_MS = 3000
"""How long a waiter counts as alive without a word; it speaks three times as often."""

RETRY_S = 0.1
"""Between tries while the store is unavailable, jittered."""

_WOKEN = ""


def may_try_again(now: float, deadline: float) -> bool:
    """Whether there is time for another try of an acquire that the store did not answer."""
    return now + RETRY_S < deadline


def spent(key: str, reply: Busy, *, waited_s: float) -> LockBusy:
    """What ends a wait: the lock is busy, and the budget is spent."""
    return LockBusy(key, waited_s=waited_s, holder=reply.holder, retry_in_s=max(0.0, reply.remaining_ms / 1000))


class _Waiter:
    __slots__ = ("key", "sleeping", "woken")

    def __init__(self, key: str, *, woken: bool) -> None:
        self.key = key
        self.woken = woken
        self.sleeping: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self.woken = True
        if self.sleeping is not None and not self.sleeping.done():
            self.sleeping.set_result(None)

    async def sleep(self, seconds: float) -> None:
        if not self.woken and seconds > 0:
            self.sleeping = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(seconds):
                    await self.sleeping
            except TimeoutError:
                pass
            self.sleeping = None
        self.woken = False


class WaitingRoom:
    """The waiters of one store instance, woken by its hints."""

    def __init__(self, store: LockStore, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._waiters: dict[str, _Waiter] = {}
        #: By token, the key that is asked for, so that a wake-up which overtakes the reply is not lost: of one who is no
        #: waiter yet it leaves _WOKEN in its place. Most locks are free, so most never become waiters.
        self._asking: dict[str, str] = {}
        store.on_wake(self._wake)

    async def acquire(
        self, lock_class: LockClass, key: str, token: str, *, wait_s: float, fences: int = 1, in_doubt: bool = False
    ) -> tuple[Grant, float, float]:
        """The grant, when the request that brought it was sent, and how long it was waited for by then. Raises
        `LockBusy`, `Unavailable`.

        However it ends without a grant, the caller must undo it: the token may be in the queue,
        or may have been granted the lock since. `in_doubt` says so of an earlier try with this token.
        Only who had no time to wait was never in the queue; for it a single try is made.
        """
        self._asking[token] = key
        now = self._runtime.now
        sent_at = started = now()
        deadline = started + wait_s
        queue_ms = QUEUE_MS if wait_s > 0 else 0
        try:
            while True:
                try:
                    reply = await self._store.acquire(
                        key, token, ttl_ms=lock_class.ttl_ms, queue_ms=queue_ms, fences=fences
                    )
                except Unavailable as error:
                    in_doubt = in_doubt or error.applied is not False
                    if not may_try_again(now(), deadline):
                        if in_doubt and error.applied is False:  # the last try; not all of them
                            raise Unavailable(
                                key, f"an earlier try may have got it; since then {error}", applied=None
                            ) from error
                        raise
                    await asyncio.sleep(self._runtime.jitter(RETRY_S))
                else:
                    if isinstance(reply, Busy):
                        await self._wait_in_line(self._waiter(key, token), reply, started, deadline)
                    elif now() < sent_at + lock_class.renewal.trust_s:
                        return reply, sent_at, sent_at - started
                    elif now() >= deadline:
                        raise Unavailable(key, "the grant came after its trust window had ended", applied=None)
                    # Else the answer waited while we did not run, and its window is over: ask again, same token.
                    in_doubt = True  # granted, or queued and so granted at any time
                sent_at = now()
        finally:
            del self._asking[token]
            self._waiters.pop(token, None)

    def _waiter(self, key: str, token: str) -> _Waiter:
        waiter = self._waiters.get(token)
        if waiter is None:
            waiter = self._waiters[token] = _Waiter(key, woken=self._asking[token] is _WOKEN)
            self._asking[token] = key
        return waiter

    async def _wait_in_line(self, waiter: _Waiter, reply: Busy, started: float, deadline: float) -> None:
        now = self._runtime.now()
        if now >= deadline:
            raise spent(waiter.key, reply, waited_s=now - started)
        await waiter.sleep(min(deadline - now, self._pause(reply)))

    def _pause(self, reply: Busy) -> float:
        """Until the place in the queue must be confirmed, or the holder would expire; jittered, so
        that a thousand waiters do not come back in the same instant."""
        confirm = self._runtime.jitter(QUEUE_MS / 3000)
        expiry = max(0, reply.remaining_ms) / 1000 + 0.002 + self._runtime.jitter(0.02)
        return min(confirm, expiry)

    def _wake(self, key: str, token: str) -> None:
        if token:
            tokens = [token] if token in self._asking else []
        else:
            tokens = [asking for asking, of_key in self._asking.items() if key in ("", of_key)]
        for woken in tokens:
            if woken in self._waiters:
                self._waiters[woken].wake()
            else:
                self._asking[woken] = _WOKEN
