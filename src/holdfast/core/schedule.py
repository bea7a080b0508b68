"""Schedules: when something is to be submitted again and again, and which of its ticks are to be obeyed now.

A schedule is a record of kind SCHEDULE whose `due` is its next tick. What a tick submits and the next
tick are written together, so a tick is obeyed once, whoever looks and however often.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.errors import Invalid

GRACE_S = 60.0
"""A tick that is obeyed within this time was not missed."""
CATCH_UP_MAX = 100
"""Ticks that `all` makes up for at once; those after them are skipped."""
EVERY_S_MIN = 1.0
EVERY_S_MAX = 366 * 24 * 3600.0
CRON_FIELDS = 5

ACTIVE = "active"
PAUSED = "paused"


class Missed(StrEnum):
    """What becomes of ticks that nobody was there for."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class Overlap(StrEnum):
    """Whether a tick is obeyed while what the last one submitted still lives."""

    ALLOW = "allow"
    SKIP = "skip"


class JobToSubmit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller would order; see `api.NewJob`."""

    topic: str
    payload: Any = None
    labels: dict[str, str] = {}
    priority: int = 0
    risk: str | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    session: str = ""
    actor: str = ""


class RunToStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    workflow: str
    input: Any = None
    labels: dict[str, str] = {}
    session: str = ""
    actor: str = ""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    tenant: Tenant
    name: str
    cron: str = ""
    """Five fields; empty if it goes by `every_s`."""
    zone: str = "UTC"
    """Whose midnight a cron expression means."""
    every_s: float = 0.0
    missed: Missed = Missed.ONE
    overlap: Overlap = Overlap.ALLOW
    job: JobToSubmit | None = None
    run: RunToStart | None = None
    """Either of the two."""
    paused: bool = False
    next_at: float
    last_at: float | None = None
    """The last tick that was obeyed, or the last trigger."""
    last: str = ""
    """The job or the run that it made; empty if it made none."""
    last_error: str = ""
    """Why the last tick made none, or why one that has come is not obeyed yet."""
    held: bool = False
    """A tick has come while it was frozen: of those that did, one is made up for at most."""
    created_at: float
    version: int = 0
    """Of its record; 0 before there is one."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    cron: str = ""
    zone: str = "UTC"
    every_s: float = 0.0
    missed: Missed
    overlap: Overlap
    job: JobToSubmit | None = None
    run: RunToStart | None = None
    next_at: float
    last_at: float | None = None
    last: str = ""
    last_error: str = ""
    held: bool = False


_SHARED = tuple(field.name for field in msgspec.structs.fields(_Body))


def schedule_record(schedule: Schedule) -> Record:
    """As it is to be stored, one version on."""
    body = _Body(**{name: getattr(schedule, name) for name in _SHARED})
    return Record(
        kind=Kind.SCHEDULE,
        tenant=schedule.tenant,
        id=schedule.name,
        version=schedule.version + 1,
        state=PAUSED if schedule.paused else ACTIVE,
        due=None if schedule.paused else schedule.next_at,
        created_at=schedule.created_at,
        body=msgspec.json.encode(body),
    )


def schedule_from(record: Record) -> Schedule:
    body = msgspec.json.decode(record.body, type=_Body)
    return Schedule(
        tenant=record.tenant,
        name=record.id,
        paused=record.state == PAUSED,
        created_at=record.created_at,
        version=record.version,
        **{name: getattr(body, name) for name in _SHARED},
    )


def check_schedule(schedule: Schedule) -> None:
    """Raises `Invalid`, saying what to change. A schedule that passes has a next tick at any time."""
    if (schedule.job is None) == (schedule.run is None):
        raise Invalid("a schedule submits either a job or a run: give one of them")
    if bool(schedule.cron) == bool(schedule.every_s):
        raise Invalid("a schedule goes by cron or by every_s: give one of them")
    if schedule.every_s and not EVERY_S_MIN <= schedule.every_s <= EVERY_S_MAX:
        raise Invalid(f"every_s must be between {EVERY_S_MIN:g} and {EVERY_S_MAX:g}")
    if schedule.cron:
        _check_cron(schedule)


