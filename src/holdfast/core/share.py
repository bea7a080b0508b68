"""Share: how much of the plane a tenant, a topic or a rule of the policy may have at once, and whose turn it is.

Told the counts, it decides; nothing here waits. It is exact for one scheduler. Several at once know
of each other's dispatches only by the next count, and may exceed a limit by what they place between two.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from holdfast.core.job import Job, Tenant
from holdfast.core.topic import Topics

OTHERS = "*"
TENANTS_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of one tenant. 0: no limit of its own."""

    live_jobs_max: int = 0
    """Jobs that have not ended; more are not admitted."""
    running_max: int = 0
    """Jobs at work at once; more wait."""

    def __post_init__(self) -> None:
        if self.live_jobs_max < 0 or self.running_max < 0:
            raise ValueError("must be 0 or more; 0 is no limit")


@dataclass(frozen=True, slots=True)
class Quotas:
    """By tenant; `*` stands for every tenant that is not named."""

    declared: Mapping[str, Quota] = field(default_factory=dict)

    def of(self, tenant: Tenant) -> Quota:
        return self.declared.get(tenant) or self.declared.get(OTHERS) or _NONE

    @property
    def limit_work(self) -> bool:
        return any(quota.running_max for quota in self.declared.values())


_NONE = Quota()

Active = Mapping[tuple[Tenant, str, str], int]
"""Jobs at work by tenant, topic and the key of the policy's limit; see `Store.count_active`."""


def limit_of(job: Job) -> tuple[str, int] | None:
    """The key and the size of the limit that the policy has set on how many like this one work at once."""
    limit = None if job.decision is None else job.decision.get("concurrency")
    return None if limit is None else (limit["key"], limit["limit"])


def is_limited(job: Job, quotas: Quotas, topics: Topics) -> bool:
    """Whether anything limits how many like this one work at once."""
    return bool(limit_of(job) or quotas.of(job.tenant).running_max or topics.get(job.topic).running_max)


class Shares:
    """What is taken of each limit, in the course of one tick. `full_…` are those that are used up."""

    def __init__(self, quotas: Quotas, topics: Topics, active: Active) -> None:
        self._quotas = quotas
        self._topics = topics
        self._tenants: Counter[Tenant] = Counter()
        self._of_topic: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()
        self.full_tenants: set[Tenant] = set()
        self.full_topics: set[str] = set()
        self.full_keys: set[str] = set()
        for (tenant, topic, key), count in active.items():
            self._tenants[tenant] += count
            self._of_topic[topic] += count
            self._keys[key] += count
        for tenant, topic, _ in active:
            self._look(tenant, topic)

    def has_room_for(self, job: Job) -> bool:
        limit = limit_of(job)
        if limit is not None and self._keys[limit[0]] >= limit[1]:
            self.full_keys.add(limit[0])
        full = job.tenant in self.full_tenants or job.topic in self.full_topics
        return not (full or (limit is not None and limit[0] in self.full_keys))

    def take(self, job: Job) -> None:
        limit = limit_of(job)
        self._tenants[job.tenant] += 1
        self._of_topic[job.topic] += 1
        if limit is not None:
            self._keys[limit[0]] += 1
        self._look(job.tenant, job.topic)

    def _look(self, tenant: Tenant, topic: str) -> None:
        tenant_max = self._quotas.of(tenant).running_max
        if tenant_max and self._tenants[tenant] >= tenant_max:
            self.full_tenants.add(tenant)
        topic_max = self._topics.get(topic).running_max
        if topic_max and self._of_topic[topic] >= topic_max:
            self.full_topics.add(topic)


class Turns:
    """Whose turn it is. Of the dispatches one half goes by priority, the other to the tenants that were served
    least: so a job of the highest priority waits for one other at most, and of n busy tenants none has less
    than the 2n-th part, whatever priorities the others claim.

    Each dispatch moves a tenant one step on. Who comes back after a pause starts where the others are: time
    that was not used is not saved up, or a quiet tenant could one day take everything.
    """

    def __init__(self) -> None:
        self._steps: dict[Tenant, int] = {}
        self._busy: set[Tenant] = set()
        """Who had jobs at the last look."""
        self._now = 0
        """The steps of those among them who were served least: nobody starts behind them."""
        self._by_priority = True
        """Whether the next dispatch goes by priority."""

    def arrange(self, jobs: Sequence[Job]) -> Iterator[Job]:
        """In the order of their turns; each tenant's own by priority, and then in the order given.

        Worked out as they are taken: mostly there is room for a few of many.
        """
        tenants = {job.tenant for job in jobs}
        still_busy = self._busy & tenants
        if still_busy:
            self._now = max(self._now, min(map(self._step, still_busy)))
        self._busy = tenants
        if len(tenants) <= 1:
            return iter(jobs)
        line = _Line(jobs, {tenant: self._step(tenant) for tenant in tenants})
        turns = itertools.cycle((self._by_priority, not self._by_priority))
        return (line.take(by_priority=next(turns)) for _ in jobs)

    def served(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._steps[job.tenant] = self._step(job.tenant) + 1
            self._by_priority = not self._by_priority
        if len(self._steps) > TENANTS_REMEMBERED:
            self._steps = {tenant: step for tenant, step in self._steps.items() if step > self._now}

    def _step(self, tenant: Tenant) -> int:
        return max(self._now, self._steps.get(tenant, 0))


class _Line:
    """The jobs that wait, each tenant's in its own queue, and the first of each in two orders."""

    def __init__(self, jobs: Sequence[Job], steps: dict[Tenant, int]) -> None:
        self._queues: dict[Tenant, deque[Job]] = {}
        for job in sorted(jobs, key=lambda job: -job.priority):
            self._queues.setdefault(job.tenant, deque()).append(job)
        self._steps = steps
        # Of tenants that were served alike, the one whose job came first in the list.
        self._places = {tenant: place for place, tenant in enumerate(dict.fromkeys(job.tenant for job in jobs))}
        self._most_urgent: list[tuple[int, int, int, Tenant]] = []
        self._least_served: list[tuple[int, int, Tenant]] = []
        for tenant in self._places:
            self._enter(tenant)

    def _enter(self, tenant: Tenant) -> None:
        steps, place = self._steps[tenant], self._places[tenant]
        heappush(self._most_urgent, (-self._queues[tenant][0].priority, steps, place, tenant))
        heappush(self._least_served, (steps, place, tenant))

    def take(self, *, by_priority: bool) -> Job:
        tenant = self._first(self._most_urgent if by_priority else self._least_served)
        job = self._queues[tenant].popleft()
        self._steps[tenant] += 1
        if self._queues[tenant]:
            self._enter(tenant)
        return job

    def _first(self, heap: list[Any]) -> Tenant:
        """Past entries of tenants that have been served since by the other order."""
        while True:
            *_, steps, _, tenant = heappop(heap)
            if self._queues[tenant] and self._steps[tenant] == steps:
                return Tenant(tenant)
