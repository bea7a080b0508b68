"""Fixtures for guards: every SQL driver that is served, each on a database of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import servers
from guarding import DRIVERS, Driver
from harness import make_backend


@pytest.fixture
def make_driver(running: dict[str, servers.Server | None], tmp_path: Path) -> Callable[[str], Driver]:
    def postgres() -> tuple[str, str]:
        url, schema = make_backend("postgres", running, tmp_path).url, f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"CREATE SCHEMA {schema}")
        return url, schema

    return lambda name: DRIVERS[name](tmp_path, postgres)


@pytest.fixture(params=DRIVERS)
async def driver(request: pytest.FixtureRequest, make_driver: Callable[[str], Driver]) -> Driver:
    made = make_driver(request.param)
    await made.prepare()
    return made
