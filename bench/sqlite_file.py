"""Locks in a SQLite file, synchronous=FULL: group commit against a commit per operation.

The peer runs the same statements on the same tables, but each acquire and each release in a
transaction of its own, one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import Contender, Figures, Sample, run_alone, run_processes, run_tasks
from bench.subject import Subject
from bench.table import Figure, Goal, Row, bounded, faster
from holdfast.locks import LockClass, Locks
from holdfast.locks.runtime import SYSTEM

BENCH = LockClass("bench", ttl=30, wait=60)
TASKS = 50
PROCESSES = 4


def group_commit(url: str, seconds: float) -> Figures:
    async def measure(directory: str) -> Figures:
        async with Locks(f"sqlite:///{directory}/locks.db") as locks:

            async def cycle(i: int) -> None:
                async with locks.hold(BENCH, str(i)):
                    pass

            return await run_tasks(TASKS, seconds, cycle)

    with TemporaryDirectory(dir=url) as directory:
        return asyncio.run(measure(directory))


def commit_each(url: str, seconds: float) -> Figures:
    import apsw

    from holdfast.locks.stores.sqlite import writer as sqlite_writer
    from holdfast.locks.stores.sqlite.table import Ask, Known, Table

    with TemporaryDirectory(dir=url) as directory:
        connection = apsw.Connection(f"{directory}/locks.db")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(Path(sqlite_writer.__file__).with_name("locks.sql").read_text())

        known: Known | None = None

        def cycle() -> None:
            nonlocal known
            token = SYSTEM.token()
            for verb in ("acquire", "release"):
                connection.execute("BEGIN IMMEDIATE")
                table = Table(connection, SYSTEM, known)
                if verb == "acquire":
                    table.acquire(Ask("bench:1", token, BENCH.ttl_ms, 0, 1, "peer", ""))
                else:
                    table.release("bench:1", token)
                table.finish()
                connection.execute("COMMIT")
                known = table.known

        figures = run_alone(seconds, cycle)
        connection.close()
        return figures


def one_key(url: str, seconds: float) -> Figures:
    def conduct(barrier: Barrier) -> None:
        barrier.wait()

    with TemporaryDirectory(dir=url) as directory:
        counts = run_processes(_take_for, PROCESSES, f"sqlite:///{directory}/locks.db", 2 * seconds, conduct=conduct)
    return {"slowest_to_fastest": min(counts) / max(counts), "cycles_s": sum(counts) / (2 * seconds)}


def _take_for(barrier: Barrier, url: str, seconds: float) -> int:
    async def work() -> int:
        async with Locks(url) as locks:
            barrier.wait()
            deadline, taken = time.monotonic() + seconds, 0
            while time.monotonic() < deadline:
                async with locks.hold(BENCH, "one"):
                    taken += 1
            return taken

    return asyncio.run(work())


def _rows(samples: Sequence[Sample]) -> list[Row]:
    ours, theirs = Figure("holdfast", "cycles_s", "/s"), Figure("a transaction per operation", "cycles_s", "/s")
    fairness = Figure("holdfast, 4 processes", "slowest_to_fastest", "")
    return [
        faster("acquire + release, 50 tasks, SQLite FULL, group commit", samples, ours, theirs, Goal(5, 10, "×")),
        bounded("… 4 processes on one key: slowest / fastest", samples, fairness, Goal(0.5, 0.8, "")),
    ]


SQLITE = Subject(
    name="sqlite",
    server="disk",
    contenders=[
        Contender(name="holdfast", run=group_commit),
        Contender(name="a transaction per operation", run=commit_each),
        Contender(name="holdfast, 4 processes", run=one_key),
    ],
    seconds=1.5,
    repetitions=5,
    rows=_rows,
)
