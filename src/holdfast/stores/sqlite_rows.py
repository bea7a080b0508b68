"""Rows of the SQLite file as values, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.effect import Effect
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.states import EffectState, Risk, State
from holdfast.ports import JobEvent

PAYLOAD_INLINE_MAX = 512
"""Larger payloads have a row of their own: a job's row is written anew with each of its versions."""

_STATES = {state.value: state for state in State}
_RISKS = {risk.value: risk for risk in Risk}

_ONCE = (
    "id", "tenant", "topic", "labels", "priority", "risk", "max_attempts", "created_at", "deadline", "replay_of",
    "trace", "payload",
)  # fmt: skip
_ANEW = (
    "state", "version", "since", "not_before", "attempts", "schedulings", "retries", "pool", "worker", "fence",
    "lease_until", "cancel_requested", "progress", "error", "result",
)  # fmt: skip

SELECT_JOB = "SELECT " + ", ".join(  # noqa: S608  (names of columns)
    "CASE WHEN payload IS NULL THEN (SELECT p.payload FROM holdfast_payloads p WHERE p.job_id = id) ELSE payload END"
    if name == "payload"
    else name
    for name in (*_ONCE, *_ANEW)
)
INSERT_JOB = (
    f"INSERT INTO holdfast_jobs ({', '.join((*_ONCE, *_ANEW, 'look_at'))}) "  # noqa: S608  (names of columns)
    f"VALUES ({', '.join('?' * (len(_ONCE) + len(_ANEW) + 1))}) ON CONFLICT (id) DO NOTHING"
)
REPLACE_JOB = (
    f"UPDATE holdfast_jobs SET {', '.join(f'{name} = ?' for name in (*_ANEW, 'look_at'))} WHERE id = ? AND version = ?"  # noqa: S608  (names of columns)
)

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


def json_text(value: Any) -> str:
    return _to_json(value).decode() if value else "{}"


def json_value(text: str) -> Any:
    return _from_json(text) if text != "{}" else {}


def _optional_text(value: Any) -> str | None:
    return None if value is None else _to_json(value).decode()


def values_once(job: Job) -> tuple[Any, ...]:
    """What is written when the job is submitted, in the order of `INSERT_JOB`."""
    return (
        job.id,
        job.tenant,
        job.topic,
        json_text(job.labels),
        job.priority,
        job.risk.value,
        job.max_attempts,
        job.created_at,
        job.deadline,
        job.replay_of,
        job.trace,
        job.payload if len(job.payload) <= PAYLOAD_INLINE_MAX else None,
    )


def values_anew(job: Job) -> tuple[Any, ...]:
    """What every version writes, in the order of `REPLACE_JOB`."""
    return (
        job.state.value,
        job.version,
        job.since,
        job.not_before,
        job.attempts,
        job.schedulings,
        json_text(job.retries),
        job.pool,
        job.worker,
        job.fence,
        job.lease_until,
        job.cancel_requested,
        _optional_text(job.progress),
        _optional_text(job.error),
        job.result,
    )


def job_of(row: tuple[Any, ...]) -> Job:
    """A row of `SELECT_JOB`; what follows the job's own columns is ignored."""
    return Job(
        id=row[0],
        tenant=row[1],
        topic=row[2],
        labels=json_value(row[3]),
        priority=row[4],
        risk=_RISKS[row[5]],
        max_attempts=row[6],
        created_at=row[7],
        deadline=row[8],
        replay_of=row[9],
        trace=row[10],
        payload=row[11],
        state=_STATES[row[12]],
        version=row[13],
        since=row[14],
        not_before=row[15],
        attempts=row[16],
        schedulings=row[17],
        retries=json_value(row[18]),
        pool=row[19],
        worker=row[20],
        fence=row[21],
        lease_until=row[22],
        cancel_requested=bool(row[23]),
        progress=None if row[24] is None else _from_json(row[24]),
        error=None if row[25] is None else _from_json(row[25]),
        result=row[26],
    )


SELECT_EVENT = "SELECT number, tenant, job_id, kind, state, attempt, fence, at, detail FROM holdfast_events"
INSERT_EVENT = "INSERT INTO holdfast_events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def event_values(event: JobEvent) -> tuple[Any, ...]:
    return (
        event.number,
        event.tenant,
        event.job_id,
        event.kind,
        event.state.value,
        event.attempt,
        event.fence,
        event.at,
        json_text(event.detail),
    )


def event_of(row: tuple[Any, ...]) -> JobEvent:
    number, tenant, job_id, kind, state, attempt, fence, at, detail = row
    return JobEvent(
        number=number,
        tenant=Tenant(tenant),
        job_id=JobId(job_id),
        kind=kind,
        state=_STATES[state],
        attempt=attempt,
        fence=fence,
        at=at,
        detail=json_value(detail),
    )


SELECT_EFFECT = (
    "SELECT tenant, job_id, key, state, fence, attempt, idempotency_key, result, prepared_at, settled_at, note "
    "FROM holdfast_effects"
)
WRITE_EFFECT = "INSERT OR REPLACE INTO holdfast_effects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def effect_values(effect: Effect) -> tuple[Any, ...]:
    return (
        effect.tenant,
        effect.job_id,
        effect.key,
        effect.state.value,
        effect.fence,
        effect.attempt,
        effect.idempotency_key,
        effect.result,
        effect.prepared_at,
        effect.settled_at,
        effect.note,
    )


def effect_of(row: tuple[Any, ...]) -> Effect:
    tenant, job_id, key, state, fence, attempt, idempotency_key, result, prepared_at, settled_at, note = row
    return Effect(
        tenant=Tenant(tenant),
        job_id=JobId(job_id),
        key=key,
        state=EffectState(state),
        fence=fence,
        attempt=attempt,
        idempotency_key=idempotency_key,
        result=result,
        prepared_at=prepared_at,
        settled_at=settled_at,
        note=note,
    )
