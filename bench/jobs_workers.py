"""Two worker processes instead of one, on Postgres: jobs that wait, and jobs that do nothing at all.

Those that wait are limited by the slots of their worker, so a second one should double them. Those
that do nothing are limited by the cores, of which the plane and the server want some, too: a second
worker must not make them slower.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from tempfile import gettempdir

from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import Running, plane
from bench.jobs_postgres import fresh_database
from bench.jobs_tasks import WAIT_S
from bench.jobs_throughput import BATCH, WARM_UP_JOBS, check, submit, wait_ended
from bench.subject import Subject
from bench.table import Figure, Goal, Row, faster
from holdfast.client import AsyncClient

JOBS = {"wait": 600, "noop": 12_000}
"""Three seconds of each: in less than one, a look at the end more or less (20 ms) is what a second worker makes of it."""
WORKER_OF = {"wait": "waiting", "noop": "in_loop"}


def holdfast(url: str, seconds: float, *, topic: str, workers: int) -> Figures:
    with fresh_database(url) as store, plane(gettempdir(), store=store) as running:
        for _ in range(workers):
            running.start_worker(WORKER_OF[topic])
        return asyncio.run(_rate(running, topic))


async def _rate(running: Running, topic: str) -> Figures:
    async with AsyncClient(running.url) as client:
        await submit(client, WARM_UP_JOBS, batch=BATCH, topic=topic)
        await wait_ended(client)
        started = time.perf_counter()
        ids = await submit(client, JOBS[topic], batch=BATCH, topic=topic)
        await wait_ended(client)
        taken_s = time.perf_counter() - started
        await check(client, ids)
    return {"jobs_s": len(ids) / taken_s}


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def both(topic: str) -> tuple[Figure, Figure]:
        return Figure(f"{topic}, two", "jobs_s", "/s"), Figure(f"{topic}, one", "jobs_s", "/s", "one worker")

    waiting = f"two workers instead of one, Postgres: jobs that wait {WAIT_S * 1000:.0f} ms, 8 at once in each"
    return [
        faster(waiting, samples, *both("wait"), Goal(1.6, None, "×")),
        faster("… jobs that do nothing, and no core to spare", samples, *both("noop"), Goal(1, None, "×")),
    ]


WORKERS = Subject(
    name="jobs-workers",
    server="postgres",
    contenders=[
        Contender(name=f"{topic}, {name}", run=holdfast, arguments={"topic": topic, "workers": workers})
        for topic in ("wait", "noop")
        for name, workers in (("one", 1), ("two", 2))
    ],
    repetitions=5,
    rows=_rows,
)
