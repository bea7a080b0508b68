"""What can be read of jobs in Postgres, each as one statement that an index answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from holdfast.core.effect import Effect, EffectPlace
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.placement import REQUIRE
from holdfast.core.states import EffectState, State
from holdfast.locks.stores.postgres.free import array
from holdfast.ports import DeadLetter, Delivery, JobEvent, JobFilter, Overdue, Snapshot
from holdfast.stores.dispatchable import Without
from holdfast.stores.postgres.link import Lines
from holdfast.stores.postgres.rows import (
    DELIVERY,
    MAKES_BUSY,
    SELECT_BARE_JOB,
    SELECT_EFFECT,
    SELECT_EVENT,
    SELECT_JOB,
    SELECT_LISTED_JOB,
    arrays_of,
    rows_of,
)
from holdfast.stores.rows import effect_of, event_of, job_of, json_text

# What is due ($1), in these states ($2), behind a place ($3, $4), so many ($5). States are looked for by the index of
# their own: most that is due are jobs that wait for a worker, and there may be very many. What is not due yet is cut
# off at the end: bounded on both sides, a range looks so small to Postgres that it sorts all of it for every page.
_NEXT = "state = ANY ($2::text[]) AND (look_at, id) > ($3, $4) ORDER BY look_at, id LIMIT $5"
_DUE_BY_STATE = {
    ("PENDING", "APPROVAL_REQUIRED"): "holdfast_jobs WHERE state IN ('PENDING', 'APPROVAL_REQUIRED')",
    ("SCHEDULED",): "holdfast_jobs WHERE look_at IS NOT NULL AND state = 'SCHEDULED'",
    ("DISPATCHED", "RUNNING"): "at_work WHERE true",
}
_DUE_AMONG = """
    WITH at_work AS MATERIALIZED (SELECT id, look_at, state FROM holdfast_jobs WHERE state IN ('DISPATCHED', 'RUNNING'))
    SELECT id, look_at FROM ({}) due WHERE look_at <= $1 ORDER BY look_at, id LIMIT $5
"""
_READY = "state = 'SCHEDULED' AND NOT behind AND (-priority)"
# What is left out: topics, keys of limits, and demands that are not met ($9: which of many lists a topic has; $10: the lists, of
# sets of labels; both as JSON). A list contains a demand if one of its sets does. Mostly somebody wants what is in none of
# them ($11: every label, as keys): that is asked first, and costs the same for any number of sets. An aggregate: what EXISTS
# asks may be answered by a join, which reads all that is ready before the first.
_LET_IN = f"""
    j.topic <> ALL ($6::text[]) AND j.limit_key <> ALL ($8::text[]) AND (NOT jsonb_exists($9::jsonb, j.topic) OR (
        SELECT CASE WHEN bool_and(jsonb_exists($11::jsonb, wanted.key || '=' || wanted.value))
        THEN ($10::jsonb -> ($9::jsonb ->> j.topic)::int) @> jsonb_build_array(jsonb_object_agg(wanted.key, wanted.value))
        ELSE count(*) = 0 END
        FROM jsonb_each_text(j.labels::jsonb) AS wanted WHERE starts_with(wanted.key, '{REQUIRE}')
    ))
