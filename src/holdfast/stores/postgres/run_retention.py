"""Retention of runs and posts in Postgres, in the manner of `retention`.

A run goes from the inside out, its own record last: whatever a batch leaves of it, the next one finds by that record.
"""

from __future__ import annotations

import asyncpg

from holdfast.core.job import JobId
from holdfast.core.record import ENDED, OF_A_RUN, Kind
from holdfast.core.retention import Limits
from holdfast.ports import Pruned
from holdfast.stores.postgres.link import Lines
from holdfast.stores.postgres.load import Asks
from holdfast.stores.postgres.retention import may_go, remove_events, remove_families
from holdfast.stores.retention import EVENTS_MAX, FAMILIES_MAX, LOOK_MAX, LOOSE, RECORDS, RUNS_MAX, Ended, Found, Spent

_RECORDS = """
    SELECT seq, kind, tenant, id, state, created_at FROM holdfast_records
    WHERE kind IN ('run', 'post') AND seq > $1 ORDER BY seq LIMIT $2
"""
# Of the run: its state, and when something of it last happened; NULL if that is the newest event of all.
_STANDING = """
    SELECT r.state, e.number, e.at, e.number = (SELECT max(number) FROM holdfast_events) AS newest
    FROM holdfast_records r LEFT JOIN LATERAL (
        SELECT number, at FROM holdfast_events WHERE run = r.id AND run <> '' AND tenant = r.tenant
        ORDER BY number DESC LIMIT 1) e ON true
    WHERE r.kind = 'run' AND r.tenant = $1 AND r.id = $2
"""
_ORIGINS = """
    SELECT DISTINCT coalesce(replay_of, id) AS id FROM holdfast_jobs
    WHERE run = $1 AND run <> '' AND tenant = $2 ORDER BY 1 LIMIT $3
"""
_REMOVE_RECORDS = """
    DELETE FROM holdfast_records WHERE (kind, tenant, id) IN (
        SELECT kind, tenant, id FROM holdfast_records
        WHERE kind = ANY ($1) AND tenant = $2 AND parent = $3 AND parent <> '' LIMIT $4)
"""
_OWN_EVENTS = """
    SELECT number, tenant FROM holdfast_events WHERE run = $1 AND run <> '' AND tenant = $2 ORDER BY number LIMIT $3
"""


async def find(lines: Lines, limits: Limits, after: int) -> Found[Ended]:
    rows = await lines.fetch(_RECORDS, after - RECORDS, LOOK_MAX)
    found: list[Ended] = []
    runs = 0
    for seq, kind, tenant, record_id, state, created_at in rows:
        if created_at >= limits.ended_before:
            return Found(found, LOOSE)  # from here on they are all too young
        record = Ended(seq, Kind(kind), tenant, record_id)
        if state not in ENDED[record.kind]:
            continue
        if record.kind is Kind.RUN:
            if not await _may_go(lines, record, limits):
                continue
            runs += 1
        found.append(record)
        if len(found) == FAMILIES_MAX or runs == RUNS_MAX:
            return Found(found, RECORDS + seq)
    return Found(found, RECORDS + rows[-1]["seq"] if len(rows) == LOOK_MAX else LOOSE)


async def prune(connection: asyncpg.Connection, found: Found[Ended], limits: Limits) -> Pruned:
    """In a transaction, under the lock."""
    posts = [record.seq for record in found.going if record.kind is Kind.POST]
    if posts:
        await connection.execute(
            "DELETE FROM holdfast_records WHERE kind = 'post' AND state = ANY ($2) AND seq = ANY ($1)",
            posts,
            sorted(ENDED[Kind.POST]),
        )
    jobs, rows_left = 0, EVENTS_MAX
    for record in found.going:
        if record.kind is Kind.POST or not await _has_ended(connection, record, limits):
            continue  # it was started again since
        spent = await _remove_run(connection, record, limits, rows_left)
        jobs += spent.jobs
        rows_left -= spent.rows
        if not spent.is_gone and (rows_left <= 0 or spent.jobs):
            return Pruned(jobs, RECORDS + record.seq - 1)
    return Pruned(jobs, found.after)


async def _has_ended(asks: Asks, run: Ended, limits: Limits) -> bool:
    rows = await asks.fetch(_STANDING, run.tenant, run.id)
    if not rows or rows[0]["state"] not in ENDED[Kind.RUN]:
        return False
    last = rows[0]
    return last["number"] is None or (not last["newest"] and last["at"] < limits.ended_before)


async def _may_go(asks: Asks, run: Ended, limits: Limits) -> bool:
    """Whether the run ended before the limits, and nothing of it is needed any more."""
    if not await _has_ended(asks, run, limits):
        return False
    origins = await _origins(asks, run, 2**31)
    return len(await may_go(asks, origins, limits, with_run=run.id)) == len(origins)


async def _origins(asks: Asks, run: Ended, limit: int) -> list[JobId]:
    return [row[0] for row in await asks.fetch(_ORIGINS, run.id, run.tenant, limit)]


async def _remove_run(connection: asyncpg.Connection, run: Ended, limits: Limits, rows_max: int) -> Spent:
    origins = await _origins(connection, run, FAMILIES_MAX)
    if origins:
        # Once more, in the transaction: a replay may have been submitted since.
        free = await may_go(connection, origins, limits, with_run=run.id)
        removed = await remove_families(connection, [origin for origin in origins if origin in free], rows_max)
        return Spent(removed.jobs, removed.events, is_gone=False)
    done = await connection.execute(_REMOVE_RECORDS, [kind.value for kind in OF_A_RUN], run.tenant, run.id, rows_max)
    rows = int(done.split()[-1])
    events = await connection.fetch(_OWN_EVENTS, run.id, run.tenant, rows_max - rows)
    await remove_events(connection, events)
    rows += len(events)
    if rows >= rows_max:
        return Spent(0, rows, is_gone=False)
    await connection.execute(
        "DELETE FROM holdfast_records WHERE kind = 'run' AND tenant = $1 AND id = $2", run.tenant, run.id
    )
    return Spent(0, rows, is_gone=True)
