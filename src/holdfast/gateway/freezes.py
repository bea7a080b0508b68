"""`/v1/freezes`: what is not dispatched for a while."""

from __future__ import annotations

from holdfast.api.freezes import Freezes, FreezeView, NewFreeze, Thaw
from holdfast.core.policy_version import PLANE
from holdfast.flow.freeze import freeze, list_freezes, thaw
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.views import freeze_view


async def add_freeze(desk: Desk, call: Call) -> Answer:
    new: NewFreeze = call.body
    entry = entry_of(desk, call, "freeze.began", f"freeze/{new.scope}", reason=new.reason, tenant=PLANE)
    frozen = await freeze(
        new.scope,
        reason=new.reason,
        by=find_actor(call),
        for_s=new.for_s,
        store=desk.plane.store,
        entry=entry,
    )
    # Whoever asks this plane next is told, and this plane dispatches nothing of it any more.
    await desk.plane.freezes.refresh()
    return Answer(freeze_view(frozen))


async def thaw_freeze(desk: Desk, call: Call) -> Answer:
    wanted: Thaw = call.body
    entry = entry_of(desk, call, "freeze.ended", f"freeze/{wanted.scope}", reason=wanted.reason, tenant=PLANE)
    ended = await thaw(wanted.scope, reason=wanted.reason, by=find_actor(call), store=desk.plane.store, entry=entry)
    await desk.plane.freezes.refresh()
    desk.plane.wake()
    return Answer(freeze_view(ended))


async def list_all(desk: Desk, _: Call) -> Answer:
    now = desk.plane.store.now()
    holding = [one for one in await list_freezes(store=desk.plane.store) if not one.has_ended(now)]
    return Answer(Freezes(items=[freeze_view(one) for one in holding]))


_TAGS = ("freezes",)

FREEZE_ROUTES: tuple[Route, ...] = (
    Route(
        method="POST", path="/v1/freezes", run=add_freeze, request=NewFreeze, reply=FreezeView,
        headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Dispatch nothing of a scope, for a while or until it is thawed. Submissions are taken; what runs goes on.",
    ),
    Route(
        method="POST", path="/v1/freezes:thaw", run=thaw_freeze, request=Thaw, reply=FreezeView,
        headers=("Holdfast-Actor",), tags=_TAGS, summary="End a freeze.",
    ),
    Route(
        method="GET", path="/v1/freezes", run=list_all, reply=Freezes, tags=_TAGS, summary="What is frozen, by scope.",
    ),
)  # fmt: skip
