"""`GET /v1/events`: everything that happens, as server-sent events that can be resumed without a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

from msgspec import Meta, field, json

from holdfast import api
from holdfast.core.job import JobId, Tenant
from holdfast.errors import Invalid, NotFound
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.feed import Feed, Reader, Wanted, sse_text
from holdfast.gateway.limits import find_number
from holdfast.gateway.pages import read_events
from holdfast.ports import Store

HEARTBEAT_S = 15.0
PAGE = 100


class EventQuery(api.Request, kw_only=True):
    job: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    run: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """Of this run and its jobs."""
    kind: list[Annotated[str, Meta(min_length=1, max_length=64)]] = field(default_factory=list)
    """Exact, or a family ending in `*`. May be repeated."""
    after: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    """As the header Last-Event-ID: begin after this number; 0 is the beginning. Default: from now on."""


async def stream_events(desk: Desk, call: Call) -> Answer:
    query: EventQuery = call.query
    job_id = None if query.job is None else JobId(query.job)
    if query.run is not None:
        await desk.plane.runs.get(call.tenant, query.run)
    wanted = Wanted(tenant=call.tenant, job_id=job_id, kinds=tuple(query.kind), run=query.run)
    header = _last_seen(call.header(b"last-event-id"))
    return Answer(
        stream=await _begin(desk, wanted, query.after if header is None else header),
        headers=((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")),
        media=b"text/event-stream",
    )


def _last_seen(header: str) -> int | None:
    if not header:
        return None
    number = find_number(header)
    if number is None:
        raise Invalid("Last-Event-ID is the number of an event")
    return number


async def _begin(desk: Desk, wanted: Wanted, after: int | None) -> AsyncGenerator[bytes, None]:
    """The stream. What can be refused is refused here, before it is answered with 200."""
    store = desk.plane.store
    last = await desk.feed.last_number()
    if wanted.job_id is not None and await _is_gone(store, wanted.tenant, wanted.job_id):
        return _nothing(_gap("pruned", after or 0))
    if after and not await _is_known(store, after):
        return _nothing(_gap("unknown-id", 0))
    return _stream(desk, wanted, last if after is None else after)


async def _is_gone(store: Store, tenant: Tenant, job_id: JobId) -> bool:
    """Whether retention may have removed the job. Raises `NotFound` for one that nobody can have known."""
    try:
        await store.get_job(tenant, job_id)
    except NotFound:
        if not await store.pruned_until(tenant):
            raise
        return True
    return False


async def _is_known(store: Store, number: int) -> bool:
    """Numbers have no gaps but those of retention: any other is of another store, or of one restored from a backup."""
    found = await store.list_events(after=number - 1, limit=1)
    return bool(found) and (found[0].number == number or number <= await store.pruned_until())


async def _nothing(gap: bytes) -> AsyncGenerator[bytes, None]:
    yield b"retry: 1000\n\n"
    yield gap


async def _stream(desk: Desk, wanted: Wanted, seen: int) -> AsyncGenerator[bytes, None]:
    store = desk.plane.store
    # Its place, before anything has happened: whoever loses the connection now resumes without a loss.
    yield b"retry: 1000\nid: %d\n\n" % seen
    if wanted.job_id is None and await store.pruned_until(wanted.tenant) > seen:
        yield _gap("pruned", seen)
    # The long way first, without a queue that would overrun meanwhile.
    async for number, text in _history(store, wanted, seen):
        seen = number
        yield text
    with desk.feed.reading(wanted) as reader:
        while not desk.feed.closed:
            reader.behind = False
            # After every silence too: what other processes wrote into the store is in no queue of ours.
            async for number, text in _history(store, wanted, seen):
                seen = number
                yield text
            async for number, text in _live(desk.feed, reader, seen):
                seen = number
                yield text
            if reader.overrun:
                yield _gap("too-slow", seen)
                return
            yield b"id: %d\n: still here\n\n" % seen


async def _history(store: Store, wanted: Wanted, after: int) -> AsyncIterator[tuple[int, bytes]]:
    """From the log, to its end; page by page, and fewer of them at once where they are large."""
    more: int | None = after
    while more is not None:
        page, more = await read_events(
            store, wanted.tenant, after=more, limit=PAGE, job_id=wanted.job_id, run=wanted.run
        )
        if page:
            yield page[-1].number, b"".join(sse_text(event) for event in page if wanted.matches(event))


async def _live(feed: Feed, reader: Reader, seen: int) -> AsyncIterator[tuple[int, bytes]]:
    """As it is heard, until there is silence, or something was not heard."""
    while reader.keeps_up() and not feed.closed:
        silent = False
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await reader.news.wait()
        except TimeoutError:
            silent = True
        # One write for all that has come: a burst costs one system call per reader.
        fresh = [(number, text) for number, text in reader.take() if number > seen]
        if reader.keeps_up():
            # All that was heard, whether or not it was wanted: a quiet reader need not look at it again.
            seen = max(seen, feed.heard_until)
        elif fresh:
            seen = fresh[-1][0]
        if fresh or silent:
            yield seen, b"".join(text for _, text in fresh)
        if silent:
            return


def _gap(reason: str, resume_after: int) -> bytes:
    """More has happened than is told here. Unless the stream goes on by itself, read on from `resume_after`."""
    told = json.encode({"reason": reason, "resume_after": resume_after})
    return b"event: gap\ndata: %b\n\n" % told
