"""Lists, page by page: what every one of them is asked with, and its cursors."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from holdfast import api
from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.errors import Invalid
from holdfast.gateway.limits import find_number
from holdfast.ports import JobEvent, Store

T = TypeVar("T")
P = TypeVar("P")

PAGE_BYTES = 8 * 2**20
FIRST_PART = 30
"""Of what may be large, so many are read at first: their weight says how many more fit."""

Limit = Annotated[int, Meta(ge=1, le=1000)]
Cursor = Annotated[str, Meta(min_length=1, max_length=1024)]
"""Long enough for the longest key of a lock."""

ReadRecords = Callable[[str | None, int], Awaitable[list[Record]]]
"""From behind a place on, so many."""


class PageQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100


def cut(found: list[T], limit: int, place: Callable[[T], str | int]) -> tuple[list[T], str | None]:
    """A page of what was found, and the cursor of the next one: ask for one more than `limit`, to know."""
    page = found[:limit]
    return page, to_cursor(place(page[-1])) if len(found) > limit else None


async def read_page(
    read: Callable[[P | None, int], Awaitable[list[T]]],
    *,
    start: P | None,
    limit: int,
    place: Callable[[T], P],
    weigh: Callable[[T], int],
) -> tuple[list[T], P | None]:
    """A page of things that may be large, and the place it ends at if there are more.

    It ends early once it weighs `PAGE_BYTES`, and is read in parts: else one request for a thousand large
    things would need memory for them all.
    """
    page: list[T] = []
    weight = 0
    while True:
        likely = FIRST_PART if not page else (PAGE_BYTES - weight) * len(page) // max(weight, 1) + 1
        size = min(likely, limit - len(page))
        part = await read(place(page[-1]) if page else start, size + 1)
        page += part[:size]
        weight += sum(map(weigh, part[:size]))
        if len(part) <= size:
            return page, None
        if len(page) == limit or weight >= PAGE_BYTES:
            return page, place(page[-1])


def newest_first(
    store: Store, kind: Kind, tenant: Tenant, *, state: str | None = None, parent: str | None = None
) -> ReadRecords:
    async def read(before: str | None, limit: int) -> list[Record]:
        return await store.list_records(kind, tenant, state=state, parent=parent, before=before or "", limit=limit)

    return read


async def read_records(read: ReadRecords, cursor: str | None, limit: int) -> tuple[list[Record], str | None]:
    """A page of records, and the cursor of the next one. Whatever a caller has sent is in them: it ends early then."""
    page, last = await read_page(
        read,
        start=from_cursor(cursor),
        limit=limit,
        place=lambda record: record.id,
        weigh=lambda record: len(record.body),
    )
    return page, None if last is None else to_cursor(last)


async def read_events(
    store: Store, tenant: Tenant, *, after: int, limit: int, job_id: JobId | None = None, run: str | None = None
) -> tuple[list[JobEvent], int | None]:
    """A page of a job's or a run's events, oldest first, and the number it ends at if there are more."""
    return await read_page(
        lambda seen, size: store.list_events(after=seen or 0, limit=size, tenant=tenant, job_id=job_id, run=run),
        start=after,
        limit=limit,
        place=lambda event: event.number,
        weigh=weight_of_event,
    )


def weight_of_event(event: JobEvent) -> int:
    """In bytes, near enough: an error may have a megabyte."""
    return len(msgspec.json.encode(event.detail))


def to_cursor(last: str | int) -> str:
    """Where the next page begins. Opaque to callers, so that its meaning may change."""
    return base64.urlsafe_b64encode(f"1:{last}".encode()).decode().rstrip("=")


def from_cursor(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        version, _, last = base64.b64decode(padded, altchars="-_", validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        version, last = "", ""
    if version != "1" or not last or "\0" in last:
        raise strange_cursor()
    return last


def strange_cursor() -> Invalid:
    return Invalid("this cursor is not one that a page of this list gave; start without one")


def number_from_cursor(cursor: str | None) -> int | None:
    last = from_cursor(cursor)
    if last is None:
        return None
    number = find_number(last)
    if number is None:
        raise strange_cursor()
    return number
