"""What flows and stores say to each other: what to write, what was written, what has happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Record
from holdfast.core.states import State

LISTED_PAYLOAD_MAX = 16 << 10
"""Larger payloads are left out where jobs are listed by the hundred, many times a second."""


class Delivery(NamedTuple):
    """A message: this worker may start this attempt. `(job_id, fence)` is its identity."""

    worker: str
    job_id: JobId
    fence: int


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of history, mostly of a job. `number` grows over the whole store; only `Store.prune` leaves gaps."""

    number: int
    tenant: Tenant
    job_id: JobId
    """Empty: it is not about one job, but about its run, or about something else altogether."""
    run: str = ""
    """The run it belongs to; that of the job, where it is about a job. Empty if none."""
    kind: str
    """noun.past_verb: job.submitted, job.dispatched, attempt.refused, …"""
    state: State | None
    """The job's state after it; None without a job."""
    attempt: int
    fence: int
    at: float
    detail: dict[str, Any]


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A new job, decided or not, and the key under which repeating it changes nothing."""

    job: Job
    key: str | None
    digest: str
    """Of everything the caller sent that makes the job what it is; empty without a key."""
    alone: bool = False
    """Only in `transact`: not to be stored while its `session` has another job that makes it busy (`Job.makes_busy`)."""
    records: Sequence[RecordChange] = ()
    """Written with the job if it is new; a submission that repeats one leaves them alone. In `submit` they are new ones;
    elsewhere each is to be at the version it names."""
    notes: Sequence[Note] = ()
    """Likewise."""
    changes: Sequence[Change] = ()
    """Likewise: its dispatch and its start, each from the version before it. Not for a job of a session."""


class Accepted(NamedTuple):
    job: Job
    repeated: bool
    """True: the key was used before, for the same submission; `job` is the one it made then."""


class KeyReused(NamedTuple):
    """The key was used before for something else."""

    job_id: JobId


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """From one version of a job to the next, with everything that must happen together with it.

    What a job is called and belongs to never changes. Its payload may, for as long as nobody has run it.
    """

    before: Job
    after: Job
    kind: str
    detail: dict[str, Any] = {}
    send: Delivery | None = None
    """Published in the same transaction. Only for the store's own bus."""
    dead_letter: str = ""
    """A reason to keep a dead letter of `after`, with its events as evidence."""
    heard: bool = False
    """The run that the job belongs to is told of it in the same transaction: no `Kind.RESULT` record is left for it."""


class Note(NamedTuple):
    """Something that happened and changed no job, such as a refused result, or a step of a run that began."""

    tenant: Tenant
    job_id: JobId
    """Empty: it is not about one job."""
    kind: str
    detail: dict[str, Any]
    run: str = ""
    """Where it is not about a job: the run it is about, if it is about one."""


class RecordChange(msgspec.Struct, frozen=True, kw_only=True):
    """From one version of a record to the next. `after` has the kind, tenant and id of what it replaces."""

    after: Record
    replaces: int
    """The version that must be there; 0: there must be none."""
    remove: bool = False
    """Take the record away instead; `after` only names it."""

    def __post_init__(self) -> None:
        may_be = self.after.version == self.replaces + 1 or (not self.replaces and self.after.version > 0)
        if not self.remove and not may_be:
            raise ValueError(f"version {self.after.version} of a record cannot replace version {self.replaces}")


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """Writes that happen together or not at all."""

    submissions: Sequence[Submission] = ()
    changes: Sequence[Change] = ()
    records: Sequence[RecordChange] = ()
    notes: Sequence[Note] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    state: State | None = None
    topic: str = ""
    """Exact, or a family ending in `*`."""
    labels: dict[str, str] = field(default_factory=dict)
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    number: int
    tenant: Tenant
    job_id: JobId
    topic: str
    reason: str
    at: float
    job: Job
    replayed_as: JobId | None


class Snapshot(NamedTuple):
    """The worker registry as its writer last saw it."""

    fence: int
    seq: int
    at: float
    workers: bytes


class Overdue(NamedTuple):
    """A page of jobs that may need recovery."""

    jobs: list[Job]
    after: str
    """Where the next page begins; empty: there is none."""


class Pruned(NamedTuple):
    """What one call of `prune` did."""

    jobs: int
    after: int | None
    """Where the next batch begins; None: there is no more to look at."""
