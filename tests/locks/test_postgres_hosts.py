"""Locks on Postgres whose URL names several hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import servers
from harness import eventually

from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.port import Grant, LockStore, Renewal
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from locks.postgres_setup import LONG, A, run


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


async def test_host_that_becomes_read_only_is_left_for_the_one_that_was_promoted(server: servers.Server) -> None:
    standby = servers.postgres_standby(server).start()
    store = make(server.url.replace("/postgres", f",127.0.0.1:{standby.port}/postgres"))
    try:
        await store.open()
        before = await store.acquire("p:k", A, ttl_ms=LONG)
        assert isinstance(before, Grant)
        await run(server.url, "ALTER SYSTEM SET default_transaction_read_only = on")
        await run(server.url, "SELECT pg_reload_conf()")

        await eventually(lambda: refused(store))
        with pytest.raises(Unavailable) as nobody:
            await store.renew([Renewal("p:k", A, LONG)])
        await run(standby.url, "SELECT pg_promote()")

        after = await eventually(lambda: granted_yet(store))
        assert nobody.value.applied is False
        assert after is not None
        assert after.fence >= before.fence
    finally:
        await store.close()
        standby.remove()


async def refused(store: LockStore) -> bool:
    try:
        await store.renew([Renewal("p:k", A, LONG)])
    except Unavailable:
        return True
    return False


async def granted_yet(store: LockStore) -> Grant | None:
    try:
        reply = await store.acquire("p:k", A, ttl_ms=LONG)
    except Unavailable:
        return None
    assert isinstance(reply, Grant)
    return reply


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
