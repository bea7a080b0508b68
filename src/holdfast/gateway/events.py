"""`GET /v1/events`: everything that happens, as server-sent events that can be resumed without a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from msgspec import Meta, field, json

from holdfast import api
from holdfast.core.job import JobId
from holdfast.errors import Invalid
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.feed import Reader, Wanted, sse_text
from holdfast.gateway.limits import NUMBER_DIGITS_MAX
from holdfast.ports import Store

HEARTBEAT_S = 15.0
PAGE = 500


class EventQuery(api.Model, kw_only=True):
    job: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    kind: list[Annotated[str, Meta(min_length=1, max_length=64)]] = field(default_factory=list)
    """Exact, or a family ending in `*`. May be repeated."""
    after: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    """As the header Last-Event-ID: begin after this number; 0 is the beginning. Default: from now on."""


async def stream_events(desk: Desk, call: Call) -> Answer:
    query: EventQuery = call.query
    wanted = Wanted(tenant=call.tenant, job_id=query.job, kinds=tuple(query.kind))
    after = _last_seen(call.header(b"last-event-id"))
    return Answer(
        stream=_stream(desk, wanted, query.after if after is None else after),
        headers=((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")),
        media=b"text/event-stream",
    )


def _last_seen(header: str) -> int | None:
    if not header:
        return None
    if len(header) > NUMBER_DIGITS_MAX or not (header.isascii() and header.isdigit()):
        raise Invalid("Last-Event-ID is the number of an event")
    return int(header)


async def _stream(desk: Desk, wanted: Wanted, after: int | None) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    store = desk.plane.store
    seen = after or 0
    if seen and not await _is_known(store, seen):
        yield _gap("unknown-id", 0)
        return
    if after is not None:
        # The long way first, without a queue that would overrun meanwhile.
        async for number, text in _history(store, wanted, seen):
            seen = number
            yield text
    with desk.feed.reading(wanted) as reader:
        if after is not None:
            # And what was written between the last page and the reader's beginning.
            async for number, text in _history(store, wanted, seen):
                seen = number
                yield text
        async for number, text in _live(desk, reader, seen):
            seen = number
            yield text
        if reader.overrun:
            yield _gap("too-slow", seen)


async def _is_known(store: Store, number: int) -> bool:
    """Numbers have no gaps: one that is not there is of another store, or of one restored from a backup."""
    found = await store.list_events(after=number - 1, limit=1)
    return bool(found) and found[0].number == number


async def _history(store: Store, wanted: Wanted, after: int) -> AsyncIterator[tuple[int, bytes]]:
    job_id = None if wanted.job_id is None else JobId(wanted.job_id)
    while True:
        page = await store.list_events(after=after, limit=PAGE, tenant=wanted.tenant, job_id=job_id)
        texts = [sse_text(event) for event in page if wanted.matches(event)]
        if page:
            after = page[-1].number
            yield after, b"".join(texts)
        if len(page) < PAGE:
            return


async def _live(desk: Desk, reader: Reader, seen: int) -> AsyncIterator[tuple[int, bytes]]:
    while not desk.feed.closed:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await reader.news.wait()
        except TimeoutError:
            yield seen, b": still here\n\n"
        # One write for all that has come: a burst costs one system call per reader.
        fresh = [(number, text) for number, text in reader.take() if number > seen]
        if fresh:
            seen = fresh[-1][0]
            yield seen, b"".join(text for _, text in fresh)
        if reader.overrun:
            return


def _gap(reason: str, resume_after: int) -> bytes:
    """The stream ends here although more has happened: read on from `resume_after`."""
    told = json.encode({"reason": reason, "resume_after": resume_after})
    return b"event: gap\ndata: %b\n\n" % told
