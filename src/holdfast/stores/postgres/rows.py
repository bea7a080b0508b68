"""Rows of Postgres in bulk: columns with their types, and statements that take an array for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.job import UNDO, Job
from holdfast.ports import LISTED_PAYLOAD_MAX
from holdfast.stores.rows import ANEW, EFFECT, EVENT, ONCE, RECORD, limit_key, values_anew, values_once

_TYPES = {
    **dict.fromkeys(("payload", "result", "body", "workers"), "bytea"),
    **dict.fromkeys(("priority", "max_attempts", "attempts", "schedulings", "attempt"), "int"),
    **dict.fromkeys(("version", "fence", "number", "jobs", "replaces"), "bigint"),
    **dict.fromkeys(
        (
            "created_at", "deadline", "since", "not_before", "lease_until", "look_at", "at", "prepared_at",
            "settled_at", "due",
        ),
        "float8",
    ),
    "cancel_requested": "boolean",
}  # fmt: skip

KEY = ("tenant", "key", "digest", "job_id")
DELIVERY = ("worker", "job_id", "fence")
LETTER = ("tenant", "job_id", "reason", "at")
RECORD_PLACE = ("kind", "tenant", "id")
_DERIVED = ("look_at", "limit_key")

_NUL = "\0"
_to_json = msgspec.json.Encoder().encode


def columns(names: Iterable[str]) -> str:
    return ", ".join(names)


def rows_of(names: Sequence[str], first: int = 1) -> str:
    """A set of rows out of one array per column; the arrays are the statement's parameters from `first` on."""
    arrays = (f"${at}::text::{_TYPES.get(name, 'text')}[]" for at, name in enumerate(names, first))
    return f"unnest({', '.join(arrays)}) AS x({columns(names)})"


def arrays_of(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The parameters for `rows_of`. As text: the driver's own encoding asks of every element whether it is an array,
    and takes twice as long."""
    turned = list(zip(*rows, strict=True)) or [()] * len(names)
    return [_array(_TYPES.get(name, "text"), column) for name, column in zip(names, turned, strict=True)]


def _array(kind: str, values: Sequence[Any]) -> str:
    if kind == "text":
        elements = _texts(values)
    elif kind == "bytea":
        elements = ",".join(["NULL" if v is None else f'"\\\\x{v.hex()}"' for v in values])
    else:
        elements = _numbers(values)
    return f"{{{elements}}}"


def _texts(values: Sequence[Any]) -> str:
    """Escaped in one go where all are there, with something between them that none contains: there is no NUL in a text of
    Postgres. One by one it would take several times as long."""
    if values and None not in values:
        joined = _NUL.join(values)
        if joined.count(_NUL) == len(values) - 1:
            return '"' + _escaped(joined).replace(_NUL, '","') + '"'
    return ",".join(["NULL" if v is None else f'"{_escaped(v)}"' for v in values])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _numbers(values: Sequence[Any]) -> str:
    """As JSON, which is written ten times as fast; but it has null for what is infinite."""
    elements = _to_json(values)[1:-1]
    if elements.count(b"null") == values.count(None):
        return elements.decode()
    return ",".join(["NULL" if v is None else str(v) for v in values])


SELECT_JOB = f"SELECT {columns((*ONCE, *ANEW))} FROM holdfast_jobs"  # noqa: S608  (names of columns)
SELECT_BARE_JOB = SELECT_JOB.replace(" payload,", " ''::bytea,")
"""Its payload is empty."""
SELECT_LISTED_JOB = SELECT_JOB.replace(
    " payload,", f" CASE WHEN octet_length(payload) <= {LISTED_PAYLOAD_MAX} THEN payload ELSE ''::bytea END,"
)
"""Its payload is empty if it is large."""
MAKES_BUSY = f"session <> '' AND look_at IS NOT NULL AND NOT cancel_requested AND right(step, {len(UNDO)}) <> '{UNDO}'"
"""`Job.makes_busy`."""
SELECT_EVENT = f"SELECT {columns(EVENT)} FROM holdfast_events"  # noqa: S608  (names of columns)
SELECT_RECORD = f"SELECT {columns(RECORD)} FROM holdfast_records"  # noqa: S608  (names of columns)
SELECT_EFFECT = f"SELECT {columns(EFFECT)} FROM holdfast_effects"  # noqa: S608  (names of columns)

NEW_JOB = (*ONCE, *ANEW, *_DERIVED)
REPLACED_JOB = (*ANEW, *_DERIVED, "id", "replaces")


def new_job_values(job: Job, look_at: float | None) -> tuple[Any, ...]:
    """In the order of `NEW_JOB`."""
    if any("\0" in name or "\0" in value for name, value in job.labels.items()):
        raise ValueError("a label contains NUL, which Postgres cannot compare")
    return (*values_once(job), *values_anew(job), look_at, limit_key(job))


def replaced_job_values(job: Job, look_at: float | None, replaces: int) -> tuple[Any, ...]:
    """In the order of `REPLACED_JOB`."""
    return (*values_anew(job), look_at, limit_key(job), job.id, replaces)
