"""Redis servers for tests: one to share, one to kill, two that form a cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import servers

from locks.redis_setup import formed_cluster


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
    with formed_cluster() as nodes:
        yield nodes
