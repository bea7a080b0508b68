"""`/v1/effects`: what jobs did to the world outside, and a person's word on what nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast import api
from holdfast.core.effect import Effect, EffectPlace, place_of
from holdfast.core.job import JobId
from holdfast.core.states import EffectState
from holdfast.errors import Conflict, VersionMismatch
from holdfast.gateway import limits
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.pages import PageQuery, from_cursor, read_page, strange_cursor, to_cursor
from holdfast.gateway.views import effect_view
from holdfast.ports import RecordChange

_decode_place = msgspec.json.Decoder(EffectPlace).decode


class EffectQuery(PageQuery, kw_only=True):
    state: EffectState | None = None
    job: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


async def list_effects(desk: Desk, call: Call) -> Answer:
    query: EffectQuery = call.query
    job_id = None if query.job is None else JobId(query.job)
    page, last = await read_page(
        lambda after, limit: desk.plane.store.list_effects(
            call.tenant, state=query.state, job_id=job_id, after=after, limit=limit
        ),
        start=_place_from_cursor(query.cursor),
        limit=query.limit,
        place=place_of,
        weigh=lambda effect: len(effect.result or b""),
    )
    more = None if last is None else to_cursor(msgspec.json.encode(last).decode())
    return Answer(api.EffectPage(items=[effect_view(effect) for effect in page], next_cursor=more))


def _place_from_cursor(cursor: str | None) -> EffectPlace | None:
    last = from_cursor(cursor)
    try:
        return None if last is None else _decode_place(last)
    except msgspec.DecodeError:
        raise strange_cursor() from None


async def resolve_effect(desk: Desk, call: Call) -> Answer:
    found: api.ResolveEffect = call.body
    job_id, key, state = JobId(call.path["job"]), call.path["key"], EffectState(found.state)
    result = limits.stored_json(found.result, "result") if state is EffectState.COMMITTED else None
    resolved: list[Effect] = []

    async def write(records: Sequence[RecordChange]) -> bool:
        try:
            resolved.append(
                await desk.plane.store.resolve_effect(
                    call.tenant, job_id, key, state=state, result=result, note=found.reason, records=records
                )
            )
        except VersionMismatch:
            return False
        return True

    entry = entry_of(desk, call, "effect.resolved", f"job/{job_id}", reason=found.reason, key=key, state=state)
    if not await entry.add(write):
        raise Conflict(f"effect {key!r} of job {job_id} keeps changing; try again")
    desk.plane.wake()
    return Answer(effect_view(resolved[-1]))
