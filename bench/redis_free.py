"""Free locks on Redis from asyncio: acquire + release, each task on a key of its own.

Ours is `Locks.hold`: with its fence, registered with the keeper for renewal. redis-py's `Lock` is
made once per task and entered again and again, which is the best that it offers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from bench.harness import Contender, Figures, Sample, run_tasks
from bench.subject import Subject
from bench.table import Figure, Goal, Row, bounded, faster
from holdfast.locks import LockClass, Locks

BENCH = LockClass("bench", ttl=30)


def holdfast(url: str, seconds: float, tasks: int, *, uvloop: bool = False) -> Figures:
    async def measure() -> Figures:
        async with Locks(url) as locks:

            async def cycle(i: int) -> None:
                async with locks.hold(BENCH, str(i)):
                    pass

            return await run_tasks(tasks, seconds, cycle)

    return _run(measure, uvloop=uvloop)


def redis_py(url: str, seconds: float, tasks: int, *, uvloop: bool = False) -> Figures:
    from redis.asyncio import Redis

    async def measure() -> Figures:
        async with Redis.from_url(url) as client:
            locks = [client.lock(f"bench:{i}", timeout=30) for i in range(tasks)]

            async def cycle(i: int) -> None:
                async with locks[i]:
                    pass

            return await run_tasks(tasks, seconds, cycle)

    return _run(measure, uvloop=uvloop)


def _run(measure: Callable[[], Coroutine[None, None, Figures]], *, uvloop: bool) -> Figures:
    if uvloop:
        from uvloop import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(measure())
    return asyncio.run(measure())


def _rows_50(samples: Sequence[Sample]) -> list[Row]:
    ours, on_uvloop = Figure("holdfast", "cycles_s", "/s"), Figure("holdfast, uvloop", "cycles_s", "/s")
    theirs, theirs_on_uvloop = Figure("redis-py", "cycles_s", "/s"), Figure("redis-py, uvloop", "cycles_s", "/s")
    work = "acquire + release with fence and renewal, 50 tasks, Redis"
    return [
        faster(work, samples, ours, theirs, Goal(8, None, "×")),
        faster(f"{work}; ours on uvloop", samples, on_uvloop, theirs, Goal(None, 11, "×")),
        faster(f"{work}; both on uvloop", samples, on_uvloop, theirs_on_uvloop),
        bounded(
            "client CPU per acquire + release in that run",
            samples,
            Figure("holdfast", "cpu_us", "µs"),
            Goal(40, 30, "µs", most=True),
            Figure("redis-py", "cpu_us", "µs"),
        ),
    ]


def _rows_1(samples: Sequence[Sample]) -> list[Row]:
    ours, theirs = Figure("holdfast", "cycles_s", "/s"), Figure("redis-py", "cycles_s", "/s")
    return [faster("the same, one task, sequential, Redis", samples, ours, theirs, Goal(1.2, 1.5, "×"))]


FIFTY_TASKS = Subject(
    name="redis-50-tasks",
    server="redis",
    contenders=[
        Contender(name="holdfast", run=holdfast, arguments={"tasks": 50}),
        Contender(name="redis-py", run=redis_py, arguments={"tasks": 50}),
        Contender(name="holdfast, uvloop", run=holdfast, arguments={"tasks": 50, "uvloop": True}),
        Contender(name="redis-py, uvloop", run=redis_py, arguments={"tasks": 50, "uvloop": True}),
    ],
    seconds=1.5,
    repetitions=5,
    rows=_rows_50,
)
ONE_TASK = Subject(
    name="redis-1-task",
    server="redis",
    contenders=[
        Contender(name="holdfast", run=holdfast, arguments={"tasks": 1}),
        Contender(name="redis-py", run=redis_py, arguments={"tasks": 1}),
    ],
    seconds=1.0,
    repetitions=7,
    rows=_rows_1,
)
