"""The plane on Postgres with connections that die under load, and with a server that does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest
import servers

from plane.over_http import plane, submit, wait_ended, working
from plane.postgres_schemas import fresh_schema, server_url
from plane.shared_planes import CUTS_MIN, JOBS, ends, has_gaps, on


@pytest.fixture
def url(running: dict[str, servers.Server | None]) -> Iterator[str]:
    with fresh_schema(running) as url:
        yield url


async def test_nothing_is_lost_and_nothing_ends_twice_while_connections_die(
    url: str, running: dict[str, servers.Server | None]
) -> None:
    stop = asyncio.Event()

    async def terminate() -> int:
        ended = 0
        connection = await psycopg.AsyncConnection.connect(server_url(running), autocommit=True)
        async with connection:
            while not stop.is_set() or ended < CUTS_MIN:
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

    assert terminated >= CUTS_MIN, "the faults must have happened"
    assert len(set(ids)) == JOBS
    assert await ends(url) == Counter(dict.fromkeys(ids, 1))
    assert not await has_gaps(url)


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
        assert not await has_gaps(server.url)
    finally:
        server.remove()
