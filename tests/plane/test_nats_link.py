"""The connection to NATS, made again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
from harness import eventually, sockets
from nats.aio.client import Client

from holdfast.buses.nats.bus import NatsBus
from holdfast.buses.nats.link import Link
from holdfast.buses.nats.options import parse
from holdfast.locks.runtime import SYSTEM, SystemRuntime
from plane.nats_buses import fresh_namespace, server_url


@pytest.fixture
def url(running: dict[str, servers.Server | None]) -> str:
    return server_url(running)


@pytest.fixture
def own_url(running: dict[str, servers.Server | None]) -> Iterator[str]:
    with fresh_namespace(running) as url:
        yield url


async def test_connection_that_is_of_no_use_is_made_again_less_and_less_often(url: str) -> None:
    """As while the stream has no leader: it is found, and takes nothing. Whatever was put off comes back each time."""
    pauses: list[float] = []

    class Impatient(SystemRuntime):
        def jitter(self, seconds: float) -> float:
            pauses.append(seconds)
            return 0.0

    enough = asyncio.Event()

    async def established(_: Client) -> None:
        if len(pauses) > 6:
            enough.set()
        asyncio.get_running_loop().call_soon(link.renew)

    link = Link(parse(url), established=established, lost=lambda: None, runtime=Impatient(), timeout_s=5.0)
    await link.open()
    try:
        async with asyncio.timeout(20):
            await enough.wait()
    finally:
        await link.close()

    assert pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds sockets by /proc")
async def test_closing_that_is_cancelled_leaves_no_connection_behind(own_url: str) -> None:
    before, tasks, turns, was_cancelled = sockets(), asyncio.all_tasks(), 0, True

    async def are_those_of_before() -> bool:
        return sockets() <= before and asyncio.all_tasks() == tasks

    while was_cancelled:
        turns += 1
        bus = NatsBus(parse(own_url), runtime=SYSTEM, timeout_s=10.0)
        await bus.open()
        closing = asyncio.create_task(bus.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = closing.cancel()
        await asyncio.wait([closing])
        await eventually(are_those_of_before)

    assert turns > 1
