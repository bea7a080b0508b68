"""One batch of writes, decided in memory: what it asks for is loaded before, what comes of it written after.

That makes a transaction of many callers a handful of round trips to a server, however many callers there are.
Nothing here waits, and nothing here knows the server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core.effect import UNSETTLED, Effect
from holdfast.core.job import PARKED_UNTIL, Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.states import TERMINAL, EffectState, State
from holdfast.ports import Change, DeadLetter, Delivery, Note, RecordChange, Submission, Transaction
from holdfast.stores.ledger import Ledger
from holdfast.stores.rows import is_bounded_anew

AT_WORK = (State.DISPATCHED, State.RUNNING)

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
    busy_sessions: set[tuple[str, str]] = field(default_factory=set)
    """Of each `busy_max` jobs in full that make it busy, or all, if there are no more than that."""
    letters: set[int] = field(default_factory=set)
    stopped_before: int = 0
    """How many jobs may be stopped by calls of the batch that are decided before."""

    @property
    def busy_max(self) -> int:
        """One more than the batch may stop: where so many were there, one is left."""
        return self.stopped_before + len(self.versions) + 1

    def of_who_follows(self) -> Needs:
        """For calls that join the batch when all this has been loaded, and are decided after it."""
        return Needs(stopped_before=self.stopped_before + len(self.versions))

    def submission(self, submission: Submission) -> None:
        job = submission.job
        self.submitted.add(job.id)
        if submission.key is not None:
            self.keys.add((job.tenant, submission.key))
        if submission.alone and job.session:
            self.busy_sessions.add((job.tenant, job.session))
        if job.run and job.state in TERMINAL:
            self.records.add((Kind.RESULT.value, job.tenant, job.id))
        self.record_changes(submission.records)
        self.notes(submission.notes)
        for change in submission.changes:
            self.change(change)

    def change(self, change: Change) -> None:
        before, after = change.before, change.after
        self.versions.add(before.id)
        if after.session:
            self.sessions.add((after.tenant, after.session))
        if after.run and after.state in TERMINAL and not change.heard:
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


class BatchLedger(Ledger):
    """A ledger over what was loaded. The attributes up to `last_number` are filled in by whoever loads."""

    def __init__(self, now: float) -> None:
        super().__init__(now)
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

    def find_job(self, job_id: JobId, /) -> Job | None:
        return self.jobs.get(job_id)

    def version_of(self, job_id: JobId) -> int | None:
        return self.versions.get(job_id)

    def add_job(self, job: Job, look_at: float | None) -> bool:
        if job.id in self.versions:
            return False
        self._keep(job)
        self.new_jobs[job.id] = look_at
        return True

    def replace_job(self, before: Job, after: Job, look_at: float | None) -> bool:
        if self.versions.get(before.id) != before.version:
            return False
        if before.id in self.new_jobs:
            self.new_jobs[before.id] = look_at
        else:
            first, _ = self.replaced.get(before.id, (before.version, None))
            self.replaced[before.id] = (first, look_at)
            if after.payload != before.payload:
                self.payloads.add(before.id)
            if is_bounded_anew(before, after):
                self.rebound.add(before.id)
        known = self.jobs.get(before.id)
        if known is not None and not after.payload:  # it was listed without: others of this batch ask for it in full
            after = replace(after, payload=known.payload)
        if after.state is State.DISPATCHED and before.state is not State.DISPATCHED:
            self.dispatched_here.add(Delivery(after.worker, after.id, after.fence))
        self._keep(after)
        return True

    def _keep(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.versions[job.id] = job.version
        if job.session:
            at_work = self.at_work.setdefault((job.tenant, job.session), set())
            (at_work.add if job.state in AT_WORK else at_work.discard)(job.id)

    def find_key(self, tenant: Tenant, key: str) -> tuple[str, JobId] | None:
        return self.keys.get((tenant, key))

    def add_key(self, tenant: Tenant, key: str, digest: str, job_id: JobId) -> None:
        self.keys[tenant, key] = (digest, job_id)
        self.new_keys.append((tenant, key, digest, job_id))

    def next_number(self) -> int:
        self.last_number += 1
        return self.last_number

    # -- sessions and deliveries -------------------------------------------------------------------

    def is_at_work(self, job: Job) -> bool:
        return bool(self.at_work.get((job.tenant, job.session), set()) - {job.id})

    def is_busy(self, tenant: Tenant, session: str, *, but: Collection[JobId]) -> bool:
        ours = (job for job in self.jobs.values() if job.session == session and job.tenant == tenant)
        return any(job.makes_busy and job.id not in but for job in ours)

    def arrange(self, job: Job) -> None:
        self.stirred_sessions.add((job.tenant, job.session))

    def send(self, delivery: Delivery) -> None:
        self.sent[delivery] = None
        self.settled.pop(delivery, None)

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.sent.pop(delivery, None)
            if delivery not in self.dispatched_here:  # else it was never written
                self.settled[delivery] = None

    # -- records, effects, dead letters --------------------------------------------------------------

    def record_version(self, record: Record) -> int:
        return self.records.get(place_of(record), 0)

    def write_record(self, change: RecordChange) -> None:
        place = place_of(change.after)
        self.records[place] = 0 if change.remove else change.after.version
        self.written_records[place] = None if change.remove else change.after

    def find_effect(self, job_id: JobId, key: str, /) -> Effect | None:
        return self.effects.get(job_id, {}).get(key)

    def write_effect(self, effect: Effect) -> None:
        self.effects.setdefault(effect.job_id, {})[effect.key] = effect
        self.written_effects.add((effect.job_id, effect.key))

    def has_open_effects(self, origin: JobId) -> bool:
        return any(effect.state in UNSETTLED for effect in self.effects.get(origin, {}).values())

    def leave_effects_unknown(self, origin: JobId) -> list[tuple[str, int]]:
        left = [e for e in self.effects.get(origin, {}).values() if e.state is EffectState.PREPARED]
        for effect in left:
            self.write_effect(replace(effect, state=EffectState.UNKNOWN, settled_at=self.now))
        return [(effect.key, effect.fence) for effect in left]

    def list_parked(self, origin: JobId, /) -> list[Job]:
        ours = (job for job in self.jobs.values() if job.origin == origin and job.state is State.SCHEDULED)
        return sorted((job for job in ours if job.not_before >= PARKED_UNTIL), key=lambda job: job.id)

    def find_dead_letter(self, tenant: Tenant, number: int, /) -> DeadLetter | None:
        letter = self.letters.get(number)
        return letter if letter is not None and letter.tenant == tenant else None

    def add_dead_letter(self, job: Job, reason: str) -> None:
        self.new_letters.append(Letter(job.tenant, job.id, reason, self.now))

    def mark_replayed(self, number: int, replayed_as: JobId) -> None:
        self.replays[number] = replayed_as
        self.letters[number] = dataclasses.replace(self.letters[number], replayed_as=replayed_as)
