"""The plane on Postgres, jobs and locks in one database: alone, two of them, and with connections that die under load."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest
import servers

from holdfast.config import Settings
from holdfast.core.topic import Topic, Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.stores import open_store
from plane.over_http import history, plane, submit, wait_ended, working
from plane.postgres_schemas import fresh_schema, server_url

TOPICS = Topics((Topic(name="*", lease_s=2.0, dispatch_timeout_s=2.0, pending_timeout_s=1.0),))
JOBS = 60


@pytest.fixture
def url(running: dict[str, servers.Server | None]) -> Iterator[str]:
    with fresh_schema(running) as url:
        yield url


def on(url: str) -> Settings:
    return Settings(store=url, port=0, topics=TOPICS)


async def ends(url: str) -> Counter[str]:
    """How often each job has ended, by the history; which has no gaps."""
    store = open_store(url, topics=TOPICS, runtime=SYSTEM, timeout_s=10.0)
    await store.open()
    try:
        events = await store.list_events(after=0, limit=10_000)
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert await store.count_jobs() == {}
        return Counter(event.job_id for event in events if event.kind == "job.succeeded")
    finally:
        await store.close()


async def test_job_walks_from_submission_to_outcome(url: str) -> None:
    async with plane(on(url)) as http:
        job_id = await submit(http, 1)
        async with working(http, "w1"):
            await wait_ended(http, [job_id])
        job = (await http.get(f"/v1/jobs/{job_id}")).json()
        kinds = await history(http, job_id)

    assert (job["state"], job["result"], job["attempts"]) == ("SUCCEEDED", 1, 1)
    assert kinds == ["job.submitted", "job.dispatched", "job.started", "job.succeeded"]


async def test_two_planes_on_one_database_give_out_each_job_once(url: str) -> None:
    async with plane(on(url)) as one, plane(on(url)) as two:
        async with working(one, "w1") as by_one, working(two, "w2") as by_two:
            ids = await asyncio.gather(*(submit((one, two)[n % 2], n) for n in range(JOBS)))
            # Read at the plane that did not take it: what it tells is the same.
            await wait_ended(two, ids)

    assert by_one + by_two == Counter(dict.fromkeys(ids, 1))
    assert await ends(url) == Counter(dict.fromkeys(ids, 1))


async def test_key_used_at_two_planes_at_once_makes_one_job(url: str) -> None:
    async with plane(on(url)) as one, plane(on(url)) as two:
        made = await asyncio.gather(*(submit((one, two)[n % 2], 7) for n in range(20)))

    assert len(set(made)) == 1


async def test_word_of_one_plane_reaches_who_waits_at_the_other(url: str) -> None:
    """A long poll, far longer than any of the loops' own looks."""
    async with plane(on(url)) as one, plane(on(url)) as two:
        job_id = await submit(one, 1)
        waiting = asyncio.create_task(two.get(f"/v1/jobs/{job_id}", params={"wait": 20}))
        async with working(one, "w1"):
            async with asyncio.timeout(10):
                reply = await waiting

    assert reply.json()["state"] == "SUCCEEDED"


async def test_nothing_is_lost_and_nothing_ends_twice_while_connections_die(
    url: str, running: dict[str, servers.Server | None]
) -> None:
    stop = asyncio.Event()

    async def terminate() -> int:
        ended = 0
        connection = await psycopg.AsyncConnection.connect(server_url(running), autocommit=True)
        async with connection:
            while not stop.is_set():
                rows = await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'doomed'"
                )
                ended += len(await rows.fetchall())
                await asyncio.sleep(0.15)
        return ended

    async with plane(on(f"{url}&application_name=doomed")) as one, plane(on(url)) as two:
        async with working(one, "w1"), working(two, "w2"):
            terminating = asyncio.create_task(terminate())
            ids = await asyncio.gather(*(submit((one, two)[n % 2], n) for n in range(JOBS)))
            await asyncio.sleep(1.0)
            stop.set()
            await wait_ended(two, ids)
            terminated = await terminating

    assert terminated > 5, "the faults must have happened"
    assert len(set(ids)) == JOBS
    assert await ends(url) == Counter(dict.fromkeys(ids, 1))


async def test_nothing_is_lost_when_the_server_is_killed_under_load() -> None:
    server = servers.postgres_server(fsync=True).start()
    try:
        async with plane(on(server.url)) as one, plane(on(server.url)) as two:
            async with working(one, "w1"), working(two, "w2"):
                ids: list[str] = []
                for start in range(0, JOBS, 30):
                    submitting = asyncio.gather(*(submit((one, two)[n % 2], n) for n in range(start, start + 30)))
                    await asyncio.sleep(0.05)
                    server.kill()
                    server.start()
                    ids += await submitting
                await wait_ended(two, ids)

        assert len(set(ids)) == JOBS
        assert await ends(server.url) == Counter(dict.fromkeys(ids, 1))
    finally:
        server.remove()
