"""Retention of runs and posts in SQLite, in the manner of `retention`: found beside the writer, removed in batches.

Records are walked through in the order in which they came. A run goes from the inside out, its own record
last: whatever a batch leaves of it, the next one finds by that record.
"""

from __future__ import annotations

from holdfast.core.job import JobId
from holdfast.core.record import ENDED, OF_A_RUN, Kind
from holdfast.core.retention import Limits
from holdfast.ports import Pruned
from holdfast.stores.retention import EVENTS_MAX, FAMILIES_MAX, LOOK_MAX, LOOSE, RECORDS, Ended, Found, Spent
from holdfast.stores.sqlite.jobs import SqliteLedger
from holdfast.stores.sqlite.reads import Reads
from holdfast.stores.sqlite.retention import family_of, may_go, note_removed, remove_events, remove_jobs


def find(reads: Reads, limits: Limits, after: int) -> Found[Ended]:
    rows = reads.execute(
        "SELECT rowid, kind, tenant, id, state, created_at FROM holdfast_records WHERE rowid > ? ORDER BY rowid LIMIT ?",
        (after - RECORDS, LOOK_MAX),
    ).fetchall()
    found: list[Ended] = []
    for row, kind, tenant, record_id, state, created_at in rows:
        if kind not in (Kind.RUN, Kind.POST):
            continue  # before its age is looked at: other records are written anew in their old place
        if created_at >= limits.ended_before:
            return Found(found, LOOSE)  # from here on they are all too young
        if state not in ENDED[kind]:
            continue
        record = Ended(row, Kind(kind), tenant, record_id)
        if record.kind is Kind.POST or _may_go(reads, record, limits):
            found.append(record)
            if len(found) == FAMILIES_MAX:
                return Found(found, RECORDS + row)
    return Found(found, RECORDS + rows[-1][0] if len(rows) == LOOK_MAX else LOOSE)


def prune(ledger: SqliteLedger, found: Found[Ended], limits: Limits) -> Pruned:
    # What this transaction has told of so far is not in the table yet: the newest event is among it.
    ledger.finish()
    jobs, rows_left = 0, EVENTS_MAX
    for record in found.going:
        if not _has_ended(ledger.reads, record, limits):
            continue  # it was started again since
        if record.kind is Kind.POST:
            ledger.execute("DELETE FROM holdfast_records WHERE rowid = ?", (record.seq,))
            continue
        spent = _remove_run(ledger, record, limits, rows_left)
        jobs += spent.jobs
        rows_left -= spent.rows
        if not spent.is_gone and (rows_left <= 0 or spent.jobs):
            return Pruned(jobs, RECORDS + record.seq - 1)
    return Pruned(jobs, found.after)


def _has_ended(reads: Reads, record: Ended, limits: Limits) -> bool:
    row = reads.execute(
        "SELECT state, created_at FROM holdfast_records WHERE kind = ? AND tenant = ? AND id = ?",
        (record.kind.value, record.tenant, record.id),
    ).fetchone()
    if row is None or row[0] not in ENDED[record.kind]:
        return False
    if record.kind is Kind.POST:
        return True
    last = reads.execute(
        "SELECT number, at FROM holdfast_events WHERE run = ? AND run != '' AND tenant = ? ORDER BY number DESC LIMIT 1",
        (record.id, record.tenant),
    ).fetchone()
    if last is None:
        return True
    [(newest,)] = reads.execute("SELECT max(number) FROM holdfast_events")
    return bool(last[0] != newest and last[1] < limits.ended_before)


def _may_go(reads: Reads, run: Ended, limits: Limits) -> bool:
    """Whether the run ended before the limits, and nothing of it is needed any more."""
    return _has_ended(reads, run, limits) and all(
        may_go(reads, origin, limits, with_run=run.id) for origin in _origins(reads, run, -1)
    )


def _origins(reads: Reads, run: Ended, limit: int) -> list[JobId]:
    rows = reads.execute(
        "SELECT DISTINCT coalesce(replay_of, id) FROM holdfast_jobs "
        "WHERE run = ? AND run != '' AND tenant = ? ORDER BY id LIMIT ?",
        (run.id, run.tenant, limit),
    )
    return [origin for (origin,) in rows.fetchall()]


def _remove_run(ledger: SqliteLedger, run: Ended, limits: Limits, rows_max: int) -> Spent:
    jobs, rows = 0, 0
    for origin in _origins(ledger.reads, run, FAMILIES_MAX):
        # Once more, in the transaction: a replay may have been submitted since.
        if not may_go(ledger.reads, origin, limits, with_run=run.id):
            return Spent(jobs, rows, is_gone=False)
        family = family_of(ledger.reads, origin)
        rows += remove_events(ledger, family, rows_max - rows)
        if rows >= rows_max:
            return Spent(jobs, rows, is_gone=False)
        remove_jobs(ledger, family)
        jobs += len(family)
    if jobs == 0:
        rows += _remove_records(ledger, run, rows_max - rows)
        rows += _remove_own_events(ledger, run, rows_max - rows)
    if jobs or rows >= rows_max:
        return Spent(jobs, rows, is_gone=False)
    ledger.execute("DELETE FROM holdfast_records WHERE rowid = ?", (run.seq,))
    return Spent(jobs, rows, is_gone=True)


def _remove_records(ledger: SqliteLedger, run: Ended, limit: int) -> int:
    removed = 0
    for kind in OF_A_RUN:
        gone = ledger.execute(
            "DELETE FROM holdfast_records WHERE rowid IN (SELECT rowid FROM holdfast_records "
            "WHERE kind = ? AND tenant = ? AND parent = ? AND parent != '' LIMIT ?) RETURNING 1",
            (kind.value, run.tenant, run.id, limit - removed),
        ).fetchall()
        removed += len(gone)
    return removed


def _remove_own_events(ledger: SqliteLedger, run: Ended, limit: int) -> int:
    gone = ledger.execute(
        "DELETE FROM holdfast_events WHERE number IN (SELECT number FROM holdfast_events "
        "WHERE run = ? AND run != '' AND tenant = ? ORDER BY number LIMIT ?) RETURNING number, tenant",
        (run.id, run.tenant, limit),
    ).fetchall()
    note_removed(ledger, gone)
    return len(gone)