"""  # noqa: S608  (a literal)
# The next urgency after $1, and of its jobs: one of each tenant, then another of each, and so on; each round oldest
# first. The first round goes on with the tenants where it ended the last time ($2: urgencies, $3: tenants), for there
# may be more of them than fit. Tenants are walked through by jumps through the index, no further than needed.
_DISPATCHABLE = f"""
    WITH RECURSIVE here AS MATERIALIZED (
        SELECT (-priority) AS urgency FROM holdfast_jobs WHERE {_READY} > $1 ORDER BY (-priority) LIMIT 1
    ), start AS MATERIALIZED (
        SELECT coalesce((SELECT t.tenant FROM here JOIN unnest($2::text::int[], $3::text[]) AS t(urgency, tenant)
                         USING (urgency)), '') COLLATE "C" AS tenant
    ), ahead AS (
        (SELECT tenant FROM holdfast_jobs WHERE {_READY} = (SELECT urgency FROM here)
         AND tenant > (SELECT tenant FROM start) ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT j.tenant FROM holdfast_jobs j WHERE {_READY} = (SELECT urgency FROM here)
                AND j.tenant > a.tenant ORDER BY j.tenant LIMIT 1)
        FROM ahead a WHERE a.tenant IS NOT NULL
    ), wrapped AS (
        (SELECT tenant FROM holdfast_jobs WHERE {_READY} = (SELECT urgency FROM here)
         AND tenant <= (SELECT tenant FROM start) ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT j.tenant FROM holdfast_jobs j WHERE {_READY} = (SELECT urgency FROM here)
                AND j.tenant > w.tenant AND j.tenant <= (SELECT tenant FROM start) ORDER BY j.tenant LIMIT 1)
        FROM wrapped w WHERE w.tenant IS NOT NULL
    ), served AS MATERIALIZED (
        SELECT t.tenant, row_number() OVER () AS turn FROM (
            SELECT t.tenant FROM (SELECT tenant FROM ahead UNION ALL SELECT tenant FROM wrapped) t
            CROSS JOIN LATERAL (
                SELECT FROM holdfast_jobs j WHERE {_READY} = (SELECT urgency FROM here) AND j.tenant = t.tenant
                AND j.not_before <= $4 AND {_LET_IN} LIMIT 1
            ) any_of_it
            WHERE t.tenant <> ALL ($7::text[]) LIMIT $5
        ) t
    ), chosen AS (
        SELECT first.id, first.not_before, first.round, served.turn, served.tenant FROM served
        CROSS JOIN LATERAL (
            SELECT q.id, q.not_before, row_number() OVER (ORDER BY q.not_before, q.id) AS round FROM (
                SELECT j.id, j.not_before FROM holdfast_jobs j
                WHERE {_READY} = (SELECT urgency FROM here) AND j.tenant = served.tenant
                AND j.not_before <= $4 AND {_LET_IN}
                ORDER BY j.not_before, j.id LIMIT $5 - (SELECT count(*) FROM served) + 1
            ) q
        ) first
        ORDER BY first.round, first.not_before, first.id LIMIT $5
    )
    SELECT j.*, chosen.turn, here.urgency FROM here LEFT JOIN chosen ON true
    LEFT JOIN LATERAL ({SELECT_LISTED_JOB} WHERE id = chosen.id) j ON true
    ORDER BY chosen.round, chosen.not_before, chosen.id
