"""Fixtures of the plane's tests: a store in a file of its own, its bus, and a clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.buses.embedded import EmbeddedBus
from holdfast.core.topic import Topics
from holdfast.stores import StoreWithBus, open_store
from plane.jobs import ManualRuntime


@pytest.fixture
def clock() -> ManualRuntime:
    return ManualRuntime()


@pytest.fixture
async def store(clock: ManualRuntime, tmp_path: Path) -> AsyncIterator[StoreWithBus]:
    opened = open_store(f"sqlite:///{tmp_path / 'plane.db'}", topics=Topics(), runtime=clock)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def bus(store: StoreWithBus) -> EmbeddedBus:
    return EmbeddedBus(store)
