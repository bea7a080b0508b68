"""`async with locks.hold(…)`: a lease for the length of a block, and the end of the block with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.locks.errors import LeaseLost, LockError, NotOwned, StoreRefused

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.locks.lease import Lease
    from holdfast.locks.locks import Locks
    from holdfast.locks.policy import LockClass


#: Whoever shares one has the lease, and the task, of whoever entered last.
IN_USE = "somebody is in the block of this hold() already: call hold() for each block"


class Hold:
    """Cancels its block when the lease is lost, and tells that cancellation from everybody else's."""

    __slots__ = (
        "_cancelled",
        "_entered",
        "_entry_cancels",
        "_item",
        "_lease",
        "_lock_class",
        "_locks",
        "_task",
        "_wait",
    )

    def __init__(self, locks: Locks, lock_class: LockClass | str, item: str, wait: float | None) -> None:
        self._locks = locks
        self._lock_class = lock_class
        self._item = item
        self._wait = wait
        self._entered = False
        self._task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> Lease:
        if self._entered:
            raise RuntimeError(IN_USE)
        self._entered = True
        try:
            lease = self._lease = await self._locks.acquire(self._lock_class, self._item, wait=self._wait)
        except BaseException:
            self._entered = False
            raise
        self._cancelled = False
        task = self._task = asyncio.current_task(self._locks.loop)
        assert task is not None, "Locks belong to the event loop that they were opened in"
        self._entry_cancels = task.cancelling()
        lease.on_loss = self._lost
        try:
            lease.check()  # lost before anybody could be told: no lock, no body
        except LeaseLost:
            self._task, self._entered = None, False
            with suppress(LockError):
                await self._locks.release(lease)
            raise
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        lease, task = self._lease, self._task
        assert task is not None
        # From here on a late callback of the keeper finds nobody to cancel.
        self._task, self._entered = None, False
        lease.on_loss = None
        if lease.released and lease.lost is None:  # by the block itself
            return
        cancels = task.uncancel() if self._cancelled else task.cancelling()
        cancelled_by_others = cancels > self._entry_cancels and isinstance(error, asyncio.CancelledError)
        try:
            # Read the clock once more: a block that never awaited may have overrun its lease unnoticed.
            lease.check()
        except LeaseLost as lost:
            with suppress(LockError):
                await self._locks.release(lease)  # skips the store, lets the next local waiter in
            if cancelled_by_others or isinstance(error, (KeyboardInterrupt, SystemExit)):
                return
            raise lost from error
        try:
            await self._locks.release(lease)
        except (NotOwned, LeaseLost):
            # Ended by the store inside the trust window, or lost in the last instant: the work cannot
            # be trusted. Under `continue` that is no error of the work's.
            if error is None and not lease.carries_on:
                raise
        except StoreRefused:
            # It goes on in the background. It must not take the place of what ended the block, least of all of a cancellation.
            if error is None:
                raise

    def _lost(self) -> None:
        """Called in the thread that found out."""
        task = self._task
        if task is not None:
            with suppress(RuntimeError):  # the loop is closed, and the work with it
                task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # The lease of this very block: a word that comes late may be of one before it.
        if self._task is not None and not self._cancelled and self._lease.lost is not None:
            self._cancelled = True
            self._task.cancel()
