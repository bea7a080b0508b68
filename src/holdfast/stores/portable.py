"""All that a store keeps, as rows that any other store understands: what `holdfast store` moves.

What one store works out for itself (counts, who is next in a session, when recovery is to look) is not
among them, nor is what belongs to running processes: leases of locks, and who is present.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from holdfast.core.effect import Effect
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Record
from holdfast.errors import Conflict
from holdfast.ports import JobEvent

PAGE = 500


class JobRow(msgspec.Struct, frozen=True, tag_field="row", tag="job"):
    job: Job


class KeyRow(msgspec.Struct, frozen=True, tag_field="row", tag="key"):
    """An idempotency key of a submission."""

    tenant: Tenant
    key: str
    digest: str
    job_id: JobId


class EventRow(msgspec.Struct, frozen=True, tag_field="row", tag="event"):
    event: JobEvent


class RecordRow(msgspec.Struct, frozen=True, tag_field="row", tag="record"):
    record: Record


class EffectRow(msgspec.Struct, frozen=True, tag_field="row", tag="effect"):
    effect: Effect


class LetterRow(msgspec.Struct, frozen=True, tag_field="row", tag="letter"):
    """A dead letter. Its job is a row of its own."""

    number: int
    tenant: Tenant
    job_id: JobId
    reason: str
    at: float
    replayed_as: JobId | None


class PrunedRow(msgspec.Struct, frozen=True, tag_field="row", tag="pruned"):
    """The highest number of a tenant's events that retention has removed."""

    tenant: Tenant
    number: int


class DeliveryRow(msgspec.Struct, frozen=True, tag_field="row", tag="delivery"):
    """What waits in the bus of the store, or in its outbox."""

    worker: str
    fence: int
    job_id: JobId


class SnapshotRow(msgspec.Struct, frozen=True, tag_field="row", tag="snapshot"):
    """The worker registry as its writer last saw it."""

    fence: int
    seq: int
    at: float
    workers: bytes


Row: TypeAlias = JobRow | KeyRow | EventRow | RecordRow | EffectRow | LetterRow | PrunedRow | DeliveryRow | SnapshotRow
Page: TypeAlias = Sequence[Row]
Check: TypeAlias = Callable[[AsyncIterator[Page]], Awaitable[None]]


class Portable(Protocol):
    """A store that is not open for work, but to be read or filled as a whole."""

    def dump(self, *, alone: bool) -> AsyncGenerator[Page]:
        """Every row, as all of them were at one moment: pages of one kind each, always in the same order; jobs, events
        and records in the order in which they came.

        `alone` raises `Conflict` if a plane works on the store, now or by the end, and keeps others out where it can.
        Without it a plane may go on meanwhile; what it does is not in the pages.
        """

    async def load(self, pages: AsyncIterator[Page], *, check: Check) -> None:
        """Write all rows, or none. `check` is given what the store has then, as `dump` would tell it; if that or anything
        else raises, nothing has happened.

        Raises `Conflict` unless the store is empty, and no plane works on it.
        """


def not_empty(subject: str) -> Conflict:
    return Conflict(f"{subject} is not empty: something was submitted to it before. Name an empty one")


def at_work(subject: str) -> Conflict:
    return Conflict(
        f"a plane works on {subject}: stop all of its processes. One that was killed is forgotten half a minute later"
    )


def outdated(subject: str) -> Conflict:
    return Conflict(f"{subject} was written by another release: start a plane of this one on it once, then stop it")
