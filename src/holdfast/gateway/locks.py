"""`/v1/locks`: which locks are held."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast import api
from holdfast.errors import NotFound
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.pages import Cursor, Limit, cut, from_cursor
from holdfast.gateway.views import lock_view
from holdfast.locks import UndeclaredClass


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
    return Answer(api.LocksPage(items=[lock_view(holder) for holder in page], next_cursor=more))
