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
TEMPORAL_RUNS = 32
"""A run takes it half a second: as many as of the others would take minutes."""


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


def temporal(url: str, seconds: float, runs: int, what: str) -> Figures:
    """Nothing, where it could not be installed."""
    if not jobs_peers.TEMPORAL.is_installed:
        return {}
    return jobs_peers.TEMPORAL.run("temporal_chain", what, runs)


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
    growth = "a step of a chain of 1,000 costs, against one of 10"
    return [
        *_against("DBOS, Postgres", samples, Goal(3, None, "×")),
        *_against("Temporal", samples, Goal(5, None, "×")),
        *_against("Temporal, unthrottled", samples, None),
        *_against("Temporal, local activities", samples, None),
        bounded(growth, samples, Figure("holdfast", "growth", "×"), Goal(1.5, None, "×", most=True)),
    ]


def _against(peer: str, samples: Sequence[Sample], goal: Goal | None) -> list[Row]:
    idle, together = "a chain of 10 steps, idle: median", f"… {CALLERS} callers at once"
    ours_ms, ours_rate = Figure("holdfast", "p50_ms", "ms"), Figure("holdfast", "steps_s", "steps/s")
    if not all(sample[peer] for sample in samples):
        missing = {
            "peer": f"{peer}: could not be installed",
            "goal": goal.shown() if goal else "",
            "verdict": "not measured",
        }
        return [
            Row(work=idle, ours=ours_ms.shown(samples), **missing),
            Row(work=together, ours=ours_rate.shown(samples), **missing),
        ]
    return [
        lower(idle, samples, ours_ms, Figure(peer, "p50_ms", "ms"), goal),
        faster(together, samples, ours_rate, Figure(peer, "steps_s", "steps/s"), goal),
    ]


CHAIN = Subject(
    name="workflow-chain",
    server="postgres",
    contenders=[
        Contender(name="holdfast", run=holdfast),
        Contender(name="DBOS, Postgres", run=dbos),
        Contender(name="Temporal", run=temporal, arguments={"runs": TEMPORAL_RUNS, "what": "activities"}),
        Contender(name="Temporal, unthrottled", run=temporal, arguments={"runs": TEMPORAL_RUNS, "what": "unthrottled"}),
        Contender(name="Temporal, local activities", run=temporal, arguments={"runs": TEMPORAL_RUNS, "what": "local"}),
    ],
    peers=[jobs_peers.SYSTEMS, jobs_peers.TEMPORAL],
    repetitions=5,
    arguments={"runs": 200},
    rows=_rows,
)
