"""Looking around: effects, dead letters, workers, locks."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.jobs import EventView, JobView
from holdfast.api.words import NO_NUL, Reply, Request


class EffectView(Reply, kw_only=True):
    job_id: str
    key: str
    state: str
    fence: int
    attempt: int
    idempotency_key: str
    result: Any
    prepared_at: float
    settled_at: float | None
    note: str


class EffectPage(Reply, kw_only=True):
    items: list[EffectView]
    next_cursor: str | None


class ResolveEffect(Request, kw_only=True):
    """`POST /v1/effects/{job}/{key}:resolve`: what a person found out. `state`: committed, absent."""

    state: Annotated[str, Meta(pattern=r"^(committed|absent)$(?!\n)")]
    result: Any = None
    reason: Annotated[str, Meta(min_length=1, max_length=500, pattern=NO_NUL)]


class DeadLetterView(Reply, kw_only=True):
    number: int
    job_id: str
    topic: str
    reason: str
    at: float
    job: JobView
    events: list[EventView]
    replayed_as: str | None


class DeadLetterPage(Reply, kw_only=True):
    items: list[DeadLetterView]
    next_cursor: str | None


class WorkerInfo(Reply, kw_only=True):
    id: str
    name: str
    pool: str
    topics: list[str]
    labels: dict[str, str]
    slots: int
    backlog: int
    in_hand: int
    draining: bool
    last_seen: float
    alive: bool
    condition: str
    """`ready`; `draining`; `silent`; `unable`: it says itself that it can begin nothing now; or `stuck`: it speaks, but does
    not take what was sent to it."""
    unable: str = ""
    """Why it is, by its own word."""


class Workers(Reply, kw_only=True):
    items: list[WorkerInfo]
    snapshot_age_s: float | None
    snapshot_writer: str | None


class LockView(Reply, kw_only=True):
    key: str
    lock_class: str
    """Empty: none of the plane's classes declares it."""
    fence: int
    holder: str
    token_digest: str
    remaining_s: float
    waiters: int


class LocksPage(Reply, kw_only=True):
    items: list[LockView]
    next_cursor: str | None
