"""What the workers of `test_run_kills.py` do: book each step, at a bank that notes whatever is entered, repetitions too.

A real bank would know a repetition by its key. This one does not, so that every performance can be counted.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.worker import Job, Worker

worker = Worker(name="clerk", slots=20, backlog=60)


@worker.task("book", isolation="async")
async def book(job: Job) -> int:
    if job.payload["item"] >= job.payload["held_from"]:
        while not Path(job.payload["enough"]).exists():
            await asyncio.sleep(0.02)
    paid: int = await job.once("book", enter, job.payload["bank"], job.payload["item"], idempotent=True)
    return paid


def enter(bank: str, item: int, idempotency_key: str) -> int:
    with closing(sqlite3.connect(bank, timeout=20, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # processes die here, the machine does not
        connection.execute("INSERT INTO entries VALUES (?, ?)", (idempotency_key, item))
    return item
