"""No-op jobs from submission to durable outcome: submitted and executed at the same time, one worker.

Everybody gets the same number of jobs. One caller submits them in a loop; the clock ends when the
last outcome is in the store. Ours is durable at each step (SQLite, synchronous=FULL), as is DBOS;
Celery and Dramatiq keep everything in the memory of a Redis that never writes to disk.

What is compared with goals is `submit_many`, a hundred jobs in a request, and a handler that is a
coroutine in the worker's loop. The others have no such request: their own batches are loops as well.
Singly means `submit`, from sixteen tasks of a loop, of which `AsyncClient` sends those of the same moment together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from tempfile import gettempdir

from bench import jobs_peers
from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import Running, cpu_s, plane
from bench.subject import Subject
from bench.table import Figure, Goal, Row, faster
from holdfast.api import NewJob
from holdfast.client import AsyncClient

BATCH = 100
CALLERS = 16
LOOK_S = 0.02
WARM_UP_JOBS = 200
AHEAD = ("SCHEDULED", "DISPATCHED", "RUNNING")
"""In the order in which a job goes through them: one that has left the first is found in a later one."""


def holdfast(url: str, seconds: float, jobs: int, *, worker: str, batch: int = BATCH) -> Figures:
    with plane(gettempdir()) as running:
        return end_to_end(running, jobs, worker=worker, batch=batch)


def end_to_end(running: Running, jobs: int, *, worker: str = "in_loop", batch: int = BATCH) -> Figures:
    process = running.start_worker(worker)
    return asyncio.run(throughput(running, process.pid, jobs, batch=batch))


async def throughput(running: Running, worker: int, jobs: int, *, batch: int) -> Figures:
    """Jobs per second from the first submission to the last outcome, and the CPU that each side needed."""
    async with AsyncClient(running.url) as client:
        await submit(client, WARM_UP_JOBS, batch=batch)
        await wait_ended(client)
        cpu = cpu_s(running.process.pid), cpu_s(worker), time.process_time()
        started = time.perf_counter()
        ids = await submit(client, jobs, batch=batch)
        submitted = time.perf_counter()
        await wait_ended(client)
        ended = time.perf_counter()
        spent = cpu_s(running.process.pid) - cpu[0], cpu_s(worker) - cpu[1], time.process_time() - cpu[2]
        await check(client, ids)
    return {
        "jobs_s": jobs / (ended - started),
        "submit_s": jobs / (submitted - started),
        "plane_cpu_us": spent[0] * 1e6 / jobs,
        "worker_cpu_us": spent[1] * 1e6 / jobs,
        "client_cpu_us": spent[2] * 1e6 / jobs,
    }


async def submit(client: AsyncClient, jobs: int, *, batch: int, topic: str = "noop") -> set[str]:
    """Batch after batch; with a batch of one, singly from many callers at once. Returns the jobs' ids."""
    ids: set[str] = set()
    if batch > 1:
        for start in range(0, jobs, batch):
            answers = await client.submit_many([NewJob(topic=topic)] * min(batch, jobs - start))
            ids.update(answer.job.id for answer in answers if answer.job is not None)
        return ids
    left = iter(range(jobs))

    async def call() -> None:
        for _ in left:
            ids.add((await client.submit(topic)).id)

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return ids


async def wait_ended(client: AsyncClient) -> None:
    for state in AHEAD:
        while (await client.list(state=state, limit=1)).items:
            await asyncio.sleep(LOOK_S)


async def check(client: AsyncClient, ids: set[str]) -> None:
    """Every job has succeeded, as the plane lists them."""
    found: set[str] = set()
    cursor = None
    while len(found) < len(ids):
        page = await client.list(state="SUCCEEDED", limit=1000, cursor=cursor)
        found.update(job.id for job in page.items)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert ids <= found, f"{len(ids - found)} of {len(ids)} jobs did not succeed"


def peer(url: str, seconds: float, jobs: int, *, name: str) -> Figures:
    return jobs_peers.SYSTEMS.run(f"{name}_noop", "throughput", jobs, redis=url.rpartition("/")[0])


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def rate(contender: str) -> Figure:
        return Figure(contender, "jobs_s", "/s")

    batches, singly, in_processes = map(rate, ("holdfast", "holdfast, singly", "holdfast, processes"))
    celery, dbos, dramatiq = map(rate, ("Celery", "DBOS", "Dramatiq"))
    work = "no-op jobs end to end, one worker, SQLite FULL"
    return [
        faster(f"{work}, submitted by the hundred", samples, batches, celery, Goal(5, None, "×")),
        faster("… against SQLite", samples, batches, dbos, Goal(10, None, "×")),
        faster("… against memory, nothing on disk", samples, batches, dramatiq, Goal(1, None, "×")),
        faster("… handlers in processes", samples, in_processes, celery),
        faster(f"… submitted singly, {CALLERS} callers at once", samples, singly, celery),
    ]


THROUGHPUT = Subject(
    name="jobs-throughput",
    server="redis",
    contenders=[
        Contender(name="holdfast", run=holdfast, arguments={"worker": "in_loop"}),
        Contender(name="Celery", run=peer, arguments={"name": "celery"}),
        Contender(name="Dramatiq", run=peer, arguments={"name": "dramatiq"}),
        Contender(name="DBOS", run=peer, arguments={"name": "dbos"}),
        Contender(name="holdfast, processes", run=holdfast, arguments={"worker": "in_processes"}),
        Contender(name="holdfast, singly", run=holdfast, arguments={"worker": "in_loop", "batch": 1}),
    ],
    repetitions=5,
    arguments={"jobs": 2000},
    peers=[jobs_peers.SYSTEMS],
    rows=_rows,
)
