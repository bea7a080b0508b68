"""Retention in SQLite: what may go is looked for beside the writer, and removed by it in small batches.

Jobs are walked through in the order in which they came, which is that of their table: no index is
kept for this, so a job that ends pays nothing for being removed one day.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.effect import UNSETTLED
from holdfast.core.job import JobId, Tenant
from holdfast.core.retention import Limits
from holdfast.ports import Pruned
from holdfast.stores.retention import (
    EVENTS_MAX,
    FAMILIES_MAX,
    LOOK_MAX,
    LOOSE,
    RECORDS,
    Found,
    Loose,
    Origin,
    loose_among,
)
from holdfast.stores.sqlite.jobs import SqliteLedger
from holdfast.stores.sqlite.reads import Reads

_REMOVALS = (
    # The job itself last: it is what knows the tenant.
    (
        "DELETE FROM holdfast_records WHERE kind = 'approval' AND parent = ?1 AND parent != '' "
        "AND tenant = (SELECT tenant FROM holdfast_jobs WHERE id = ?1)"
    ),
    (
        "DELETE FROM holdfast_records WHERE kind = 'result' AND id = ?1 "
        "AND tenant = (SELECT tenant FROM holdfast_jobs WHERE id = ?1)"
    ),
    "DELETE FROM holdfast_payloads WHERE job_id = ?",
    "DELETE FROM holdfast_keys WHERE job_id = ?",
    "DELETE FROM holdfast_effects WHERE job_id = ?",
    "DELETE FROM holdfast_dead_letters WHERE job_id = ?",
    "DELETE FROM holdfast_jobs WHERE id = ?",
)


def find(reads: Reads, limits: Limits, after: int) -> Found[Origin]:
    rows = reads.execute(
        "SELECT seq, id, created_at, replay_of, look_at FROM holdfast_jobs WHERE seq > ? ORDER BY seq LIMIT ?",
        (after, LOOK_MAX),
    ).fetchall()
    origins: list[Origin] = []
    for seq, job_id, created_at, replay_of, look_at in rows:
        if created_at >= limits.ended_before:
            return Found(origins, _next_place(reads))  # from here on they are all too young
        if replay_of is None and look_at is None and may_go(reads, job_id, limits):
            origins.append(Origin(seq, job_id))
            if len(origins) == FAMILIES_MAX:
                return Found(origins, seq)
    return Found(origins, rows[-1][0] if len(rows) == LOOK_MAX else _next_place(reads))


def _next_place(reads: Reads) -> int | None:
    """Where to go on after the jobs."""
    [(any_record, any_loose)] = reads.execute(
        "SELECT EXISTS (SELECT 1 FROM holdfast_records), EXISTS (SELECT 1 FROM holdfast_events WHERE job_id = '')"
    )
    return RECORDS if any_record else LOOSE if any_loose else None


def find_loose(reads: Reads, limits: Limits, after: int) -> Found[Loose]:
    """Events that nothing takes with it. The newest of all stays."""
    rows = reads.execute(
        "SELECT number, tenant, run, at, number = (SELECT max(number) FROM holdfast_events) FROM holdfast_events "
        "WHERE job_id = '' AND number > ? ORDER BY number LIMIT ?",
        (after - LOOSE, LOOK_MAX),
    ).fetchall()
    return loose_among(rows, limits)


def prune_loose(ledger: SqliteLedger, found: Found[Loose]) -> Pruned:
    for event in found.going:
        ledger.execute("DELETE FROM holdfast_events WHERE number = ?", (event.number,))
    for tenant, number in {event.tenant: event.number for event in found.going}.items():  # the last of each
        note_removed(ledger, [(number, tenant)])
    return Pruned(0, found.after)


def prune(ledger: SqliteLedger, found: Found[Origin], limits: Limits) -> Pruned:
    # What this transaction has told of so far is not in the table yet: the newest event is among it.
    ledger.finish()
    events_left, jobs = EVENTS_MAX, 0
    for origin in found.going:
        # Once more, in the transaction: a replay may have been submitted since.
        if not may_go(ledger.reads, origin.id, limits):
            continue
        family = family_of(ledger.reads, origin.id)
        events_left -= remove_events(ledger, family, events_left)
        if events_left <= 0:
            # The history before the job: whatever is left of this family, the next batch finds again.
            return Pruned(jobs, origin.seq - 1)
        remove_jobs(ledger, family)
        jobs += len(family)
    return Pruned(jobs, found.after)


def pruned_until(reads: Reads, tenant: Tenant | None) -> int:
    where, values = ("WHERE tenant = ?", (tenant,)) if tenant is not None else ("", ())
    row = reads.execute(
        f"SELECT coalesce(max(number), 0) FROM holdfast_pruned {where}",  # noqa: S608  (one of the two literals above)
        values,
    ).fetchone()
    number: int = row[0]
    return number


def family_of(reads: Reads, origin: JobId) -> list[JobId]:
    """The job and its replays."""
    rows = reads.execute("SELECT id FROM holdfast_jobs WHERE id = ?1 OR replay_of = ?1", (origin,))
    return [job_id for (job_id,) in rows.fetchall()]


def may_go(reads: Reads, origin: JobId, limits: Limits, *, with_run: str = "") -> bool:
    """Whether nobody needs the job and its replays any more; but for their run, if it goes with them."""
    alive = reads.execute(
        "SELECT 1 FROM holdfast_jobs AS job WHERE (id = ?1 OR replay_of = ?1) "
        "AND (look_at IS NOT NULL OR since >= ?2 OR run != '' AND run != ?3 AND EXISTS "
        "  (SELECT 1 FROM holdfast_records WHERE kind = 'run' AND tenant = job.tenant AND id = job.run)) LIMIT 1",
        (origin, limits.ended_before, with_run),
    ).fetchone()
    if alive is not None:
        return False
    unsettled = reads.execute(
        "SELECT 1 FROM holdfast_effects WHERE job_id = ? AND state IN (?, ?) LIMIT 1",
        (origin, *UNSETTLED),
    ).fetchone()
    return unsettled is None and not any(_is_wanted(reads, job_id, limits) for job_id in family_of(reads, origin))


def _is_wanted(reads: Reads, job_id: JobId, limits: Limits) -> bool:
    """Whether a dead letter of the job waits for a person, or it has one of the newest numbers."""
    row = reads.execute(
        "SELECT EXISTS (SELECT 1 FROM holdfast_dead_letters WHERE job_id = ?1 "
        "  AND (replayed_as IS NULL AND at >= ?2 OR number = (SELECT max(number) FROM holdfast_dead_letters))) "
        "OR ?1 = (SELECT job_id FROM holdfast_events ORDER BY number DESC LIMIT 1)",
        (job_id, limits.letters_before),
    ).fetchone()
    return bool(row[0])


def remove_events(ledger: SqliteLedger, family: Sequence[JobId], limit: int) -> int:
    """Remove up to `limit` events, oldest first, and note how far; how many there were."""
    removed = 0
    for job_id in family:
        if removed == limit:
            break
        rows = ledger.execute(
            "DELETE FROM holdfast_events WHERE number IN "
            "(SELECT number FROM holdfast_events WHERE job_id = ? ORDER BY number LIMIT ?) RETURNING number, tenant",
            (job_id, limit - removed),
        ).fetchall()
        note_removed(ledger, rows)
        removed += len(rows)
    return removed


def note_removed(ledger: SqliteLedger, events: Sequence[tuple[int, str]]) -> None:
    """(number, tenant) of events of one tenant that are gone."""
    if events:
        number, tenant = max(events)
        ledger.execute(
            "INSERT INTO holdfast_pruned VALUES (?, ?) "
            "ON CONFLICT (tenant) DO UPDATE SET number = max(number, excluded.number)",
            (tenant, number),
        )


def remove_jobs(ledger: SqliteLedger, family: Sequence[JobId]) -> None:
    for job_id in family:
        for statement in _REMOVALS:
            ledger.execute(statement, (job_id,))
