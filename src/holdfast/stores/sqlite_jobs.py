"""Jobs, events and keys in SQLite: each verb as plain statements inside a transaction somebody else runs.

No thread, no waiting, no commit here. A verb refuses by returning an error (see `Request`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.decision import told
from holdfast.core.effect import Effect
from holdfast.core.job import PARKED_UNTIL, Job, JobId, amend
from holdfast.core.record import Kind, Record
from holdfast.core.states import TERMINAL, EffectState, State
from holdfast.ports import Accepted, Change, Delivery, JobEvent, KeyReused, Note, RecordChange, Snapshot, Submission
from holdfast.stores import sqlite_records as records
from holdfast.stores.ledger import TopicOf, look_at
from holdfast.stores.rows import (
    bounds_values,
    effect_values,
    event_values,
    is_bounded_anew,
    record_values,
    values_anew,
)
from holdfast.stores.sqlite_reads import Reads
from holdfast.stores.sqlite_rows import (
    INSERT_EVENT,
    INSERT_JOB,
    INSERT_RECORD,
    PAYLOAD_INLINE_MAX,
    REPLACE_BOUNDS,
    REPLACE_JOB,
    WRITE_EFFECT,
    inserted_values,
)
from holdfast.stores.sqlite_sessions import arrange, is_at_work, list_session

if TYPE_CHECKING:
    import apsw


class Ledger:
    """The verbs of one transaction. `events` and `arrivals` are to be told of once it has committed."""

    def __init__(self, connection: apsw.Connection, now: float) -> None:
        self.reads = Reads(connection)
        self.find_job = self.reads.find_job
        self.find_effect = self.reads.find_effect
        self.list_parked = self.reads.list_parked
        self.find_dead_letter = self.reads.find_dead_letter
        self.now = now
        self.events: list[JobEvent] = []
        self.arrivals: set[str] = set()
        self.execute: Callable[..., Any] = connection.execute
        self._execute_many = connection.executemany
        self._changes = connection.changes
        self._written = 0
        self._last_number: int | None = None
        self._counts: dict[tuple[str, State], int] = {}

    def submit(self, submissions: Sequence[Submission], topic_of: TopicOf) -> list[Accepted | KeyReused]:
        return [self.submit_one(submission, topic_of) for submission in submissions]

    def submit_one(self, submission: Submission, topic_of: TopicOf) -> Accepted | KeyReused:
        job = submission.job
        if submission.key is not None:
            known = self.find_key(job.tenant, submission.key)
            if known is not None:
                digest, first = known
                return self._repeated(first) if digest == submission.digest else KeyReused(first)
        self.execute(INSERT_JOB, (*inserted_values(job), *values_anew(job), look_at(job, topic_of)))
        if not self._changes():
            return self._repeated(job.id)  # the very same submission: its first answer was lost
        if len(job.payload) > PAYLOAD_INLINE_MAX:
            self.execute("INSERT INTO holdfast_payloads VALUES (?, ?)", (job.id, job.payload))
        if submission.key is not None:
            self.execute(
                "INSERT INTO holdfast_keys VALUES (?, ?, ?, ?)",
                (job.tenant, submission.key, submission.digest, job.id),
            )
        self._count(job, +1)
        self.tell(job, "job.submitted", told(job) if job.decision else {})
        for change in submission.records:
            self.write_record(change)
        self.add_notes(submission.notes)
        if job.session:
            arrange(self.execute, job)
        if job.run and job.state in TERMINAL:
            self._leave_result(job)
        return Accepted(job, repeated=False)

    def find_key(self, tenant: str, key: str) -> tuple[str, JobId] | None:
        """The digest it was used with, and the job it made."""
        known: tuple[str, JobId] | None = self.execute(
            "SELECT digest, job_id FROM holdfast_keys WHERE tenant = ? AND key = ?", (tenant, key)
        ).fetchone()
        return known

    def version_of(self, job_id: JobId) -> int | None:
        row = self.execute("SELECT version FROM holdfast_jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else row[0]

    def is_at_work(self, job: Job) -> bool:
        return is_at_work(self.execute, job)

    def list_session(self, tenant: str, session: str) -> list[Job]:
        return list_session(self.execute, tenant, session)

    def record_version(self, record: Record) -> int:
        return records.version_of(self.execute, record)

    def write_record(self, change: RecordChange) -> None:
        records.write(self.execute, change)

    def write_effect(self, effect: Effect) -> None:
        self.execute(WRITE_EFFECT, effect_values(effect))

    def mark_replayed(self, number: int, replayed_as: JobId) -> None:
        self.execute("UPDATE holdfast_dead_letters SET replayed_as = ? WHERE number = ?", (replayed_as, number))

    def write_snapshot(self, snapshot: Snapshot) -> bool:
        stored = self.reads.read_snapshot()
        if stored is not None and (stored.fence, stored.seq) >= (snapshot.fence, snapshot.seq):
            return False
        self.execute("INSERT OR REPLACE INTO holdfast_snapshot VALUES (1, ?, ?, ?, ?)", tuple(snapshot))
        return True

    def _repeated(self, job_id: JobId) -> Accepted:
        job = self.reads.find_job(job_id)
        assert job is not None
        return Accepted(job, repeated=True)

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
        if before.state is State.DISPATCHED and after.state is not State.DISPATCHED:
            self.settle([Delivery(before.worker, before.id, before.fence)])
        self.tell(after, change.kind, change.detail)
        if before.state is State.RUNNING and after.state is not State.RUNNING:
            self._leave_effects_unknown(after)
        if change.send is not None:
            self.execute(
                "INSERT OR IGNORE INTO holdfast_deliveries VALUES (?, ?, ?)",
                (change.send.worker, change.send.fence, change.send.job_id),
            )
            self.arrivals.add(change.send.worker)
        if change.dead_letter:
            self.execute(
                "INSERT INTO holdfast_dead_letters (tenant, job_id, reason, at) VALUES (?, ?, ?, ?)",
                (after.tenant, after.id, change.dead_letter, self.now),
            )
        return True

    def _replace(self, before: Job, after: Job, topic_of: TopicOf) -> bool:
        self.execute(REPLACE_JOB, (*values_anew(after), look_at(after, topic_of), before.id, before.version))
        if not self._changes():
            return False
        if before.state is not after.state:
            self._count(before, -1)
            self._count(after, +1)
            if after.run and after.state in TERMINAL:
                self._leave_result(after)
        if after.session and (before.state is not after.state or before.not_before != after.not_before):
            arrange(self.execute, after)
        if after.payload != before.payload:
            self._replace_payload(after)
        if is_bounded_anew(before, after):
            self.execute(REPLACE_BOUNDS, (*bounds_values(after), after.id))
        return True

    def _replace_payload(self, job: Job) -> None:
        is_large = len(job.payload) > PAYLOAD_INLINE_MAX
        self.execute("UPDATE holdfast_jobs SET payload = ? WHERE id = ?", (None if is_large else job.payload, job.id))
        if is_large:
            self.execute("INSERT OR REPLACE INTO holdfast_payloads VALUES (?, ?)", (job.id, job.payload))
        else:
            self.execute("DELETE FROM holdfast_payloads WHERE job_id = ?", (job.id,))

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
        self.execute(f"{INSERT_RECORD} ON CONFLICT DO NOTHING", record_values(record))

    def _awaits_a_person(self, job: Job) -> bool:
        # PREPARED too: what this attempt had begun becomes unknown with this very change.
        row = self.execute(
            "SELECT 1 FROM holdfast_effects WHERE job_id = ? AND state IN (?, ?) LIMIT 1",
            (job.origin, EffectState.UNKNOWN, EffectState.PREPARED),
        ).fetchone()
        return row is not None

    def _leave_effects_unknown(self, job: Job) -> None:
        """The attempt is over, however it ended: what it had begun to do, nobody knows."""
        left = self.execute(
            "UPDATE holdfast_effects SET state = ?, settled_at = ? WHERE job_id = ? AND state = ? RETURNING key, fence",
            (EffectState.UNKNOWN, self.now, job.origin, EffectState.PREPARED),
        ).fetchall()
        for key, fence in left:
            self.tell(job, "effect.unknown", {"key": key, "prepared_fence": fence})

    def renew_leases(self, leases: Sequence[tuple[JobId, int, float]], topic_of: TopicOf) -> list[Job | None]:
        return [self._renew(job_id, fence, lease_s, topic_of) for job_id, fence, lease_s in leases]

    def _renew(self, job_id: JobId, fence: int, lease_s: float, topic_of: TopicOf) -> Job | None:
        job = self.reads.find_job(job_id)
        # A lease that has run out but was not yet taken away may be renewed: nobody else has it.
        if job is None or job.state is not State.RUNNING or job.fence != fence:
            return None
        renewed = amend(job, lease_until=max(job.lease_until, self.now + lease_s))
        self._replace(job, renewed, topic_of)
        return renewed

    def add_notes(self, notes: Sequence[Note]) -> None:
        for note in notes:
            if not note.job_id:
                self._tell_without_job(note)
                continue
            job = self.reads.find_job(note.job_id)
            if job is not None and job.tenant == note.tenant:
                self.tell(job, note.kind, note.detail)

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.execute(
                "DELETE FROM holdfast_deliveries WHERE worker = ? AND fence = ? AND job_id = ?",
                (delivery.worker, delivery.fence, delivery.job_id),
            )

    def tell(self, job: Job, kind: str, detail: dict[str, Any]) -> None:
        """Add a line to the job's history."""
        self.events.append(
            JobEvent(
                number=self._next_number(),
                tenant=job.tenant,
                job_id=job.id,
                run=job.run,
                kind=kind,
                state=job.state,
                attempt=job.attempts,
                fence=job.fence,
                at=self.now,
                detail=detail,
            )
        )

    def _tell_without_job(self, note: Note) -> None:
        self.events.append(
            JobEvent(
                number=self._next_number(),
                tenant=note.tenant,
                job_id=note.job_id,
                run=note.run,
                kind=note.kind,
                state=None,
                attempt=0,
                fence=0,
                at=self.now,
                detail=note.detail,
            )
        )

    def _next_number(self) -> int:
        if self._last_number is None:
            self._last_number = self.execute("SELECT coalesce(max(number), 0) FROM holdfast_events").fetchone()[0]
        self._last_number += 1
        return self._last_number

    def finish(self) -> None:
        """Write the events and counts of all verbs together. Must precede the commit, and any read of them."""
        if self._written < len(self.events):
            self._execute_many(INSERT_EVENT, map(event_values, self.events[self._written :]))
            self._written = len(self.events)
        moved = [(tenant, state.value, delta) for (tenant, state), delta in self._counts.items() if delta]
        if moved:
            self._execute_many(
                "INSERT INTO holdfast_counts VALUES (?, ?, ?) "
                "ON CONFLICT (tenant, state) DO UPDATE SET jobs = jobs + excluded.jobs",
                moved,
            )
        self._counts.clear()

    def prune(self) -> None:
        self.finish()
        self.execute("DELETE FROM holdfast_counts WHERE jobs = 0")

    def _count(self, job: Job, delta: int) -> None:
        if job.state not in TERMINAL:
            place = (job.tenant, job.state)
            self._counts[place] = self._counts.get(place, 0) + delta
