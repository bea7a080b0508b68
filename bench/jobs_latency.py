"""Submit a job on an idle system and wait for its outcome, one after the other, as one caller."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import quantiles
from tempfile import gettempdir

from bench import jobs_peers
from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import plane
from bench.subject import Subject
from bench.table import Figure, Goal, Row, lower

WARM_UP_JOBS = 50


def holdfast(url: str, seconds: float, jobs: int, *, worker: str, in_one: bool = True) -> Figures:
    with plane(gettempdir()) as running:
        running.start_worker(worker)

        def round_trip() -> float:
            started = time.perf_counter()
            client = running.client
            ended = client.run("noop") if in_one else client.wait(client.submit("noop").id)
            taken_ms = (time.perf_counter() - started) * 1000
            assert ended.state == "SUCCEEDED"
            return taken_ms

        for _ in range(WARM_UP_JOBS):
            round_trip()
        hundredths = quantiles([round_trip() for _ in range(jobs)], n=100)
    return {"p50_ms": hundredths[49], "p99_ms": hundredths[98]}


def peer(url: str, seconds: float, jobs: int, *, name: str) -> Figures:
    return jobs_peers.SYSTEMS.run(f"{name}_noop", "latency", jobs, redis=url.rpartition("/")[0])


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def both(name: str) -> tuple[Figure, Figure]:
        return Figure("holdfast", name, "ms"), Figure("Celery", name, "ms")

    in_two = Figure("holdfast, submit, then wait", "p50_ms", "ms")
    in_processes = Figure("holdfast, processes", "p50_ms", "ms")
    return [
        lower("submit → outcome seen, idle, SQLite FULL: median", samples, *both("p50_ms"), Goal(1, None, "×")),
        lower("… 99th percentile", samples, *both("p99_ms"), Goal(1, None, "×")),
        lower("… in two requests: median", samples, in_two, both("p50_ms")[1]),
        lower("… handler in a process: median", samples, in_processes, both("p50_ms")[1]),
    ]


LATENCY = Subject(
    name="jobs-latency",
    server="redis",
    contenders=[
        Contender(name="holdfast", run=holdfast, arguments={"worker": "in_loop"}),
        Contender(name="holdfast, submit, then wait", run=holdfast, arguments={"worker": "in_loop", "in_one": False}),
        Contender(name="Celery", run=peer, arguments={"name": "celery"}),
        Contender(name="holdfast, processes", run=holdfast, arguments={"worker": "in_processes"}),
    ],
    repetitions=5,
    arguments={"jobs": 500},
    peers=[jobs_peers.SYSTEMS],
    rows=_rows,
)
