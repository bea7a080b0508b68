"""The shorter way on Postgres, for batches of free locks: same answers as the longer one, whatever the locks are like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import servers
from harness import Backend

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import Busy, Grant, LockStore, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from holdfast.locks.stores.postgres import lane
from locks.postgres_setup import LONG, OURS, A, B, C, own_schema, run


@pytest.fixture
async def backend(running: dict[str, servers.Server | None], tmp_path: Path) -> AsyncIterator[Backend]:
    async with own_schema(running, tmp_path) as own:
        yield own


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shorter way is tried for every batch, also after one that it was no use for."""
    monkeypatch.setattr(lane, "FREE_PAUSE", 0)


async def free_again(store: LockStore, *keys: str) -> None:
    """Have a row for each key, and nobody hold it."""
    await asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys))
    await asyncio.gather(*(store.release(key, A) for key in keys))


async def ways(backend: Backend) -> set[str]:
    """Which way the last batch went, by what the server was asked last on each connection."""
    asked = await run(backend.url, f"SELECT query FROM pg_stat_activity WHERE {OURS}")
    queries = " ".join(row["query"] or "" for row in asked)
    return {way for way, sign in (("free", "granted AS ("), ("batch", "holdfast_batch(")) if sign in queries}


@pytest.mark.usefixtures("always")
async def test_acquires_of_one_batch_are_each_answered_by_how_their_lock_is(
    backend: Backend, store: LockStore, other: LockStore
) -> None:
    free, new, held, queued, expired, mine = keys = [backend.key(name) for name in ("f", "n", "h", "q", "e", "m")]
    await free_again(store, *(key for key in keys if key != new))
    before = await store.acquire(mine, A, ttl_ms=LONG)
    await other.acquire(held, B, ttl_ms=LONG)
    await other.acquire(queued, B, ttl_ms=LONG)
    await other.acquire(queued, C, ttl_ms=LONG, queue_ms=LONG)
    await other.release(queued, B)  # now it is granted to C
    await other.acquire(expired, B, ttl_ms=backend.ttl_ms)
    await asyncio.sleep(backend.ttl_ms / 1000 + 0.02)

    answers = await asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys))

    kinds = dict(zip(keys, map(type, answers), strict=True))
    assert kinds == {free: Grant, new: Grant, held: Busy, queued: Busy, expired: Grant, mine: Grant}
    assert answers[-1] == before
    holders = {holder.key: holder.holder for holder in await store.list_holders(backend.prefix)}
    assert {key for key, holder in holders.items() if holder == "other-holder"} == {held, queued}


@pytest.mark.usefixtures("always")
async def test_releases_of_one_batch_are_each_answered_by_how_their_lock_is(
    backend: Backend, store: LockStore, other: LockStore
) -> None:
    mine, free, held, waited, never = keys = [backend.key(name) for name in ("m", "f", "h", "w", "n")]
    await free_again(store, mine, free, held, waited)
    await asyncio.gather(store.acquire(mine, A, ttl_ms=LONG), store.acquire(waited, A, ttl_ms=LONG))
    await other.acquire(held, B, ttl_ms=LONG)
    assert isinstance(await other.acquire(waited, C, ttl_ms=LONG, queue_ms=LONG), Busy)

    released = await asyncio.gather(*(store.release(key, A) for key in keys))

    assert dict(zip(keys, released, strict=True)) == {mine: True, free: False, held: False, waited: True, never: False}
    assert isinstance(await other.acquire(waited, C, ttl_ms=LONG, queue_ms=LONG), Grant)
    assert [row.event for row in await store.list_history(mine)] == ["granted", "released"] * 2


async def test_the_shorter_way_is_left_for_a_while_after_it_was_no_use(
    backend: Backend, store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "FREE_PAUSE", 2)
    key = backend.key()

    seen = []
    for _ in range(4):  # the first finds no row
        await store.acquire(key, A, ttl_ms=LONG)
        seen.append(await ways(backend))
        await store.release(key, A)

    assert seen == [{"batch"}, {"batch"}, {"free"}, {"free"}]


