"""A store as each of its kinds: in a file with its writer's thread, in memory, and in a file in place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.core.topic import Topic, Topics
from holdfast.stores import StoreWithBus, open_store
from plane.jobs import ManualRuntime

TOPICS = Topics((Topic(name="quick", lease_s=1.0, dispatch_timeout_s=2.0, running_timeout_s=9.0),))


@pytest.fixture(params=["file", "memory", "inline"])
def clock(request: pytest.FixtureRequest) -> ManualRuntime:
    return ManualRuntime(inline=request.param == "inline")


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    in_memory = request.node.callspec.params["clock"] == "memory"
    return "sqlite:///:memory:" if in_memory else f"sqlite:///{tmp_path / 'plane.db'}"


@pytest.fixture
async def store(clock: ManualRuntime, url: str) -> AsyncIterator[StoreWithBus]:
    opened = open_store(url, topics=TOPICS, runtime=clock)
    await opened.open()
    yield opened
    await opened.close()
