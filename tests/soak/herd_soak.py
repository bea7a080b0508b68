"""A herd: thousands of jobs of three tenants wait for a bus that is away, and then are released all at once.

NATS is killed; people submit; the plane tries and rolls back for several dispatch timeouts. When NATS is back, no
more may be in flight than the workers have room for, every job ends once, and no tenant waits for another one's herd.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import httpx2
import servers
from plane.over_http import plane, say

from holdfast.config import Settings
from holdfast.core.job import Job, JobId
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.ports import JobEvent
from soak.fleet_soak import read_events, reading, wait_finished
from soak.fleet_verdict import judge_job
from soak.lock_soak import Tally

TENANTS = {"large": 0.8, "middle": 0.1, "small": 0.1}
"""Their parts of the herd, in the order in which they submit: by its age alone, the large one's would go first."""
WORKERS = ("w1", "w2")
BATCH = 200
FINISHED_WITHIN_S = 900
IN_FLIGHT = {State.DISPATCHED, State.RUNNING}


@dataclass(frozen=True)
class Herd:
    jobs: int = 10_000
    dispatch_timeout_s: float = 5.0
    away_timeouts: int = 4
    """For so many dispatch timeouts NATS stays away after the last submission."""
    slots: int = 3
    """Of each worker. Few, so that a tenant that had to wait for the others would be seen to."""
    work_s: float = 0.05
    """Of a job. Long enough that slots are what is scarce."""

    @property
    def by_tenant(self) -> dict[str, int]:
        return {tenant: round(part * self.jobs) for tenant, part in TENANTS.items()}


async def soak_herd(store: str, nats: servers.Server, herd: Herd) -> Tally:
    tally, began = Tally("herd"), time.monotonic()
    topic = Topic(name="*", lease_s=30.0, dispatch_timeout_s=herd.dispatch_timeout_s, max_attempts=1000)
    settings = Settings(store=store, bus=nats.url, port=0, topics=Topics((topic,)))
    async with plane(settings) as http, working(http, herd):
        await asyncio.to_thread(nats.kill)
        ids = {tenant: await submit(http, tenant, count) for tenant, count in herd.by_tenant.items()}
        await asyncio.sleep(herd.away_timeouts * herd.dispatch_timeout_s)
        await asyncio.to_thread(nats.start)
        async with reading(store) as opened:
            released_at = opened.now()
            left = await wait_finished(opened, within_s=FINISHED_WITHIN_S)
            events = await read_events(opened)
            jobs = {tenant: await opened.find_jobs(of_tenant) for tenant, of_tenant in ids.items()}
    tally.seconds = time.monotonic() - began
    tally.acknowledged = {job_id for of_tenant in ids.values() for job_id in of_tenant}
    tally.strikes = 1
    tally.violations += [f"unfinished: {left}"] if left else []
    tally.violations += judge_herd(events, tally.acknowledged, room=herd.slots * len(WORKERS))
    ready = {tenant: [ready_after(job, released_at) for job in found if job] for tenant, found in jobs.items()}
    ended = ends_after(events, released_at)
    tally.violations += judge_shares(ready, ended)
    kinds = Counter(event.kind for event in events)
    tally.figures = {
        "rolled back": kinds["dispatch.rolled_back"],
        "in flight at most": most_in_flight(events),
        "succeeded": kinds["job.succeeded"],
        "ms after release": round(1000 * max(at for _, at in ended)),
    } | {f"ms {tenant}": round(1000 * share.took_s) for tenant, share in shares(ready, ended).items()}
    tally.figures |= {f"fair ms {tenant}": round(1000 * share.fair_s) for tenant, share in shares(ready, ended).items()}
    return tally


