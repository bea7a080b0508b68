"""Retention in Postgres: what may go is looked for without the writer's lock, and removed under it in small batches.

Jobs and records are walked through in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import asyncpg

from holdfast.core.job import JobId
from holdfast.core.retention import Limits
from holdfast.ports import Pruned
from holdfast.stores.postgres.link import Lines
from holdfast.stores.postgres.load import Asks
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

_OURS = "(j.id = o.id OR j.replay_of = o.id)"
# Families that nobody needs any more; but for the run $4, if they go with it.
_MAY_GO = f"""
    SELECT o.id FROM unnest($1::text[]) AS o(id)
    WHERE NOT EXISTS (
        SELECT FROM holdfast_jobs j WHERE {_OURS} AND (
            j.look_at IS NOT NULL OR j.since >= $2
            OR j.run <> '' AND j.run <> $4
               AND EXISTS (SELECT FROM holdfast_records WHERE kind = 'run' AND tenant = j.tenant AND id = j.run)
            OR j.id = (SELECT job_id FROM holdfast_events ORDER BY number DESC LIMIT 1)
            OR EXISTS (
                SELECT FROM holdfast_dead_letters d WHERE d.job_id = j.id AND (
                    d.replayed_as IS NULL AND d.at >= $3
                    OR d.number = (SELECT max(number) FROM holdfast_dead_letters)))))
    AND NOT EXISTS (SELECT FROM holdfast_effects e WHERE e.job_id = o.id AND e.state IN ('prepared', 'unknown'))
"""  # noqa: S608  (a literal)
_FAMILIES = """
    SELECT o.n, j.id FROM unnest($1::text[]) WITH ORDINALITY AS o(id, n)
    JOIN holdfast_jobs j ON j.id = o.id OR j.replay_of = o.id ORDER BY o.n
"""
_EVENTS = """
    SELECT o.n, e.number, e.tenant FROM unnest($1::text[], $2::bigint[]) AS o(id, n)
    CROSS JOIN LATERAL (SELECT number, tenant FROM holdfast_events WHERE job_id = o.id ORDER BY number LIMIT $3) e
    ORDER BY o.n LIMIT $3
"""
_LEFT = "SELECT EXISTS (SELECT FROM holdfast_records), EXISTS (SELECT FROM holdfast_events WHERE job_id = '')"
_LOOSE = """
    SELECT number, tenant, run, at, number = (SELECT max(number) FROM holdfast_events) FROM holdfast_events
    WHERE job_id = '' AND number > $1 ORDER BY number LIMIT $2
"""
_REMOVE_EVENTS = "DELETE FROM holdfast_events WHERE number = ANY ($1)"
_NOTE_REMOVED = """
    INSERT INTO holdfast_pruned AS p (tenant, number)
    SELECT tenant, max(number) FROM unnest($1::text[], $2::bigint[]) AS x(tenant, number) GROUP BY tenant
    ON CONFLICT (tenant) DO UPDATE SET number = greatest(p.number, excluded.number)
