"""What can be asked about the classes of locks, and an end to a lease; see `asks`."""

from __future__ import annotations

from holdfast import api
from holdfast.api.locks import EvictLock, LockClasses
from holdfast.client.asks import Ask, get_ask, part, post_ask, read_as, said_by


def lock_classes() -> Ask[LockClasses]:
    """Every class that the plane declares, with what is held of it now."""
    return get_ask("/v1/lock-classes", read_as(LockClasses))


def evict_lock(key: str, *, fence: int, reason: str, by: str = "") -> Ask[api.LockView]:
    """End the lease that has this fence, whoever holds it."""
    body = EvictLock(fence=fence, reason=reason)
    return post_ask(f"/v1/locks/{part(key)}:evict", read_as(api.LockView), body, headers=said_by(by))
