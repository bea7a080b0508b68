"""Looking around: workers, locks, dead letters, effects; and what a person may do about them."""

from __future__ import annotations

import contextlib
from typing import Annotated

from msgspec import Meta

from holdfast import api
from holdfast.core.effect import EffectState
from holdfast.core.job import JobId
from holdfast.errors import NotFound
from holdfast.flow.again import replay
from holdfast.gateway import limits
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.jobs import Cursor, Limit, PageQuery, accepted
from holdfast.gateway.views import (
    dead_letter_view,
    effect_view,
    from_cursor,
    lock_view,
    number_from_cursor,
    to_cursor,
)
from holdfast.gateway.work import NOTHING, drain
from holdfast.locks import UndeclaredClass

EVIDENCE_MAX = 1000
TRIES = 5


class LockQuery(api.Model, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100
    family: Annotated[str, Meta(max_length=128)] | None = None
    """The name of a lock class."""


class EffectQuery(api.Model, kw_only=True):
    state: EffectState | None = None
    job: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    limit: Limit = 100


async def list_workers(desk: Desk, _: Call) -> Answer:
    plane = desk.plane
    now = plane.store.now()
    writer = None
    with contextlib.suppress(UndeclaredClass):  # a plane without a snapshot writer has none
        writer = await plane.locks.inspect("snapshot", "writer")
    return Answer(
        api.Workers(
            items=plane.registry.views(now=now),
            snapshot_age_s=plane.registry.snapshot_age(now=now),
            snapshot_writer=None if writer is None else writer.holder,
        )
    )


async def drain_worker(desk: Desk, call: Call) -> Answer:
    await drain(desk.plane, call.path["id"])
    return Answer(NOTHING)


async def list_locks(desk: Desk, call: Call) -> Answer:
    query: LockQuery = call.query
    after = from_cursor(query.cursor) or ""
    try:
        found = await desk.plane.locks.list(query.family, after=after, limit=query.limit + 1)
    except UndeclaredClass:
        raise NotFound(f"this plane declares no lock class {query.family!r}") from None
    page = found[: query.limit]
    more = to_cursor(page[-1].key) if len(found) > query.limit else None
    return Answer(api.LocksPage(items=[lock_view(holder) for holder in page], next_cursor=more))


async def list_dead_letters(desk: Desk, call: Call) -> Answer:
    """Newest first, without their events: ask for one letter to see its evidence."""
    query: PageQuery = call.query
    found = await desk.plane.store.list_dead_letters(
        call.tenant, before=number_from_cursor(query.cursor), limit=query.limit + 1
    )
    page = found[: query.limit]
    more = to_cursor(page[-1].number) if len(found) > query.limit else None
    return Answer(api.DeadLetterPage(items=[dead_letter_view(letter, []) for letter in page], next_cursor=more))


async def get_dead_letter(desk: Desk, call: Call) -> Answer:
    store = desk.plane.store
    letter = await store.get_dead_letter(call.tenant, _number(call))
    events = await store.list_events(after=0, limit=EVIDENCE_MAX, tenant=call.tenant, job_id=letter.job_id)
    return Answer(dead_letter_view(letter, events))


async def replay_dead_letter(desk: Desk, call: Call) -> Answer:
    plane = desk.plane
    reply = await replay(call.tenant, _number(call), store=plane.store, submitter=plane.submitter)
    return accepted(desk, reply)


def _number(call: Call) -> int:
    text = call.path["number"]
    if len(text) > limits.NUMBER_DIGITS_MAX or not (text.isascii() and text.isdigit()):
        raise NotFound("dead letters have numbers, and this is none")
    return int(text)


async def list_effects(desk: Desk, call: Call) -> Answer:
    query: EffectQuery = call.query
    effects = await desk.plane.store.list_effects(
        call.tenant, state=query.state, job_id=None if query.job is None else JobId(query.job), limit=query.limit
    )
    return Answer(api.Effects(items=[effect_view(effect) for effect in effects]))


async def resolve_effect(desk: Desk, call: Call) -> Answer:
    found: api.ResolveEffect = call.body
    job_id = JobId(call.path["job"])
    effect = await desk.plane.store.resolve_effect(
        call.tenant,
        job_id,
        call.path["key"],
        state=EffectState(found.state),
        result=limits.stored_json(found.result, "result") if found.state == EffectState.COMMITTED else None,
        note=found.reason,
    )
    desk.plane.wake()
    return Answer(effect_view(effect))
