"""Locks of processes that died with them: ended where that is known, rather than waited for."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.locks import LockBusy, LockClass, Locks

IsGone = Callable[[str], bool]
"""Of a holder: whether its process is known to run no more."""


async def evict_gone(busy: LockBusy, lock_class: LockClass, item: str, *, locks: Locks, is_gone: IsGone) -> bool:
    """True if the lock is to be had now: whoever held it when it was busy runs no more, and neither does its lease."""
    if busy.holder is None or not is_gone(busy.holder):
        return False
    holder = await locks.inspect(lock_class, item)
    if holder is None:
        return True
    if not is_gone(holder.holder):
        return False  # the lease ran out just now, and this one is somebody's who lives
    return await locks.evict(lock_class, item, fence=holder.fence, reason="its process is gone")
