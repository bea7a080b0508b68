"""The plane with its deliveries on NATS: on SQLite, two on Postgres, and with a NATS server that is killed under load."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import servers

from holdfast.config import Settings
from holdfast.core.topic import Topic, Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.stores import open_store
from plane.nats_buses import nats_running
from plane.over_http import history, plane, submit, wait_ended, working
from plane.postgres_schemas import fresh_schema

TOPICS = Topics((Topic(name="*", lease_s=2.0, dispatch_timeout_s=2.0, pending_timeout_s=1.0),))
PATIENT = Topics((Topic(name="*", lease_s=30.0, dispatch_timeout_s=60.0),))
"""Where nothing fails, nothing is to be given out a second time: not on a slow machine, either."""
WAIT_S = 12
"""Of a claim: far longer than it takes to be woken, and shorter than a worker may be silent."""
JOBS = 60


@pytest.fixture
def nats() -> Iterator[servers.Server]:
    with nats_running() as server:
        yield server


@pytest.fixture
def on_sqlite(nats: servers.Server, tmp_path: Path) -> Settings:
    return Settings(store=f"sqlite:///{tmp_path / 'plane.db'}", bus=nats.url, port=0, topics=TOPICS)


async def ends(url: str) -> tuple[Counter[str], Counter[str]]:
    """How often each job has ended, by the history, and how often anything at all has happened."""
    store = open_store(url, topics=TOPICS, runtime=SYSTEM, timeout_s=10.0)
    await store.open()
    try:
        events = await store.list_events(after=0, limit=10_000)
        assert {state for (_, state), count in (await store.count_jobs()).items() if count} == set()
        ended = Counter(str(event.job_id) for event in events if event.kind == "job.succeeded")
        return ended, Counter(event.kind for event in events)
    finally:
        await store.close()


async def test_job_walks_from_submission_to_outcome(on_sqlite: Settings) -> None:
    async with plane(on_sqlite) as http:
        job_id = await submit(http, 1)
        async with working(http, "agent/1:home@lab.x"):
            await wait_ended(http, [job_id])
        job = (await http.get(f"/v1/jobs/{job_id}")).json()
        kinds = await history(http, job_id)

    assert (job["state"], job["result"], job["attempts"]) == ("SUCCEEDED", 1, 1)
    assert kinds == ["job.submitted", "job.dispatched", "job.started", "job.succeeded"]


async def test_claim_that_waits_is_woken_by_a_delivery(on_sqlite: Settings) -> None:
    """Far sooner than it would have looked by itself."""
    async with plane(on_sqlite) as http, working(http, "w1", wait_s=WAIT_S):
        await asyncio.sleep(0.5)  # its claim waits
        job_id = await submit(http, 1)
        async with asyncio.timeout(WAIT_S / 2):
            await wait_ended(http, [job_id])
        kinds = await history(http, job_id)

    assert kinds == ["job.submitted", "job.dispatched", "job.started", "job.succeeded"]


async def test_two_planes_give_out_each_job_once(
    nats: servers.Server, running: dict[str, servers.Server | None]
) -> None:
    """Whichever plane dispatches a job, its worker is woken at the plane where it waits."""
    with fresh_schema(running) as url:
        settings = Settings(store=url, bus=nats.url, port=0, topics=PATIENT)
        async with plane(settings) as one, plane(settings) as two:
            async with working(one, "w1", wait_s=WAIT_S) as by_one, working(two, "w2", wait_s=WAIT_S) as by_two:
                ids = await asyncio.gather(*(submit((one, two)[n % 2], n) for n in range(JOBS)))
                await wait_ended(two, ids)
        ended, _ = await ends(url)

    assert by_one + by_two == Counter(dict.fromkeys(ids, 1))
    assert ended == Counter(dict.fromkeys(ids, 1))


async def rolled_back(http: httpx2.AsyncClient) -> int:
    found = re.search(r'holdfast_dispatch_rollback_total{topic="mail.send"} (\d+)', (await http.get("/metrics")).text)
    return int(found[1]) if found else 0


async def wait_rolled_back(http: httpx2.AsyncClient, wanted: int) -> None:
    async with asyncio.timeout(30):
        while await rolled_back(http) < wanted:
            await asyncio.sleep(0.05)


async def test_nothing_is_lost_and_nothing_ends_twice_while_nats_is_killed(
    on_sqlite: Settings, nats: servers.Server
) -> None:
    """What could not be published was rolled back; jobs are accepted all the while."""
    async with plane(on_sqlite) as http, working(http, "w1") as given:
        ids = []
        for number in range(4):
            ids += await asyncio.gather(*(submit(http, n) for n in range(number * 20, number * 20 + 10)))
            await asyncio.to_thread(nats.kill)
            ids += await asyncio.gather(*(submit(http, n) for n in range(number * 20 + 10, number * 20 + 20)))
            await wait_rolled_back(http, 2 * (number + 1))
            await asyncio.to_thread(nats.start)
        await wait_ended(http, ids)
        counted = await rolled_back(http)

    ended, kinds = await ends(on_sqlite.store)
    assert ended == Counter(dict.fromkeys(ids, 1))
    assert len(ids) == 80
    assert set(given) == set(ids)
    assert kinds["dispatch.rolled_back"] == counted >= 8


async def test_plane_takes_jobs_before_nats_is_there(on_sqlite: Settings, nats: servers.Server) -> None:
    nats.stop()
    async with plane(on_sqlite) as http, working(http, "w1"):
        job_id = await submit(http, 1)
        waiting = (await http.get(f"/v1/jobs/{job_id}")).json()["state"]
        await asyncio.to_thread(nats.start)
        await wait_ended(http, [job_id])

    ended, _ = await ends(on_sqlite.store)
    assert waiting not in ("RUNNING", "SUCCEEDED")
    assert ended == Counter([job_id])
