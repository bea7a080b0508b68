"""A NATS server of a test's own, and buses on it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import servers

from holdfast.buses.embedded import TAKEN_S
from holdfast.buses.nats.bus import NatsBus
from holdfast.buses.nats.options import NAMESPACE, parse
from holdfast.buses.nats.part import own_part
from holdfast.buses.nats.stream import Names
from holdfast.locks.runtime import SYSTEM

NAMES = Names.of(NAMESPACE)
TIMEOUT_S = 10.0
"""Tests share the machine: what is slow is not away."""


@contextmanager
def nats_running(*settings: str) -> Iterator[servers.Server]:
    """One that a test may kill. It is ready within 0.1 s: cheaper than to tidy up one that is shared."""
    try:
        server = servers.nats_server(*settings).start()
    except (FileNotFoundError, RuntimeError) as why:
        servers.unavailable("nats", str(why))
    try:
        yield server
    finally:
        server.remove()


@asynccontextmanager
async def nats_bus(url: str, *, taken_s: float = TAKEN_S, timeout_s: float = TIMEOUT_S) -> AsyncIterator[NatsBus]:
    bus = NatsBus(parse(url), runtime=SYSTEM, timeout_s=timeout_s, taken_s=taken_s)
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()


def server_url(running: dict[str, servers.Server | None]) -> str:
    """Of the one server of the test run: for those who leave nothing behind that others would meet."""
    elsewhere = os.environ.get("HOLDFAST_TEST_NATS_URL")
    if elsewhere:
        return elsewhere
    if "nats" not in running:
        try:
            running["nats"] = servers.nats_server().start()
        except (FileNotFoundError, RuntimeError) as why:
            servers.unavailable("nats", str(why))
    server = running["nats"]
    assert server is not None
    return server.url


@contextmanager
def fresh_namespace(running: dict[str, servers.Server | None]) -> Iterator[str]:
    """The URL of a namespace of the test's own on that server, which goes with what is in it."""
    part = own_part(server_url(running), f"t{uuid.uuid4().hex[:12]}")
    with asyncio.Runner() as runner:
        url = runner.run(part.__aenter__())
        try:
            yield url
        finally:
            runner.run(part.__aexit__(None, None, None))
