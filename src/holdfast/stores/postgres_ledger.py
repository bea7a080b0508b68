"""One batch of writes for Postgres, decided in memory: what it asks for is loaded before, what comes of it written after.

That makes a transaction of many callers a handful of statements, however many of them there are. Nothing here
waits, and no statement is here: `postgres_load` and `postgres_flush` have those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.decision import told
from holdfast.core.effect import Effect
from holdfast.core.job import PARKED_UNTIL, Job, JobId, Tenant, amend
from holdfast.core.record import Kind, Record
from holdfast.core.states import TERMINAL, EffectState, State
from holdfast.ports import (
    Accepted,
    Change,
    DeadLetter,
    Delivery,
    JobEvent,
    KeyReused,
    Note,
    RecordChange,
    Submission,
    Transaction,
)
from holdfast.stores.ledger import TopicOf, look_at
from holdfast.stores.rows import is_bounded_anew

AT_WORK = (State.DISPATCHED, State.RUNNING)
_OPEN = (EffectState.UNKNOWN, EffectState.PREPARED)

RecordPlace = tuple[str, str, str]
"""(kind, tenant, id)"""


def place_of(record: Record) -> RecordPlace:
    return (record.kind.value, record.tenant, record.id)


@dataclass(slots=True)
class Needs:
    """What must be loaded before the verbs of a batch can be decided."""

    versions: set[JobId] = field(default_factory=set)
    """Jobs of which the version is enough."""
    submitted: set[JobId] = field(default_factory=set)
    """Likewise, but in full if they are there already."""
    jobs: set[JobId] = field(default_factory=set)
    """Jobs in full."""
    keys: set[tuple[str, str]] = field(default_factory=set)
    records: set[RecordPlace] = field(default_factory=set)
    """Their versions."""
    origins: set[JobId] = field(default_factory=set)
    """Jobs whose open effects matter."""
    effects_of: set[JobId] = field(default_factory=set)
    """Jobs in full, with all effects and whoever is parked for them."""
    sessions: set[tuple[str, str]] = field(default_factory=set)
    """Who of them is at work."""
    whole_sessions: set[tuple[str, str]] = field(default_factory=set)
    """Their live jobs, in full."""
    letters: set[int] = field(default_factory=set)

    def submission(self, submission: Submission) -> None:
        job = submission.job
        self.submitted.add(job.id)
        if submission.key is not None:
            self.keys.add((job.tenant, submission.key))
        if submission.alone and job.session:
            self.whole_sessions.add((job.tenant, job.session))
        if job.run and job.state in TERMINAL:
            self.records.add((Kind.RESULT.value, job.tenant, job.id))
        self.record_changes(submission.records)
        self.notes(submission.notes)

    def change(self, change: Change) -> None:
        before, after = change.before, change.after
        self.versions.add(before.id)
        if after.session:
            self.sessions.add((after.tenant, after.session))
        if after.run and after.state in TERMINAL:
            self.records.add((Kind.RESULT.value, after.tenant, after.id))
        if before.state is State.RUNNING or after.not_before >= PARKED_UNTIL:
            self.origins.add(after.origin)

    def record_changes(self, changes: Iterable[RecordChange]) -> None:
        self.records.update(place_of(change.after) for change in changes)

    def notes(self, notes: Iterable[Note]) -> None:
        self.jobs.update(note.job_id for note in notes if note.job_id)

    def transaction(self, transaction: Transaction) -> None:
        for submission in transaction.submissions:
            self.submission(submission)
        for change in transaction.changes:
            self.change(change)
        self.record_changes(transaction.records)
        self.notes(transaction.notes)


class Letter(NamedTuple):
    tenant: Tenant
    job_id: JobId
    reason: str
    at: float


class WriteLedger:
    """`Ledger` over what was loaded. The attributes up to `last_number` are filled in by `postgres_load`."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.versions: dict[JobId, int] = {}
        self.jobs: dict[JobId, Job] = {}
        self.keys: dict[tuple[str, str], tuple[str, JobId]] = {}
        self.records: dict[RecordPlace, int] = {}
        self.effects: dict[JobId, dict[str, Effect]] = {}
        self.at_work: dict[tuple[str, str], set[JobId]] = {}
        self.letters: dict[int, DeadLetter] = {}
        self.last_number = 0

        self.new_jobs: dict[JobId, float | None] = {}
        """With their `look_at`; the job is in `jobs`."""
        self.replaced: dict[JobId, tuple[int, float | None]] = {}
        """Jobs that were there: the version to replace, and `look_at`."""
        self.payloads: set[JobId] = set()
        """Jobs that were there, whose payload is another now."""
        self.rebound: set[JobId] = set()
        """Likewise, whose labels or limits are others now."""
        self.new_keys: list[tuple[str, str, str, JobId]] = []
        self.events: list[JobEvent] = []
        self.counts: dict[tuple[str, State], int] = {}
        self.sent: dict[Delivery, None] = {}
        self.settled: dict[Delivery, None] = {}
        self.dispatched_here: set[Delivery] = set()
        self.written_effects: set[tuple[JobId, str]] = set()
        self.new_letters: list[Letter] = []
        self.replays: dict[int, JobId] = {}
        self.written_records: dict[RecordPlace, Record | None] = {}
        """None: it is removed."""
        self.stirred_sessions: set[tuple[str, str]] = set()
        """Sessions in which it may be somebody else's turn now."""

    @property
    def arrivals(self) -> list[str]:
        return sorted({delivery.worker for delivery in self.sent})

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, submissions: Sequence[Submission], topic_of: TopicOf) -> list[Accepted | KeyReused]:
        return [self.submit_one(submission, topic_of) for submission in submissions]

    def submit_one(self, submission: Submission, topic_of: TopicOf) -> Accepted | KeyReused:
        job = submission.job
        if submission.key is not None:
            known = self.find_key(job.tenant, submission.key)
            if known is not None:
                digest, first = known
                return self._repeated(first) if digest == submission.digest else KeyReused(first)
        if job.id in self.versions:
            return self._repeated(job.id)  # the very same submission: its first answer was lost
        self._keep(job)
        self.new_jobs[job.id] = look_at(job, topic_of)
        if submission.key is not None:
            self.keys[job.tenant, submission.key] = (submission.digest, job.id)
            self.new_keys.append((job.tenant, submission.key, submission.digest, job.id))
        self._count(job, +1)
        self.tell(job, "job.submitted", told(job) if job.decision else {})
        for change in submission.records:
            self.write_record(change)
        self.add_notes(submission.notes)
        if job.session:
            self.stirred_sessions.add((job.tenant, job.session))
        if job.run and job.state in TERMINAL:
            self._leave_result(job)
        return Accepted(job, repeated=False)

    def _repeated(self, job_id: JobId) -> Accepted:
        return Accepted(self.jobs[job_id], repeated=True)

    def find_key(self, tenant: str, key: str) -> tuple[str, JobId] | None:
        return self.keys.get((tenant, key))

    def find_job(self, job_id: JobId, /) -> Job | None:
        return self.jobs.get(job_id)

    def version_of(self, job_id: JobId) -> int | None:
        return self.versions.get(job_id)

    def apply(self, changes: Sequence[Change], topic_of: TopicOf) -> list[bool]:
        return [self._apply(change, topic_of) for change in changes]

    def _apply(self, change: Change, topic_of: TopicOf) -> bool:
        before, after = change.before, change.after
        is_dispatch = after.state is State.DISPATCHED and before.state is not State.DISPATCHED
        if is_dispatch and after.session and self.is_at_work(after):
            return False
        if after.not_before >= PARKED_UNTIL and not self._awaits_a_person(after):
            after = replace(after, not_before=self.now)  # the word it would wait for has come already
        if not self._replace(before, after, topic_of):
            return False
        if is_dispatch:
            self.dispatched_here.add(Delivery(after.worker, after.id, after.fence))
        if before.state is State.DISPATCHED and after.state is not State.DISPATCHED:
            self._settle(Delivery(before.worker, before.id, before.fence))
        self.tell(after, change.kind, change.detail)
        if before.state is State.RUNNING and after.state is not State.RUNNING:
            self._leave_effects_unknown(after)
        if change.send is not None:
            self.sent[change.send] = None
            self.settled.pop(change.send, None)
        if change.dead_letter:
            self.new_letters.append(Letter(after.tenant, after.id, change.dead_letter, self.now))
        return True

    def _replace(self, before: Job, after: Job, topic_of: TopicOf) -> bool:
        if self.versions.get(before.id) != before.version:
            return False
        due = look_at(after, topic_of)
        if before.id in self.new_jobs:
            self.new_jobs[before.id] = due
        else:
            first, _ = self.replaced.get(before.id, (before.version, None))
            self.replaced[before.id] = (first, due)
            if after.payload != before.payload:
                self.payloads.add(before.id)
            if is_bounded_anew(before, after):
                self.rebound.add(before.id)
        self._keep(after)
        if before.state is not after.state:
            self._count(before, -1)
            self._count(after, +1)
            if after.run and after.state in TERMINAL:
                self._leave_result(after)
        if after.session and (before.state is not after.state or before.not_before != after.not_before):
            self.stirred_sessions.add((after.tenant, after.session))
        return True

    def _keep(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.versions[job.id] = job.version
        if job.session:
            at_work = self.at_work.setdefault((job.tenant, job.session), set())
            (at_work.add if job.state in AT_WORK else at_work.discard)(job.id)

    def _settle(self, delivery: Delivery) -> None:
        self.sent.pop(delivery, None)
        if delivery not in self.dispatched_here:  # else it never came into the table
            self.settled[delivery] = None

    def renew_leases(self, leases: Sequence[tuple[JobId, int, float]], topic_of: TopicOf) -> list[Job | None]:
        return [self._renew(job_id, fence, lease_s, topic_of) for job_id, fence, lease_s in leases]

    def _renew(self, job_id: JobId, fence: int, lease_s: float, topic_of: TopicOf) -> Job | None:
        job = self.jobs.get(job_id)
        # A lease that has run out but was not yet taken away may be renewed: nobody else has it.
        if job is None or job.state is not State.RUNNING or job.fence != fence:
            return None
        renewed = amend(job, lease_until=max(job.lease_until, self.now + lease_s))
        self._replace(job, renewed, topic_of)
        return renewed

    # -- sessions ----------------------------------------------------------------------------------

    def is_at_work(self, job: Job) -> bool:
        return bool(self.at_work.get((job.tenant, job.session), set()) - {job.id})

    def list_session(self, tenant: str, session: str) -> list[Job]:
        ours = (job for job in self.jobs.values() if job.session == session and job.tenant == tenant)
        return [job for job in ours if not job.is_terminal]

    # -- events ------------------------------------------------------------------------------------

    def add_notes(self, notes: Sequence[Note]) -> None:
        for note in notes:
            job = self.jobs.get(note.job_id) if note.job_id else None
            if not note.job_id:
                self._tell(note.tenant, note.job_id, note.run, note.kind, note.detail)
            elif job is not None and job.tenant == note.tenant:
                self.tell(job, note.kind, note.detail)

    def tell(self, job: Job, kind: str, detail: dict[str, Any]) -> None:
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
        self.last_number += 1
        self.events.append(
            JobEvent(
                number=self.last_number,
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

    def _count(self, job: Job, delta: int) -> None:
        if job.state not in TERMINAL:
            place = (job.tenant, job.state)
            self.counts[place] = self.counts.get(place, 0) + delta

    # -- records -----------------------------------------------------------------------------------

    def record_version(self, record: Record) -> int:
        return self.records.get(place_of(record), 0)

    def write_record(self, change: RecordChange) -> None:
        place = place_of(change.after)
        self.records[place] = 0 if change.remove else change.after.version
        self.written_records[place] = None if change.remove else change.after

    def _leave_result(self, job: Job) -> None:
        """For the job's run, which is told nothing else: without it a crash now would leave the run waiting for ever."""
        record = Record(
            kind=Kind.RESULT,
            tenant=job.tenant,
            id=job.id,
            state="job",
            parent=job.run,
            due=self.now,
            created_at=self.now,
            body=b"{}",
        )
        if not self.record_version(record):
            self.write_record(RecordChange(after=record, replaces=0))

    # -- effects, dead letters ---------------------------------------------------------------------

    def _awaits_a_person(self, job: Job) -> bool:
        # PREPARED too: what this attempt had begun becomes unknown with this very change.
        return any(effect.state in _OPEN for effect in self.effects.get(job.origin, {}).values())

    def _leave_effects_unknown(self, job: Job) -> None:
        """The attempt is over, however it ended: what it had begun to do, nobody knows."""
        for effect in tuple(self.effects.get(job.origin, {}).values()):
            if effect.state is EffectState.PREPARED:
                self.write_effect(replace(effect, state=EffectState.UNKNOWN, settled_at=self.now))
                self.tell(job, "effect.unknown", {"key": effect.key, "prepared_fence": effect.fence})

    def find_effect(self, job_id: JobId, key: str, /) -> Effect | None:
        return self.effects.get(job_id, {}).get(key)

    def write_effect(self, effect: Effect) -> None:
        self.effects.setdefault(effect.job_id, {})[effect.key] = effect
        self.written_effects.add((effect.job_id, effect.key))

    def list_parked(self, origin: JobId, /) -> list[Job]:
        ours = (job for job in self.jobs.values() if job.origin == origin and job.state is State.SCHEDULED)
        return sorted((job for job in ours if job.not_before >= PARKED_UNTIL), key=lambda job: job.id)

    def find_dead_letter(self, tenant: Tenant, number: int, /) -> DeadLetter | None:
        letter = self.letters.get(number)
        if letter is None or letter.tenant != tenant:
            return None
        return letter

    def mark_replayed(self, number: int, replayed_as: JobId) -> None:
        self.replays[number] = replayed_as
        self.letters[number] = dataclasses.replace(self.letters[number], replayed_as=replayed_as)
