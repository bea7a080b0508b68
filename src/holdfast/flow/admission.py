"""Admission: how many unfinished jobs a tenant may have, in all and of one topic.

Counted now and then, and by one for each that is admitted in between: with several gateways a limit
may be exceeded by what the others admit within `COUNT_FRESH_S`; that of a topic, where very many are live, within
`topic_counts.FRESH_S_MAX`.
"""

from __future__ import annotations

from holdfast.core.job import Job, Tenant
from holdfast.core.record import Kind
from holdfast.core.run import RUN_TERMINAL, RunState
from holdfast.core.share import Quotas
from holdfast.core.topic import Topics
from holdfast.errors import TooMany
from holdfast.flow.topic_counts import TopicCounts
from holdfast.ports import Store

COUNT_FRESH_S = 1.0
LIVE = tuple(state for state in RunState if state not in RUN_TERMINAL)


async def count_live_runs(tenant: Tenant, *, store: Store) -> int:
    return sum((await store.count_records(Kind.RUN, tenant, states=LIVE)).values())


class RunRoom:
    """What a run may begin, by the limits of its tenant: a `holdfast.core.run_words.Room`."""

    def __init__(self, admission: Admission, tenant: Tenant, *, runs: int, live_runs_max: int) -> None:
        self._admission = admission
        self._tenant = tenant
        self._runs = runs
        self._live_runs_max = live_runs_max

    def why_no_job(self, topic: str, *, more: int, more_of_topic: int) -> str:
        return self._admission.why_no_job(self._tenant, topic, more=more, more_of_topic=more_of_topic)

    def why_no_run(self, *, more: int) -> str:
        full = self._runs + more >= self._live_runs_max
        return f"the tenant has {self._live_runs_max} unfinished runs" if full else ""


class Admission:
    def __init__(self, store: Store, topics: Topics, quotas: Quotas, *, live_jobs_max: int) -> None:
        self._store = store
        self._topics = topics
        self._quotas = quotas
        self._live_jobs_max = live_jobs_max
        self._by_topic = any(topic.live_jobs_max for topic in topics.declared)
        self._live: dict[Tenant, int] = {}
        self._of_topic: dict[tuple[Tenant, str], int] = {}
        self._topic_counts = TopicCounts(store, fresh_s=COUNT_FRESH_S)
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
        if self._by_topic and await self._topic_counts.count():
            self._of_topic = dict(self._topic_counts.known)

    def check(self, job: Job) -> None:
        """Raises `TooMany`."""
        if why := self.why_no_job(job.tenant, job.topic):
            raise TooMany(why, retry_after_s=COUNT_FRESH_S)

    def why_no_job(self, tenant: Tenant, topic: str, *, more: int = 0, more_of_topic: int = 0) -> str:
        """Why the tenant may not have another one, if it had so many more; empty: it may."""
        most = self._quotas.of(tenant).live_jobs_max or self._live_jobs_max
        if self._live.get(tenant, 0) + more >= most:
            return f"the tenant has {most} unfinished jobs"
        most = self._topics.get(topic).live_jobs_max if self._by_topic else 0
        if most and self._of_topic.get((tenant, topic), 0) + more_of_topic >= most:
            return f"the tenant has {most} unfinished jobs of topic {topic}"
        return ""

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