@pytest.mark.usefixtures("always")
async def test_acquires_of_one_batch_that_ask_for_different_things_get_them(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n}") for n in range(4)]
    await free_again(store, *keys)

    grants = await asyncio.gather(
        *(store.acquire(key, A, ttl_ms=LONG * (n + 1), fences=n + 1) for n, key in enumerate(keys))
    )

    remaining = [holder.remaining_ms for holder in await store.list_holders(backend.prefix)]
    assert [round(ms / LONG) for ms in remaining] == [1, 2, 3, 4]
    await asyncio.gather(*(store.release(key, A) for key in keys))
    again = await asyncio.gather(*(store.acquire(key, B, ttl_ms=LONG) for key in keys))
    for n, (first, second) in enumerate(zip(grants, again, strict=True)):
        assert isinstance(first, Grant)
        assert isinstance(second, Grant)
        assert second.fence > first.fence + n


@pytest.mark.usefixtures("always")
async def test_release_does_not_overtake_an_acquire_that_goes_the_longer_way_in_the_end(
    backend: Backend, store: LockStore
) -> None:
    for n in range(20):
        key = backend.key(f"new{n}")
        acquired = asyncio.ensure_future(store.acquire(key, A, ttl_ms=LONG))
        for _ in range(n % 4):  # sent, or not yet
            await asyncio.sleep(0)
        await store.release(key, A)
        await acquired

    assert await store.list_holders(backend.prefix) == []


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "names", [('"', "\\", '\\"', "\u2028", "\t", "é"), ("{,}", "'", "é", "⚓", ":", "NULL")], ids=["escaped", "plain"]
)
async def test_odd_keys_are_themselves(backend: Backend, store: LockStore, names: tuple[str, ...]) -> None:
    keys = [backend.key(name) for name in names]
    await free_again(store, *keys)

    grants = await asyncio.gather(*(store.acquire(key, B, ttl_ms=LONG) for key in keys))

    assert await ways(backend) == {"free"}
    assert all(isinstance(grant, Grant) for grant in grants)
    assert sorted(holder.key for holder in await store.list_holders(backend.prefix)) == sorted(keys)
    assert all(await asyncio.gather(*(store.release(key, B) for key in keys)))


@pytest.mark.usefixtures("always")
async def test_processes_that_go_both_ways_do_not_deadlock(
    backend: Backend, store: LockStore, other: LockStore
) -> None:
    keys = [backend.key(f"k{n:02d}") for n in range(40)]
    await free_again(store, *keys)

    async def work(mine: LockStore, token: str, ordered: list[str]) -> None:
        for turn in range(20):
            part = ordered[turn % 7 :: 2]
            await asyncio.gather(*(mine.acquire(key, token, ttl_ms=LONG, queue_ms=turn % 3) for key in part))
            await asyncio.gather(*(mine.release(key, token) for key in part[::-1]))

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = await run(backend.url, deadlocks)
    await asyncio.gather(work(store, A, keys), work(other, B, keys[::-1]), work(other, C, keys))

    assert await run(backend.url, deadlocks) == before
    assert await store.list_holders(backend.prefix) == []


async def test_grants_of_the_shorter_way_survive_kill_9_of_the_server() -> None:
    try:
        server = servers.postgres_server(fsync=True).start()
    except (FileNotFoundError, RuntimeError) as why:
        servers.unavailable("postgres", str(why))
    store = open_store(server.url, holder="test-holder", prefix="p:", runtime=SYSTEM)
    try:
        await store.open()
        keys = [f"p:{n}" for n in range(100)]
        for _ in range(lane.FREE_PAUSE):
            await free_again(store, *keys)
        grants = await asyncio.gather(*(store.acquire(key, B, ttl_ms=LONG) for key in keys))
        server.kill()
        assert all(isinstance(grant, Grant) for grant in grants)
        renewals = [Renewal(key, B, LONG) for key in keys]
        with pytest.raises(Unavailable):
            await store.renew(renewals)
        server.start()

        assert await store.renew(renewals) == [Standing.OWNED] * len(keys)
        assert await asyncio.gather(*(store.acquire(key, B, ttl_ms=LONG) for key in keys)) == grants
    finally:
        await store.close()
        server.remove()