async def submit(http: httpx2.AsyncClient, tenant: str, count: int) -> list[JobId]:
    ids: list[JobId] = []
    for first in range(0, count, BATCH):
        batch = [{"topic": "herd", "idempotency_key": str(n)} for n in range(first, min(count, first + BATCH))]
        reply = await http.post("/v1/jobs:batch", json={"jobs": batch}, headers={"Holdfast-Tenant": tenant})
        ids += [JobId(member["job"]["id"]) for member in reply.json()["jobs"]]
    return ids


@asynccontextmanager
async def working(http: httpx2.AsyncClient, herd: Herd) -> AsyncIterator[None]:
    """Workers that take whatever they are sent, at once: that it is no more than they have slots for is the plane's doing."""

    async def work(name: str, group: asyncio.TaskGroup) -> None:
        await say(http, "/v1/work/hello", worker=name, name=name, topics=["*"], slots=herd.slots)
        while True:
            claimed = await say(http, "/v1/work/claim", worker=name, wait_s=1, start=True, limit=1000)
            if claimed["deliveries"]:
                group.create_task(do(name, claimed["deliveries"]))

    async def do(name: str, deliveries: Sequence[Mapping[str, Any]]) -> None:
        await asyncio.sleep(herd.work_s)
        outcomes = [{"job_id": d["job_id"], "fence": d["fence"], "outcome": "succeeded"} for d in deliveries]
        await say(http, "/v1/work/complete", worker=name, outcomes=outcomes)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(name, group)) for name in WORKERS]
        yield
        for task in tasks:
            task.cancel()


def judge_herd(events: Sequence[JobEvent], acknowledged: set[str], *, room: int) -> list[str]:
    histories: dict[str, list[JobEvent]] = {job_id: [] for job_id in acknowledged}
    for event in events:
        if event.job_id:
            histories[event.job_id].append(event)
    found = [f"{job_id}: {what}" for job_id, history in histories.items() for what in judge_job(history)]
    most = most_in_flight(events)
    if most > room:
        found.append(f"{most} jobs were in flight, and the workers have room for {room}")
    return found


def most_in_flight(events: Sequence[JobEvent]) -> int:
    states: dict[str, bool] = {}
    steps = []
    for event in events:
        before, after = states.get(event.job_id, False), event.state in IN_FLIGHT
        states[event.job_id] = after
        steps.append(after - before)
    return max(accumulate(steps), default=0)


@dataclass(frozen=True)
class Share:
    took_s: float
    """From the release to the end of the tenant's last job."""
    fair_s: float
    """What it would have taken if each end had gone to whoever had had the fewest so far."""


def ready_after(job: Job, released_at: float) -> float:
    return max(0.0, job.not_before - released_at)


def ends_after(events: Sequence[JobEvent], released_at: float) -> list[tuple[str, float]]:
    return [(str(event.tenant), event.at - released_at) for event in events if event.kind == "job.succeeded"]


def shares(ready: Mapping[str, Sequence[float]], ended: Sequence[tuple[str, float]]) -> dict[str, Share]:
    """The same moments of service, given out fairly among those whose back-off was over."""
    waiting = {tenant: deque(sorted(times)) for tenant, times in ready.items()}
    served: Counter[str] = Counter()
    fair: dict[str, float] = {}
    took: dict[str, float] = {}
    for tenant, at in ended:
        took[tenant] = at
        backlogged = [name for name, times in waiting.items() if times and times[0] <= at] or [
            name for name, times in waiting.items() if times
        ]
        chosen = min(backlogged, key=lambda name: served[name])
        waiting[chosen].popleft()
        served[chosen] += 1
        fair[chosen] = at
    return {tenant: Share(took[tenant], fair[tenant]) for tenant in took}


def judge_shares(ready: Mapping[str, Sequence[float]], ended: Sequence[tuple[str, float]]) -> list[str]:
    return [
        f"the last job of {tenant} took {share.took_s:.1f} s; {share.fair_s:.1f} s would have been fair"
        for tenant, share in shares(ready, ended).items()
        if share.took_s > 2 * share.fair_s
    ]
