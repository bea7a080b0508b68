"""Free locks on Postgres: durable leases against advisory locks, which nothing has to write down.

The peer takes a connection of a pool of ten, locks, unlocks and gives it back. By default the pool
then resets the connection, a round trip that frees whatever a caller forgot; without it a
forgotten advisory lock stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.harness import Contender, Figures, Sample, run_tasks
from bench.subject import Subject
from bench.table import Figure, Goal, Row, faster
from holdfast.locks import LockClass, Locks

BENCH = LockClass("bench", ttl=30)
TASKS = 50
POOL = 10


def holdfast(url: str, seconds: float) -> Figures:
    async def measure() -> Figures:
        async with Locks(url) as locks:

            async def cycle(i: int) -> None:
                async with locks.hold(BENCH, str(i)):
                    pass

            return await run_tasks(TASKS, seconds, cycle)

    return asyncio.run(measure())


def advisory(url: str, seconds: float, *, reset: bool = True) -> Figures:
    import asyncpg

    class Unreset(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is untyped
        def get_reset_query(self) -> str:
            return ""

    async def measure() -> Figures:
        connection_class: Any = asyncpg.Connection if reset else Unreset
        async with asyncpg.create_pool(url, min_size=POOL, max_size=POOL, connection_class=connection_class) as pool:

            async def cycle(i: int) -> None:
                async with pool.acquire() as conn:
                    await conn.fetchval("SELECT pg_advisory_lock($1)", i)
                    await conn.fetchval("SELECT pg_advisory_unlock($1)", i)

            return await run_tasks(TASKS, seconds, cycle)

    return asyncio.run(measure())


def _rows(samples: Sequence[Sample]) -> list[Row]:
    ours, theirs = Figure("holdfast", "cycles_s", "/s"), Figure("advisory lock", "cycles_s", "/s")
    work = "acquire + release, 50 tasks, Postgres (synchronous_commit on)"
    return [
        faster(work, samples, ours, theirs, Goal(5, 7, "×")),
        faster("… the pool's reset switched off", samples, ours, Figure("advisory lock, no reset", "cycles_s", "/s")),
    ]


POSTGRES = Subject(
    name="postgres-50-tasks",
    server="postgres",
    contenders=[
        Contender(name="holdfast", run=holdfast),
        Contender(name="advisory lock", run=advisory),
        Contender(name="advisory lock, no reset", run=advisory, arguments={"reset": False}),
    ],
    seconds=1.5,
    repetitions=5,
    rows=_rows,
)
