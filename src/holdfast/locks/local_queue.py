"""The local mutex: tasks of one process queue among themselves, and pass a store lock on. Threads: `thread_queue`.

A process never competes with itself at the store, and a hand-over between two of its tasks
costs no round trip. Passing is bounded by the fences reserved with the grant, so other
processes get their turn; each holder has a fence of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.locks.errors import LockBusy

if TYPE_CHECKING:
    from holdfast.locks.lease import Lease
    from holdfast.locks.policy import LockClass


def fences_to_reserve(lock_class: LockClass) -> int:
    """How many holders of this process one grant is for."""
    return lock_class.local_passes if lock_class.local_mutex else 1


def may_pass_on(lease: Lease, fences_end: int) -> bool:
    """Whether the next waiter of this process may have the lease, before the store hears of its end: a fence is reserved
    for it, and at least a third of the ttl is left."""
    return lease.fence + 1 < fences_end and lease.remaining() >= lease.lock_class.ttl / 3


class LocalQueue:
    """One key's queue inside this process. Whoever is first out of it deals with the store."""

    def __init__(self, key: str, declined: Callable[[LocalQueue, Lease | None], None]) -> None:
        self.key = key
        #: One past the last fence that may be passed on; set by whoever got the grant.
        self.fences_end = 0
        self._declined = declined
        self._taken = False
        self._waiters: deque[asyncio.Future[Lease | None]] = deque()

    @property
    def unused(self) -> bool:
        return not self._taken

    async def enter(self, wait_s: float) -> Lease | None:
        """Become first. Returns the lease if it was passed on, None if the store must be asked.

        Raises `LockBusy` after `wait_s`.
        """
        if not self._taken:
            self._taken = True
            return None
        turn: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            async with asyncio.timeout(wait_s):
                passed: Lease | None = await turn
                return passed
        except TimeoutError:
            self._give_up(turn)
            raise LockBusy(self.key, waited_s=wait_s, holder="this process", retry_in_s=0.0) from None
        except BaseException:
            self._give_up(turn)
            raise

    def pass_on(self, lease: Lease) -> Lease | None:
        """The next local waiter's lease, already handed to it; None if the store's turn has come."""
        if not may_pass_on(lease, self.fences_end) or not self._has_waiter():
            return None
        heir = lease.successor(lease.fence + 1)
        self._waiters.popleft().set_result(heir)
        return heir

    def leave(self) -> None:
        """Let the next one in; it asks the store."""
        if self._has_waiter():
            self._waiters.popleft().set_result(None)
        else:
            self._taken = False

    def _has_waiter(self) -> bool:
        while self._waiters and self._waiters[0].done():
            del self._waiters[0]
        return bool(self._waiters)

    def _give_up(self, turn: asyncio.Future[Lease | None]) -> None:
        if turn.done() and not turn.cancelled():
            # Its turn came in this very tick: nobody else knows, so it must go on from here.
            self._declined(self, turn.result())
        else:
            turn.cancel()
