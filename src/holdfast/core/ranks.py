"""Ranks: the workers that are alike, in the order in which jobs are given to them.

There may be hundreds of workers, and a job every millisecond: whoever gives one looks at the first of each rank, not at all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import islice
from typing import NamedTuple

from holdfast.core.family import fits
from holdfast.core.job import Job
from holdfast.core.placement import Demand, Labels, WorkerView, condition, demand_of

SERVING_MAX = 1000
"""Kinds of jobs for which it is kept who serves them."""


class Kind(NamedTuple):
    """What workers of one rank have in common."""

    pool: str
    topics: tuple[str, ...]
    meets: Labels

    def serves(self, pool: str, demand: Demand) -> bool:
        return self.pool == pool and fits(demand.topic, *self.topics) and set(demand.labels) <= set(self.meets)


class Place(NamedTuple):
    """Of one worker in its rank: who can be given nothing stands behind all who can."""

    cannot: bool
    load: float
    worker: str


class Standing(NamedTuple):
    view: WorkerView
    kind: Kind
    place: Place


Rank = list[Place]


class Ranks:
    def __init__(self) -> None:
        self._standing: dict[str, Standing] = {}
        self._ranks: dict[Kind, Rank] = {}
        self._serving: dict[tuple[str, Demand], list[Rank]] = {}
        """By pool and demand, of those that were asked for since a rank came or went."""

    def put(self, view: WorkerView, *, alive_since: float) -> None:
        """Where it belongs, as it is now."""
        before = self._standing.get(view.id)
        kind = Kind(view.pool, view.topics, view.meets)
        cannot = view.room <= 0 or condition(view, alive_since=alive_since) != "ready"
        place = Place(cannot, view.load, view.id)
        if kind not in self._ranks:
            self._ranks[kind] = []
            self._serving.clear()
        insort(self._ranks[kind], place)
        self._standing[view.id] = Standing(view, kind, place)
        if before is not None:
            self._leave(before)

    def drop(self, worker: str) -> None:
        standing = self._standing.pop(worker, None)
        if standing is not None:
            self._leave(standing)

    def first(self, jobs: Collection[Job], *, alive_since: float, kept: int) -> list[WorkerView]:
        """As many as there are jobs, of those who would take each of them the least loaded: were they placed on all workers,
        it would be on some of these. `kept`: room that each must have beside."""
        found: set[str] = set()
        for pool, demand in {(job.pool, demand_of(job)) for job in jobs}:
            ready = merge(*(self._ready(rank, alive_since, kept) for rank in self._who_serves(pool, demand)))
            found.update(place.worker for place in islice(ready, len(jobs)))
        return [self._standing[worker].view for worker in found]

    def _ready(self, rank: Rank, alive_since: float, kept: int) -> Iterator[Place]:
        for place in rank:
            if place.cannot:
                return
            view = self._standing[place.worker].view
            # It may have fallen silent since it was put there.
            if view.last_seen >= alive_since and view.room > kept:
                yield place

    def _who_serves(self, pool: str, demand: Demand) -> list[Rank]:
        known = self._serving.get((pool, demand))
        if known is None:
            if len(self._serving) >= SERVING_MAX:
                self._serving.clear()
            ranks = [rank for kind, rank in self._ranks.items() if kind.serves(pool, demand)]
            known = self._serving[pool, demand] = ranks
        return known

    def _leave(self, standing: Standing) -> None:
        rank = self._ranks[standing.kind]
        del rank[bisect_left(rank, standing.place)]
        if not rank:
            del self._ranks[standing.kind]
            self._serving.clear()
