"""Schedules."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import NO_NUL, Labels, Name, Reply, Request, Session

ScheduleName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$(?!\n)")]
YEAR_S = 31_536_000


class ScheduledJob(Request, kw_only=True):
    """What each tick submits; as in `POST /v1/jobs`."""

    topic: Name
    payload: Any = None
    labels: Labels = {}
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    risk: Annotated[str, Meta(pattern=r"^(low|medium|high)$(?!\n)")] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=YEAR_S)] | None = None
    session: Session = ""


class ScheduledRun(Request, kw_only=True):
    """What each tick starts; as in `POST /v1/runs`. Of the newest revision then."""

    workflow: Annotated[str, Meta(min_length=1, max_length=64, pattern=NO_NUL)]
    input: Any = None
    labels: Labels = {}
    session: Session = ""


class NewSchedule(Request, kw_only=True):
    """`POST /v1/schedules`: `cron` or `every_s`, `job` or `run`."""

    name: ScheduleName
    cron: Annotated[str, Meta(max_length=200)] = ""
    """Five fields: minute, hour, day of the month, month, day of the week."""
    zone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    """An IANA name, such as Europe/Berlin."""
    every_s: Annotated[float, Meta(ge=0, le=366 * 24 * 3600)] = 0.0
    missed: Annotated[str, Meta(pattern=r"^(skip|one|all)$(?!\n)")] = "one"
    overlap: Annotated[str, Meta(pattern=r"^(allow|skip)$(?!\n)")] = "allow"
    job: ScheduledJob | None = None
    run: ScheduledRun | None = None
    paused: bool = False


class ScheduleView(Reply, kw_only=True):
    name: str
    cron: str
    zone: str
    every_s: float
    missed: str
    overlap: str
    job: ScheduledJob | None
    run: ScheduledRun | None
    paused: bool
    next_at: float | None
    """null while it is paused."""
    upcoming: list[float]
    """The next ticks, as many as were asked for."""
    last_at: float | None
    last: str
    """The job or run of the last tick that was obeyed; empty if it made none."""
    last_error: str
    created_at: float
    version: int


class SchedulePage(Reply, kw_only=True):
    items: list[ScheduleView]
    next_cursor: str | None
