"""`/v1/schedules`: what is submitted again and again, and when."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Annotated, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from holdfast import api
from holdfast.api.schedules import NewSchedule, ScheduledJob, ScheduledRun, SchedulePage, ScheduleView
from holdfast.core.record import Kind, Record
from holdfast.core.schedule import (
    ACTIVE,
    PAUSED,
    Due,
    JobToSubmit,
    Missed,
    Overlap,
    RunToStart,
    Schedule,
    check_schedule,
    paused,
    resumed,
    schedule_from,
    schedule_record,
    ticks_after,
)
from holdfast.errors import Conflict, Invalid, TooMany
from holdfast.flow.audit import Entry
from holdfast.flow.fire import fire
from holdfast.flow.keep import TRIES, add_record, change_record, keeps_changing, remove_record
from holdfast.gateway import limits
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.pages import PageQuery, read_records

SCHEDULES_MAX = 1000
"""Of one tenant."""
_T = TypeVar("_T", bound=Struct)


class UpcomingQuery(api.Request, kw_only=True):
    next: Annotated[int, Meta(ge=0, le=100)] = 5
    """How many of the next ticks to tell."""


async def add_schedule(desk: Desk, call: Call) -> Answer:
    new: NewSchedule = call.body
    store, now = desk.plane.store, desk.plane.store.now()
    schedule = _checked(desk, _schedule(new, call, now=now))
    schedule = replace(schedule, next_at=next(ticks_after(schedule, now)))
    entry = _entry(desk, call, "schedule.added", new.name)
    async with desk.plane.gate.hold(call.tenant):
        known = await store.count_records(Kind.SCHEDULE, call.tenant, states=(ACTIVE, PAUSED))
        if sum(known.values()) >= SCHEDULES_MAX:
            raise TooMany(f"the tenant has {SCHEDULES_MAX} schedules; remove one", retry_after_s=60.0)
        added = await add_record(schedule_record(schedule), store=store, entry=entry)
    if added is None:
        raise Conflict(f"there is a schedule {new.name!r}; remove it first, or take another name")
    return Answer(_view(schedule_from(added), now, upcoming=5))


def _schedule(new: NewSchedule, call: Call, *, now: float) -> Schedule:
    actor = find_actor(call)
    if new.job is not None:
        limits.stored_json(new.job.payload, "payload")
    if new.run is not None:
        limits.stored_json(new.run.input, "input")
    return Schedule(
        tenant=call.tenant,
        name=new.name,
        cron=new.cron,
        zone=new.zone,
        every_s=new.every_s,
        missed=Missed(new.missed),
        overlap=Overlap(new.overlap),
        job=None if new.job is None else replace(_as(new.job, JobToSubmit), actor=actor),
        run=None if new.run is None else replace(_as(new.run, RunToStart), actor=actor),
        paused=new.paused,
        next_at=now,
        created_at=now,
    )


def _as(value: Struct, kind: type[_T]) -> _T:
    """What both types have in common."""
    known = {f.name for f in fields(type(value))}
    return kind(**{f.name: getattr(value, f.name) for f in fields(kind) if f.name in known})


def _checked(desk: Desk, schedule: Schedule) -> Schedule:
    check_schedule(schedule)
    if schedule.job is not None and desk.plane.topics.find(schedule.job.topic) is None:
        raise Invalid(f"no topic {schedule.job.topic!r} is declared; declare it in the configuration")
    return schedule


async def list_schedules(desk: Desk, call: Call) -> Answer:
    query: PageQuery = call.query
    store = desk.plane.store
    page, more = await read_records(
        lambda after, limit: store.list_records(Kind.SCHEDULE, call.tenant, after=after, limit=limit),
        query.cursor,
        query.limit,
    )
    now = store.now()
    items = [_view(schedule_from(record), now, upcoming=0) for record in page]
    return Answer(SchedulePage(items=items, next_cursor=more))


async def get_schedule(desk: Desk, call: Call) -> Answer:
    query: UpcomingQuery = call.query
    return Answer(_view(await _get(desk, call), desk.plane.store.now(), upcoming=query.next))


async def pause_schedule(desk: Desk, call: Call) -> Answer:
    """Nothing is submitted any more, until it is resumed."""
    return await _change(desk, call, paused, action="schedule.paused")


async def resume_schedule(desk: Desk, call: Call) -> Answer:
    """From now on: what fell into the pause was not missed."""
    now = desk.plane.store.now()

    def change(schedule: Schedule) -> Schedule:
        return resumed(schedule, now=now) if schedule.paused else schedule

    return await _change(desk, call, change, action="schedule.resumed")


async def remove_schedule(desk: Desk, call: Call) -> Answer:
    name = call.path["name"]
    entry = _entry(desk, call, "schedule.removed", name)
    await remove_record(Kind.SCHEDULE, call.tenant, name, store=desk.plane.store, entry=entry)
    return Answer(api.Nothing())


async def trigger_schedule(desk: Desk, call: Call) -> Answer:
    """One tick now, whatever it says about overlap, and paused or not. Its other ticks stay as they are."""
    plane = desk.plane
    # The same for each try: a run is started under the key of its tick, before the schedule is written.
    now = plane.store.now()
    for _ in range(TRIES):
        schedule = await _get(desk, call)
        due = Due((now,), skipped=False, next_at=schedule.next_at)
        entry = _entry(desk, call, "schedule.triggered", schedule.name)
        fired = await fire(schedule, due, store=plane.store, submitter=plane.submitter, runs=plane.runs, entry=entry)
        if fired is not None and fired.error:
            raise Invalid(f"the schedule cannot be obeyed: {fired.error}")
        if fired is not None:
            plane.wake()
            return Answer(_view(fired.schedule, now, upcoming=5), status=202)
    raise keeps_changing(Kind.SCHEDULE)


async def _get(desk: Desk, call: Call) -> Schedule:
    return schedule_from(await desk.plane.store.get_record(Kind.SCHEDULE, call.tenant, call.path["name"]))


def _entry(desk: Desk, call: Call, action: str, name: str) -> Entry:
    return entry_of(desk, call, action, f"schedule/{name}")


async def _change(desk: Desk, call: Call, change: Callable[[Schedule], Schedule], *, action: str) -> Answer:
    def changed(record: Record) -> Record:
        return schedule_record(change(schedule_from(record)))

    store, name = desk.plane.store, call.path["name"]
    entry = _entry(desk, call, action, name)
    record = await change_record(Kind.SCHEDULE, call.tenant, name, changed, store=store, entry=entry)
    return Answer(_view(schedule_from(record), store.now(), upcoming=5))


def _view(schedule: Schedule, now: float, *, upcoming: int) -> ScheduleView:
    return ScheduleView(
        name=schedule.name,
        cron=schedule.cron,
        zone=schedule.zone,
        every_s=schedule.every_s,
        missed=schedule.missed,
        overlap=schedule.overlap,
        job=None if schedule.job is None else _as(schedule.job, ScheduledJob),
        run=None if schedule.run is None else _as(schedule.run, ScheduledRun),
        paused=schedule.paused,
        next_at=None if schedule.paused else schedule.next_at,
        upcoming=[] if schedule.paused else _upcoming(schedule, now, upcoming),
        last_at=schedule.last_at,
        last=schedule.last,
        last_error=schedule.last_error,
        created_at=schedule.created_at,
        version=schedule.version,
    )


def _upcoming(schedule: Schedule, now: float, count: int) -> list[float]:
    try:
        return list(itertools.islice(ticks_after(schedule, now), count))
    except Invalid:  # its time zone is not known here: whoever looks is to see the rest, and `last_error`
        return []


_TAGS = ("schedules",)

SCHEDULE_ROUTES: tuple[Route, ...] = (
    Route(
        method="POST", path="/v1/schedules", run=add_schedule, request=NewSchedule, reply=ScheduleView,
        headers=("Holdfast-Actor",), body_max=limits.BODY_BYTES_MAX, tags=_TAGS,
        summary="Add a schedule: a job or a run, by cron or every so often.",
    ),
    Route(
        method="GET", path="/v1/schedules", run=list_schedules, query=PageQuery, reply=SchedulePage, tags=_TAGS,
        summary="Schedules by name.",
    ),
    Route(
        method="GET", path="/v1/schedules/{name}", run=get_schedule, query=UpcomingQuery, reply=ScheduleView,
        tags=_TAGS, summary="One schedule, with its next ticks.",
    ),
    Route(
        method="POST", path="/v1/schedules/{name}:pause", run=pause_schedule, reply=ScheduleView, headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Submit nothing until it is resumed.",
    ),
    Route(
        method="POST", path="/v1/schedules/{name}:resume", run=resume_schedule, reply=ScheduleView, headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Go on with the next tick from now.",
    ),
    Route(
        method="POST", path="/v1/schedules/{name}:remove", run=remove_schedule, reply=api.Nothing, headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Remove a schedule. What it has submitted stays.",
    ),
    Route(
        method="POST", path="/v1/schedules/{name}:trigger", run=trigger_schedule, reply=ScheduleView, headers=("Holdfast-Actor",), statuses=(202,),
        tags=_TAGS, summary="One tick now. `last` is the job or run that it made.",
    ),
)  # fmt: skip
