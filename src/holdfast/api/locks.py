"""The inventory of locks: what classes there are, and how an operator ends a lease."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.api.words import NOT_BLANK, Fence, Reply, Request


class LockClassView(Reply, kw_only=True):
    """A class as it is in force now, and what is held of it."""

    name: str
    key_prefix: str
    pattern: str
    ttl_s: float
    renew_every_s: float
    """0: it is not renewed."""
    renewal_failures: int
    on_renewal_failure: str
    on_store_error: str
    wait_s: float
    risk: str
    held: int
    waiters: int


class LockClasses(Reply, kw_only=True):
    items: list[LockClassView]
    undeclared: list[str]
    """Keys that are held and that no class declares: somebody else's, or a mistake."""
    more: bool
    """There are more locks than were counted."""


class EvictLock(Request, kw_only=True):
    """`POST /v1/locks/{key}:evict`: end the lease that has this fence."""

    fence: Fence
    reason: Annotated[str, Meta(min_length=1, max_length=500, pattern=NOT_BLANK)]
