"""What the verbs of a SQL store stand on: one transaction, in which nothing waits.

A verb refuses by returning an error; the transaction belongs to others too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.core.effect import Effect
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Record
from holdfast.core.recovery import next_look
from holdfast.core.states import TERMINAL
from holdfast.core.topic import Topic
from holdfast.ports import Accepted, Change, DeadLetter, KeyReused, Note, RecordChange, Submission

TopicOf = Callable[[str], Topic]


class Ledger(Protocol):
    @property
    def now(self) -> float: ...

    def submit_one(self, submission: Submission, topic_of: TopicOf) -> Accepted | KeyReused: ...

    def apply(self, changes: Sequence[Change], topic_of: TopicOf) -> list[bool]: ...

    def add_notes(self, notes: Sequence[Note]) -> None: ...

    def tell(self, job: Job, kind: str, detail: dict[str, Any]) -> None:
        """Add a line to the job's history."""

    def find_job(self, job_id: JobId, /) -> Job | None: ...

    def find_key(self, tenant: str, key: str) -> tuple[str, JobId] | None:
        """The digest it was used with, and the job it made."""

    def version_of(self, job_id: JobId) -> int | None: ...

    def is_at_work(self, job: Job) -> bool:
        """Whether another job of its session is DISPATCHED or RUNNING."""

    def list_session(self, tenant: str, session: str) -> list[Job]:
        """Its live jobs."""

    def list_parked(self, origin: JobId, /) -> list[Job]:
        """The job, and replays of it, that wait for a person's word."""

    def record_version(self, record: Record) -> int:
        """0: it is not there."""

    def write_record(self, change: RecordChange) -> None: ...

    def find_effect(self, job_id: JobId, key: str, /) -> Effect | None: ...

    def write_effect(self, effect: Effect) -> None: ...

    def find_dead_letter(self, tenant: Tenant, number: int, /) -> DeadLetter | None: ...

    def mark_replayed(self, number: int, replayed_as: JobId) -> None: ...


def look_at(job: Job, topic_of: TopicOf) -> float | None:
    """When recovery is to look at the job; None once it has ended."""
    return None if job.state in TERMINAL else next_look(job, topic_of(job.topic), now=0.0)
