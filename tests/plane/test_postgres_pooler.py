"""A plane behind a pooler: as good as without one, if it lends whole sessions; else it is refused."""

from __future__ import annotations

import asyncio

import poolers
import psycopg
import pytest

from holdfast.errors import StoreUnavailable
from holdfast.locks.stores.postgres.link import ended_at
from holdfast.stores.postgres.link import connect, settings
from plane.jobs import submitted
from plane.postgres_schemas import opened

pooled = pytest.fixture(scope="module")(poolers.pooled)


async def test_a_plane_behind_a_pool_of_sessions_hears_of_the_others(pooled: poolers.Pooled) -> None:
    async with opened(pooled.by_session) as behind, opened(pooled.server) as direct:
        heard = asyncio.Event()
        behind.subscribe(lambda events: heard.set() if events else None)
        job = await submitted(direct)
        async with asyncio.timeout(10):
            await heard.wait()
        assert [found.id for found in await behind.list_dispatchable(limit=1)] == [job.id]


async def test_its_settings_hold_and_are_not_left_to_whoever_comes_next(pooled: poolers.Pooled) -> None:
    connection = await connect(pooled.by_session, timeout_s=7)
    try:
        with ended_at(connection, asyncio.get_running_loop().time() + 10):
            for name, value in settings(7).items():
                shown = await connection.fetchval("SELECT setting FROM pg_settings WHERE name = $1", name)
                assert (name, shown) == (name, value)
    finally:
        await connection.close()
    with psycopg.connect(pooled.by_session) as next_one:
        assert next_one.execute("SHOW statement_timeout").fetchone() == ("0",)


async def test_a_pool_of_transactions_is_refused_with_the_next_step(pooled: poolers.Pooled) -> None:
    with pytest.raises(StoreUnavailable, match=r"lends a session for one transaction.*pool in session mode") as refused:
        async with opened(pooled.by_transaction):
            pass
    assert refused.value.applied is False
