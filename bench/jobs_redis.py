"""No-op jobs from submission to outcome on a Redis that writes its file every second: ours and others on the same one.

Ours is the plane with its store and its bus in Redis, and one worker. Neither arq nor SAQ has a batch:
sixteen callers enqueue at once. Their workers may run as many jobs at once as ours; arq looks for new jobs every half a second, and takes 320 at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import gettempdir

from bench import jobs_peers
from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import plane
from bench.jobs_tasks import SLOTS
from bench.jobs_throughput import BATCH, CALLERS, end_to_end
from bench.subject import Subject
from bench.table import Figure, Goal, Row, faster


def holdfast(url: str, seconds: float, jobs: int, *, batch: int = BATCH) -> Figures:
    with plane(gettempdir(), store=url) as running:
        return end_to_end(running, jobs, batch=batch)


def peer(url: str, seconds: float, jobs: int, *, name: str) -> Figures:
    return jobs_peers.QUEUES.run(f"{name}_noop", "throughput", jobs, redis=url, at_once=str(SLOTS))


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def rate(contender: str) -> Figure:
        return Figure(contender, "jobs_s", "/s")

    ours, singly, arq, saq = map(rate, ("holdfast", "holdfast, singly", "arq", "SAQ"))
    return [
        faster("no-op jobs end to end, Redis store and bus, AOF every second", samples, ours, arq, Goal(2, None, "×")),
        faster("… against SAQ", samples, ours, saq, Goal(2, None, "×")),
        faster(f"… ours singly too, {CALLERS} callers at once", samples, singly, saq),
    ]


REDIS = Subject(
    name="jobs-redis",
    server="redis-aof",
    contenders=[
        Contender(name="holdfast", run=holdfast),
        Contender(name="arq", run=peer, arguments={"name": "arq"}),
        Contender(name="SAQ", run=peer, arguments={"name": "saq"}),
        Contender(name="holdfast, singly", run=holdfast, arguments={"batch": 1}),
    ],
    repetitions=3,
    arguments={"jobs": 2000},
    peers=[jobs_peers.QUEUES],
    rows=_rows,
)
