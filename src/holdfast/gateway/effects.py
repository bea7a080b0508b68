"""`/v1/effects`: what jobs did to the world outside, and a person's word on what nobody knows."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast import api
from holdfast.core.job import JobId
from holdfast.core.states import EffectState
from holdfast.gateway import limits
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.pages import Limit
from holdfast.gateway.views import effect_view


class EffectQuery(api.Request, kw_only=True):
    state: EffectState | None = None
    job: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    limit: Limit = 100


async def list_effects(desk: Desk, call: Call) -> Answer:
    query: EffectQuery = call.query
    effects = await desk.plane.store.list_effects(
        call.tenant, state=query.state, job_id=None if query.job is None else JobId(query.job), limit=query.limit
    )
    return Answer(api.Effects(items=[effect_view(effect) for effect in effects]))


async def resolve_effect(desk: Desk, call: Call) -> Answer:
    found: api.ResolveEffect = call.body
    effect = await desk.plane.store.resolve_effect(
        call.tenant,
        JobId(call.path["job"]),
        call.path["key"],
        state=EffectState(found.state),
        result=limits.stored_json(found.result, "result") if found.state == EffectState.COMMITTED else None,
        note=found.reason,
    )
    desk.plane.wake()
    return Answer(effect_view(effect))
