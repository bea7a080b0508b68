"""The rules of one transaction of a store, whatever keeps the data: what a verb checks, writes and tells.

Nothing here waits. A verb refuses by returning an error; the transaction belongs to others too. What a store adds
is where things lie: the abstract methods, each a plain read or write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.decision import told
from holdfast.core.effect import Effect
from holdfast.core.job import PARKED_UNTIL, Job, JobId, Tenant, amend
from holdfast.core.record import Kind, Record
from holdfast.core.recovery import next_look
from holdfast.core.run_result import About
from holdfast.core.states import TERMINAL, State
from holdfast.core.topic import Topic
from holdfast.ports import Accepted, Change, DeadLetter, Delivery, JobEvent, KeyReused, Note, RecordChange, Submission

TopicOf = Callable[[str], Topic]

REVIEW_MAX = 1000
"""Jobs that are looked at in one go, when the limits of the topics have changed."""


def look_at(job: Job, topic_of: TopicOf) -> float | None:
    """When recovery is to look at the job; None once it has ended."""
    return None if job.state in TERMINAL else next_look(job, topic_of(job.topic), now=0.0)


def may_come_with(change: Change) -> bool:
    """Whether a new job can be stored as this change leaves it: nothing is kept that depends on the versions before."""
    return change.after.state in (State.DISPATCHED, State.RUNNING) and not change.after.session


class Ledger(ABC):
    def __init__(self, now: float) -> None:
        self.now = now
        self.events: list[JobEvent] = []
        """To be told of once the transaction has committed."""
        self.counts: dict[tuple[Tenant, State], int] = {}
        """By how many the live jobs of a tenant in a state became more."""

    # -- submit ------------------------------------------------------------------------------------

    def submit(self, submissions: Sequence[Submission], topic_of: TopicOf) -> list[Accepted | KeyReused]:
        return [self.submit_one(submission, topic_of) for submission in submissions]

    def submit_one(self, submission: Submission, topic_of: TopicOf) -> Accepted | KeyReused:
        job = submission.job
        if submission.key is not None:
            known = self.find_key(job.tenant, submission.key)
            if known is not None:
                digest, first = known
                return self._repeated(first) if digest == submission.digest else KeyReused(first)
        # Its row is written once, as it is after its changes; its history has each of them.
        last = submission.changes[-1].after if submission.changes else job
        if not self.add_job(last, look_at(last, topic_of)):
            return self._repeated(job.id)  # the very same submission: its first answer was lost
        if submission.key is not None:
            self.add_key(job.tenant, submission.key, submission.digest, job.id)
        self._count(last, +1)
        self.tell(job, "job.submitted", told(job) if job.decision else {})
        for record in submission.records:
            self.write_record(record)
        self.add_notes(submission.notes)
        if job.session:
            self.arrange(job)
        if job.run and job.state in TERMINAL:
            self._leave_result(job)
        for change in submission.changes:
            assert may_come_with(change), "what comes with a submission gives it to a worker, and does no more"
            self.tell(change.after, change.kind, change.detail)
        if submission.changes and (delivery := submission.changes[-1].send) is not None:
            self.send(delivery)
        return Accepted(last, repeated=False)

    def _repeated(self, job_id: JobId) -> Accepted:
        job = self.find_job(job_id)
        assert job is not None
        return Accepted(job, repeated=True)

    # -- change ------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change], topic_of: TopicOf) -> list[bool]:
        return [self._apply(change, topic_of) for change in changes]

    def _apply(self, change: Change, topic_of: TopicOf) -> bool:
        before, after = change.before, change.after
        is_dispatch = after.state is State.DISPATCHED and before.state is not State.DISPATCHED
        if is_dispatch and after.session and self.is_at_work(after):
            return False
        # PREPARED effects count too: what this attempt had begun becomes unknown with this very change.
        if after.not_before >= PARKED_UNTIL and not self.has_open_effects(after.origin):
            after = replace(after, not_before=self.now)  # the word it would wait for has come already
        if not self._replace(before, after, topic_of, heard=change.heard):
            return False
        if before.state is State.DISPATCHED and after.state is not State.DISPATCHED:
            self.settle([Delivery(before.worker, before.id, before.fence)])
        self.tell(after, change.kind, change.detail)
        if before.state is State.RUNNING and after.state is not State.RUNNING:
            # The attempt is over, however it ended: what it had begun to do, nobody knows.
            for key, fence in sorted(self.leave_effects_unknown(after.origin)):
                self.tell(after, "effect.unknown", {"key": key, "prepared_fence": fence})
        if change.send is not None:
            self.send(change.send)
        if change.dead_letter:
            self.add_dead_letter(after, change.dead_letter)
        return True

    def _replace(self, before: Job, after: Job, topic_of: TopicOf, *, heard: bool = False) -> bool:
        if not self.replace_job(before, after, look_at(after, topic_of)):
            return False
        if before.state is not after.state:
            self._count(before, -1)
            self._count(after, +1)
            if after.run and after.state in TERMINAL and not heard:
                self._leave_result(after)
        if after.session and (before.state is not after.state or before.not_before != after.not_before):
            self.arrange(after)
        return True

    def renew_leases(self, leases: Sequence[tuple[JobId, int]], topic_of: TopicOf) -> list[Job | None]:
        return [self._renew(job_id, fence, topic_of) for job_id, fence in leases]

    def _renew(self, job_id: JobId, fence: int, topic_of: TopicOf) -> Job | None:
        job = self.find_job(job_id)
        # A lease that has run out but was not yet taken away may be renewed: nobody else has it.
        if job is None or job.state is not State.RUNNING or job.fence != fence:
            return None
        renewed = amend(job, lease_until=max(job.lease_until, self.now + topic_of(job.topic).lease_s))
        self._replace(job, renewed, topic_of)
        return renewed

    def _count(self, job: Job, delta: int) -> None:
        if job.state not in TERMINAL:
            place = (job.tenant, job.state)
            self.counts[place] = self.counts.get(place, 0) + delta

    def _leave_result(self, job: Job) -> None:
        """For the job's run, which is told nothing else: without it a crash now would leave the run waiting for ever."""
        record = Record(
            kind=Kind.RESULT,
            tenant=job.tenant,
            id=job.id,
            state=About.JOB,
            parent=job.run,
            due=self.now,
            created_at=self.now,
            body=b"{}",
        )
        if not self.record_version(record):
            self.write_record(RecordChange(after=record, replaces=0))

    # -- tell --------------------------------------------------------------------------------------

    def add_notes(self, notes: Sequence[Note]) -> None:
        for note in notes:
            if not note.job_id:
                self._tell(note.tenant, note.job_id, note.run, note.kind, note.detail)
                continue
            job = self.find_job(note.job_id)
            if job is not None and job.tenant == note.tenant:
                self.tell(job, note.kind, note.detail)

    def tell(self, job: Job, kind: str, detail: dict[str, Any]) -> None:
        """Add a line to the job's history."""
        self._tell(job.tenant, job.id, job.run, kind, detail, job.state, job.attempts, job.fence)

    def _tell(
        self,
        tenant: Tenant,
        job_id: JobId,
        run: str,
        kind: str,
        detail: dict[str, Any],
        state: State | None = None,
        attempt: int = 0,
        fence: int = 0,
    ) -> None:
        self.events.append(
            JobEvent(
                number=self.next_number(),
                tenant=tenant,
                job_id=job_id,
                run=run,
                kind=kind,
                state=state,
                attempt=attempt,
                fence=fence,
                at=self.now,
                detail=detail,
            )
        )

    @abstractmethod
    def next_number(self) -> int:
        """Of events: one more each time, without a gap."""

    # -- where jobs lie ----------------------------------------------------------------------------

    @abstractmethod
    def find_job(self, job_id: JobId, /) -> Job | None: ...

    @abstractmethod
    def version_of(self, job_id: JobId) -> int | None: ...

    @abstractmethod
    def add_job(self, job: Job, look_at: float | None) -> bool:
        """False: there is a job of this id."""

    @abstractmethod
    def replace_job(self, before: Job, after: Job, look_at: float | None) -> bool:
        """False: it is not there in the version of `before`."""

    @abstractmethod
    def find_key(self, tenant: Tenant, key: str) -> tuple[str, JobId] | None:
        """The digest it was used with, and the job it made."""

    @abstractmethod
    def add_key(self, tenant: Tenant, key: str, digest: str, job_id: JobId) -> None: ...

    # -- sessions and deliveries -------------------------------------------------------------------

    @abstractmethod
    def is_at_work(self, job: Job) -> bool:
        """Whether another job of its session is DISPATCHED or RUNNING."""

    @abstractmethod
    def is_busy(self, tenant: Tenant, session: str, *, but: Collection[JobId]) -> bool:
        """Whether another job than these makes the session busy (`Job.makes_busy`)."""

    @abstractmethod
    def arrange(self, job: Job) -> None:
        """A job of the session has come, gone or moved: let the one whose turn it is be listed, and no other."""

    @abstractmethod
    def send(self, delivery: Delivery) -> None: ...

    @abstractmethod
    def settle(self, deliveries: Sequence[Delivery]) -> None: ...

    # -- records, effects, dead letters --------------------------------------------------------------

    @abstractmethod
    def record_version(self, record: Record) -> int:
        """0: it is not there."""

    @abstractmethod
    def write_record(self, change: RecordChange) -> None: ...

    @abstractmethod
    def find_effect(self, job_id: JobId, key: str, /) -> Effect | None: ...

    @abstractmethod
    def write_effect(self, effect: Effect) -> None: ...

    @abstractmethod
    def has_open_effects(self, origin: JobId) -> bool:
        """PREPARED or UNKNOWN."""

    @abstractmethod
    def leave_effects_unknown(self, origin: JobId) -> list[tuple[str, int]]:
        """Those that were PREPARED: their keys, and the fences they were prepared with."""

    @abstractmethod
    def list_parked(self, origin: JobId, /) -> list[Job]:
        """The job, and replays of it, that wait for a person's word."""

    @abstractmethod
    def find_dead_letter(self, tenant: Tenant, number: int, /) -> DeadLetter | None: ...

    @abstractmethod
    def add_dead_letter(self, job: Job, reason: str) -> None: ...

    @abstractmethod
    def mark_replayed(self, number: int, replayed_as: JobId) -> None: ...
