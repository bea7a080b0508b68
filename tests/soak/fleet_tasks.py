"""What the workers of the fleet do: enter each job into a ledger outside the plane, which knows fences and keys.

It keeps whatever arrives, also what it refuses: a lower fence than one it has seen for the job, and a key it knows.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.worker import EffectAbsent, Job, Worker

worker = Worker(slots=4, backlog=4)

ACCEPTED, REPEATED, REFUSED = "accepted", "repeated", "refused"
WORK_S_MAX = 0.1
"""Before and after the effect: so that a kill or a stop may fall on either side of it."""


def make_ledger(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(
            "CREATE TABLE arrivals (id INTEGER PRIMARY KEY, job TEXT, fence INTEGER, key TEXT, was TEXT)"
        )
        connection.execute("CREATE INDEX of_job ON arrivals (job, fence)")


@worker.task("fleet", isolation="async")
async def book(job: Job) -> int:
    await asyncio.sleep(WORK_S_MAX * random.random())
    booked: int = await job.once("book", enter, job.payload["ledger"], job.id, job.fence, idempotent=True)
    await asyncio.sleep(WORK_S_MAX * random.random())
    return booked


def enter(ledger: str, job: str, fence: int, idempotency_key: str) -> int:
    with closing(sqlite3.connect(ledger, timeout=20, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # processes die here, the machine does not
        connection.execute("BEGIN IMMEDIATE")
        [highest] = connection.execute("SELECT max(fence) FROM arrivals WHERE job = ?", (job,)).fetchone()
        known = connection.execute(
            "SELECT 1 FROM arrivals WHERE job = ? AND key = ?", (job, idempotency_key)
        ).fetchone()
        was = REFUSED if fence < (highest or 0) else REPEATED if known else ACCEPTED
        row = (job, fence, idempotency_key, was)
        connection.execute("INSERT INTO arrivals (job, fence, key, was) VALUES (?, ?, ?, ?)", row)
        connection.execute("COMMIT")
    if was == REFUSED:
        raise EffectAbsent(f"the ledger has seen a higher fence than {fence}")
    return fence
