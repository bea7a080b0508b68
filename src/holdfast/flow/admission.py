"""Admission: how many unfinished jobs a tenant may have, in all and of one topic.

Counted now and then, and by one for each that is admitted in between: with several gateways a limit
may be exceeded by what the others admit within `COUNT_FRESH_S`.
"""

from __future__ import annotations

from holdfast.core.job import Job, Tenant
from holdfast.core.share import Quotas
from holdfast.core.topic import Topics
from holdfast.errors import TooMany
from holdfast.ports import Store

COUNT_FRESH_S = 1.0


class Admission:
    def __init__(self, store: Store, topics: Topics, quotas: Quotas, *, live_jobs_max: int) -> None:
        self._store = store
        self._topics = topics
        self._quotas = quotas
        self._live_jobs_max = live_jobs_max
        self._by_topic = any(topic.live_jobs_max for topic in topics.declared)
        self._live: dict[Tenant, int] = {}
        self._of_topic: dict[tuple[Tenant, str], int] = {}
        self._counted_at = float("-inf")

    async def count(self) -> None:
        """Must precede `check`; mostly does nothing."""
        now = self._store.now()
        if now - self._counted_at < COUNT_FRESH_S:
            return
        self._counted_at = now
        live: dict[Tenant, int] = {}
        for (tenant, _), count in (await self._store.count_jobs()).items():
            live[tenant] = live.get(tenant, 0) + count
        self._live = live
        if self._by_topic:
            self._of_topic = await self._store.count_topics()

    def check(self, job: Job) -> None:
        """Raises `TooMany`."""
        most = self._quotas.of(job.tenant).live_jobs_max or self._live_jobs_max
        if self._live.get(job.tenant, 0) >= most:
            raise TooMany(f"the tenant has {most} unfinished jobs", retry_after_s=COUNT_FRESH_S)
        most = self._topics.get(job.topic).live_jobs_max if self._by_topic else 0
        if most and self._of_topic.get((job.tenant, job.topic), 0) >= most:
            raise TooMany(f"the tenant has {most} unfinished jobs of topic {job.topic}", retry_after_s=COUNT_FRESH_S)

    def admitted(self, job: Job) -> None:
        """Count it, before it is stored: others are checked meanwhile."""
        self._add(job, 1)

    def withdrawn(self, job: Job) -> None:
        """It was counted, and is not stored after all."""
        self._add(job, -1)

    def _add(self, job: Job, number: int) -> None:
        self._live[job.tenant] = self._live.get(job.tenant, 0) + number
        if self._by_topic:
            place = (job.tenant, job.topic)
            self._of_topic[place] = self._of_topic.get(place, 0) + number
