"""Redis servers for tests: one to share, one to kill, two that form a cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
import servers

from locks.redis_setup import client


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    started = servers.redis_server().start()
    yield started
    started.remove()


@pytest.fixture
def own_server() -> Iterator[servers.Server]:
    """One that a test may kill."""
    started = servers.redis_server().start()
    yield started
    started.remove()


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}:"


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[servers.Server]]:
    """Two primaries, half of the slots each."""
    buses = [servers.free_port(), servers.free_port()]
    nodes = [servers.redis_server("--cluster-enabled", "yes", "--cluster-port", str(bus)).start() for bus in buses]
    try:
        first, second = (client(node) for node in nodes)
        first.cluster("ADDSLOTSRANGE", 0, 8191)
        second.cluster("ADDSLOTSRANGE", 8192, 16383)
        first.cluster("MEET", "127.0.0.1", nodes[1].port, buses[1])
        deadline = time.monotonic() + 20
        while not all(node.cluster("INFO")["cluster_state"] == "ok" for node in (first, second)):
            assert time.monotonic() < deadline, "the cluster never formed"
            time.sleep(0.02)
        first.close()
        second.close()
        yield nodes
    finally:
        for started in nodes:
            started.remove()
