"""How often the plane calls its store and its bus for a job: one caller who waits for each, and jobs by the hundred.

Calls are what the servers count: on Redis whatever arrives at once on a connection, on Postgres each
statement (BEGIN and COMMIT are statements), on NATS each message that a plane sends, its
acknowledgements included. What the plane asks by itself meanwhile is counted with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from tempfile import gettempdir

import asyncpg
import nats
from redis.asyncio import Redis

from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import Running, plane
from bench.jobs_postgres import fresh_database
from bench.jobs_throughput import BATCH, WARM_UP_JOBS, check, submit, wait_ended
from bench.subject import Subject
from bench.table import Figure, Goal, Row, lower
from holdfast.client import AsyncClient

ONE_BY_ONE = 200
#: What a plane sends to its bus: deliveries and hints, requests, acknowledgements.
SENT = ("holdfast.>", "$JS.API.>", "$JS.ACK.>")

Count = Callable[[], Awaitable[int]]


def on_redis(url: str, seconds: float, jobs: int) -> Figures:
    async def measured(running: Running) -> Figures:
        async with counting_redis(url) as count:
            return await per_job(running, jobs, {"store": count})

    with plane(gettempdir(), store=url) as running:
        running.start_worker("in_loop")
        return asyncio.run(measured(running))


def on_postgres(url: str, seconds: float, jobs: int, bus_url: str, *, bus: bool) -> Figures:
    async def measured(running: Running, store: str) -> Figures:
        async with counting_postgres(store) as store_count, counting_nats(bus_url) as bus_count:
            return await per_job(running, jobs, {"store": store_count} | ({"bus": bus_count} if bus else {}))

    with fresh_database(url) as store, plane(gettempdir(), store=store, bus=bus_url if bus else "") as running:
        running.start_worker("in_loop")
        return asyncio.run(measured(running, store))


async def per_job(running: Running, jobs: int, counts: dict[str, Count]) -> Figures:
    async with AsyncClient(running.url) as client:
        await submit(client, WARM_UP_JOBS, batch=BATCH)
        await wait_ended(client)
        before = {name: await count() for name, count in counts.items()}
        for _ in range(ONE_BY_ONE):
            await client.run("noop")
        between = {name: await count() for name, count in counts.items()}
        ids = await submit(client, jobs, batch=BATCH)
        await wait_ended(client)
        after = {name: await count() for name, count in counts.items()}
        await check(client, ids)
    alone = {f"{name}_alone": (between[name] - before[name]) / ONE_BY_ONE for name in counts}
    return alone | {f"{name}_loaded": (after[name] - between[name]) / jobs for name in counts}


@asynccontextmanager
async def counting_redis(url: str) -> AsyncIterator[Count]:
    async with Redis.from_url(url) as client:

        async def count() -> int:
            return int((await client.info("stats"))["total_reads_processed"])

        yield count


@asynccontextmanager
async def counting_postgres(url: str) -> AsyncIterator[Count]:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE EXTENSION pg_stat_statements")

    async def count() -> int:
        return int(
            await connection.fetchval(
                "SELECT sum(calls) FROM pg_stat_statements WHERE toplevel"
                " AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )

    try:
        yield count
    finally:
        await connection.close()


@asynccontextmanager
async def counting_nats(url: str) -> AsyncIterator[Count]:
    """Listens to what is sent, which the server tells over its monitoring port only."""
    heard = 0

    async def hear(_: object) -> None:
        nonlocal heard
        heard += 1

    async def count() -> int:
        await client.flush()
        return heard

    client = await nats.connect(url)
    for subject in SENT:
        await client.subscribe(subject, cb=hear)
    try:
        yield count
    finally:
        await client.close()


def _postgres_rows(samples: Sequence[Sample]) -> list[Row]:
    return [
        _fewer("calls of the store, jobs by the hundred: Postgres, statements", samples, "Postgres", "store"),
        _fewer("… Postgres with NATS, statements", samples, "Postgres + NATS", "store"),
        _fewer("… Postgres with NATS, messages to the bus", samples, "Postgres + NATS", "bus"),
    ]


def _redis_rows(samples: Sequence[Sample]) -> list[Row]:
    return [_fewer("calls of the store, jobs by the hundred: Redis, reads of sockets", samples, "Redis", "store")]


def _fewer(work: str, samples: Sequence[Sample], contender: str, which: str) -> Row:
    loaded = Figure(contender, f"{which}_loaded", "per job")
    alone = Figure(contender, f"{which}_alone", "per job", "one at a time")
    return lower(work, samples, loaded, alone, Goal(1, None, "×"))


POSTGRES = Subject(
    name="jobs-calls-postgres",
    server="postgres-counting",
    bus="nats",
    contenders=[
        Contender(name="Postgres", run=on_postgres, arguments={"bus": False}),
        Contender(name="Postgres + NATS", run=on_postgres, arguments={"bus": True}),
    ],
    repetitions=1,
    arguments={"jobs": 2000},
    rows=_postgres_rows,
)

REDIS = Subject(
    name="jobs-calls-redis",
    server="redis-aof",
    contenders=[Contender(name="Redis", run=on_redis)],
    repetitions=1,
    arguments={"jobs": 2000},
    rows=_redis_rows,
)