"""  # noqa: S608  (names of columns)


class Reads:
    def __init__(self, lines: Lines) -> None:
        self._fetch = lines.fetch
        self._turns: dict[int, str] = {}
        """Where the turn between tenants stands, for each urgency: the last tenant that had its turn."""

    async def find_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._jobs(SELECT_JOB, ids)

    async def _jobs(self, select: str, ids: Sequence[JobId]) -> list[Job | None]:
        found = {row[0]: job_of(row) for row in await self._fetch(f"{select} WHERE id = ANY ($1)", list(ids))}
        return [found.get(job_id) for job_id in ids]

    async def list_jobs(self, tenant: Tenant, wanted: JobFilter, before: JobId | None, limit: int) -> list[Job]:
        where = Where("tenant = ?", tenant)
        if wanted.state is not None:
            where.also(f"state = '{wanted.state}'")
        if wanted.state in {State.DISPATCHED, State.RUNNING} and wanted.worker:
            where.also("state IN ('DISPATCHED', 'RUNNING')")  # the index's own condition: else it is not taken
        if wanted.worker:
            where.also("worker = ?", wanted.worker)
        if wanted.topic.endswith("*"):
            where.also("starts_with(topic, ?)", wanted.topic[:-1])
        elif wanted.topic:
            where.also("topic = ?", wanted.topic)
        for name, value in wanted.labels.items():
            where.also("labels::json ->> ? = ?", name, value)
        if before is not None:
            where.also("id < ?", before)
        rows = await self._fetch(f"{SELECT_JOB} WHERE {where} ORDER BY id DESC {where.limit(limit)}", *where.values)
        return [job_of(row) for row in rows]

    async def list_dispatchable(self, now: float, limit: int, without: Without) -> list[Job]:
        found: list[Job] = []
        urgency: int | None = -1000
        while urgency is not None and len(found) < limit:
            urgency, jobs = await self._in_turn(urgency, now, limit - len(found), without)
            found += jobs
        return found

    async def _in_turn(self, after: int, now: float, room: int, without: Without) -> tuple[int | None, list[Job]]:
        """The next urgency after `after`, and who of it is next."""
        rows = await self._fetch(
            _DISPATCHABLE,
            after,
            array(list(self._turns)),
            list(self._turns.values()),
            now,
            room,
            without.topics,
            sorted(without.tenants),
            without.keys,
            json_text({topic: many for many, met in enumerate(without.met) for topic in met.topics}),
            json_text([[dict(labels) for labels in met.by] for met in without.met]),
            json_text({f"{name}={value}": 1 for met in without.met for labels in met.by for name, value in labels}),
        )
        if not rows:
            return None, []
        urgency: int = rows[0]["urgency"]
        chosen = [row for row in rows if row["id"] is not None]
        for row in chosen:
            if row["turn"] == room:  # more tenants than fit: the next list goes on after this one
                self._turns[urgency] = row["tenant"]
        return urgency, [job_of(row) for row in chosen]

    async def list_in_hand(self, workers: Sequence[str], *, bare: bool) -> list[Job]:
        rows = await self._fetch(
            f"{SELECT_BARE_JOB if bare else SELECT_JOB} "
            "WHERE worker = ANY ($1::text[]) AND state IN ('DISPATCHED', 'RUNNING') ORDER BY id",
            list(workers),
        )
        return [job_of(row) for row in rows]

    async def list_session(self, tenant: Tenant, session: str) -> list[Job]:
        rows = await self._fetch(
            f"{SELECT_BARE_JOB} WHERE tenant = $1 AND session = $2 AND session <> '' AND look_at IS NOT NULL ORDER BY id",
            tenant,
            session,
        )
        return [job_of(row) for row in rows]

    async def find_busy(self, tenant: Tenant, session: str) -> Job | None:
        rows = await self._fetch(
            f"{SELECT_JOB} WHERE tenant = $1 AND session = $2 AND {MAKES_BUSY} LIMIT 1", tenant, session
        )
        return job_of(rows[0]) if rows else None

    async def list_recoverable(self, now: float, states: Collection[State], limit: int, after: str) -> Overdue:
        looked_at, _, last = after.partition(" ")
        parts = (where for of, where in _DUE_BY_STATE.items() if not set(of).isdisjoint(states))
        found = " UNION ALL ".join(f"(SELECT id, look_at FROM {part} AND {_NEXT})" for part in parts)  # noqa: S608
        place = (float(looked_at or "-inf"), last)
        due = await self._fetch(_DUE_AMONG.format(found), now, list(states), *place, limit)
        if not due:
            return Overdue([], "")
        jobs = await self._jobs(SELECT_LISTED_JOB, [row["id"] for row in due])
        end = due[-1]
        # Meanwhile another plane may have been faster.
        there = [job for job in jobs if job is not None and job.state in states]
        return Overdue(there, f"{end['look_at']!r} {end['id']}" if len(due) == limit else "")

    async def list_events(
        self, after: int, limit: int, tenant: Tenant | None, job_id: JobId | None, run: str | None
    ) -> list[JobEvent]:
        where = Where("number > ?", after)
        if job_id is not None:
            where.also("job_id = ?", job_id)
        if run is not None:
            where.also("run = ? AND run <> ''", run)  # the index's own condition, too: else it is not taken
        if tenant is not None:
            where.also("tenant = ?", tenant)
        rows = await self._fetch(f"{SELECT_EVENT} WHERE {where} ORDER BY number {where.limit(limit)}", *where.values)
        return [event_of(row) for row in rows]

    async def count_jobs(self) -> dict[tuple[Tenant, State], int]:
        rows = await self._fetch("SELECT tenant, state, jobs FROM holdfast_counts WHERE jobs > 0")
        return {(Tenant(tenant), State(state)): jobs for tenant, state, jobs in rows}

    async def count_topics(self) -> dict[tuple[Tenant, str], int]:
        rows = await self._fetch(
            # In the order of the index that has only the living: without statistics, another one looks as good.
            "WITH live AS MATERIALIZED (SELECT tenant, topic FROM holdfast_jobs WHERE look_at IS NOT NULL ORDER BY look_at) "
            "SELECT tenant, topic, count(*) FROM live GROUP BY 1, 2"
        )
        return {(Tenant(tenant), topic): jobs for tenant, topic, jobs in rows}

    async def count_active(self) -> dict[tuple[Tenant, str, str], int]:
        rows = await self._fetch(
            "WITH active AS MATERIALIZED (SELECT tenant, topic, limit_key FROM holdfast_jobs "
            "WHERE state IN ('DISPATCHED', 'RUNNING') ORDER BY worker, id) "
            "SELECT tenant, topic, limit_key, count(*) FROM active GROUP BY 1, 2, 3"
        )
        return {(Tenant(tenant), topic, key): jobs for tenant, topic, key, jobs in rows}

    async def list_effects(
        self, tenant: Tenant, state: EffectState | None, job_id: JobId | None, after: EffectPlace | None, limit: int
    ) -> list[Effect]:
        where = Where("tenant = ?", tenant)
        if state is not None:
            where.also(f"state = '{state}'")
        if job_id is not None:
            where.also("job_id = ?", job_id)
        if after is not None:
            where.also("(prepared_at, job_id, key) > (?, ?, ?)", *after)
        rows = await self._fetch(
            f"{SELECT_EFFECT} WHERE {where} ORDER BY prepared_at, job_id, key {where.limit(limit)}", *where.values
        )
        return [effect_of(row) for row in rows]

    async def list_dead_letters(self, tenant: Tenant, before: int | None, limit: int) -> list[DeadLetter]:
        return await self._dead_letters("tenant = $1 AND number < $2", (tenant, before or 2**62), limit)

    async def find_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter | None:
        letters = await self._dead_letters("tenant = $1 AND number = $2", (tenant, number), 1)
        return letters[0] if letters else None

    async def _dead_letters(self, where: str, values: Iterable[Any], limit: int) -> list[DeadLetter]:
        rows = await self._fetch(
            "SELECT number, tenant, job_id, reason, at, replayed_as "  # noqa: S608  (`where` is one of the two literals above)
            f"FROM holdfast_dead_letters WHERE {where} ORDER BY number DESC LIMIT $3",
            *values,
            limit,
        )
        jobs = await self.find_jobs([row[2] for row in rows]) if rows else []
        return [
            DeadLetter(
                number=number,
                tenant=tenant,
                job_id=job_id,
                topic=job.topic,
                reason=reason,
                at=at,
                job=job,
                replayed_as=replayed_as,
            )
            for (number, tenant, job_id, reason, at, replayed_as), job in zip(rows, jobs, strict=True)
            if job is not None  # else it was pruned between the two statements
        ]

    async def read_snapshot(self) -> Snapshot | None:
        rows = await self._fetch("SELECT fence, seq, at, workers FROM holdfast_snapshot")
        return Snapshot(*rows[0]) if rows else None

    async def list_deliveries(self, worker: str, limit: int) -> list[Delivery]:
        rows = await self._fetch(
            "SELECT worker, job_id, fence FROM holdfast_deliveries WHERE worker = $1 ORDER BY fence, job_id LIMIT $2",
            worker,
            limit,
        )
        return [Delivery(*row) for row in rows]

    async def list_outbox(self, limit: int) -> list[Delivery]:
        rows = await self._fetch(
            "SELECT worker, job_id, fence FROM holdfast_deliveries ORDER BY fence, job_id LIMIT $1", limit
        )
        return [Delivery(*row) for row in rows]

    async def left_of(self, deliveries: Collection[Delivery]) -> list[Delivery]:
        """Those that are still there."""
        rows = await self._fetch(
            f"SELECT d.worker, d.job_id, d.fence FROM {rows_of(DELIVERY)} "  # noqa: S608  (names of columns)
            "JOIN holdfast_deliveries d ON d.worker = x.worker AND d.fence = x.fence AND d.job_id = x.job_id",
            *arrays_of(DELIVERY, deliveries),
        )
        return [Delivery(*row) for row in rows]

    async def pruned_until(self, tenant: Tenant | None) -> int:
        if tenant is None:
            rows = await self._fetch("SELECT coalesce(max(number), 0) FROM holdfast_pruned")
        else:
            rows = await self._fetch("SELECT coalesce(max(number), 0) FROM holdfast_pruned WHERE tenant = $1", tenant)
        number: int = rows[0][0]
        return number


class Where:
    """Conditions with `?` for their values, which are numbered as Postgres wants them."""

    def __init__(self, condition: str, *values: Any) -> None:
        self.values: list[Any] = []
        self._conditions: list[str] = []
        self.also(condition, *values)

    def also(self, condition: str, *values: Any) -> None:
        for value in values:
            self.values.append(value)
            condition = condition.replace("?", f"${len(self.values)}", 1)
        self._conditions.append(condition)

    def limit(self, rows: int) -> str:
        self.values.append(rows)
        return f"LIMIT ${len(self.values)}"

    def __str__(self) -> str:
        return " AND ".join(self._conditions)
