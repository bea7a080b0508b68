"""Locks behind a pooler: as good as without one, if it lends whole sessions; else it is refused."""

from __future__ import annotations

import asyncio
from functools import partial

import asyncpg
import poolers
import pytest

from holdfast.locks.errors import StoreRefused
from holdfast.locks.port import Busy, Grant, LockStore
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from holdfast.locks.stores.postgres.link import refuse_lent_sessions
from locks.postgres_setup import LONG, A, B

pooled = pytest.fixture(scope="module")(poolers.pooled)


def make(url: str) -> LockStore:
    return open_store(url, holder="test-holder", prefix="p:", runtime=SYSTEM)


async def test_locks_are_kept_behind_a_pool_of_sessions(pooled: poolers.Pooled) -> None:
    behind, direct = make(pooled.by_session), make(pooled.server)
    await behind.open()
    await direct.open()
    try:
        first = await behind.acquire("k", A, ttl_ms=LONG)
        assert isinstance(first, Grant)
        assert isinstance(await direct.acquire("k", B, ttl_ms=LONG), Busy)
        await behind.release("k", A)
        second = await direct.acquire("k", B, ttl_ms=LONG)
        assert isinstance(second, Grant)
        assert second.fence > first.fence
    finally:
        await behind.close()
        await direct.close()


async def test_a_pool_of_transactions_is_refused_with_the_next_step(pooled: poolers.Pooled) -> None:
    store = make(pooled.by_transaction)
    with pytest.raises(StoreRefused, match=r"lends a session for one transaction.*pool in session mode"):
        await store.open()
    await store.close()


async def test_a_setting_that_a_pooler_does_not_take_is_refused_with_the_next_step(pooled: poolers.Pooled) -> None:
    store = make(f"{pooled.by_session}?search_path=elsewhere")
    with pytest.raises(StoreRefused, match=r"search_path.*ALTER ROLE"):
        await store.open()
    await store.close()


@pytest.mark.parametrize("mode", ["server", "by_session", "by_transaction"])
async def test_lent_sessions_are_told_also_where_the_pooler_knows_prepared_statements(
    pooled: poolers.Pooled, mode: str
) -> None:
    """As newer ones do. Ours is spared them instead."""
    reach = partial(asyncpg.connect, getattr(pooled, mode), statement_cache_size=0)
    connection = await reach()
    deadline = asyncio.get_running_loop().time() + 10
    try:
        asked = refuse_lent_sessions(connection, reach, subject="here", deadline=deadline)
        if mode == "by_transaction":
            with pytest.raises(StoreRefused, match="lends a session"):
                await asked
        else:
            await asked
    finally:
        connection.terminate()
