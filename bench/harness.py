"""Runs contenders side by side: each in a fresh process, every repetition all of them, in rotating order.

A contender is a plain function that takes where to work and how long, and returns its figures.
`python -m bench.harness module:function '{"url": …}'` runs one and prints them as JSON.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WARM_UP_S = 0.3
CONTENDER_S_MAX = 90.0

Figures = dict[str, float]
Sample = dict[str, Figures]
"""One repetition: the figures of each contender by its name."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    name: str
    run: Callable[..., Figures]
    arguments: Mapping[str, object] = field(default_factory=dict)


class ContenderFailed(Exception):
    pass


def repeat(
    contenders: Sequence[Contender], repetitions: int, place: Mapping[str, object], *, before: Callable[[], None]
) -> Iterator[Sample]:
    """A sample per repetition. The order rotates, so that nobody always runs after the same neighbour.

    `before` is called before each contender.
    """
    for repetition in range(repetitions):
        shift = repetition % len(contenders)
        order = [*contenders[shift:], *contenders[:shift]]
        sample: Sample = {}
        for contender in order:
            before()
            sample[contender.name] = run_fresh(contender, place)
        yield sample


def run_fresh(contender: Contender, place: Mapping[str, object]) -> Figures:
    """The figures of one contender, from a process of its own."""
    name = f"{contender.run.__module__}:{contender.run.__name__}"
    arguments = json.dumps({**place, **contender.arguments})
    # In a session of its own, so that whatever it started can be ended with it.
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.harness", name, arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, complaint = process.communicate(timeout=CONTENDER_S_MAX)
    except subprocess.TimeoutExpired:
        raise ContenderFailed(f"{contender.name} ({name}) did not end within {CONTENDER_S_MAX} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise ContenderFailed(f"{contender.name} ({name}) failed:\n{complaint[-3000:]}")
    figures: Figures = json.loads(printed)
    return figures


async def run_tasks(tasks: int, seconds: float, cycle: Callable[[int], Awaitable[None]]) -> Figures:
    """Repeat `cycle(i)` in each of `tasks` tasks: cycles per second, and this process's CPU for each."""
    done = 0
    running = True

    async def work(i: int) -> None:
        nonlocal done
        while running:
            await cycle(i)
            done += 1

    workers = [asyncio.create_task(work(i)) for i in range(tasks)]
    await asyncio.sleep(WARM_UP_S)
    before, cpu, started = done, time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    figures = _rate(done - before, cpu, started)
    running = False
    await asyncio.gather(*workers)
    return figures


def run_threads(threads: int, seconds: float, cycle: Callable[[int], None]) -> Figures:
    """The same in threads."""
    done = [0] * threads  # one place each: += on a shared one loses counts
    running = True

    def work(i: int) -> None:
        while running:
            cycle(i)
            done[i] += 1

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    time.sleep(WARM_UP_S)
    before, cpu, started = sum(done), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    figures = _rate(sum(done) - before, cpu, started)
    running = False
    for worker in workers:
        worker.join()
    return figures


def run_alone(seconds: float, cycle: Callable[[], object]) -> Figures:
    """The same one after the other, without a thread or a loop in between."""
    _run_until(time.perf_counter() + WARM_UP_S, cycle)
    cpu, started = time.process_time(), time.perf_counter()
    return _rate(_run_until(started + seconds, cycle), cpu, started)


def run_processes(
    work: Callable[..., Any], processes: int, *arguments: object, conduct: Callable[[Barrier], None]
) -> list[Any]:
    """What `work(barrier, *arguments)` returns in each of several processes.

    `conduct(barrier)` runs here beside them and passes the barrier as often as they do.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes + 1, timeout=CONTENDER_S_MAX)
    results = context.SimpleQueue()
    children = [
        context.Process(target=_work_in_child, args=(results, work, barrier, *arguments), daemon=True)
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    conduct(barrier)
    outcomes = [results.get() for _ in children]
    for child in children:
        child.join()
    return outcomes


def _work_in_child(results: Any, work: Callable[..., Any], barrier: Barrier, *arguments: object) -> None:
    try:
        results.put(work(barrier, *arguments))
    except BaseException:
        barrier.abort()  # else the others wait for one that will not come
        raise


def _run_until(deadline: float, cycle: Callable[[], object]) -> int:
    done = 0
    while time.perf_counter() < deadline:
        cycle()
        done += 1
    return done


def _rate(cycles: int, cpu_before: float, started: float) -> Figures:
    cpu_s, elapsed_s = time.process_time() - cpu_before, time.perf_counter() - started
    return {"cycles_s": cycles / elapsed_s, "cpu_us": cpu_s * 1e6 / max(1, cycles)}


def _main() -> None:
    module, _, function = sys.argv[1].partition(":")
    figures = getattr(import_module(module), function)(**json.loads(sys.argv[2]))
    print(json.dumps(figures), flush=True)
    # Whatever a contender leaves open (pools, threads) must not make the next one wait.
    os._exit(0)


if __name__ == "__main__":
    _main()
