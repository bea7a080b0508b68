"""The connection to NATS, made again and again."""

from __future__ import annotations

import asyncio

import pytest
import servers
from nats.aio.client import Client

from holdfast.buses.nats.link import Link
from holdfast.buses.nats.options import parse
from holdfast.locks.runtime import SystemRuntime
from plane.nats_buses import server_url


@pytest.fixture
def url(running: dict[str, servers.Server | None]) -> str:
    return server_url(running)


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
