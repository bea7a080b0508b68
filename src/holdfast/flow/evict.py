"""Evict: an operator ends a lease, whoever holds it."""

from __future__ import annotations

from holdfast.errors import Conflict, NotFound
from holdfast.flow.audit import Entry, transact
from holdfast.locks import Locks, UndeclaredClass
from holdfast.locks.port import Holder
from holdfast.ports import Store, Transaction


async def evict(key: str, *, fence: int, reason: str, locks: Locks, store: Store, entry: Entry) -> Holder:
    """The holder that was evicted. The next waiter is granted the lock; the evicted one is told at its next renewal.

    Raises `NotFound` for a key that no class declares or nobody holds, and `Conflict` if the holder has another fence.
    """
    try:
        lock_class, item = locks.named(key)
    except UndeclaredClass:
        raise NotFound(f"no lock class of this plane declares {key!r}") from None
    holder = await locks.inspect(lock_class.name, item)
    if holder is None:
        raise NotFound(f"{key!r} is not held")
    if holder.fence != fence:
        raise _taken(holder, fence)
    # Locks and the audit are not one transaction. The line comes first: an eviction that nobody answers for is
    # worse than a line about one that came too late.
    await transact(Transaction(), store=store, entry=entry, fence=fence, holder=holder.holder)
    if not await locks.evict(lock_class.name, item, fence=fence, reason=reason):
        raise _taken(await locks.inspect(lock_class.name, item) or holder, fence)
    return holder


def _taken(holder: Holder, fence: int) -> Conflict:
    return Conflict(f"{holder.key!r} has fence {holder.fence} now, not {fence}: {holder.holder} holds it")
