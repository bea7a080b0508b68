"""The plane over a store with a million finished jobs, against one with a thousand.

The finished jobs are copies of two that really ran, one of which failed: every row that their lives
left behind, under a new id, inserted in the order of time as in life, so that the indexes are what a
year of work would have made them. Every hundredth failed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import apsw

from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import plane
from bench.jobs_throughput import BATCH, throughput
from bench.subject import Subject
from bench.table import Figure, Goal, Row, overhead

FEW = 1000
GETS, LISTS = 300, 60
#: A thousandth of a second from one copy to the next: none is old enough to be pruned.
STEP_US = 1000

_NUMBERS = "WITH RECURSIVE numbers (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :finished)"
_ID = f"printf('%014x%018x', :first_us + n * {STEP_US}, n)"
_WHICH = "CASE WHEN n % 100 = 0 THEN :failed ELSE :succeeded END"


def prepare(url: str, finished: int, **_: object) -> None:
    """Make both files."""
    for number in (FEW, finished):
        started = time.monotonic()
        fill(file_of(url, number), number)
        size_mb = file_of(url, number).stat().st_size / 1e6
        told = f"{number} finished jobs, {size_mb:.0f} MB, in {time.monotonic() - started:.0f} s"
        print(f"jobs-full-store: made a store with {told}", file=sys.stderr, flush=True)


def file_of(url: str, finished: int) -> Path:
    return Path(url, f"finished-{finished}.db")


def fill(path: Path, finished: int) -> None:
    with plane(str(path.parent), store=f"sqlite:///{path}") as running:
        running.start_worker("in_loop")
        lives = {
            "succeeded": running.client.wait(running.client.submit("noop").id).id,
            "failed": running.client.wait(running.client.submit("fail").id).id,
        }
    first_us = int(min(lives.values())[:14], 16) - finished * STEP_US
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA automatic_index = OFF")  # it would change the order of a life's rows
    with connection:
        for table, key, own in (
            ("holdfast_jobs", "id", "seq"),
            ("holdfast_events", "job_id", "number"),
            ("holdfast_dead_letters", "job_id", "number"),
        ):
            _copy(connection, table, key, own, {**lives, "finished": finished, "first_us": first_us})
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())  # else the kernel writes a gigabyte while we measure


def _copy(connection: apsw.Connection, table: str, key: str, own: str, values: dict[str, object]) -> None:
    """The rows of both lives in this table, over and over. `own` is the row number, which SQLite gives out."""
    columns = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != own]
    copied = [_ID if column == key else f"life.{column}" for column in columns]
    connection.execute(f"CREATE TEMP TABLE life AS SELECT * FROM {table} ORDER BY {own}")
    # CROSS JOIN is SQLite's way to say: for each number all rows, in this order.
    connection.execute(
        f"{_NUMBERS} INSERT INTO main.{table} ({', '.join(columns)}) SELECT {', '.join(copied)} "
        f"FROM numbers CROSS JOIN life WHERE life.{key} = {_WHICH}",
        values,
    )
    connection.execute("DROP TABLE life")


def holdfast(url: str, seconds: float, jobs: int, finished: int, *, few: bool) -> Figures:
    path = file_of(url, FEW if few else finished)
    with plane(url, store=f"sqlite:///{path}") as running:
        worker = running.start_worker("in_loop")
        figures = asyncio.run(throughput(running, worker.pid, jobs, batch=BATCH))
        some = iter(_some_ids(path, GETS))
        client = running.client
        return {
            "finished": FEW if few else finished,
            "job_us": 1e6 / figures["jobs_s"],
            "get_ms": _median_ms(GETS, lambda: client.get(next(some))),
            "list_ms": _median_ms(LISTS, lambda: client.list(limit=100)),
            "list_failed_ms": _median_ms(LISTS, lambda: client.list(state="FAILED", limit=10)),
        }


def _some_ids(path: Path, count: int) -> list[str]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    [last] = connection.execute("SELECT max(seq) FROM holdfast_jobs").fetchone() or (0,)
    chosen = random.sample(range(3, int(last)), count)
    rows = [connection.execute("SELECT id FROM holdfast_jobs WHERE seq = ?", (seq,)).fetchone() for seq in chosen]
    connection.close()
    return [str(row[0]) for row in rows if row is not None]


def _median_ms(times: int, ask: Callable[[], object]) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - started) * 1000)
    return median(taken)


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def row(work: str, name: str, unit: str) -> Row:
        many, few = Figure("many", name, unit), Figure("few", name, unit, label=f"{FEW} jobs")
        return overhead(work, samples, many, few, Goal(20, None, "%", most=True))

    finished = f"{samples[0]['many']['finished']:,.0f}".replace(",", " ")
    return [
        row(f"no-op jobs beside {finished} finished ones: time per job", "job_us", "µs"),
        row("… get one of them", "get_ms", "ms"),
        row("… list the newest 100", "list_ms", "ms"),
        row("… list 10 that failed", "list_failed_ms", "ms"),
    ]


FULL_STORE = Subject(
    name="jobs-full-store",
    server="disk",
    contenders=[
        Contender(name="many", run=holdfast, arguments={"few": False}),
        Contender(name="few", run=holdfast, arguments={"few": True}),
    ],
    repetitions=5,
    arguments={"jobs": 3000, "finished": 1_000_000},
    quick_arguments={"finished": 100_000},
    prepare=prepare,
    rows=_rows,
)
