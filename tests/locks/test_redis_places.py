"""Locks on Redis where the primary can change: replicas, sentinels, clusters."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest
import servers
from harness import eventually, sockets, sooner_or_later
from tls_door import certified, tls_door

from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.port import BlockingStore, Busy, LockStore, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from holdfast.locks.stores.redis.cluster import slot_of, slot_tags
from holdfast.locks.stores.redis.sentinel import Sentinels
from holdfast.locks.stores.redis.wire import parse_url
from locks.redis_setup import (
    FORMED_S_MAX,
    LONG,
    A,
    B,
    C,
    blocking,
    client,
    formed_cluster,
    granted,
    granted_yet,
    opened,
    replica_of,
    replicated,
    sentinel_server,
)

pytest_plugins = ["locks.redis_fixtures"]


async def test_lagging_replica_that_is_promoted_grants_higher_fences(prefix: str) -> None:
    primary = servers.redis_server().start()
    replica = servers.redis_server("--replicaof", f"127.0.0.1 {primary.port}").start()
    key = f"{prefix}k"
    try:
        with client(primary) as at_primary, client(replica) as at_replica:
            async with opened(primary.url, prefix) as store:
                await granted(store, key, A)
                replicated(at_primary)
                replica.pause()
                fences = []
                for _ in range(50):  # acknowledged, and never replicated
                    await store.release(key, A)
                    fences.append(await granted(store, key, A))
                primary.kill()
            replica.resume()
            async with opened(replica.url, prefix) as store:
                with pytest.raises(Unavailable, match="replica") as no_release:
                    await store.release(key, A)
                with pytest.raises(Unavailable, match="replica") as no_grant:
                    await store.acquire(f"{key}2", A, ttl_ms=LONG)
                assert (no_release.value.applied, no_grant.value.applied) == (False, False)
                at_replica.replicaof("NO", "ONE")
                holder = await store.find_holder(key)
                if holder is not None:  # what lay in its socket it has heard on waking: perhaps a release
                    await store.evict(key, holder.fence, reason="failover")

                after = await granted(store, key, B)

        assert after > fences[-1]
    finally:
        primary.remove()
        replica.remove()


async def test_sentinels_name_the_primary_and_its_successor(prefix: str) -> None:
    primary = servers.redis_server().start()
    replica = servers.redis_server("--replicaof", f"127.0.0.1 {primary.port}").start()
    sentinel = sentinel_server(primary.port).start()
    url = f"redis+sentinel://127.0.0.1:{servers.free_port()},127.0.0.1:{sentinel.port}/payments/0"
    key = f"{prefix}k"
    try:
        with client(sentinel) as asked, blocking(url, prefix) as sync_store:
            await eventually(lambda: _true(asked.sentinel_slaves("payments")))
            async with opened(url, prefix) as store:
                before = await granted(store, key, A)
                assert isinstance(sync_store.acquire(key, B, ttl_ms=LONG), Busy)
                with client(primary) as at_primary:
                    replicated(at_primary)

                primary.kill()

                await eventually(lambda: granted_yet(store, key), within_s=30)
                assert await granted(store, key, A) == before  # it had been replicated
                assert await store.release(key, A)
                assert await granted(store, key, B) > before
            await eventually(lambda: _sync_answers(sync_store, key), within_s=30)
    finally:
        for started in (sentinel, replica, primary):
            started.remove()


async def test_sentinel_that_names_a_primary_of_long_ago_does_not_lead_astray(
    server: servers.Server, prefix: str
) -> None:
    """One that is cut off from the others: it has not heard of the failover."""
    isolated = sentinel_server(servers.free_port()).start()
    sentinel = sentinel_server(server.port).start()
    url = f"redis+sentinel://127.0.0.1:{isolated.port},127.0.0.1:{sentinel.port}/payments"
    try:
        store = open_store(url, holder="host:1", prefix=prefix, runtime=SYSTEM)
        with blocking(url, prefix) as sync_store:
            await eventually(lambda: _opened_yet(store))
            assert await granted(store, f"{prefix}k", A) > 0
            await eventually(lambda: _sync_answers(sync_store, f"{prefix}k"))
        await store.close()
    finally:
        for started in (sentinel, isolated):
            started.remove()


@pytest.mark.parametrize("of", ["a sentinel without a password", "a server that is none"])
async def test_sentinels_that_refuse_to_be_asked_are_told_from_those_that_are_away(
    server: servers.Server, prefix: str, of: str
) -> None:
    sentinel = sentinel_server(server.port).start()
    ports = {"a sentinel without a password": sentinel.port, "a server that is none": server.port}
    url = f"redis+sentinel://127.0.0.1:{ports[of]}/payments?sentinel_password=wr0ng"
    try:
        store = open_store(url, holder="host:1", prefix=prefix, runtime=SYSTEM)
        with pytest.raises(StoreRefused, match="sentinel_password=") as refused:
            await store.open()
        with blocking(url, prefix) as sync_store, pytest.raises(StoreRefused, match="sentinel_password="):
            sync_store.acquire(f"{prefix}k", A, ttl_ms=LONG)
        assert "wr0ng" not in str(refused.value)
    finally:
        await store.close()
        sentinel.remove()


async def test_sentinels_are_asked_over_tls_and_nothing_is_left_open(
    server: servers.Server, prefix: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    sentinel = sentinel_server(server.port).start()
    certificate = certified(tmp_path, "server")
    try:
        async with tls_door(sentinel.port, certificate) as door:
            url = f"rediss+sentinel://127.0.0.1:{door}/payments"
            with blocking(url, prefix) as sync_store:
                with pytest.raises(StoreRefused, match="certificate is not trusted"):
                    await asyncio.to_thread(sync_store.acquire, f"{prefix}k", A, ttl_ms=LONG)
            with pytest.raises(StoreRefused, match="certificate is not trusted"):
                await open_store(url, holder="host:1", prefix=prefix, runtime=SYSTEM).open()
            trusted = Sentinels(parse_url(f"{url}?ssl_ca_certs={certificate}"))
            assert (await asyncio.to_thread(trusted.find_primary_blocking, 5)).port == server.port
            assert (await trusted.find_primary(5)).port == server.port
    finally:
        sentinel.remove()
    assert [str(each.message) for each in recwarn if each.category is ResourceWarning] == []


async def _opened_yet(store: LockStore) -> bool:
    try:
        await store.open()
    except Unavailable:
        return False
    return True


async def _true(value: object) -> bool:
    return bool(value)


async def _sync_answers(store: BlockingStore, key: str) -> bool:
    try:
        return isinstance(store.acquire(key, C, ttl_ms=LONG), Busy)
    except Unavailable:
        return False


async def test_cluster_keeps_the_promises(cluster: list[servers.Server], prefix: str) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    keys = [f"{prefix}k{n}" for n in range(60)] + [f"{prefix}a{{b}}c"]
    woken: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with opened(url, prefix) as store, opened(url, prefix) as other:
        other.on_wake(lambda key, token: woken.put_nowait((key, token)))
        first = await asyncio.gather(*(granted(store, key, A) for key in keys))
        waiting = await asyncio.gather(*(other.acquire(key, B, ttl_ms=LONG, queue_ms=20_000) for key in keys))
        assert all(isinstance(reply, Busy) for reply in waiting)
        assert await store.renew([Renewal(key, A, LONG) for key in keys]) == [Standing.OWNED] * len(keys)
        assert all(await asyncio.gather(*(store.release(key, A) for key in keys)))
        second = await asyncio.gather(*(granted(other, key, B, queue_ms=20_000) for key in keys))
        heard: set[tuple[str, str]] = set()
        while heard < {(key, B) for key in keys}:
            heard.add(await asyncio.wait_for(woken.get(), 5))
        listed = [holder.key for holder in await store.list_holders(prefix, limit=1000)]
        history = [(line.event, line.fence) for line in await store.list_history(keys[0])]

    assert all(after > before for before, after in zip(first, second, strict=True))
    assert listed == sorted(keys)
    assert history == [("granted", first[0]), ("released", first[0]), ("granted", second[0])]


async def test_cluster_follows_a_slot_that_has_moved(cluster: list[servers.Server], prefix: str) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    key = next(f"{prefix}{n}" for n in count() if slot_of(f"{prefix}{n}") == 100)
    with client(cluster[0]) as first, client(cluster[1]) as second, blocking(url, prefix) as sync_store:
        async with opened(url, prefix) as store:
            await granted(store, key, A)
            await store.release(key, A)
            sync_store.release(key, A)
            first.flushall()
            target = second.cluster("MYID")
            for node in (second, first):
                node.cluster("SETSLOT", 100, "NODE", target)

            await granted(store, key, A)

            assert isinstance(sync_store.acquire(key, B, ttl_ms=LONG), Busy)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds sockets by /proc")
@pytest.mark.parametrize("is_open", [True, False])
async def test_cluster_that_is_asked_while_its_store_is_closed_leaves_no_connection_behind(
    is_open: bool, cluster: list[servers.Server], prefix: str
) -> None:
    url = f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in cluster)}"
    before, turns, answered = sockets(), 0, False

    async def are_those_of_before() -> bool:
        return sockets() <= before

    while not answered:
        turns += 1 + turns // 4
        store = open_store(url, holder="h", prefix=prefix, runtime=SYSTEM)
        if is_open:
            await store.open()
        asking = asyncio.ensure_future(store.list_history(f"{prefix}k") if is_open else store.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        answered = asking.done()
        await store.close()
        await asyncio.wait([asking])
        asking.exception()
        await eventually(are_those_of_before)


async def test_cluster_is_followed_to_the_replica_that_took_over(prefix: str) -> None:
    key = next(f"{prefix}{n}" for n in count() if slot_of(f"{prefix}{n}") == 100)
    with formed_cluster() as (first, second), replica_of(first) as replica:
        # Only the one that dies is named: the others are known from it.
        url = f"redis+cluster://127.0.0.1:{first.port}"
        with client(first) as at_first, client(second) as at_second, client(replica) as at_replica:
            with blocking(url, prefix) as sync_store:
                async with opened(url, prefix) as store:
                    fence = await granted(store, key, A)
                    assert isinstance(sync_store.acquire(key, B, ttl_ms=LONG), Busy)
                    replicated(at_first)
                    first.kill()
                    # Both have looked for it while nobody had its place.
                    assert not await granted_yet(store, key)
                    assert not await _sync_answers(sync_store, key)
                    assert not await _sync_answers(sync_store, key)

                    at_replica.cluster("FAILOVER", "TAKEOVER")
                    sooner_or_later(lambda: str(replica.port) in str(at_second.cluster("SLOTS")), within_s=FORMED_S_MAX)

                    await eventually(lambda: granted_yet(store, key), within_s=30)
                    await eventually(lambda: _sync_answers(sync_store, key), within_s=30)
                    assert await granted(store, key, A) == fence


async def test_cluster_without_slots_is_unavailable(prefix: str) -> None:
    alone = servers.redis_server("--cluster-enabled", "yes", "--cluster-port", str(servers.free_port())).start()
    try:
        with blocking(f"redis+cluster://127.0.0.1:{alone.port}", prefix) as sync_store:
            with pytest.raises(Unavailable, match="CLUSTERDOWN") as nobody:
                sync_store.acquire(f"{prefix}k", A, ttl_ms=LONG)
        assert nobody.value.applied is False
    finally:
        alone.remove()


async def test_cluster_refuses_what_it_cannot_keep(
    cluster: list[servers.Server], server: servers.Server, prefix: str
) -> None:
    async with opened(f"redis+cluster://127.0.0.1:{cluster[0].port}", prefix) as store:
        with pytest.raises(ValueError, match="cluster"):
            store.acquire(f"{prefix}a}}b", A, ttl_ms=LONG)
    with pytest.raises(StoreRefused, match="redis://"):
        async with opened(f"redis+cluster://127.0.0.1:{server.port}", prefix):
            pass


def test_every_slot_has_a_tag_that_lands_in_it() -> None:
    assert [slot_of(f"holdfast:fence{tag}") for tag in slot_tags()] == list(range(16384))
