"""Ten thousand leases of one process, renewed by its keeper: what one renewal of one lease costs.

CPU of the whole process over one whole cycle, sweeps included, less what the same process needs
while it keeps a single lease. redis-py's `reacquire`, one after the other, stands beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.harness import Contender, Figures, Sample, run_alone
from bench.subject import Subject
from bench.table import Figure, Goal, Row, bounded
from holdfast.locks import Lease, LockClass, Locks, LoggingObserver

BENCH = LockClass("bench", ttl=30)
LEASES = 10_000
IDLE_S = 3.0
#: Every lease renews some 9 to 11 s after it was acquired: once inside this, and not a second time.
CYCLE_S = 12.0


class Counting(LoggingObserver):
    renewals = 0

    def renewed(self, lock_class: LockClass, count: int) -> None:
        self.renewals += count


def holdfast(url: str, seconds: float) -> Figures:
    counting = Counting()

    async def measure() -> Figures:
        async with Locks(url, observer=counting) as locks:
            await locks.acquire(BENCH, "idle")
            idle_share = await _cpu_during(IDLE_S) / IDLE_S
            leases: list[Lease] = []
            for start in range(0, LEASES, 500):
                some = (locks.acquire(BENCH, str(i)) for i in range(start, start + 500))
                leases += await asyncio.gather(*some)
            before = counting.renewals
            cpu_s = await _cpu_during(CYCLE_S) - idle_share * CYCLE_S
            renewed = counting.renewals - before
            lost = sum(lease.remaining() == 0 for lease in leases)
            return {"us_per_lease": cpu_s * 1e6 / renewed, "lost": max(lost, LEASES - renewed)}

    return asyncio.run(measure())


def redis_py(url: str, seconds: float) -> Figures:
    from redis import Redis

    with Redis.from_url(url) as client:
        lock = client.lock("bench", timeout=30)
        assert lock.acquire()
        return {"us_per_lease": run_alone(seconds, lock.reacquire)["cpu_us"]}


async def _cpu_during(seconds: float) -> float:
    before = time.process_time()
    await asyncio.sleep(seconds)
    return time.process_time() - before


def _rows(samples: Sequence[Sample]) -> list[Row]:
    work = "renewal of 10 000 leases of one process, ttl 30 s, Redis"
    ours, theirs = Figure("holdfast", "us_per_lease", "µs per lease"), Figure("redis-py", "us_per_lease", "µs")
    return [
        bounded(f"{work}: client CPU", samples, ours, Goal(8, 6, "µs", most=True), theirs),
        bounded("… leases lost", samples, Figure("holdfast", "lost", ""), Goal(0, None, "", most=True)),
    ]


RENEWAL = Subject(
    name="renewal",
    server="redis",
    contenders=[
        Contender(name="holdfast", run=holdfast),
        Contender(name="redis-py", run=redis_py),
    ],
    seconds=0.5,
    repetitions=2,
    rows=_rows,
)
