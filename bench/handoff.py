"""A lock that many want: how long from the release to the next holder, and who gets it how often.

A hand-off is the time from the *call* of release to the *return* of the next holder's acquire, on
a clock that the processes of one host share. In each round twenty waiters come at random moments
of a tenth of a second (redis-py's polling interval, so its waiters do not poll in step); the first
holds the lock until all are there, then each has it once, for a millisecond. So every hand-off is
one to somebody who was already waiting.
In the hot loop everybody comes back at once, for two seconds: there fairness shows.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import chain, pairwise
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

from bench.harness import Contender, Figures, Sample, run_processes
from bench.subject import Subject
from bench.table import Figure, Goal, Row, bounded, faster, lower
from holdfast.locks import LockClass, Locks

PROCESSES = 4
WAITERS = 5
ROUNDS = 16
HOLD_S = 0.001
ARRIVAL_S = 0.1
WAIT_S = 60.0

#: Between processes the queue in the store is the subject; inside of one, the local mutex is.
SHARED = LockClass("shared", ttl=30, wait=WAIT_S)
LOCAL = LockClass("local", ttl=30, wait=WAIT_S, local_mutex=True)


class Lock(NamedTuple):
    acquire: Callable[[], Awaitable[Any]]
    release: Callable[[Any], Awaitable[None]]


class Tenure(NamedTuple):
    """Seconds on CLOCK_MONOTONIC: when acquire returned, and when release was called."""

    begun: float
    ended: float


@asynccontextmanager
async def holdfast_lock(url: str, lock_class: LockClass) -> AsyncIterator[Lock]:
    async with Locks(url) as locks:
        yield Lock(lambda: locks.acquire(lock_class, "one"), locks.release)


def holdfast_shared(url: str) -> AbstractAsyncContextManager[Lock]:
    return holdfast_lock(url, SHARED)


def holdfast_local(url: str) -> AbstractAsyncContextManager[Lock]:
    return holdfast_lock(url, LOCAL)


@asynccontextmanager
async def redis_py_lock(url: str) -> AsyncIterator[Lock]:
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:

        async def acquire() -> Any:
            # An object for each: redis-py keeps the token in the object, whoever acquired it last.
            lock = client.lock("one", timeout=30, blocking_timeout=WAIT_S)
            assert await lock.acquire()
            return lock

        yield Lock(acquire, lambda lock: lock.release())


def between_processes(url: str, seconds: float, opener: str) -> Figures:
    reads: list[int] = []

    def conduct(barrier: Barrier) -> None:
        barrier.wait()  # all are connected
        reads.append(_reads(url))
        for _ in range(ROUNDS):
            barrier.wait()
        barrier.wait()  # the last round is over
        reads.append(_reads(url))
        barrier.wait()  # the hot loop begins

    outcomes = run_processes(_waiters_of_one_process, PROCESSES, url, seconds, opener, conduct=conduct)
    rounds = [list(chain(*of_all)) for of_all in zip(*(rounds for rounds, _ in outcomes), strict=True)]
    counts = [count for _, of_one in outcomes for count in of_one]
    return {
        **_hand_offs(rounds),
        "reads_per_acquire": (reads[1] - reads[0]) / (ROUNDS * PROCESSES * WAITERS),
        "jain": sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)),
        "sections_s": sum(counts) / seconds,
    }


def inside_one_process(url: str, seconds: float, opener: str) -> Figures:
    async def measure() -> list[list[Tenure]]:
        async with OPENERS[opener](url) as lock:
            return [await _take_turns(lock, PROCESSES * WAITERS) for _ in range(ROUNDS)]

    return _hand_offs(asyncio.run(measure()))


def _waiters_of_one_process(
    barrier: Barrier, url: str, seconds: float, opener: str
) -> tuple[list[list[Tenure]], list[int]]:
    async def work() -> tuple[list[list[Tenure]], list[int]]:
        async with OPENERS[opener](url) as lock:
            await _take_turns(lock, WAITERS)  # connects, loads scripts, subscribes
            barrier.wait()
            rounds = []
            for _ in range(ROUNDS):
                barrier.wait()
                rounds.append(await _take_turns(lock, WAITERS))
            barrier.wait()
            barrier.wait()
            deadline = time.monotonic() + seconds
            counts = await asyncio.gather(*(_take_until(deadline, lock) for _ in range(WAITERS)))
        return rounds, counts

    return asyncio.run(work())


async def _take_turns(lock: Lock, waiters: int) -> list[Tenure]:
    """A round: everybody has the lock once."""
    all_here = time.monotonic() + ARRIVAL_S + 0.02

    async def take() -> Tenure:
        await asyncio.sleep(random.uniform(0, ARRIVAL_S))
        held = await lock.acquire()
        begun = time.monotonic()
        await asyncio.sleep(max(HOLD_S, all_here - begun))
        ended = time.monotonic()
        await lock.release(held)
        return Tenure(begun, ended)

    return await asyncio.gather(*(take() for _ in range(waiters)))


async def _take_until(deadline: float, lock: Lock) -> int:
    taken = 0
    while True:
        held = await lock.acquire()
        if time.monotonic() >= deadline:
            await lock.release(held)
            return taken
        taken += 1
        await asyncio.sleep(HOLD_S)
        await lock.release(held)


def _hand_offs(rounds: list[list[Tenure]]) -> Figures:
    gaps = sorted(after.begun - before.ended for of_one in rounds for before, after in pairwise(sorted(of_one)))
    assert gaps[0] >= 0, "two held the lock at the same time"
    return {
        "mean_ms": statistics.mean(gaps) * 1000,
        "p50_ms": statistics.median(gaps) * 1000,
        "p99_ms": statistics.quantiles(gaps, n=100)[98] * 1000,
    }


def _reads(url: str) -> int:
    from redis import Redis

    with Redis.from_url(url) as client:
        return int(client.info("stats")["total_reads_processed"])


OPENERS: dict[str, Callable[[str], AbstractAsyncContextManager[Lock]]] = {
    "holdfast": holdfast_shared,
    "holdfast, local": holdfast_local,
    "redis-py": redis_py_lock,
}


def _rows_between(samples: Sequence[Sample]) -> list[Row]:
    def both(name: str, unit: str = "") -> tuple[Figure, Figure]:
        return Figure("holdfast", name, unit), Figure("redis-py", name, unit)

    mean, p99, rate = both("mean_ms", "ms"), both("p99_ms", "ms"), both("sections_s", "/s")
    jain, reads = both("jain"), both("reads_per_acquire")
    return [
        lower("hand-off between processes, 4 × 5 waiters, Redis: mean", samples, *mean, Goal(8, 10, "×")),
        lower("… 99th percentile", samples, *p99, Goal(10, None, "×")),
        bounded("… Jain fairness in a hot loop", samples, jain[0], Goal(0.95, 0.98, ""), jain[1]),
        bounded("… server reads per acquire", samples, reads[0], Goal(4, 3, "", most=True), reads[1]),
        faster("… sections of 1 ms in the hot loop", samples, *rate),
    ]


def _rows_inside(samples: Sequence[Sample]) -> list[Row]:
    ours, theirs = Figure("holdfast", "p50_ms", "ms"), Figure("redis-py", "p50_ms", "ms")
    return [lower("hand-off inside a process, 20 waiters: median", samples, ours, theirs, Goal(10, 30, "×"))]


BETWEEN = Subject(
    name="handoff-processes",
    server="redis",
    contenders=[
        Contender(name="holdfast", run=between_processes, arguments={"opener": "holdfast"}),
        Contender(name="redis-py", run=between_processes, arguments={"opener": "redis-py"}),
    ],
    seconds=2.0,
    repetitions=5,
    rows=_rows_between,
)
INSIDE = Subject(
    name="handoff-local",
    server="redis",
    contenders=[
        Contender(name="holdfast", run=inside_one_process, arguments={"opener": "holdfast, local"}),
        Contender(name="redis-py", run=inside_one_process, arguments={"opener": "redis-py"}),
    ],
    seconds=2.0,
    repetitions=3,
    rows=_rows_inside,
)
