"""Rates: when the next job of a key may come. The generic cell rate algorithm.

Of each key one number is kept: the time at which the jobs that were let in would have come, had they kept the rate. A
job may be early by as much as the burst allows. When that time has come, the number says no more than none would.

A job that was let in and was not stored after all gives back what it took, unless it was to wait for its time and others
have been told to come later: then that time is lost.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from holdfast.core.decision import Rate
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, Record

EARLY_S = 1e-6
"""Times are floats: what is early by less is not early."""


class Taken(NamedTuple):
    """What one job has taken, for as long as it may give it back."""

    key: str
    rate: Rate
    at: float
    """When it came."""
    waits_until: float
    """The time it was told to wait for; `at`, if it was let in at once."""


def take(due: float, rate: Rate, *, now: float, however_early: bool = False) -> tuple[float, float]:
    """How many seconds too early one more comes, and `due` after that: the same, if it is not let in."""
    due = max(due, now)
    wait_s = due - now - rate.every_s * (rate.burst - 1)
    if wait_s <= EARLY_S:
        return 0.0, due + rate.every_s
    return wait_s, due + rate.every_s if however_early else due


def give_back(due: float, taken: Taken, *, now: float) -> float:
    """`due` as if this one had never come, as far as that can be: never less than what was stored has taken."""
    every_s, burst = taken.rate.every_s, taken.rate.burst
    # Were it lowered although others were told to come after this one, the next would come together with the last of them.
    if due - every_s * burst > max(taken.waits_until, now) + EARLY_S:
        return due
    # What time has passed since it came may have been forgiven already, if nobody else came in it.
    return due - max(0.0, every_s - max(0.0, now - taken.waits_until))


def record_id(key: str) -> str:
    """Keys contain what callers say of themselves, at whatever length."""
    return hashlib.sha256(key.encode()).hexdigest()[:40]


def to_record(key: str, due: float, *, before: Record | None, now: float) -> Record:
    """The record after `before`. It is due when it may be forgotten."""
    return Record(
        kind=Kind.RATE,
        tenant=PLANE,
        id=record_id(key),
        version=1 if before is None else before.version + 1,
        due=due,
        created_at=now if before is None else before.created_at,
        body=b"{}",
    )
