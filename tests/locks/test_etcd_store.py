"""What is particular to locks in etcd: fences, names, leases, wake-ups. The rest is in the conformance suite."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import servers
from etcd_stores import LONG, answered, granted, make, own_server, post
from harness import Backend, eventually, make_backend

from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.port import Busy, LockStore, Renewal, Standing
from holdfast.locks.stores.etcd import api, layout

A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
def backend(running: dict[str, servers.Server | None], tmp_path: Path) -> Backend:
    return make_backend("etcd", running, tmp_path)


@pytest.fixture
def server() -> Iterator[servers.Server]:
    with own_server() as started:
        yield started


@pytest.fixture
async def lone(server: servers.Server) -> AsyncIterator[LockStore]:
    opened = make(server.url)
    await opened.open()
    yield opened
    await opened.close()


# -- fences ----------------------------------------------------------------------------------------


async def test_fences_grow_after_the_cluster_lost_its_data(server: servers.Server, lone: LockStore) -> None:
    before = await granted(lone, "p:k", A)
    server.kill()
    shutil.rmtree(server.directory / "data")
    server.start()

    async def granted_again() -> int:
        try:
            return await granted(lone, "p:k", B)
        except Unavailable:
            return 0

    assert await eventually(granted_again) > before


async def test_locks_survive_a_crash_of_the_server(server: servers.Server, lone: LockStore) -> None:
    fence = await granted(lone, "p:k", A)
    server.kill()
    server.start()

    assert await eventually(lambda: answered(lone, "p:k", A))
    assert await granted(lone, "p:k", A) == fence


@pytest.mark.parametrize("quota", ["1", "100000000"], ids=["exceeded", "not quite used up"])
async def test_server_without_space_keeps_and_releases_the_locks_that_it_has(
    server: servers.Server, lone: LockStore, quota: str
) -> None:
    fences = [await granted(lone, key, A) for key in ("p:1", "p:2", "p:3", "p:4")]
    assert isinstance(await lone.acquire("p:1", B, ttl_ms=LONG, queue_ms=LONG), Busy)
    server.kill()
    server.command = [*server.command, "--quota-backend-bytes", quota]
    server.ready = lambda _: True  # what it says of its health is that it has no space
    server.start()
    await eventually(lambda: answered(lone, "p:4", A))
    member = (await post(server, "/v3/maintenance/status"))["header"]["member_id"]
    await post(server, "/v3/maintenance/alarm", action="ACTIVATE", memberID=member, alarm="NOSPACE")

    renewed = await lone.renew([Renewal(key, A, LONG) for key in ("p:1", "p:2", "p:3")])
    with pytest.raises(StoreRefused, match="disarm") as refused:
        await lone.acquire("p:5", A, ttl_ms=LONG)

    assert renewed == [Standing.OWNED] * 3
    assert refused.value.retryable
    assert [await lone.release("p:1", B), await lone.release("p:1", A), await lone.release("p:1", A)] == [
        False,
        True,
        False,
    ]
    late = make(server.url)
    try:
        await late.open()
        assert await late.release("p:2", A)
        assert not await late.evict("p:3", fences[1], reason="another's fence")
        assert await late.evict("p:3", fences[2], reason="test")
        assert [holder.key for holder in await late.list_holders("p:")] == ["p:4"]
    finally:
        await late.close()


# -- names and leases ------------------------------------------------------------------------------


async def test_keys_that_begin_alike_are_apart(backend: Backend, store: LockStore) -> None:
    for name in ["a", "a:b", "a!", "ab"]:
        await granted(store, backend.key(name), A)

    assert await store.release(backend.key("a"), A)

    listed = [holder.key for holder in await store.list_holders(backend.key("a"))]
    assert listed == [backend.key(name) for name in ["a!", "a:b", "ab"]]


async def test_listing_takes_as_long_as_there_are_locks(server: servers.Server) -> None:
    """Each holder is a request of its own, for what remains of its lease: the timeout is that of a page."""
    keys = [f"p:{n:04d}" for n in range(1500)]
    store, gateway = make(server.url, timeout_s=0.5), api.Gateway(server.url, timeout_s=30)
    try:
        await gateway.open()
        lease = await gateway.grant_lease(LONG // 1000)
        for page in (keys[n : n + 100] for n in range(0, len(keys), 100)):
            names = [layout.contenders(key)[0] + layout.digest_of(A).encode() for key in page]
            held = [layout.Contender(name, 0, lease, "host:1", LONG // 1000, granted=True, base=1) for name in names]
            await gateway.txn([], [api.put(each.name, each.value(), lease=lease) for each in held])
        await store.open()

        listed = await store.list_holders("p:", limit=2000)

        assert [holder.key for holder in listed] == keys
    finally:
        await store.close()
        await gateway.close()


async def test_listing_everything_passes_over_history_and_waiters(server: servers.Server, lone: LockStore) -> None:
    for n in range(3):
        await granted(lone, f"p:{n}", A)
        for token in [B, C]:
            assert isinstance(await lone.acquire(f"p:{n}", token, ttl_ms=LONG, queue_ms=LONG), Busy)
    await granted(lone, "z:elsewhere", A)

    listed = await lone.list_holders("")
    first = await lone.list_holders("", limit=2)
    rest = await lone.list_holders("", after=first[-1].key)

    assert [(holder.key, holder.waiters) for holder in listed] == [
        ("p:0", 2),
        ("p:1", 2),
        ("p:2", 2),
        ("z:elsewhere", 0),
    ]
    assert [*first, *rest] == listed


async def test_control_characters_are_refused(store: LockStore) -> None:
    with pytest.raises(ValueError, match="control characters"):
        await store.acquire("a\0b", A, ttl_ms=LONG)


async def test_all_that_is_written_ends_by_itself_but_the_base(server: servers.Server, lone: LockStore) -> None:
    await granted(lone, "p:k", A)
    await lone.acquire("p:k", B, ttl_ms=LONG, queue_ms=5000)
    await lone.release("p:k", A)
    await granted(lone, "p:k", B)

    kvs = (await post(server, "/v3/kv/range", key="AA==", range_end="AA=="))["kvs"]

    assert sum("lease" in kv for kv in kvs) == len(kvs) - 1


async def test_lease_of_a_released_lock_serves_the_next(server: servers.Server, lone: LockStore) -> None:
    for n in range(10):
        await granted(lone, f"p:{n}", A)
        await lone.release(f"p:{n}", A)

    leases = (await post(server, "/v3/lease/leases"))["leases"]

    assert len(leases) == 2  # the history's, and one for ten locks


async def test_renewal_with_another_ttl_moves_to_another_lease(backend: Backend, store: LockStore) -> None:
    fence = await granted(store, backend.key(), A, ttl_ms=5000)

    assert await store.renew([Renewal(backend.key(), A, LONG)]) == [Standing.OWNED]

    holder = await store.find_holder(backend.key())
    assert holder is not None
    assert holder.fence == fence
    assert holder.remaining_ms > 50_000


async def test_waiter_does_not_renew_what_it_waits_for(backend: Backend, store: LockStore) -> None:
    await granted(store, backend.key(), A)
    await store.acquire(backend.key(), B, ttl_ms=LONG, queue_ms=LONG)

    assert await store.renew([Renewal(backend.key(), B, LONG)]) == [Standing.TAKEN]


async def test_waiter_far_behind_keeps_its_place(backend: Backend, store: LockStore) -> None:
    key, tokens = backend.key(), [f"{n:032}" for n in range(40)]
    await granted(store, key, tokens[0])
    for token in tokens[1:]:
        await store.acquire(key, token, ttl_ms=LONG, queue_ms=LONG)

    assert isinstance(await store.acquire(key, tokens[-1], ttl_ms=LONG, queue_ms=LONG), Busy)
    assert not await store.release(key, tokens[-2])

    for token in [*tokens[:-2], tokens[-1]]:
        await granted(store, key, token)
        assert await store.release(key, token)
    assert await store.find_holder(key) is None


# -- wake-ups --------------------------------------------------------------------------------------


async def test_only_the_first_local_waiter_is_woken(backend: Backend, store: LockStore, other: LockStore) -> None:
    key = backend.key()
    woken: list[tuple[str, str]] = []
    other.on_wake(lambda k, t: woken.append((k, t)))
    await granted(store, key, A)
    for token in [B, C]:
        await other.acquire(key, token, ttl_ms=LONG, queue_ms=LONG)
    await eventually(lambda: told(woken, ("", "")))

    await store.release(key, A)
    await eventually(lambda: told(woken, (key, B)))
    await granted(other, key, B, queue_ms=LONG)
    await other.release(key, B)
    await eventually(lambda: told(woken, (key, C)))

    assert woken == [("", ""), (key, B), (key, C)]


async def told(woken: list[tuple[str, str]], whom: tuple[str, str]) -> bool:
    return whom in woken


async def test_all_waiters_are_woken_when_the_watch_was_interrupted(server: servers.Server, lone: LockStore) -> None:
    woken = asyncio.Event()
    lone.on_wake(lambda k, t: woken.set() if (k, t) == ("", "") else None)
    await granted(lone, "p:k", A)
    await lone.acquire("p:k", B, ttl_ms=LONG, queue_ms=LONG)
    await asyncio.wait_for(woken.wait(), 5)
    woken.clear()
    server.kill()
    assert not woken.is_set()
    server.start()

    await asyncio.wait_for(woken.wait(), 10)
