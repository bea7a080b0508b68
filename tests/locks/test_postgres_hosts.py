"""Locks on Postgres whose URL names several hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import servers

from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.port import Grant, LockStore
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from locks.postgres_setup import LONG, A


@pytest.fixture
def server() -> Iterator[servers.Server]:
    try:
        started = servers.postgres_server().start()
    except (FileNotFoundError, RuntimeError) as why:
        servers.unavailable("postgres", str(why))
    yield started
    started.remove()


def make(url: str) -> LockStore:
    return open_store(url, holder="test-holder", prefix="p:", runtime=SYSTEM)


async def test_of_several_hosts_the_one_that_can_be_written_is_found(server: servers.Server) -> None:
    standby = servers.postgres_standby(server).start()
    try:
        both = standby.url.replace("/postgres", f",127.0.0.1:{server.port}/postgres")
        store = make(both)
        await store.open()
        assert isinstance(await store.acquire("p:k", A, ttl_ms=LONG), Grant)
        await store.close()

        with pytest.raises(Unavailable, match="none of its hosts can be written now") as refused:
            await make(standby.url.replace("/postgres", f",127.0.0.1:{standby.port}/postgres")).open()
        assert refused.value.applied is False
        # Whoever says which one they want is given that, and told what is wrong with it.
        with pytest.raises(StoreRefused, match="standby"):
            await make(f"{both}?target_session_attrs=any").open()
    finally:
        standby.remove()
