"""`/v1/locks`: which locks are held, of which classes; and an end to one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast import api
from holdfast.api.locks import EvictLock, LockClasses, LockClassView
from holdfast.core.policy_version import PLANE
from holdfast.errors import NotFound
from holdfast.flow.evict import evict
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.pages import Cursor, Limit, cut, from_cursor
from holdfast.gateway.views import class_of, lock_view
from holdfast.locks import LockClass, UndeclaredClass
from holdfast.locks.port import Holder

COUNTED_MAX = 10_000
UNDECLARED_MAX = 100


class LockQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100
    family: Annotated[str, Meta(max_length=128)] | None = None
    """The name of a lock class."""


async def list_locks(desk: Desk, call: Call) -> Answer:
    query: LockQuery = call.query
    after = from_cursor(query.cursor) or ""
    try:
        found = await desk.plane.locks.list(query.family, after=after, limit=query.limit + 1)
    except UndeclaredClass:
        raise NotFound(f"this plane declares no lock class {query.family!r}") from None
    page, more = cut(list(found), query.limit, lambda holder: holder.key)
    return Answer(api.LocksPage(items=[lock_view(holder, desk.plane.locks) for holder in page], next_cursor=more))


async def list_classes(desk: Desk, _: Call) -> Answer:
    """Every class that the plane declares, with what is held of it now."""
    locks = desk.plane.locks
    held: dict[str, list[Holder]] = {}
    after, counted, more = "", 0, True
    while more and counted < COUNTED_MAX:
        page = await locks.list(None, after=after, limit=1000)
        for holder in page:
            held.setdefault(class_of(holder.key, locks), []).append(holder)
        counted, more = counted + len(page), len(page) == 1000
        after = page[-1].key if page else after
    undeclared = [holder.key for holder in held.pop("", [])]
    return Answer(
        LockClasses(
            items=[_class_view(one, held.get(one.name, [])) for one in locks.classes()],
            undeclared=undeclared[:UNDECLARED_MAX],
            more=more,
        )
    )


async def evict_lock(desk: Desk, call: Call) -> Answer:
    wanted: EvictLock = call.body
    key, plane = call.path["key"], desk.plane
    entry = entry_of(desk, call, "lock.evicted", f"lock/{key}", reason=wanted.reason, tenant=PLANE)
    evicted = await evict(
        key, fence=wanted.fence, reason=wanted.reason, locks=plane.locks, store=plane.store, entry=entry
    )
    return Answer(lock_view(evicted, plane.locks))


def _class_view(declared: LockClass, held: list[Holder]) -> LockClassView:
    return LockClassView(
        name=declared.name,
        key_prefix=declared.key_prefix or "",
        pattern=declared.pattern,
        ttl_s=declared.ttl,
        renew_every_s=declared.renewal.every_s,
        renewal_failures=declared.renewal_failures,
        on_renewal_failure=declared.on_renewal_failure,
        on_store_error=declared.on_store_error,
        wait_s=declared.wait,
        risk=declared.risk,
        held=len(held),
        waiters=sum(holder.waiters for holder in held),
    )


_LOCKS = ("locks",)

LOCK_ROUTES: tuple[Route, ...] = (
    Route(
        method="GET", path="/v1/lock-classes", run=list_classes, reply=LockClasses, tags=_LOCKS,
        summary="Every lock class of the plane as it is in force, and what is held of it.",
    ),
    Route(
        method="POST", path="/v1/locks/{key}:evict", run=evict_lock, request=EvictLock, reply=api.LockView,
        headers=("Holdfast-Actor",), wide=("key",), tags=_LOCKS,
        summary="End the lease that has this fence, whoever holds it. Kept in the lock's history and in the audit.",
    ),
)  # fmt: skip
