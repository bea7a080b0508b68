"""No-op jobs with their state in Postgres and their deliveries in NATS JetStream, against taskiq over the same NATS.

taskiq keeps its results where its documentation says, in the object store of NATS; without them it
is shown as well, though nothing is left of a job then. It has no batch: sixteen callers submit at
once. Its broker pulls, see `peers/taskiq_noop.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import gettempdir

from bench import jobs_peers
from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import plane
from bench.jobs_postgres import fresh_database
from bench.jobs_throughput import BATCH, CALLERS, end_to_end
from bench.subject import Subject
from bench.table import Figure, Goal, Row, faster

#: Messages that taskiq asks for at a time; by itself one.
PULLED = 100


def holdfast(
    url: str, seconds: float, jobs: int, bus_url: str, *, batch: int = BATCH, dispatch: str = "direct"
) -> Figures:
    with (
        fresh_database(url) as store,
        plane(gettempdir(), store=store, bus=bus_url, dispatch=dispatch) as running,
    ):
        return end_to_end(running, jobs, batch=batch)


def taskiq(url: str, seconds: float, jobs: int, bus_url: str, *, keep: str) -> Figures:
    return jobs_peers.QUEUES.run("taskiq_noop", "throughput", jobs, nats=bus_url, keep=keep, at_once=str(PULLED))


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def rate(contender: str) -> Figure:
        return Figure(contender, "jobs_s", "/s")

    direct, outbox, singly = map(rate, ("holdfast", "holdfast, outbox", "holdfast, singly"))
    kept, forgotten = rate("taskiq"), rate("taskiq, no results")
    return [
        faster("no-op jobs end to end, Postgres and NATS", samples, direct, kept, Goal(1, None, "×")),
        faster("… against no results at all", samples, direct, forgotten),
        faster("… by way of the outbox", samples, outbox, kept),
        faster(f"… ours singly too, {CALLERS} callers at once", samples, singly, kept),
    ]


NATS = Subject(
    name="jobs-nats",
    server="postgres",
    bus="nats",
    contenders=[
        Contender(name="holdfast", run=holdfast),
        Contender(name="taskiq", run=taskiq, arguments={"keep": "yes"}),
        Contender(name="taskiq, no results", run=taskiq, arguments={"keep": "no"}),
        Contender(name="holdfast, outbox", run=holdfast, arguments={"dispatch": "outbox"}),
        Contender(name="holdfast, singly", run=holdfast, arguments={"batch": 1}),
    ],
    repetitions=3,
    arguments={"jobs": 2000},
    peers=[jobs_peers.QUEUES],
    rows=_rows,
)
