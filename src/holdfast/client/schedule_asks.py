"""What can be asked about schedules, as values; see `asks`."""

from __future__ import annotations

from holdfast.api.schedules import NewSchedule, SchedulePage, ScheduleView
from holdfast.client.asks import Ask, get_ask, part, post_ask, read_as, said_by


def add_schedule(new: NewSchedule, *, actor: str = "") -> Ask[ScheduleView]:
    """Add a job or a run that is submitted by cron, or every so often."""
    return post_ask("/v1/schedules", read_as(ScheduleView), new, headers=said_by(actor))


def schedules(*, cursor: str | None = None, limit: int = 100) -> Ask[SchedulePage]:
    """A page of schedules, by name."""
    return get_ask("/v1/schedules", read_as(SchedulePage), ("cursor", cursor), ("limit", limit))


def schedule(name: str, *, upcoming: int = 5) -> Ask[ScheduleView]:
    """A schedule, with that many of its next ticks."""
    return get_ask(f"/v1/schedules/{part(name)}", read_as(ScheduleView), ("next", upcoming))


def pause_schedule(name: str) -> Ask[ScheduleView]:
    """Submit nothing until it is resumed."""
    return post_ask(f"/v1/schedules/{part(name)}:pause", read_as(ScheduleView), repeatable=True)


def resume_schedule(name: str) -> Ask[ScheduleView]:
    """Go on from now: what fell into the pause was not missed."""
    return post_ask(f"/v1/schedules/{part(name)}:resume", read_as(ScheduleView), repeatable=True)


def remove_schedule(name: str) -> Ask[None]:
    """Remove a schedule; what it has submitted stays."""
    return post_ask(f"/v1/schedules/{part(name)}:remove", lambda _: None)


def trigger_schedule(name: str) -> Ask[ScheduleView]:
    """One tick now: `last` in the answer is what it made."""
    return post_ask(f"/v1/schedules/{part(name)}:trigger", read_as(ScheduleView))
