"""Errands: what a store must still hear after its caller has gone on.

A token that may be queued or granted is taken out by somebody who has the time. Whoever was cancelled,
interrupted or left without an answer does not wait for it, and nobody else waits for its ttl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from holdfast.locks.errors import LockBusy, LockError, StoreRefused, Unavailable
from holdfast.locks.waiting import RETRY_S

if TYPE_CHECKING:
    from holdfast.locks.lease import Lease
    from holdfast.locks.port import LockStore
    from holdfast.locks.runtime import Runtime

CLOSE_S_MAX = 2.0
"""How long closing waits for the errands under way; a store that has not heard by then finds an expired lease."""


class Errands:
    """The errands to one store, run in its loop; all but the constructor belongs there."""

    def __init__(self, store: LockStore, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._under_way: set[asyncio.Task[None]] = set()

    def release(self, lease: Lease) -> None:
        """Release what may not have been released, until it is certain or the lease has expired."""
        self.undo(lease.key, lease.token, until=lease.belief.sent_at + lease.lock_class.ttl)

    def undo(self, key: str, token: str, *, until: float) -> None:
        """Take the token out of the store, however often it must be asked; after `until` it is gone anyway."""
        self.send(self._undo(key, token, until))

    def send(self, errand: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Wait for what is under way, but not for long; then end it."""
        try:
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=CLOSE_S_MAX)
        finally:
            for errand in self._under_way:
                errand.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _undo(self, key: str, token: str, until: float) -> None:
        while self._runtime.now() < until:
            try:
                await self._store.release(key, token)
            except LockError:
                await asyncio.sleep(self._runtime.jitter(RETRY_S))
            else:
                return


def may_be_applied(error: BaseException, *, queued: bool) -> bool:
    """Whether an acquire that ended in this error may yet have been carried out, and must be undone. Who never queued, and
    was told that the lock is busy, has left nothing behind."""
    if isinstance(error, LockBusy):
        return queued
    return not (isinstance(error, StoreRefused) or (isinstance(error, Unavailable) and error.applied is False))
