"""The soak in small, and what it would find: lost writes, fences that went back, processes that grow."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import servers
from harness import Backend, make_backend

from soak.__main__ import table
from soak.leaks import ALLOWED, Sample, find_leaks
from soak.lock_soak import find_violations, soak_locks
from soak.plane_soak import soak_plane

FLAT = Sample(30.0, 20, 6, 5)


@pytest.fixture
def redis(tmp_path: Path) -> Backend:
    """A server of its own: it is killed on the way."""
    running: dict[str, servers.Server | None] = {}
    return make_backend("redis", running, tmp_path)


async def test_locks_keep_their_promises_under_attack(redis: Backend, tmp_path: Path) -> None:
    try:
        tally = await soak_locks(redis, tmp_path, seconds=5)
    finally:
        if redis.server is not None:
            redis.server.remove()

    assert tally.violations == []
    assert tally.acknowledged
    assert tally.strikes
    assert f"| locks on redis | {len(tally.acknowledged):,} |" in table([tally])


async def test_a_plane_keeps_its_promises_under_attack(tmp_path: Path) -> None:
    tally = await soak_plane(tmp_path, seconds=3)

    assert tally.violations == []
    assert tally.acknowledged
    assert tally.strikes


def test_what_the_resource_kept_is_judged(tmp_path: Path) -> None:
    resource = tmp_path / "resource.db"
    with closing(sqlite3.connect(resource)) as conn, conn:
        conn.execute("CREATE TABLE writes (id INTEGER PRIMARY KEY, item TEXT, fence INTEGER, value TEXT)")
        rows = [("a", 1, "v1"), ("b", 9, "v2"), ("a", 3, "v3"), ("a", 2, "v4")]
        conn.executemany("INSERT INTO writes (item, fence, value) VALUES (?, ?, ?)", rows)

    assert find_violations(resource, {"v1", "v2", "v5"}) == [
        "L4: a accepted v4 with a fence that was over",
        "L5: 1 of 3 acknowledged writes are lost",
    ]


@pytest.mark.parametrize("name", Sample._fields)
def test_what_grows_is_a_leak(name: str) -> None:
    def grown_by(step: float) -> list[Sample]:
        return [FLAT._replace(**{name: getattr(FLAT, name) + step * n}) for n in range(100)]

    assert find_leaks([FLAT] * 100) == []
    assert find_leaks(grown_by(getattr(ALLOWED, name) / 100)) == []
    [leak] = find_leaks(grown_by(getattr(ALLOWED, name) / 20))
    assert leak.startswith(name)
