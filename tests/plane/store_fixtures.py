"""A store as each of its kinds: in a file with its writer's thread, in memory, in a file in place, and on each server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import servers
from backends import oldest_places, plane_stores

from holdfast.core.topic import Topic, Topics
from holdfast.stores import StoreWithBus, open_store
from plane.jobs import ManualRuntime

TOPICS = Topics((Topic(name="quick", lease_s=1.0, dispatch_timeout_s=2.0, running_timeout_s=9.0),))
FRESH = {name: store.fresh for name, store in plane_stores().items() if store.fresh is not None}
"""What is kept by a server: a place of its own there for each test."""
EMPTY = {name: store.empty for name, store in plane_stores().items() if store.empty is not None}
"""The same, where tables may be there already."""
EVERY_EMPTY = EMPTY | oldest_places()
"""For what is promised of the oldest servers, too."""
TIMEOUT_S = 10.0
"""Tests share the machine: what is slow is not away."""


@pytest.fixture(params=["file", "memory", "inline", *EVERY_EMPTY])
def clock(request: pytest.FixtureRequest) -> ManualRuntime:
    clock = ManualRuntime(inline=request.param == "inline")
    if request.param in EVERY_EMPTY:
        clock.wall_s = time.time()  # the server's clock is a real one
    return clock


@pytest.fixture
def url(request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path) -> Iterator[str]:
    kind = request.node.callspec.params["clock"]
    if kind in EVERY_EMPTY:
        with EVERY_EMPTY[kind](running) as url:
            yield url
    else:
        yield "sqlite:///:memory:" if kind == "memory" else f"sqlite:///{tmp_path / 'plane.db'}"


@pytest.fixture
async def store(clock: ManualRuntime, url: str) -> AsyncIterator[StoreWithBus]:
    opened = open_store(url, topics=TOPICS, runtime=clock, timeout_s=TIMEOUT_S)
    await opened.open()
    yield opened
    await opened.close()
