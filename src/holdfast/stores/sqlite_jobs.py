"""Jobs, events and keys in SQLite: each verb as plain statements inside a transaction somebody else runs.

No thread, no waiting, no commit here. A verb refuses by returning an error (see `Request`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.job import PARKED_UNTIL, Job, JobId, amend
from holdfast.core.recovery import next_look
from holdfast.core.states import TERMINAL, EffectState, State
from holdfast.core.topic import Topic
from holdfast.ports import Accepted, Change, Delivery, JobEvent, KeyReused, Note, Submission
from holdfast.stores.sqlite_reads import Reads
from holdfast.stores.sqlite_rows import (
    INSERT_EVENT,
    INSERT_JOB,
    PAYLOAD_INLINE_MAX,
    REPLACE_JOB,
    event_values,
    values_anew,
    values_once,
)

if TYPE_CHECKING:
    import apsw

TopicOf = Callable[[str], Topic]


class Ledger:
    """The verbs of one transaction. `events` and `arrivals` are to be told of once it has committed."""

    def __init__(self, connection: apsw.Connection, now: float) -> None:
        self.reads = Reads(connection)
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
            known = self.execute(
                "SELECT digest, job_id FROM holdfast_keys WHERE tenant = ? AND key = ?", (job.tenant, submission.key)
            ).fetchone()
            if known is not None:
                digest, first = known
                return self._repeated(first) if digest == submission.digest else KeyReused(first)
        self.execute(INSERT_JOB, (*values_once(job), *values_anew(job), _look_at(job, topic_of)))
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
        self.tell(job, "job.submitted", {})
        return Accepted(job, repeated=False)

    def _repeated(self, job_id: JobId) -> Accepted:
        job = self.reads.find_job(job_id)
        assert job is not None
        return Accepted(job, repeated=True)

    def apply(self, changes: Sequence[Change], topic_of: TopicOf) -> list[bool]:
        return [self._apply(change, topic_of) for change in changes]

    def _apply(self, change: Change, topic_of: TopicOf) -> bool:
        before, after = change.before, change.after
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
        self.execute(REPLACE_JOB, (*values_anew(after), _look_at(after, topic_of), before.id, before.version))
        if not self._changes():
            return False
        if before.state is not after.state:
            self._count(before, -1)
            self._count(after, +1)
        return True

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
        if self._last_number is None:
            self._last_number = self.execute("SELECT coalesce(max(number), 0) FROM holdfast_events").fetchone()[0]
        self._last_number += 1
        self.events.append(
            JobEvent(
                number=self._last_number,
                tenant=job.tenant,
                job_id=job.id,
                kind=kind,
                state=job.state,
                attempt=job.attempts,
                fence=job.fence,
                at=self.now,
                detail=detail,
            )
        )

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


def _look_at(job: Job, topic_of: TopicOf) -> float | None:
    return None if job.state in TERMINAL else next_look(job, topic_of(job.topic), now=0.0)
