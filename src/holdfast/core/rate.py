"""Rates: when the next job of a key may come. The generic cell rate algorithm.

Of each key one number is kept: the time at which the jobs that were let in would have come, had they kept the rate. A
job may be early by as much as the burst allows. When that time has come, the number says no more than none would.

A job that was let in and was not stored after all gives back what it took. If it was to wait for its time, and others
have been told to come later, that time is free for the next one: it is kept beside the number.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from holdfast.core.decision import Rate
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, Record

EARLY_S = 1e-6
"""Times are floats: what is early by less is not early."""
FREE_MAX = 100
"""Times of one key that are kept as free; of more, the latest are lost to it."""


class Cell(NamedTuple):
    """What is known of one key."""

    due: float
    free: tuple[float, ...] = ()
    """Times that jobs were told to wait for which were not stored, in order."""


class Taken(NamedTuple):
    """What one job has taken, for as long as it may give it back."""

    key: str
    rate: Rate
    at: float
    """When it came."""
    waits_until: float
    """The time it was told to wait for; `at`, if it was let in at once."""


def admit(cell: Cell, rate: Rate, *, now: float) -> tuple[float, Cell]:
    """How many seconds too early one more comes, and what is known after that: the same, if it is not let in."""
    wait_s, due = _take(cell.due, rate, now=now)
    return wait_s, cell if wait_s else cell._replace(due=due)


def reserve(cell: Cell, rate: Rate, *, now: float) -> tuple[float, Cell]:
    """How many seconds one more has to wait for its time, and what is known after that."""
    free = tuple(time for time in cell.free if time > now)
    wait_s, due = _take(cell.due, rate, now=now)
    if wait_s and free:
        return free[0] - now, Cell(cell.due, free[1:])
    return wait_s, Cell(due, free)


def give_back(cell: Cell, taken: Taken, *, now: float) -> Cell:
    """What is known as if this one had never come. Never less than what was stored has taken."""
    every_s = taken.rate.every_s
    if taken.waits_until <= taken.at:
        # What time has passed since may have been forgiven already, if nobody else came in it.
        return cell._replace(due=cell.due - max(0.0, every_s - (now - taken.at)))
    if taken.waits_until <= now:
        return cell
    if abs(cell.due - every_s - taken.waits_until - every_s * (taken.rate.burst - 1)) <= EARLY_S:
        return cell._replace(due=cell.due - every_s)
    # Others were told to come after it: were the number lowered, the next one would come together with the last.
    return cell._replace(free=tuple(sorted((*cell.free, taken.waits_until))[:FREE_MAX]))


def _take(due: float, rate: Rate, *, now: float) -> tuple[float, float]:
    due = max(due, now)
    wait_s = due - now - rate.every_s * (rate.burst - 1)
    return wait_s if wait_s > EARLY_S else 0.0, due + rate.every_s


def record_id(key: str) -> str:
    """Keys contain what callers say of themselves, at whatever length."""
    return hashlib.sha256(key.encode()).hexdigest()[:40]


def cell_of(record: Record | None, *, now: float) -> Cell:
    if record is None or record.due is None:
        return Cell(now)
    return Cell(record.due, tuple(msgspec.json.decode(record.body).get("free", ())))


def to_record(key: str, cell: Cell, *, before: Record | None, now: float) -> Record:
    """The record after `before`. It is due when it may be forgotten."""
    return Record(
        kind=Kind.RATE,
        tenant=PLANE,
        id=record_id(key),
        version=1 if before is None else before.version + 1,
        due=cell.due,
        created_at=now if before is None else before.created_at,
        body=msgspec.json.encode({"free": cell.free} if cell.free else {}),
    )
