"""A plane whose bus is apart from its store, and fails: in this process, because a plane on SQLite has no such bus.

The bus in the store cannot fail alone: message and state are one transaction. This one can, as NATS
can on a cluster: every third publish is refused, and of every seventh the answer is lost, until it has failed often enough
and returns. What it refused waits longer each time it is refused, and not much longer once the bus is back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2

from holdfast.api import JobView, NewJob
from holdfast.app import serving
from holdfast.buses.detached import DetachedBus, Fault
from holdfast.client import AsyncClient
from holdfast.config import Settings
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import Delivery

JOBS = 30
FAILURES = 16
WORKER = {"worker": "clerk-1", "name": "clerk", "topics": ["*"], "slots": 8}


@dataclass(frozen=True)
class Published:
    jobs: Sequence[JobView]
    runs: Sequence[str]
    """The id of a job for each time that it was worked on."""
    failed: int


async def run(folder: Path) -> Published:
    failed, numbers = 0, itertools.count(1)

    def fail(_: Sequence[Delivery]) -> Fault | None:
        nonlocal failed
        if failed == FAILURES:
            return None
        number = next(numbers)
        fault = Fault.NOT_APPLIED if number % 3 == 0 else Fault.APPLIED_UNKNOWN if number % 7 == 0 else None
        failed += fault is not None
        if failed == FAILURES:
            asyncio.get_running_loop().call_soon(bus.returned)
        return fault

    runs: list[str] = []
    bus = DetachedBus(SYSTEM.now, fail=fail)
    async with (
        serving(Settings(store=f"sqlite:///{folder}/detached.db", port=0), bus=bus) as url,
        AsyncClient(url) as client,
        httpx2.AsyncClient(base_url=url, timeout=30) as link,
    ):
        work = asyncio.create_task(work_forever(link, runs))
        submitted = await client.submit_many([NewJob(topic="mail.send", payload=n) for n in range(JOBS)])
        ids = [answer.job.id for answer in submitted if answer.job is not None]
        jobs = [await client.wait(job_id, timeout=30) for job_id in ids]
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    return Published(jobs, runs, failed)


async def work_forever(link: httpx2.AsyncClient, runs: list[str]) -> None:
    """A worker in a few lines: claim, do, say so."""
    (await link.post("/v1/work/hello", json=WORKER)).raise_for_status()
    while True:
        reply = await link.post(
            "/v1/work/claim", json={"worker": WORKER["worker"], "limit": 8, "wait_s": 5, "start": True}
        )
        outcomes = [
            {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "succeeded"}
            for delivery in reply.json()["deliveries"]
        ]
        runs += [outcome["job_id"] for outcome in outcomes]
        if outcomes:
            await link.post("/v1/work/complete", json={"worker": WORKER["worker"], "outcomes": outcomes})
