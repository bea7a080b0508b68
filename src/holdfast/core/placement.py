"""Placement: topic → pool → worker. The least loaded live worker of the pool that fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.core.family import fits
from holdfast.core.job import Job


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as the scheduler sees it: what it said last, and what it was given since."""

    id: str
    pool: str
    topics: tuple[str, ...]
    """Names, or families ending in `*`."""
    labels: dict[str, str] = {}
    slots: int
    """Jobs it runs at once."""
    backlog: int
    """Jobs it is willing to have waiting beside those."""
    in_hand: int
    """Jobs dispatched to it or running on it."""
    draining: bool
    last_seen: float
    stuck: bool = False
    """It speaks, and does not take what was sent to it."""

    @property
    def room(self) -> int:
        return self.slots + self.backlog - self.in_hand


CONDITIONS = ("ready", "stuck", "draining", "silent")


def condition(worker: WorkerView, *, alive_since: float) -> str:
    """What keeps it from being given anything, whatever the job; `ready`: nothing does."""
    if worker.last_seen < alive_since:
        return "silent"
    if worker.draining:
        return "draining"
    return "stuck" if worker.stuck else "ready"


FULL = "worker-full"
REQUIRE = "require."
"""Job labels that start with this must stand on the worker without it: `require.gpu=a100` wants `gpu=a100`."""


class Demand(NamedTuple):
    """The jobs of a topic that want at least these labels of their worker."""

    topic: str
    labels: tuple[tuple[str, str], ...]
    """As they stand on the job, in order."""


def demand_of(job: Job) -> Demand:
    return Demand(job.topic, tuple(sorted(label for label in job.labels.items() if label[0].startswith(REQUIRE))))


def place(job: Job, pool: str, workers: Iterable[WorkerView], *, alive_since: float) -> WorkerView | None:
    """The worker to dispatch to, or None: nobody fits now."""
    fitting = [w for w in workers if unfit(job, pool, w, alive_since=alive_since) is None]
    return min(fitting, key=lambda w: (w.in_hand / w.slots, w.id), default=None)


def waits_for_room(job: Job, pool: str, workers: Iterable[WorkerView], *, alive_since: float) -> bool:
    """Whether one of them would take it, if he had room."""
    return any(unfit(job, pool, worker, alive_since=alive_since) in (None, FULL) for worker in workers)


def unfit(job: Job, pool: str, worker: WorkerView, *, alive_since: float) -> str | None:
    """Why the job cannot go to this worker, as a stable code; None if it can."""
    if worker.pool != pool:
        return "other-pool"
    if not fits(job.topic, *worker.topics):
        return "other-topics"
    now = condition(worker, alive_since=alive_since)
    if now != "ready":
        return f"worker-{now}"
    wanted = {name.removeprefix(REQUIRE): value for name, value in job.labels.items() if name.startswith(REQUIRE)}
    if any(worker.labels.get(name) != value for name, value in wanted.items()):
        return "labels-missing"
    if worker.room <= 0:
        return FULL
    return None