def _check_cron(schedule: Schedule) -> None:
    if len(schedule.cron.split()) != CRON_FIELDS:
        raise Invalid("cron takes five fields: minute, hour, day of the month, month, day of the week")
    try:
        next(ticks_after(schedule, schedule.created_at))
    except CronSimError as error:
        raise Invalid(f"cron: {error}; it takes minute, hour, day of the month, month, day of the week") from None
    except StopIteration:
        raise Invalid("cron names a day that never comes") from None


def ticks_after(schedule: Schedule, moment: float) -> Iterator[float]:
    """Its ticks after `moment`, in order. Raises `Invalid` where its time zone is not known: another machine knew it."""
    if schedule.every_s:
        return _beats(schedule, moment)
    # A clock that is set forward skips no time of day, and one that is set back repeats none. With a * for minute or
    # hour, ticks go by the time that passes: those are Debian's rules.
    start = datetime.fromtimestamp(math.floor(moment), _zone(schedule))
    return (tick.timestamp() for tick in CronSim(schedule.cron, start))


def _zone(schedule: Schedule) -> ZoneInfo:
    try:
        return ZoneInfo(schedule.zone)
    except (KeyError, ValueError, OSError):
        raise Invalid("zone must be a name of the IANA time zone database, such as Europe/Berlin") from None


def _beats(schedule: Schedule, moment: float) -> Iterator[float]:
    """Counted from its creation, so that they stay in step whatever was missed."""
    first = max(1, math.floor((moment - schedule.created_at) / schedule.every_s))
    beats = (schedule.created_at + n * schedule.every_s for n in itertools.count(first))
    # The division above is rounded: the beat it names may be the one just obeyed.
    return itertools.dropwhile(lambda beat: beat <= moment, beats)


class Due(NamedTuple):
    """What is to be done about a schedule now."""

    ticks: tuple[float, ...]
    """To be obeyed, oldest first."""
    skipped: bool
    """There were others, and they are not."""
    next_at: float


def due_ticks(schedule: Schedule, *, now: float, last_lives: bool) -> Due:
    """Of the ticks that have come, those to be obeyed, by its words on missed ticks and on overlap."""
    next_at = next(ticks_after(schedule, now))
    if now < schedule.next_at:
        return Due((), skipped=False, next_at=schedule.next_at)
    come = list(itertools.islice(_come(schedule, now), CATCH_UP_MAX + 1))
    match Missed.ONE if schedule.held and schedule.missed is Missed.ALL else schedule.missed:
        case Missed.ALL:
            chosen = come[:CATCH_UP_MAX]
        case Missed.ONE:
            chosen = come[:1]
        case Missed.SKIP:
            # A recent one among many is not missed: it is looked for from the near end.
            recent = itertools.takewhile(lambda tick: tick <= now, ticks_after(schedule, now - GRACE_S))
            chosen = come if now - schedule.next_at <= GRACE_S else list(recent)
            chosen = chosen[-1:]
    if schedule.overlap is Overlap.SKIP:
        chosen = [] if last_lives else chosen[:1]
    return Due(tuple(chosen), skipped=len(chosen) < len(come), next_at=next_at)


def _come(schedule: Schedule, now: float) -> Iterator[float]:
    yield schedule.next_at
    yield from itertools.takewhile(lambda tick: tick <= now, ticks_after(schedule, schedule.next_at))


def paused(schedule: Schedule) -> Schedule:
    return replace(schedule, paused=True)


def resumed(schedule: Schedule, *, now: float) -> Schedule:
    """From now on: a pause is meant, so what fell into it was not missed."""
    return replace(schedule, paused=False, next_at=next(ticks_after(schedule, now)))
