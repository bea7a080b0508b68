"""Free locks on Redis from threads: `SyncLocks` against redis-py's blocking `Lock`, a key per thread."""

from __future__ import annotations

from collections.abc import Sequence

from bench.harness import Contender, Figures, Sample, run_threads
from bench.subject import Subject
from bench.table import Figure, Goal, Row, faster
from holdfast.locks import LockClass, SyncLocks

BENCH = LockClass("bench", ttl=30)


def holdfast(url: str, seconds: float, threads: int) -> Figures:
    with SyncLocks(url) as locks:

        def cycle(i: int) -> None:
            with locks.hold(BENCH, str(i)):
                pass

        return run_threads(threads, seconds, cycle)


def redis_py(url: str, seconds: float, threads: int) -> Figures:
    from redis import Redis

    with Redis.from_url(url) as client:
        locks = [client.lock(f"bench:{i}", timeout=30) for i in range(threads)]

        def cycle(i: int) -> None:
            with locks[i]:
                pass

        return run_threads(threads, seconds, cycle)


def _rows(samples: Sequence[Sample]) -> list[Row]:
    return [
        faster(
            f"SyncLocks, {threads}, Redis",
            samples,
            Figure(f"holdfast, {threads}", "cycles_s", "/s"),
            Figure(f"redis-py, {threads}", "cycles_s", "/s"),
            goal,
        )
        for threads, goal in (("1 thread", Goal(1.4, 1.6, "×")), ("8 threads", Goal(4, 6, "×")))
    ]


THREADS = Subject(
    name="redis-threads",
    server="redis",
    contenders=[
        Contender(name="holdfast, 1 thread", run=holdfast, arguments={"threads": 1}),
        Contender(name="redis-py, 1 thread", run=redis_py, arguments={"threads": 1}),
        Contender(name="holdfast, 8 threads", run=holdfast, arguments={"threads": 8}),
        Contender(name="redis-py, 8 threads", run=redis_py, arguments={"threads": 8}),
    ],
    seconds=1.2,
    repetitions=5,
    rows=_rows,
)
