"""`/v1/incidents`: begun, noted, stopped, and told."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.api.incidents import (
    AddNote,
    IncidentExport,
    IncidentPage,
    IncidentView,
    NoteView,
    StartIncident,
    StopIncident,
    TimelineView,
)
from holdfast.core.incident import TENANT, Incident, post_mortem, seen_by
from holdfast.core.job import Tenant
from holdfast.core.matrix import governs
from holdfast.core.policy_version import PLANE
from holdfast.flow.incident import get_incident, list_incidents, remark, start, stop, tell
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.limits import get_number
from holdfast.gateway.pages import PageQuery, number_from_cursor, read_page, to_cursor
from holdfast.gateway.plane import Plane
from holdfast.gateway.summaries import summarize


async def start_incident(desk: Desk, call: Call) -> Answer:
    new: StartIncident = call.body
    plane = desk.plane
    draft = Incident(
        number=0,
        title=new.title,
        by=find_actor(call),
        started_at=0.0,
        strict=new.strict,
        after=await desk.feed.last_number(),
        before=await _snapshot(plane, call.tenant),
    )
    entry = entry_of(desk, call, "incident.started", "incident", reason=new.title, tenant=PLANE)
    return Answer(_view(await start(draft, store=plane.store, entry=entry), call.tenant))


async def note_incident(desk: Desk, call: Call) -> Answer:
    said: AddNote = call.body
    noted = await remark(_number(call), said.text, by=find_actor(call), store=desk.plane.store)
    return Answer(_view(noted, call.tenant))


async def stop_incident(desk: Desk, call: Call) -> Answer:
    said: StopIncident = call.body
    plane, number = desk.plane, _number(call)
    entry = entry_of(desk, call, "incident.stopped", f"incident/{number}", reason=said.summary, tenant=PLANE)
    stopped = await stop(
        number,
        summary=said.summary,
        by=find_actor(call),
        end=await _snapshot(plane, call.tenant),
        store=plane.store,
        entry=entry,
    )
    return Answer(_view(stopped, call.tenant))


async def list_all(desk: Desk, call: Call) -> Answer:
    query: PageQuery = call.query
    page, last = await read_page(
        lambda before, limit: list_incidents(store=desk.plane.store, before=before, limit=limit),
        start=number_from_cursor(query.cursor),
        limit=query.limit,
        place=lambda incident: incident.number,
        weigh=lambda incident: sum(len(remark.text) for remark in incident.remarks),
    )
    more = None if last is None else to_cursor(last)
    return Answer(IncidentPage(items=[_view(one, call.tenant) for one in page], next_cursor=more))


async def get_one(desk: Desk, call: Call) -> Answer:
    return Answer(_view(await get_incident(_number(call), store=desk.plane.store), call.tenant))


async def export_incident(desk: Desk, call: Call) -> Answer:
    incident = await get_incident(_number(call), store=desk.plane.store)
    story = await tell(incident, call.tenant, store=desk.plane.store)
    return Answer(
        IncidentExport(
            incident=_view(incident, call.tenant),
            timeline=[TimelineView(at=one.at, kind=one.kind, by=one.by, text=one.text) for one in story.timeline],
            counts=story.counts,
            cut=story.cut,
            markdown=post_mortem(seen_by(call.tenant, incident), story.timeline, story.counts),
        )
    )


async def _snapshot(plane: Plane, tenant: Tenant) -> dict[str, Any]:
    """How things stand, in a few words: for whoever compares the start with the end."""
    now = await summarize(plane, tenant, {})  # of topics nothing is said here
    in_force = {one.name: one for one in plane.locks.classes()}
    return {
        TENANT: tenant,
        "jobs": now.states,
        "waiting longest (s)": now.waiting_longest_s,
        "workers": dict(Counter(worker.condition for worker in now.workers)),
        "locks held": now.locks_held,
        "approvals pending": now.approvals_pending,
        "effects unknown": now.effects_unknown,
        "frozen": [freeze.scope for freeze in now.freezes],
        "matrix changed": [one.name for one in plane.classes if governs(one) and in_force[one.name] != one],
        "policy version": plane.policy.version,
        "warnings": [warning.summary for warning in now.warnings],
    }


def _number(call: Call) -> int:
    return get_number(call.path["number"], of="incidents")


def _view(whole: Incident, tenant: Tenant) -> IncidentView:
    incident = seen_by(tenant, whole)
    return IncidentView(
        number=incident.number,
        title=incident.title,
        by=incident.by,
        started_at=incident.started_at,
        stopped_at=incident.stopped_at,
        strict=incident.strict,
        summary=incident.summary,
        notes=[NoteView(at=one.at, by=one.by, text=one.text) for one in incident.remarks],
        before=incident.before,
        end=incident.end,
    )


_TAGS = ("incidents",)

INCIDENT_ROUTES: tuple[Route, ...] = (
    Route(
        method="POST", path="/v1/incidents", run=start_incident, request=StartIncident, reply=IncidentView,
        headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Start an incident: a snapshot is kept, and the policy matrix is strict until it is stopped.",
    ),
    Route(
        method="GET", path="/v1/incidents", run=list_all, query=PageQuery, reply=IncidentPage, tags=_TAGS,
        summary="Incidents, newest first.",
    ),
    Route(
        method="GET", path="/v1/incidents/{number}", run=get_one, reply=IncidentView, tags=_TAGS,
        summary="One incident, with its notes and snapshots.",
    ),
    Route(
        method="POST", path="/v1/incidents/{number}:note", run=note_incident, request=AddNote, reply=IncidentView,
        headers=("Holdfast-Actor",), tags=_TAGS, summary="Write something down in an incident, also when it is over.",
    ),
    Route(
        method="POST", path="/v1/incidents/{number}:stop", run=stop_incident, request=StopIncident,
        reply=IncidentView, headers=("Holdfast-Actor",), tags=_TAGS, summary="Stop an incident, and what it has made strict.",
    ),
    Route(
        method="GET", path="/v1/incidents/{number}/export", run=export_incident, reply=IncidentExport, tags=_TAGS,
        summary="Its timeline (notes, what people changed, what the plane saw), and a draft of the post-mortem.",
    ),
)  # fmt: skip
