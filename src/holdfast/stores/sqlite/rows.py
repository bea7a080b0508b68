"""The statements that read and write the rows of the SQLite file."""

from __future__ import annotations

from typing import Any

from holdfast.core.job import Job
from holdfast.ports import LISTED_PAYLOAD_MAX
from holdfast.stores.rows import ANEW, BOUNDS, EFFECT, EVENT, ONCE, RECORD, values_once

PAYLOAD_INLINE_MAX = 512
"""Larger payloads have a row of their own: a job's row is written anew with each of its versions."""

_PAYLOAD = (
    "CASE WHEN payload IS NULL THEN (SELECT p.payload FROM holdfast_payloads p WHERE p.job_id = id) ELSE payload END"
)
SELECT_JOB = "SELECT " + ", ".join(_PAYLOAD if name == "payload" else name for name in (*ONCE, *ANEW))
SELECT_BARE_JOB = SELECT_JOB.replace(_PAYLOAD, "x''")
"""Its payload is empty."""
SELECT_LISTED_JOB = SELECT_JOB.replace(
    _PAYLOAD,
    _PAYLOAD.replace("job_id = id)", f"job_id = id AND length(p.payload) <= {LISTED_PAYLOAD_MAX})")
    .replace("THEN (", "THEN coalesce((")
    .replace(") ELSE", "), x'') ELSE"),
)
"""Its payload is empty if it is large."""
INSERT_JOB = (
    f"INSERT INTO holdfast_jobs ({', '.join((*ONCE, *ANEW, 'look_at'))}) "  # noqa: S608  (names of columns)
    f"VALUES ({', '.join('?' * (len(ONCE) + len(ANEW) + 1))}) ON CONFLICT (id) DO NOTHING"
)
REPLACE_JOB = (
    f"UPDATE holdfast_jobs SET {', '.join(f'{name} = ?' for name in (*ANEW, 'look_at'))} WHERE id = ? AND version = ?"  # noqa: S608  (names of columns)
)
REPLACE_BOUNDS = f"UPDATE holdfast_jobs SET {', '.join(f'{name} = ?' for name in BOUNDS)} WHERE id = ?"  # noqa: S608
SELECT_EVENT = f"SELECT {', '.join(EVENT)} FROM holdfast_events"  # noqa: S608  (names of columns)
INSERT_EVENT = f"INSERT INTO holdfast_events VALUES ({', '.join('?' * len(EVENT))})"  # noqa: S608
SELECT_RECORD = f"SELECT {', '.join(RECORD)} FROM holdfast_records"  # noqa: S608
INSERT_RECORD = f"INSERT INTO holdfast_records VALUES ({', '.join('?' * len(RECORD))})"  # noqa: S608
SELECT_EFFECT = f"SELECT {', '.join(EFFECT)} FROM holdfast_effects"  # noqa: S608
WRITE_EFFECT = f"INSERT OR REPLACE INTO holdfast_effects VALUES ({', '.join('?' * len(EFFECT))})"  # noqa: S608


def inserted_values(job: Job) -> tuple[Any, ...]:
    """`ONCE`, without a payload that has a row of its own."""
    *others, payload = values_once(job)
    return (*others, payload if len(payload) <= PAYLOAD_INLINE_MAX else None)