"""
_REMOVALS = (
    # The jobs themselves last: they are what knows the tenant.
    (
        "DELETE FROM holdfast_records r USING holdfast_jobs j WHERE j.id = ANY ($1) "
        "AND r.kind = 'approval' AND r.tenant = j.tenant AND r.parent = j.id AND r.parent <> ''"
    ),
    (
        "DELETE FROM holdfast_records r USING holdfast_jobs j WHERE j.id = ANY ($1) "
        "AND r.kind = 'result' AND r.tenant = j.tenant AND r.id = j.id"
    ),
    "DELETE FROM holdfast_keys WHERE job_id = ANY ($1)",
    "DELETE FROM holdfast_effects WHERE job_id = ANY ($1)",
    "DELETE FROM holdfast_dead_letters WHERE job_id = ANY ($1)",
    "DELETE FROM holdfast_jobs WHERE id = ANY ($1)",
)


class Removed(NamedTuple):
    jobs: int
    events: int
    families: int
    """How many are gone altogether, of those asked for, in their order."""


async def find(lines: Lines, limits: Limits, after: int) -> Found[Origin]:
    rows = await lines.fetch(
        "SELECT seq, id, created_at, replay_of, look_at FROM holdfast_jobs WHERE seq > $1 ORDER BY seq LIMIT $2",
        after,
        LOOK_MAX,
    )
    old = [row for row in rows if row["created_at"] < limits.ended_before]
    # From the first that is too young on, they all are.
    reached = rows.index(next(row for row in rows if row not in old)) if len(old) < len(rows) else len(rows)
    ended = [row for row in rows[:reached] if row["replay_of"] is None and row["look_at"] is None]
    free = await may_go(lines, [row["id"] for row in ended], limits) if ended else set()
    origins = [Origin(row["seq"], row["id"]) for row in ended if row["id"] in free]
    if len(origins) >= FAMILIES_MAX:
        return Found(origins[:FAMILIES_MAX], origins[FAMILIES_MAX - 1].seq)
    if reached == LOOK_MAX:
        return Found(origins, rows[-1]["seq"])
    [(any_record, any_loose)] = await lines.fetch(_LEFT)
    return Found(origins, RECORDS if any_record else LOOSE if any_loose else None)


async def find_loose(lines: Lines, limits: Limits, after: int) -> Found[Loose]:
    """Events that nothing takes with it. The newest of all stays."""
    return loose_among(await lines.fetch(_LOOSE, after - LOOSE, LOOK_MAX), limits)


async def prune_loose(connection: asyncpg.Connection, found: Found[Loose]) -> Pruned:
    """In a transaction, under the lock."""
    await remove_events(connection, [event._asdict() for event in found.going])
    return Pruned(0, found.after)


async def prune(connection: asyncpg.Connection, found: Found[Origin], limits: Limits) -> Pruned:
    """In a transaction, under the lock."""
    # Once more: a replay may have been submitted since.
    free = await may_go(connection, [origin.id for origin in found.going], limits)
    going = [origin for origin in found.going if origin.id in free]
    removed = await remove_families(connection, [origin.id for origin in going], EVENTS_MAX)
    await connection.execute("DELETE FROM holdfast_counts WHERE jobs = 0")
    if removed.families < len(going):
        # The history before the job: whatever is left of this family, the next batch finds again.
        return Pruned(removed.jobs, going[removed.families].seq - 1)
    return Pruned(removed.jobs, found.after)


async def may_go(asks: Asks, origins: Collection[JobId], limits: Limits, *, with_run: str = "") -> set[JobId]:
    """Those whose jobs and replays nobody needs any more; but for their run, if it goes with them."""
    rows = await asks.fetch(_MAY_GO, list(origins), limits.ended_before, limits.letters_before, with_run)
    return {row[0] for row in rows}


async def remove_families(connection: asyncpg.Connection, origins: Sequence[JobId], events_max: int) -> Removed:
    """Events first, oldest first and no more than `events_max`; jobs of which none is left then."""
    if not origins:
        return Removed(0, 0, 0)
    members = await connection.fetch(_FAMILIES, list(origins))
    events = await connection.fetch(_EVENTS, [row["id"] for row in members], [row["n"] for row in members], events_max)
    await remove_events(connection, events)
    complete = len(origins) if len(events) < events_max else events[-1]["n"] - 1
    gone = [row["id"] for row in members if row["n"] <= complete]
    for statement in _REMOVALS if gone else ():
        await connection.execute(statement, gone)
    return Removed(len(gone), len(events), complete)


async def remove_events(connection: asyncpg.Connection, events: Sequence[Any]) -> None:
    if events:
        numbers = [row["number"] for row in events]
        await connection.execute(_REMOVE_EVENTS, numbers)
        await connection.execute(_NOTE_REMOVED, [row["tenant"] for row in events], numbers)
