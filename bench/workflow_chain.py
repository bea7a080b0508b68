"""Runs of a chain of steps that do nothing: one after the other, many at once, and longer ones."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles
from tempfile import gettempdir

from bench import jobs_peers
from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import Running, plane
from bench.subject import Subject
from bench.table import Figure, Goal, Row, bounded, faster, lower

STEPS = 10
LONG = 1000
WARM_UP_RUNS = 20
CALLERS = 16


def holdfast(url: str, seconds: float, runs: int, *, worker: str = "in_loop") -> Figures:
    with plane(gettempdir()) as running:
        running.start_worker(worker)
        for length in (STEPS, LONG):
            running.client.apply_workflow(json.dumps(definition(length)))
        for _ in range(WARM_UP_RUNS):
            finish(running, STEPS)
        alone = quantiles([timed(running, STEPS) for _ in range(runs)], n=100)
        started = time.perf_counter()
        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(lambda _: finish(running, STEPS), range(runs)))
        together_s = time.perf_counter() - started
        long_ms = timed(running, LONG)
    return {
        "p50_ms": alone[49],
        "p99_ms": alone[98],
        "steps_s": runs * STEPS / together_s,
        "step_ms": alone[49] / STEPS,
        "growth": (long_ms / LONG) / (alone[49] / STEPS),
    }


def dbos(url: str, seconds: float, runs: int) -> Figures:
    return jobs_peers.SYSTEMS.run("dbos_chain", "chain", runs, postgres=url)


def definition(length: int) -> dict[str, object]:
    first = {"id": "s1", "kind": "job", "topic": "noop"}
    others = [
        {"id": f"s{n}", "kind": "job", "topic": "noop", "depends_on": [f"s{n - 1}"]} for n in range(2, length + 1)
    ]
    return {"name": f"chain-{length}", "steps": [first, *others]}


def timed(running: Running, length: int) -> float:
    started = time.perf_counter()
    finish(running, length)
    return (time.perf_counter() - started) * 1000


def finish(running: Running, length: int) -> None:
    ended = running.client.run_workflow(f"chain-{length}")
    assert ended.state == "succeeded", ended


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def ours(name: str, unit: str) -> Figure:
        return Figure("holdfast", name, unit)

    def theirs(name: str, unit: str) -> Figure:
        return Figure("DBOS, Postgres", name, unit)

    return [
        lower("a chain of 10 steps, idle: median", samples, ours("p50_ms", "ms"), theirs("p50_ms", "ms"), Goal(3, None, "×")),
        faster(
            "… 16 callers at once", samples, ours("steps_s", "steps/s"), theirs("steps_s", "steps/s"), Goal(3, None, "×")
        ),
        bounded(
            "a step of a chain of 1,000 costs, against one of 10", samples, ours("growth", "×"),
            Goal(1.5, None, "×", most=True),
        ),
    ]  # fmt: skip


CHAIN = Subject(
    name="workflow-chain",
    server="postgres",
    contenders=[Contender(name="holdfast", run=holdfast), Contender(name="DBOS, Postgres", run=dbos)],
    peers=[jobs_peers.SYSTEMS],
    repetitions=5,
    arguments={"runs": 200},
    rows=_rows,
)
