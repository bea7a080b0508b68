"""Jobs, events, records, effects and dead letters as Redis keeps them: MessagePack of the rows of a SQL store (`rows`)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.effect import Effect
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.ports import DeadLetter, JobEvent
from holdfast.stores.batch import Letter
from holdfast.stores.rows import (
    ONCE,
    effect_of,
    effect_values,
    event_of,
    event_values,
    job_of,
    record_of,
    record_values,
    values_anew,
    values_once,
)

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

_PAYLOAD = len(ONCE) - 1
_RESULT = -1
_ELSEWHERE = b""


def job_row(job: Job) -> bytes:
    """Without payload and result; but it says whether there is a result."""
    once, anew = values_once(job), values_anew(job)
    result = None if job.result is None else _ELSEWHERE
    return _pack((*once[:_PAYLOAD], _ELSEWHERE, *anew[:_RESULT], result))


def bare_job(row: bytes) -> Job:
    """Its payload is empty, and so is its result, if it has one."""
    return job_of(_unpack(row))


def full_job(row: bytes, payload: bytes, result: bytes | None) -> Job:
    values = _unpack(row)
    values[_PAYLOAD] = payload
    if values[_RESULT] is not None:
        values[_RESULT] = result
    return job_of(values)


def event_row(event: JobEvent) -> bytes:
    return _pack(event_values(event)[1:])


def event_from(number: int, row: bytes) -> JobEvent:
    return event_of((number, *_unpack(row)))


def event_of_tenant(number: int, row: bytes, tenant: Tenant | None) -> JobEvent | None:
    """None if it is not the tenant's, where one is named: of most that are read for one nothing more is looked at."""
    values = _unpack(row)
    return event_of((number, *values)) if tenant in {None, values[0]} else None


class Standing(NamedTuple):
    """All of a record but its body and its place."""

    version: int
    state: str
    parent: str
    due: float | None
    created_at: float


def record_row(record: Record) -> bytes:
    return _pack(record_values(record)[3:-1])


def standing_of(row: bytes) -> Standing:
    return Standing(*_unpack(row))


def record_from(kind: Kind, tenant: Tenant, record_id: str, row: bytes, body: bytes) -> Record:
    return record_of((kind.value, tenant, record_id, *_unpack(row), body))


def effect_row(effect: Effect) -> bytes:
    return _pack(effect_values(effect))


def effect_from(row: bytes) -> Effect:
    return effect_of(_unpack(row))


class LetterRow(NamedTuple):
    tenant: Tenant
    job_id: JobId
    reason: str
    at: float
    replayed_as: JobId | None

    def letter(self, number: int, job: Job) -> DeadLetter:
        return DeadLetter(
            number=number,
            tenant=self.tenant,
            job_id=self.job_id,
            topic=job.topic,
            reason=self.reason,
            at=self.at,
            job=job,
            replayed_as=self.replayed_as,
        )


def new_letter_row(letter: Letter) -> bytes:
    return _pack((*letter, None))


def letter_row(letter: DeadLetter | LetterRow) -> bytes:
    return _pack((letter.tenant, letter.job_id, letter.reason, letter.at, letter.replayed_as))


def letter_from(row: bytes) -> LetterRow:
    return LetterRow(*_unpack(row))


def with_payload(job: Job, payload: bytes, result: bytes | None) -> Job:
    return replace(job, payload=payload, result=None if job.result is None else result)
