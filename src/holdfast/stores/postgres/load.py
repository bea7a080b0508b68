"""What a batch of writes must know, read in as few statements as possible, under the writer's lock."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.core.job import PARKED_UNTIL, JobId
from holdfast.ports import DeadLetter
from holdfast.stores.batch import BatchLedger, Needs
from holdfast.stores.postgres.rows import MAKES_BUSY, RECORD_PLACE, SELECT_EFFECT, SELECT_JOB, arrays_of, rows_of
from holdfast.stores.rows import effect_of, job_of

# One statement for everything that is asked by name. `what` says which of them a row answers.
_NAMED = f"""
    SELECT 'number' AS what, '' AS a, '' AS b, '' AS c, coalesce(max(number), 0) AS n FROM holdfast_events
    UNION ALL
    SELECT 'job', id, '', '', version FROM holdfast_jobs WHERE id = ANY ($1::text[])
    UNION ALL
    SELECT 'open', job_id, '', '', 0 FROM holdfast_effects
    WHERE job_id = ANY ($2::text[]) AND state IN ('prepared', 'unknown')
    UNION ALL
    SELECT 'key', k.tenant, k.key, k.digest || ' ' || k.job_id, 0
    FROM {rows_of(("tenant", "key"), 3)} JOIN holdfast_keys k ON k.tenant = x.tenant AND k.key = x.key
    UNION ALL
    SELECT 'record', r.kind, r.tenant, r.id, r.version FROM {rows_of(RECORD_PLACE, 5)}
    JOIN holdfast_records r ON r.kind = x.kind AND r.tenant = x.tenant AND r.id = x.id
    UNION ALL
    SELECT 'at work', j.tenant, j.session, j.id, 0 FROM {rows_of(("tenant", "session"), 8)}
    JOIN holdfast_jobs j ON j.tenant = x.tenant AND j.session = x.session AND j.session <> '' AND j.look_at IS NOT NULL
    AND j.state IN ('DISPATCHED', 'RUNNING')
"""  # noqa: S608  (names of columns)
_JOBS = f"{SELECT_JOB} WHERE id = ANY ($1)"
_BUSY = f"""
    SELECT j.* FROM {rows_of(("tenant", "session"))} CROSS JOIN LATERAL (
        {SELECT_JOB} WHERE tenant = x.tenant AND session = x.session AND {MAKES_BUSY} LIMIT $3
    ) j
"""  # noqa: S608  (names of columns)
_EFFECTS = f"{SELECT_EFFECT} WHERE job_id = ANY ($1)"
_PARKED = f"{SELECT_JOB} WHERE (id = ANY ($1) OR replay_of = ANY ($1)) AND state = 'SCHEDULED' AND not_before >= $2"
_LETTERS = """
    SELECT number, tenant, job_id, reason, at, replayed_as FROM holdfast_dead_letters WHERE number = ANY ($1)
"""


class Asks(Protocol):
    async def fetch(self, sql: str, /, *arguments: Any) -> list[Any]: ...


async def load(connection: Asks, needs: Needs, ledger: BatchLedger) -> None:
    """Into a ledger in which nothing has been decided yet."""
    full = set(needs.jobs | needs.effects_of)
    opened = await _load_named(connection, needs, ledger)
    full |= needs.submitted & ledger.versions.keys()
    full |= {job_id for _, job_id in ledger.keys.values()}
    letters = await connection.fetch(_LETTERS, list(needs.letters)) if needs.letters else []
    full |= {job_id for letter in letters for job_id in (letter[2], letter[5]) if job_id is not None}
    if full:
        _keep_jobs(ledger, await connection.fetch(_JOBS, list(full)))
    if needs.busy_sessions:
        sessions = arrays_of(("tenant", "session"), needs.busy_sessions)
        _keep_jobs(ledger, await connection.fetch(_BUSY, *sessions, needs.busy_max))
    for number, tenant, job_id, reason, at, replayed_as in letters:
        job = ledger.jobs[job_id]
        ledger.letters[number] = DeadLetter(
            number=number,
            tenant=tenant,
            job_id=job_id,
            topic=job.topic,
            reason=reason,
            at=at,
            job=job,
            replayed_as=replayed_as,
        )
    asked = {ledger.jobs[job_id].origin for job_id in needs.effects_of if job_id in ledger.jobs}
    if asked or opened:
        for row in await connection.fetch(_EFFECTS, list(asked | opened)):
            effect = effect_of(row)
            ledger.effects.setdefault(effect.job_id, {})[effect.key] = effect
    if asked:
        _keep_jobs(ledger, await connection.fetch(_PARKED, list(asked), PARKED_UNTIL))


async def _load_named(connection: Asks, needs: Needs, ledger: BatchLedger) -> set[JobId]:
    """Returns the jobs of `needs.origins` that have open effects."""
    opened: set[JobId] = set()
    rows = await connection.fetch(
        _NAMED,
        list(needs.versions | needs.submitted),
        list(needs.origins),
        *arrays_of(("tenant", "key"), needs.keys),
        *arrays_of(RECORD_PLACE, needs.records),
        *arrays_of(("tenant", "session"), needs.sessions),
    )
    for what, a, b, c, n in rows:
        match what:
            case "number":
                ledger.last_number = n
            case "job":
                ledger.versions[a] = n
            case "open":
                opened.add(a)
            case "key":
                digest, _, job_id = c.rpartition(" ")
                ledger.keys[a, b] = (digest, JobId(job_id))
            case "record":
                ledger.records[a, b, c] = n
            case _:
                ledger.at_work.setdefault((a, b), set()).add(JobId(c))
    return opened


def _keep_jobs(ledger: BatchLedger, rows: list[Any]) -> None:
    for row in rows:
        job = job_of(row)
        ledger.jobs[job.id] = job
        ledger.versions[job.id] = job.version
