"""Fixtures of the plane's tests: a store in a file of its own, its bus, and a clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from flow.telling import OF_THE_ROWS, place, places_of, tell

from holdfast.buses.embedded import EmbeddedBus
from holdfast.core.topic import Topics
from holdfast.stores import StoreWithBus, open_store
from plane.jobs import ManualRuntime

__all__ = ["place"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Most tests of the services are of what they do, on whatever store."""
    tell(metafunc, places_of(metafunc.function) if metafunc.function.__name__ in OF_THE_ROWS else ())


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
