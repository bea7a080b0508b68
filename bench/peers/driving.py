"""How every peer is driven: `python -m bench.peers.PEER throughput JOBS` or `latency JOBS` prints its figures as JSON.

The worker has run some jobs before the clock starts, so that neither its start nor its first
connections are measured.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles

WARM_UP_JOBS = 50
LOOK_S = 0.02
PATIENCE_S = 80.0
END_S = 10.0
CALLERS = 16
BATCH = 100
"""As many as ours submits in a request, for those who have such a thing."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    #: The command line of its worker, started in the current folder.
    worker: Sequence[str]
    #: Whether jobs can be submitted yet.
    ready: Callable[[], bool] = lambda: True
    #: Submit so many jobs.
    submit: Callable[[int], object]
    #: How many outcomes are in its store. Must cost next to nothing: it is asked while the jobs run.
    finished: Callable[[], int]
    #: Submit a job and wait for its result, in the way that its documentation shows. Needed for latency only.
    round_trip: Callable[[], object] | None = None


def one_by_one(submit: Callable[[], object]) -> Callable[[int], None]:
    """One caller in a loop."""

    def submit_many(jobs: int) -> None:
        for _ in range(jobs):
            submit()

    return submit_many


def callers_at_once(runner: asyncio.Runner, submit: Callable[[], Awaitable[object]]) -> Callable[[int], None]:
    """Many callers in one loop: for clients of asyncio that know no batch, more than their examples do for them."""

    async def submit_many(jobs: int) -> None:
        left = iter(range(jobs))

        async def call() -> None:
            for _ in left:
                await submit()

        await asyncio.gather(*(call() for _ in range(CALLERS)))

    return lambda jobs: runner.run(submit_many(jobs))


def in_batches(runner: asyncio.Runner, submit_batch: Callable[[int], Awaitable[object]]) -> Callable[[int], None]:
    """One caller, batch after batch."""

    async def submit_many(jobs: int) -> None:
        for start in range(0, jobs, BATCH):
            await submit_batch(min(BATCH, jobs - start))

    return lambda jobs: runner.run(submit_many(jobs))


def drive(peer: Peer) -> None:
    what, jobs = sys.argv[1], int(sys.argv[2])
    with _working(peer.worker) as worker:
        while not peer.ready() and worker.poll() is None:
            time.sleep(LOOK_S)
        peer.submit(WARM_UP_JOBS)
        _wait_finished(peer, WARM_UP_JOBS)
        figures = _throughput(peer, jobs) if what == "throughput" else _latency(peer, jobs)
    print(json.dumps(figures))


def _throughput(peer: Peer, jobs: int) -> dict[str, float]:
    started = time.perf_counter()
    peer.submit(jobs)
    submitted = time.perf_counter()
    _wait_finished(peer, WARM_UP_JOBS + jobs)
    ended = time.perf_counter()
    return {"jobs_s": jobs / (ended - started), "submit_s": jobs / (submitted - started)}


def _latency(peer: Peer, jobs: int) -> dict[str, float]:
    assert peer.round_trip is not None
    taken = []
    for _ in range(jobs):
        started = time.perf_counter()
        peer.round_trip()
        taken.append((time.perf_counter() - started) * 1000)
    hundredths = quantiles(taken, n=100)
    return {"p50_ms": hundredths[49], "p99_ms": hundredths[98]}


def _wait_finished(peer: Peer, jobs: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (finished := peer.finished()) < jobs:
        if time.monotonic() > deadline:
            sys.exit(f"only {finished} of {jobs} jobs within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)


@contextmanager
def _working(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with open("worker.log", "wb") as log:
        # In our own process group: whoever ends the benchmark for taking too long ends the worker, too.
        worker = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait(END_S)
