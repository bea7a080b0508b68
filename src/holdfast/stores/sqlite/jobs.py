"""Jobs, events and keys in SQLite: what a ledger reads and writes, as plain statements inside a transaction somebody
else runs. No thread, no waiting, no commit here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.effect import Effect
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.states import EffectState
from holdfast.ports import DeadLetter, Delivery, RecordChange, Snapshot
from holdfast.stores.ledger import Ledger
from holdfast.stores.rows import bounds_values, effect_values, event_values, is_bounded_anew, values_anew
from holdfast.stores.sqlite import records
from holdfast.stores.sqlite.reads import Reads
from holdfast.stores.sqlite.rows import (
    INSERT_EVENT,
    INSERT_JOB,
    PAYLOAD_INLINE_MAX,
    REPLACE_BOUNDS,
    REPLACE_JOB,
    WRITE_EFFECT,
    inserted_values,
)
from holdfast.stores.sqlite.sessions import arrange, find_busy, is_at_work

if TYPE_CHECKING:
    import apsw


class SqliteLedger(Ledger):
    """The verbs of one transaction. `events` and `arrivals` are to be told of once it has committed."""

    def __init__(self, connection: apsw.Connection, now: float) -> None:
        super().__init__(now)
        self.reads = Reads(connection)
        self.arrivals: set[str] = set()
        self.execute: Callable[..., Any] = connection.execute
        self._execute_many = connection.executemany
        self._changes = connection.changes
        self._written = 0
        self._last_number: int | None = None
        self._listings: dict[tuple[Kind, Tenant, str], records.Listing] = {}
        """Of records whose versions were asked for and that were not written since."""

    # -- jobs --------------------------------------------------------------------------------------

    def find_job(self, job_id: JobId, /) -> Job | None:
        return self.reads.find_job(job_id)

    def version_of(self, job_id: JobId) -> int | None:
        row = self.execute("SELECT version FROM holdfast_jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else row[0]

    def add_job(self, job: Job, look_at: float | None) -> bool:
        self.execute(INSERT_JOB, (*inserted_values(job), *values_anew(job), look_at))
        if not self._changes():
            return False
        if len(job.payload) > PAYLOAD_INLINE_MAX:
            self.execute("INSERT INTO holdfast_payloads VALUES (?, ?)", (job.id, job.payload))
        return True

    def replace_job(self, before: Job, after: Job, look_at: float | None) -> bool:
        self.execute(REPLACE_JOB, (*values_anew(after), look_at, before.id, before.version))
        if not self._changes():
            return False
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

    def find_key(self, tenant: Tenant, key: str) -> tuple[str, JobId] | None:
        known: tuple[str, JobId] | None = self.execute(
            "SELECT digest, job_id FROM holdfast_keys WHERE tenant = ? AND key = ?", (tenant, key)
        ).fetchone()
        return known

    def add_key(self, tenant: Tenant, key: str, digest: str, job_id: JobId) -> None:
        self.execute("INSERT INTO holdfast_keys VALUES (?, ?, ?, ?)", (tenant, key, digest, job_id))

    # -- sessions and deliveries -------------------------------------------------------------------

    def is_at_work(self, job: Job) -> bool:
        return is_at_work(self.execute, job)

    def is_busy(self, tenant: Tenant, session: str, *, but: Collection[JobId]) -> bool:
        return find_busy(self.execute, tenant, session, but) is not None

    def arrange(self, job: Job) -> None:
        arrange(self.execute, job)

    def send(self, delivery: Delivery) -> None:
        self.execute(
            "INSERT OR IGNORE INTO holdfast_deliveries VALUES (?, ?, ?)",
            (delivery.worker, delivery.fence, delivery.job_id),
        )
        self.arrivals.add(delivery.worker)

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.execute(
                "DELETE FROM holdfast_deliveries WHERE worker = ? AND fence = ? AND job_id = ?",
                (delivery.worker, delivery.fence, delivery.job_id),
            )

    # -- records, effects, dead letters --------------------------------------------------------------

    def record_version(self, record: Record) -> int:
        version, listing = records.standing_of(self.execute, record)
        if listing is not None:
            self._listings[record.kind, record.tenant, record.id] = listing
        return version

    def write_record(self, change: RecordChange) -> None:
        record = change.after
        records.write(self.execute, change, self._listings.pop((record.kind, record.tenant, record.id), None))

    def find_effect(self, job_id: JobId, key: str, /) -> Effect | None:
        return self.reads.find_effect(job_id, key)

    def write_effect(self, effect: Effect) -> None:
        self.execute(WRITE_EFFECT, effect_values(effect))

    def has_open_effects(self, origin: JobId) -> bool:
        return self._has_effects(origin, EffectState.UNKNOWN) or self._has_effects(origin, EffectState.PREPARED)

    def _has_effects(self, origin: JobId, state: EffectState) -> bool:
        wanted = "SELECT 1 FROM holdfast_effects WHERE job_id = ? AND state = ? LIMIT 1"
        return self.execute(wanted, (origin, state)).fetchone() is not None

    def leave_effects_unknown(self, origin: JobId) -> list[tuple[str, int]]:
        if not self._has_effects(origin, EffectState.PREPARED):  # most jobs have none, and to look costs a fourth
            return []
        left: list[tuple[str, int]] = self.execute(
            "UPDATE holdfast_effects SET state = ?, settled_at = ? WHERE job_id = ? AND state = ? RETURNING key, fence",
            (EffectState.UNKNOWN, self.now, origin, EffectState.PREPARED),
        ).fetchall()
        return left

    def list_parked(self, origin: JobId, /) -> list[Job]:
        return self.reads.list_parked(origin)

    def find_dead_letter(self, tenant: Tenant, number: int, /) -> DeadLetter | None:
        return self.reads.find_dead_letter(tenant, number)

    def add_dead_letter(self, job: Job, reason: str) -> None:
        self.execute(
            "INSERT INTO holdfast_dead_letters (tenant, job_id, reason, at) VALUES (?, ?, ?, ?)",
            (job.tenant, job.id, reason, self.now),
        )

    def mark_replayed(self, number: int, replayed_as: JobId) -> None:
        self.execute("UPDATE holdfast_dead_letters SET replayed_as = ? WHERE number = ?", (replayed_as, number))

    # -- SQLite alone ------------------------------------------------------------------------------

    def write_snapshot(self, snapshot: Snapshot) -> bool:
        stored = self.reads.read_snapshot()
        if stored is not None and (stored.fence, stored.seq) >= (snapshot.fence, snapshot.seq):
            return False
        self.execute("INSERT OR REPLACE INTO holdfast_snapshot VALUES (1, ?, ?, ?, ?)", tuple(snapshot))
        return True

    def next_number(self) -> int:
        if self._last_number is None:
            self._last_number = self.execute("SELECT coalesce(max(number), 0) FROM holdfast_events").fetchone()[0]
        self._last_number += 1
        return self._last_number

    def finish(self) -> None:
        """Write the events and counts of all verbs together. Must precede the commit, and any read of them."""
        if self._written < len(self.events):
            self._execute_many(INSERT_EVENT, map(event_values, self.events[self._written :]))
            self._written = len(self.events)
        moved = [(tenant, state.value, delta) for (tenant, state), delta in self.counts.items() if delta]
        if moved:
            self._execute_many(
                "INSERT INTO holdfast_counts VALUES (?, ?, ?) "
                "ON CONFLICT (tenant, state) DO UPDATE SET jobs = jobs + excluded.jobs",
                moved,
            )
        self.counts.clear()

    def prune(self) -> None:
        self.finish()
        self.execute("DELETE FROM holdfast_counts WHERE jobs = 0")
