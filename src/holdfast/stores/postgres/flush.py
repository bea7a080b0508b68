"""What came of a batch of writes, written in bulk: one statement for what nearly every batch writes, and one more for each
other table that it touches."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Protocol

from holdfast.stores.batch import BatchLedger
from holdfast.stores.postgres.rows import (
    DELIVERY,
    KEY,
    LETTER,
    NEW_JOB,
    RECORD_PLACE,
    REPLACED_JOB,
    arrays_of,
    columns,
    new_job_values,
    replaced_job_values,
    rows_of,
)
from holdfast.stores.rows import (
    BOUNDS,
    EFFECT,
    EVENT,
    RECORD,
    bounds_values,
    effect_values,
    event_values,
    record_values,
)

NOTIFY_UNTIL = 0.9
"""How full the server's queue of notifications may be, all of it being 1. Beyond that nothing is told: of a queue that is full, commits
that tell something fail. It fills while somebody who listens, in whichever database, keeps a transaction open; the server's log has who."""

_COUNT = ("tenant", "state", "jobs")
_NOT_PLACE = RECORD[len(RECORD_PLACE) :]
_SETTLED = EFFECT[3:]

_REPLACE_PAYLOADS = (
    f"UPDATE holdfast_jobs j SET payload = x.payload FROM {rows_of(('id', 'payload'))} WHERE j.id = x.id"  # noqa: S608
)
_REPLACE_BOUNDS = f"""
    UPDATE holdfast_jobs j SET {", ".join(f"{name} = x.{name}" for name in BOUNDS)}
    FROM {rows_of(("id", *BOUNDS))} WHERE j.id = x.id
"""  # noqa: S608  (names of columns)
_INSERT_KEYS = f"INSERT INTO holdfast_keys ({columns(KEY)}) SELECT * FROM {rows_of(KEY)}"  # noqa: S608
_IS_DELIVERY = "d.worker = x.worker AND d.fence = x.fence AND d.job_id = x.job_id"
SETTLE = f"DELETE FROM holdfast_deliveries d USING {rows_of(DELIVERY)} WHERE {_IS_DELIVERY}"  # noqa: S608
# One statement, for between two the server waits until this process gets round to sending the second.
_JOBS_AT, _REPLACED_AT, _SETTLED_AT, _SENT_AT, _EVENTS_AT, _COUNTS_AT, _CHANNEL_AT = accumulate(
    map(len, (NEW_JOB, REPLACED_JOB, DELIVERY, DELIVERY, EVENT, _COUNT)), initial=1
)
_WRITE = f"""
    WITH submitted AS (
        INSERT INTO holdfast_jobs ({columns(NEW_JOB)}) SELECT * FROM {rows_of(NEW_JOB, _JOBS_AT)}
    ), replaced AS (
        UPDATE holdfast_jobs j SET {", ".join(f"{name} = x.{name}" for name in REPLACED_JOB[:-2])}
        FROM {rows_of(REPLACED_JOB, _REPLACED_AT)} WHERE j.id = x.id AND j.version = x.replaces
        RETURNING 1
    ), settled AS (
        DELETE FROM holdfast_deliveries d USING {rows_of(DELIVERY, _SETTLED_AT)} WHERE {_IS_DELIVERY}
    ), sent AS (
        INSERT INTO holdfast_deliveries ({columns(DELIVERY)}) SELECT * FROM {rows_of(DELIVERY, _SENT_AT)}
        ON CONFLICT DO NOTHING
    ), told AS (
        INSERT INTO holdfast_events ({columns(EVENT)}) SELECT * FROM {rows_of(EVENT, _EVENTS_AT)}
    ), counted AS (
        INSERT INTO holdfast_counts AS c ({columns(_COUNT)}) SELECT * FROM {rows_of(_COUNT, _COUNTS_AT)}
        ON CONFLICT (tenant, state) DO UPDATE SET jobs = c.jobs + excluded.jobs
    ), notified AS (
        SELECT pg_notify(${_CHANNEL_AT}, word) FROM unnest(${_CHANNEL_AT + 1}::text[]) word
        WHERE pg_notification_queue_usage() < {NOTIFY_UNTIL}
    )
    SELECT (SELECT count(*) FROM replaced), (SELECT count(*) FROM notified)
"""  # noqa: S608  (names of columns)
_WRITE_EFFECTS = f"""
    INSERT INTO holdfast_effects ({columns(EFFECT)}) SELECT * FROM {rows_of(EFFECT)}
    ON CONFLICT (job_id, key) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _SETTLED)}
"""  # noqa: S608  (names of columns)
_INSERT_LETTERS = f"""
    INSERT INTO holdfast_dead_letters (number, {columns(LETTER)})
    SELECT (SELECT coalesce(max(number), 0) FROM holdfast_dead_letters) + row_number() OVER (), x.* FROM {rows_of(LETTER)}
"""  # noqa: S608  (names of columns)
_MARK_REPLAYED = """
    UPDATE holdfast_dead_letters d SET replayed_as = x.job_id
    FROM unnest($1::bigint[], $2::text[]) AS x(number, job_id) WHERE d.number = x.number
"""
_WRITE_RECORDS = f"""
    INSERT INTO holdfast_records ({columns(RECORD)}) SELECT * FROM {rows_of(RECORD)}
    ON CONFLICT (kind, tenant, id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _NOT_PLACE)}
"""  # noqa: S608  (names of columns)
_REMOVE_RECORDS = f"""
    DELETE FROM holdfast_records r USING {rows_of(RECORD_PLACE)}
    WHERE r.kind = x.kind AND r.tenant = x.tenant AND r.id = x.id
"""  # noqa: S608  (names of columns)
# Who is next is worked out when a job of the session changes, not when jobs are listed: neither many sessions
# nor one with many jobs cost the list anything. Nor do those who wait behind it: the first is found by an index of its own.
ARRANGE = f"""
    WITH turn AS MATERIALIZED (
        SELECT x.tenant, x.session, CASE WHEN NOT EXISTS (
            SELECT FROM holdfast_jobs w WHERE w.tenant = x.tenant AND w.session = x.session AND w.session <> ''
            AND w.look_at IS NOT NULL AND w.state IN ('DISPATCHED', 'RUNNING')
        ) THEN (
            SELECT f.id FROM holdfast_jobs f WHERE f.tenant = x.tenant AND f.session = x.session AND f.session <> ''
            AND f.look_at IS NOT NULL AND f.state = 'SCHEDULED'
            ORDER BY (f.attempts = 0 OR f.not_before >= 253402300799.0), f.not_before, f.id LIMIT 1
        ) END AS id
        FROM {rows_of(("tenant", "session"))}
    ), past AS (
        UPDATE holdfast_jobs j SET behind = true
        FROM turn WHERE j.tenant = turn.tenant AND j.session = turn.session AND j.session <> ''
        AND j.state = 'SCHEDULED' AND NOT j.behind AND j.id IS DISTINCT FROM turn.id
    )
    UPDATE holdfast_jobs j SET behind = false FROM turn WHERE j.id = turn.id AND j.behind
"""  # noqa: S608  (names of columns)


