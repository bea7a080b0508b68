"""The outbox on real servers: what NATS did not take while it was killed is delivered when it is back, and run once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers

from holdfast.config import Settings
from holdfast.core.topic import Topic, Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import JobEvent
from holdfast.stores import open_store
from plane.nats_buses import nats_running
from plane.over_http import plane, say, submit, wait_ended
from plane.postgres_schemas import fresh_schema

TOPICS = Topics((Topic(name="*", lease_s=60.0, dispatch_timeout_s=120.0),))
JOBS = 30


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'plane.db'}"
    else:
        with fresh_schema(running) as url:
            yield url


async def test_jobs_dispatched_while_nats_is_gone_are_run_once_when_it_is_back(store: str) -> None:
    with nats_running() as nats:
        settings = Settings(store=store, bus=f"{nats.url}?sync=always", dispatch="outbox", port=0, topics=TOPICS)
        async with plane(settings) as http:
            await say(http, "/v1/work/hello", worker="w1", name="w1", topics=["*"], slots=JOBS)
            await asyncio.to_thread(nats.kill)
            ids = await asyncio.gather(*(submit(http, number) for number in range(JOBS)))
            await wait_dispatched(store, JOBS)
            await asyncio.to_thread(nats.start)
            done: Counter[str] = Counter()
            async with asyncio.timeout(60):
                while done.total() < JOBS:
                    taken = await say(http, "/v1/work/claim", worker="w1", wait_s=1, limit=JOBS, start=True)
                    for delivery in taken.get("deliveries", []):
                        done[delivery["job_id"]] += 1
                        ended = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "succeeded"}
                        await say(http, "/v1/work/complete", worker="w1", outcomes=[ended])
            await wait_ended(http, ids)

    kinds = Counter(event.kind for event in await history(store) if event.job_id)
    assert done == Counter(dict.fromkeys(ids, 1))
    assert kinds == dict.fromkeys(("job.submitted", "job.dispatched", "job.started", "job.succeeded"), JOBS)


async def wait_dispatched(url: str, jobs: int) -> None:
    async with asyncio.timeout(60):
        while sum(event.kind == "job.dispatched" for event in await history(url)) < jobs:
            await asyncio.sleep(0.1)


async def history(url: str) -> list[JobEvent]:
    store = open_store(url, topics=TOPICS, runtime=SYSTEM, timeout_s=10.0)
    await store.open()
    try:
        return await store.list_events(after=0, limit=10_000)
    finally:
        await store.close()
