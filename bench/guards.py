"""A guarded write against the same write in a bare transaction, durable, one after the other.

A few per cent drown in what a disk does from one second to the next. So here the two take turns
write by write, on one connection of one process, and the median write of each is compared.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from functools import partial
from tempfile import TemporaryDirectory

from bench.harness import WARM_UP_S, Contender, Figures, Sample
from bench.subject import Subject
from bench.table import Figure, Goal, Row, overhead
from holdfast.locks import LockClass, Locks, SyncLocks

BENCH = LockClass("bench", ttl=30)
CREATE = "CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL)"
INSERT = "INSERT INTO accounts VALUES (42, 0) ON CONFLICT DO NOTHING"
UPDATE = "UPDATE accounts SET balance = balance + 1 WHERE id = 42"


class Turns:
    """Times of two kinds of write that alternate, once warm."""

    def __init__(self, seconds: float) -> None:
        self._warm_at = time.perf_counter() + WARM_UP_S
        self._until = self._warm_at + seconds
        self._taken: tuple[list[float], list[float]] = ([], [])

    def __iter__(self) -> Turns:
        self._guarded, self._began = True, time.perf_counter()
        return self

    def __next__(self) -> bool:
        """Whether the next write is the guarded one."""
        now = time.perf_counter()
        if self._began > self._warm_at:
            self._taken[self._guarded].append(now - self._began)
        if now > self._until:
            raise StopIteration
        self._guarded = not self._guarded
        self._began = time.perf_counter()
        return self._guarded

    def figures(self) -> Figures:
        bare, guarded = self._taken
        return {"guarded_us": statistics.median(guarded) * 1e6, "bare_us": statistics.median(bare) * 1e6}


def postgres(url: str, seconds: float) -> Figures:
    import asyncpg

    async def measure() -> Figures:
        conn = await asyncpg.connect(url)
        await conn.execute(CREATE)
        await conn.execute(INSERT)
        async with Locks("sqlite:///:memory:") as locks:
            lease = await locks.acquire(BENCH, "42")
            turns = Turns(seconds)
            for guarded in turns:
                async with lease.guard(conn, "accounts/42") if guarded else conn.transaction():
                    await conn.execute(UPDATE)
            return turns.figures()

    return asyncio.run(measure())


def sqlite(url: str, seconds: float) -> Figures:
    import apsw

    with TemporaryDirectory(dir=url) as directory, SyncLocks("sqlite:///:memory:") as locks:
        conn = apsw.Connection(f"{directory}/accounts.db")
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute(CREATE)
        conn.execute(INSERT)
        lease = locks.acquire(BENCH, "42")
        turns = Turns(seconds)
        for guarded in turns:
            if guarded:
                with lease.guard(conn, "accounts/42") as db:
                    db.execute(UPDATE)
            else:
                conn.execute("BEGIN IMMEDIATE")
                conn.execute(UPDATE)
                conn.execute("COMMIT")
        return turns.figures()


def _rows(work: str, samples: Sequence[Sample]) -> list[Row]:
    ours, theirs = Figure("in turn", "guarded_us", "µs"), Figure("in turn", "bare_us", "µs", "bare")
    return [overhead(work, samples, ours, theirs, Goal(10, 5, "%", most=True))]


POSTGRES = Subject(
    name="guard-postgres",
    server="postgres",
    contenders=[Contender(name="in turn", run=postgres)],
    seconds=2.0,
    repetitions=7,
    rows=partial(_rows, "guarded write, Postgres (asyncpg, synchronous_commit on)"),
)
SQLITE = Subject(
    name="guard-sqlite",
    server="disk",
    contenders=[Contender(name="in turn", run=sqlite)],
    seconds=2.0,
    repetitions=7,
    rows=partial(_rows, "guarded write, SQLite (apsw, FULL)"),
)
