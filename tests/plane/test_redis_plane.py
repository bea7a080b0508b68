"""The plane on Redis with connections that die under load, with a server that does, and with one that lost its last moments."""

from __future__ import annotations

import asyncio
from collections import Counter

import servers

from plane.over_http import plane, submit, wait_ended, working
from plane.redis_namespaces import client, url  # noqa: F401  (a fixture)
from plane.shared_planes import CUTS_MIN, JOBS, ends, on

DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec")


async def test_nothing_is_lost_and_nothing_ends_twice_while_connections_die(url: str) -> None:  # noqa: F811
    stop = asyncio.Event()

    async def cut_off() -> int:
        ended = 0
        with client(url) as raw:
            while not stop.is_set() or ended < CUTS_MIN:
                ours = [each["id"] for each in raw.client_list() if each["name"] == "holdfast"]
                for one in ours:
                    ended += bool(raw.execute_command("CLIENT", "KILL", "ID", one))
                await asyncio.sleep(0.15)
        return ended

    async with plane(on(url)) as one, plane(on(url)) as two:
        async with working(one, "w1"), working(two, "w2"):
            cutting = asyncio.create_task(cut_off())
            ids = await asyncio.gather(*(submit((one, two)[n % 2], n) for n in range(JOBS)))
            await asyncio.sleep(1.0)
            stop.set()
            await wait_ended(two, ids)
            cut = await cutting

    assert cut >= CUTS_MIN, "the faults must have happened"
    assert len(set(ids)) == JOBS
    assert await ends(url) == Counter(dict.fromkeys(ids, 1))


async def test_nothing_is_lost_when_the_server_is_killed_under_load() -> None:
    """Of a server that is killed, the system still has what it wrote; that is lost only with the machine's power."""
    server = servers.redis_server(*DURABLE).start()
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
