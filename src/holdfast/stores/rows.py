"""Jobs, events, records and effects as rows of a SQL store, and back. In the order of the columns named here."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.effect import Effect
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.states import EffectState, Risk, State
from holdfast.ports import JobEvent

_STATES = {state.value: state for state in State}
_KINDS = {kind.value: kind for kind in Kind}
_RISKS = {risk.value: risk for risk in Risk}

ONCE = (
    "id", "tenant", "topic", "labels", "priority", "risk", "max_attempts", "created_at", "deadline", "replay_of",
    "trace", "actor", "session", "run", "step", "payload",
)  # fmt: skip
BOUNDS = ("labels", "priority", "max_attempts", "deadline")
"""Of `ONCE`: what a decision of the policy may change later."""
ANEW = (
    "state", "version", "since", "not_before", "attempts", "schedulings", "retries", "pool", "worker", "fence",
    "lease_until", "cancel_requested", "progress", "error", "decision", "approval", "result",
)  # fmt: skip

EVENT = ("number", "tenant", "job_id", "kind", "state", "attempt", "fence", "at", "detail", "run")
RECORD = ("kind", "tenant", "id", "version", "state", "parent", "due", "created_at", "body")
EFFECT = (
    "tenant", "job_id", "key", "state", "fence", "attempt", "idempotency_key", "result", "prepared_at", "settled_at",
    "note",
)  # fmt: skip

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


def json_text(value: Any) -> str:
    return _to_json(value).decode() if value else "{}"


def json_value(text: str) -> Any:
    return _from_json(text) if text != "{}" else {}


def _optional_text(value: Any) -> str | None:
    return None if value is None else _to_json(value).decode()


def values_once(job: Job) -> tuple[Any, ...]:
    """What is written when the job is submitted, in the order of `ONCE`."""
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
        job.actor,
        job.session,
        job.run,
        job.step,
        job.payload,
    )


def is_bounded_anew(before: Job, after: Job) -> bool:
    return (before.max_attempts, before.deadline, before.priority, before.labels) != (
        after.max_attempts,
        after.deadline,
        after.priority,
        after.labels,
    )


def bounds_values(job: Job) -> tuple[Any, ...]:
    """In the order of `BOUNDS`."""
    return json_text(job.labels), job.priority, job.max_attempts, job.deadline


def values_anew(job: Job) -> tuple[Any, ...]:
    """What every version writes, in the order of `ANEW`."""
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
        _optional_text(job.decision),
        job.approval,
        job.result,
    )


def limit_key(job: Job) -> str:
    """Of the limit that the job's decision names; empty if none."""
    limit = job.decision.get("concurrency") if job.decision else None
    return (limit.get("key") or "") if limit else ""


def job_of(row: tuple[Any, ...]) -> Job:
    """A row of `ONCE` and `ANEW`; what follows them is ignored."""
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
        actor=row[11],
        session=row[12],
        run=row[13],
        step=row[14],
        payload=row[15],
        state=_STATES[row[16]],
        version=row[17],
        since=row[18],
        not_before=row[19],
        attempts=row[20],
        schedulings=row[21],
        retries=json_value(row[22]),
        pool=row[23],
        worker=row[24],
        fence=row[25],
        lease_until=row[26],
        cancel_requested=bool(row[27]),
        progress=None if row[28] is None else _from_json(row[28]),
        error=None if row[29] is None else _from_json(row[29]),
        decision=None if row[30] is None else _from_json(row[30]),
        approval=row[31],
        result=row[32],
    )


def event_values(event: JobEvent) -> tuple[Any, ...]:
    return (
        event.number,
        event.tenant,
        event.job_id,
        event.kind,
        "" if event.state is None else event.state.value,
        event.attempt,
        event.fence,
        event.at,
        json_text(event.detail),
        event.run,
    )


def event_of(row: tuple[Any, ...]) -> JobEvent:
    number, tenant, job_id, kind, state, attempt, fence, at, detail, run = row
    return JobEvent(
        number=number,
        tenant=Tenant(tenant),
        job_id=JobId(job_id),
        run=run,
        kind=kind,
        state=_STATES[state] if state else None,
        attempt=attempt,
        fence=fence,
        at=at,
        detail=json_value(detail),
    )


def record_values(record: Record) -> tuple[Any, ...]:
    return (
        record.kind.value,
        record.tenant,
        record.id,
        record.version,
        record.state,
        record.parent,
        record.due,
        record.created_at,
        record.body,
    )


def record_of(row: tuple[Any, ...]) -> Record:
    kind, tenant, record_id, version, state, parent, due, created_at, body = row
    return Record(
        kind=_KINDS[kind],
        tenant=tenant,
        id=record_id,
        version=version,
        state=state,
        parent=parent,
        due=due,
        created_at=created_at,
        body=body,
    )


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