class Moved(Exception):
    """Somebody has written without the lock: what was decided is not true any more."""


class Writes(Protocol):
    async def execute(self, sql: str, /, *arguments: Any) -> str: ...

    async def fetchval(self, sql: str, /, *arguments: Any) -> Any: ...


async def flush(connection: Writes, ledger: BatchLedger, *, channel: str, words: list[str]) -> None:
    """`words` are told to `channel` when the transaction commits."""
    await _flush_jobs(connection, ledger, channel, words)
    jobs = ledger.jobs
    execute = connection.execute
    if ledger.new_keys:
        await execute(_INSERT_KEYS, *arrays_of(KEY, ledger.new_keys))
    if ledger.payloads:
        edited = [(job_id, jobs[job_id].payload) for job_id in ledger.payloads]
        await execute(_REPLACE_PAYLOADS, *arrays_of(("id", "payload"), edited))
    if ledger.rebound:
        bounds = [(job_id, *bounds_values(jobs[job_id])) for job_id in ledger.rebound]
        await execute(_REPLACE_BOUNDS, *arrays_of(("id", *BOUNDS), bounds))
    await _flush_beside_jobs(connection, ledger)
    if ledger.stirred_sessions:
        await execute(ARRANGE, *arrays_of(("tenant", "session"), sorted(ledger.stirred_sessions)))


async def _flush_jobs(connection: Writes, ledger: BatchLedger, channel: str, words: list[str]) -> None:
    if not (ledger.new_jobs or ledger.replaced or ledger.settled or ledger.sent or ledger.events or ledger.counts):
        return
    jobs = ledger.jobs
    new = [new_job_values(jobs[job_id], look_at) for job_id, look_at in ledger.new_jobs.items()]
    after = [replaced_job_values(jobs[job_id], look_at, v) for job_id, (v, look_at) in ledger.replaced.items()]
    moved = [(tenant, state.value, delta) for (tenant, state), delta in ledger.counts.items() if delta]
    replaced = await connection.fetchval(
        _WRITE,
        *arrays_of(NEW_JOB, new),
        *arrays_of(REPLACED_JOB, after),
        *arrays_of(DELIVERY, ledger.settled),
        *arrays_of(DELIVERY, ledger.sent),
        *arrays_of(EVENT, map(event_values, ledger.events)),
        *arrays_of(_COUNT, moved),
        channel,
        words,
    )
    if replaced != len(after):
        raise Moved


async def _flush_beside_jobs(connection: Writes, ledger: BatchLedger) -> None:
    execute = connection.execute
    if ledger.written_effects:
        effects = [effect_values(ledger.effects[origin][key]) for origin, key in ledger.written_effects]
        await execute(_WRITE_EFFECTS, *arrays_of(EFFECT, effects))
    if ledger.new_letters:
        await execute(_INSERT_LETTERS, *arrays_of(LETTER, ledger.new_letters))
    if ledger.replays:
        await execute(_MARK_REPLAYED, list(ledger.replays), list(ledger.replays.values()))
    written = [record_values(record) for record in ledger.written_records.values() if record is not None]
    removed = [place for place, record in ledger.written_records.items() if record is None]
    if written:
        await execute(_WRITE_RECORDS, *arrays_of(RECORD, written))
    if removed:
        await execute(_REMOVE_RECORDS, *arrays_of(RECORD_PLACE, removed))
