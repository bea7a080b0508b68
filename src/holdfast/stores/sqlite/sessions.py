"""Sessions in SQLite: of the jobs of one session, one at a time.

Who is next is worked out when a job of the session changes, not when jobs are listed: neither many
sessions nor one with many jobs cost the list anything, and a job without a session pays for nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from holdfast.core.job import UNDO, Job, JobId
from holdfast.stores.rows import job_of, json_text
from holdfast.stores.sqlite.rows import SELECT_BARE_JOB, SELECT_JOB

_LIVE = (
    "FROM holdfast_jobs INDEXED BY holdfast_jobs_in_session "
    "WHERE tenant = ? AND session = ? AND session != '' AND look_at IS NOT NULL"
)
_BY_TURN = "(attempts = 0 OR not_before >= 253402300799.0), not_before, id"
"""The index's own expression, word for word."""

_MAKES_BUSY = f"NOT cancel_requested AND substr(step, -{len(UNDO)}) != '{UNDO}'"
"""Of a live one: `Job.makes_busy`."""


def is_at_work(execute: Callable[..., Any], job: Job) -> bool:
    """Whether another job of the session is DISPATCHED or RUNNING."""
    row = execute(
        f"SELECT 1 {_LIVE} AND state IN ('DISPATCHED', 'RUNNING') AND id != ? LIMIT 1",
        (job.tenant, job.session, job.id),
    ).fetchone()
    return row is not None


def arrange(execute: Callable[..., Any], job: Job) -> None:
    """A job of the session has come, gone or moved: let the one whose turn it is be listed, and no other."""
    at_work = execute(
        f"SELECT 1 {_LIVE} AND state IN ('DISPATCHED', 'RUNNING') LIMIT 1",
        (job.tenant, job.session),
    ).fetchone()
    first: JobId | None = None
    if at_work is None:
        row = execute(
            f"SELECT id {_LIVE} AND state = 'SCHEDULED' ORDER BY {_BY_TURN} LIMIT 1",
            (job.tenant, job.session),
        ).fetchone()
        first = None if row is None else row[0]
    execute(
        "UPDATE holdfast_jobs INDEXED BY holdfast_jobs_first_of_session SET behind = 1 "
        "WHERE tenant = ? AND session = ? AND session != '' AND state = 'SCHEDULED' AND behind = 0 AND id IS NOT ?",
        (job.tenant, job.session, first),
    )
    if first is not None:
        execute("UPDATE holdfast_jobs SET behind = 0 WHERE id = ? AND behind = 1", (first,))


def find_busy(execute: Callable[..., Any], tenant: str, session: str, but: Collection[JobId] = ()) -> Job | None:
    """A job that makes the session busy, and is none of these."""
    row = execute(
        f"{SELECT_JOB} {_LIVE} AND {_MAKES_BUSY} AND id NOT IN (SELECT value FROM json_each(?)) LIMIT 1",  # noqa: S608
        (tenant, session, json_text(list(but))),
    ).fetchone()
    return None if row is None else job_of(row)


def list_session(execute: Callable[..., Any], tenant: str, session: str) -> list[Job]:
    rows = execute(f"{SELECT_BARE_JOB} {_LIVE} ORDER BY id", (tenant, session))
    return [job_of(row) for row in rows.fetchall()]
