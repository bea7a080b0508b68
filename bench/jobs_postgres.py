"""No-op jobs from submission to durable outcome on Postgres, synchronous_commit on: ours and others on the same server.

Ours is the plane with its store and its bus in Postgres, and one worker. Everybody gets the same
number of jobs, in a database of its own. Procrastinate and Oban have a batch, and are given a hundred
jobs in each as ours; DBOS has none, and one caller enqueues in a loop. Procrastinate's and Oban's
workers may run as many jobs at once as ours.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import gettempdir

import psycopg

from bench import jobs_peers
from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import plane
from bench.jobs_tasks import SLOTS
from bench.jobs_throughput import BATCH, CALLERS, end_to_end
from bench.subject import Subject
from bench.table import Figure, Goal, Row, faster


def holdfast(url: str, seconds: float, jobs: int, *, batch: int = BATCH) -> Figures:
    with fresh_database(url) as store, plane(gettempdir(), store=store) as running:
        return end_to_end(running, jobs, batch=batch)


def dbos(url: str, seconds: float, jobs: int) -> Figures:
    with fresh_database(url) as database:
        return jobs_peers.SYSTEMS.run("dbos_noop", "throughput", jobs, postgres=database)


def procrastinate(url: str, seconds: float, jobs: int) -> Figures:
    with fresh_database(url) as database:
        return jobs_peers.QUEUES.run("procrastinate_noop", "throughput", jobs, postgres=database, at_once=str(SLOTS))


def oban(url: str, seconds: float, jobs: int) -> Figures:
    """Nothing, where there is no Python that is new enough."""
    if not jobs_peers.OBAN.is_installed:
        return {}
    with fresh_database(url) as database:
        return jobs_peers.OBAN.run("oban_noop", "throughput", jobs, postgres=database, at_once=str(SLOTS))


@contextmanager
def fresh_database(url: str) -> Iterator[str]:
    """An empty database on the server, that goes with whoever is left in it."""
    name = f"bench_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{url.rpartition('/')[0]}/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def rate(contender: str) -> Figure:
        return Figure(contender, "jobs_s", "/s")

    ours, theirs = rate("holdfast"), rate("Procrastinate")
    rows = [
        faster("no-op jobs end to end, Postgres store and bus", samples, ours, theirs, Goal(3, None, "×")),
        faster("… against DBOS, singly", samples, ours, rate("DBOS"), Goal(10, None, "×")),
    ]
    if all(sample["Oban"] for sample in samples):
        rows.append(faster("… against Oban's Python port", samples, ours, rate("Oban"), Goal(1, None, "×")))
    rows.append(
        faster(f"… ours singly too, {CALLERS} callers at once", samples, rate("holdfast, singly"), rate("DBOS"))
    )
    return rows


POSTGRES = Subject(
    name="jobs-postgres",
    server="postgres",
    contenders=[
        Contender(name="holdfast", run=holdfast),
        Contender(name="Procrastinate", run=procrastinate),
        Contender(name="DBOS", run=dbos),
        Contender(name="Oban", run=oban),
        Contender(name="holdfast, singly", run=holdfast, arguments={"batch": 1}),
    ],
    repetitions=3,
    arguments={"jobs": 2000},
    peers=[jobs_peers.SYSTEMS, jobs_peers.QUEUES, jobs_peers.OBAN],
    rows=_rows,
)
