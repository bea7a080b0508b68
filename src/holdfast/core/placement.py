"""Placement: topic → pool → worker. The least loaded live worker of the pool that fits."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

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
    unable: str = ""
    """Why it can begin nothing now, by its own word."""

    @property
    def room(self) -> int:
        return self.slots + self.backlog - self.in_hand

    @property
    def wants(self) -> bool:
        """By its own word, or somebody's about it."""
        return not self.draining and not self.unable

    @property
    def load(self) -> float:
        return self.in_hand / self.slots

    @property
    def meets(self) -> Labels:
        """The most that a job may want of it."""
        return tuple(sorted((f"{REQUIRE}{name}", value) for name, value in self.labels.items()))

    def with_one_more(self) -> WorkerView:
        return replace(self, in_hand=self.in_hand + 1)


CONDITIONS = ("ready", "stuck", "unable", "draining", "silent")


def condition(worker: WorkerView, *, alive_since: float) -> str:
    """What keeps it from being given anything, whatever the job; `ready`: nothing does."""
    if worker.last_seen < alive_since:
        return "silent"
    if worker.draining:
        return "draining"
    if worker.unable:
        return "unable"
    return "stuck" if worker.stuck else "ready"


FULL = "worker-full"
_TAKES = (None, FULL)
REQUIRE = "require."
"""Job labels that start with this must stand on the worker without it: `require.gpu=a100` wants `gpu=a100`."""


Labels = tuple[tuple[str, str], ...]
"""As they stand on a job that wants them, in order."""


class Demand(NamedTuple):
    """The jobs of a topic that want at least these labels of their worker."""

    topic: str
    labels: Labels


def demand_of(job: Job) -> Demand:
    if not job.labels:
        return Demand(job.topic, ())
    return Demand(job.topic, tuple(sorted(label for label in job.labels.items() if label[0].startswith(REQUIRE))))


class PassedOver:
    """Jobs that nobody can take now, by what others have in common with them.

    Of a topic some of whose jobs want what nobody has, there may be any number that want something else which nobody has:
    so it is said what is to be had, which is never more than there are workers.
    """

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.met_by: dict[str, frozenset[Labels]] = {}
        """By topic: what may be wanted at most, one set of labels or another."""
        self._unmet: set[tuple[str, str, bool]] = set()
        """Topic, pool, and whether somebody would take it who has no room."""

    def __len__(self) -> int:
        return len(self.topics) + len(self._unmet)

    def add(self, job: Job, *, is_served: bool, pool: str) -> None:
        """`pool`: where jobs of its topic go today, for those behind it."""
        if demand_of(job).labels:
            self._unmet |= {(job.topic, job.pool, is_served), (job.topic, pool, is_served)}
        else:
            self.topics.add(job.topic)

    def look(self, workers: Iterable[WorkerView], *, alive_since: float) -> None:
        """See anew who could take what: `met_by`. Who has no room counts until a job was seen that waits for him, so that
        nobody who waits for room is looked past unseen."""
        if not self._unmet:
            return
        ready = [(worker, worker.meets) for worker in workers if condition(worker, alive_since=alive_since) == "ready"]
        waited_for = {topic for topic, _, is_served in self._unmet if is_served}
        found: dict[str, set[Labels]] = {topic: set() for topic, _, _ in self._unmet}
        for topic, pool in {(topic, pool) for topic, pool, _ in self._unmet}:
            found[topic] |= {
                meets
                for worker, meets in ready
                if worker.pool == pool and fits(topic, *worker.topics) and (worker.room > 0 or topic not in waited_for)
            }
        self.met_by = {topic: frozenset(meets) for topic, meets in found.items()}


class Placing:
    """Job after job to the least loaded worker that fits; who was given one weighs more for the next.

    Workers are asked once for all jobs that are alike: there may be hundreds of both.
    """

    def __init__(self, workers: Iterable[WorkerView], *, alive_since: float, kept: int = 0) -> None:
        """`kept`: room that stays free at each worker."""
        self._workers = {worker.id: worker for worker in workers}
        self._alive_since = alive_since
        self._kept = kept
        self._lines: dict[tuple[str, Demand], list[tuple[float, str]]] = {}
        """For each kind of job those who would take it, the least loaded first; by their load when it was last looked at."""
        self._served: set[tuple[str, Demand]] = set()
        self.room = sum(max(0, worker.room - kept) for worker in self._workers.values() if worker.wants)

    def place(self, job: Job) -> str | None:
        """The worker that has it now, or None: nobody fits."""
        line = self._line(job)
        while line:
            load, chosen = line[0]
            worker = self._workers[chosen]
            if worker.room <= self._kept:
                heappop(line)
            elif worker.load != load:
                heapreplace(line, (worker.load, chosen))
            else:
                self._workers[chosen] = worker.with_one_more()
                self.room -= 1
                return chosen
        return None

    def serves(self, job: Job) -> bool:
        """Whether somebody would take it, if he had room."""
        self._line(job)
        return (job.pool, demand_of(job)) in self._served

    def ready(self) -> set[str]:
        """Who may be given anything."""
        workers = self._workers.values()
        return {worker.id for worker in workers if condition(worker, alive_since=self._alive_since) == "ready"}

    def _line(self, job: Job) -> list[tuple[float, str]]:
        kind = job.pool, demand_of(job)
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = [
                (worker.load, worker.id)
                for worker in self._workers.values()
                if unfit(job, job.pool, worker, alive_since=self._alive_since) in _TAKES
            ]
            heapify(line)
            if line:
                self._served.add(kind)
        return line


def unfit(job: Job, pool: str, worker: WorkerView, *, alive_since: float) -> str | None:
    """Why the job cannot go to this worker, as a stable code; None if it can."""
    if worker.pool != pool:
        return "other-pool"
    if not fits(job.topic, *worker.topics):
        return "other-topics"
    now = condition(worker, alive_since=alive_since)
    if now != "ready":
        return f"worker-{now}"
    wanted = demand_of(job).labels
    if wanted and any(worker.labels.get(name.removeprefix(REQUIRE)) != value for name, value in wanted):
        return "labels-missing"
    if worker.room <= 0:
        return FULL
    return None
