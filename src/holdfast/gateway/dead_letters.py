"""`/v1/dead-letters`: jobs that ended badly, with their evidence, and one more chance."""

from __future__ import annotations

from collections import deque

from holdfast import api
from holdfast.flow.again import replay
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.jobs import accepted
from holdfast.gateway.limits import get_number
from holdfast.gateway.pages import (
    PAGE_BYTES,
    PageQuery,
    number_from_cursor,
    read_events,
    read_page,
    to_cursor,
    weight_of_event,
)
from holdfast.gateway.views import dead_letter_view, weight_of
from holdfast.ports import DeadLetter, JobEvent, Store

EVIDENCE_MAX = 1000


async def list_dead_letters(desk: Desk, call: Call) -> Answer:
    """Newest first, without their events: ask for one letter to see its evidence."""
    query: PageQuery = call.query
    page, last = await read_page(
        lambda before, limit: desk.plane.store.list_dead_letters(call.tenant, before=before, limit=limit),
        start=number_from_cursor(query.cursor),
        limit=query.limit,
        place=lambda letter: letter.number,
        weigh=lambda letter: weight_of(letter.job),
    )
    more = None if last is None else to_cursor(last)
    return Answer(api.DeadLetterPage(items=[dead_letter_view(letter, []) for letter in page], next_cursor=more))


async def get_dead_letter(desk: Desk, call: Call) -> Answer:
    store = desk.plane.store
    letter = await store.get_dead_letter(call.tenant, _number(call))
    return Answer(dead_letter_view(letter, await _evidence(letter, store)))


async def _evidence(letter: DeadLetter, store: Store) -> list[JobEvent]:
    """The newest of its job's events: how it ended matters more than how it began."""
    newest: deque[JobEvent] = deque()
    weight = 0
    more: int | None = 0
    while more is not None:
        page, more = await read_events(store, letter.tenant, after=more, limit=EVIDENCE_MAX, job_id=letter.job_id)
        newest.extend(page)
        weight += sum(map(weight_of_event, page))
        while len(newest) > EVIDENCE_MAX or (weight > PAGE_BYTES and len(newest) > 1):
            weight -= weight_of_event(newest.popleft())
    return list(newest)


async def replay_dead_letter(desk: Desk, call: Call) -> Answer:
    plane = desk.plane
    number = _number(call)
    entry = entry_of(desk, call, "dead_letter.replayed", f"dead-letter/{number}")
    reply = await replay(call.tenant, number, store=plane.store, submitter=plane.submitter, entry=entry)
    return accepted(desk, reply)


def _number(call: Call) -> int:
    return get_number(call.path["number"], of="dead letters")
