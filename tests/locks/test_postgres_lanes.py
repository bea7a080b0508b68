"""The second connection of the Postgres store: same order and answers with it as without, and no call fails for want of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
import servers
from harness import Backend, eventually

from holdfast.locks.port import Busy, Grant, LockStore, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from holdfast.locks.stores.postgres import store as postgres
from locks.postgres_setup import LONG, OURS, A, B, own_schema, run


@pytest.fixture
async def backend(running: dict[str, servers.Server | None], tmp_path: Path) -> AsyncIterator[Backend]:
    async with own_schema(running, tmp_path) as own:
        yield own


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first crowd is enough for a second lane."""
    monkeypatch.setattr(postgres, "TURNS", 1)


@pytest.fixture
def to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys change lanes with every other batch."""
    monkeypatch.setattr(postgres, "TURNS", 2)
    monkeypatch.setattr(postgres, "CROWD", 1)
    monkeypatch.setattr(postgres, "FEW", 1_000_000)


async def connections(backend: Backend) -> dict[int, object]:
    """Of the store, with the time of their last statement."""
    rows = await run(backend.url, f"SELECT pid, query_start FROM pg_stat_activity WHERE {OURS}")
    return {row["pid"]: row["query_start"] for row in rows}


async def crowd(store: LockStore, keys: list[str]) -> None:
    """A lock and a release of each, all at once. Raises what any of them raises."""
    grants = await asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys))
    assert all(isinstance(grant, Grant) for grant in grants)
    assert all(await asyncio.gather(*(store.release(key, A) for key in keys)))


async def second_in_use(backend: Backend, store: LockStore) -> int:
    """The pid of the store's second connection, which it has come to use."""
    (first,) = await connections(backend)

    async def uses_two() -> list[int]:
        before = await connections(backend)
        await crowd(store, names(backend))
        after = await connections(backend)
        return [pid for pid in after if pid != first and pid in before and after[pid] != before[pid]]

    return (await eventually(uses_two))[0]


def names(backend: Backend) -> list[str]:
    return [backend.key(f"k{n:03d}") for n in range(100)]


@pytest.mark.usefixtures("to_and_fro")
async def test_requests_for_one_key_keep_their_order_while_it_changes_lanes(backend: Backend, store: LockStore) -> None:
    keys = names(backend)[:30]
    fences = dict.fromkeys(keys, 0)

    async def undo(key: str, turn: int) -> None:
        """What is asked in one go happens in that order: also where somebody who has given up releases what he was not told of."""
        given_up = asyncio.ensure_future(store.acquire(key, A, ttl_ms=LONG))
        for _ in range(turn % 5):  # sent, or not yet
            await asyncio.sleep(0)
        given_up.cancel()
        released, mine, refused, ended = await asyncio.gather(
            store.release(key, A),
            store.acquire(key, B, ttl_ms=LONG),
            store.acquire(key, A, ttl_ms=LONG),
            store.release(key, B),
        )
        assert released
        assert ended
        assert isinstance(mine, Grant)
        assert isinstance(refused, Busy)
        assert mine.fence > fences[key]
        fences[key] = mine.fence

    async def work(key: str) -> None:
        for turn in range(200):
            await undo(key, turn)

    await asyncio.gather(*map(work, keys))

    assert await store.list_holders(backend.prefix) == []
    assert len(await connections(backend)) == 2


async def test_second_connection_comes_with_a_lasting_crowd_and_rests_after_it(
    backend: Backend, store: LockStore
) -> None:
    (first,) = await connections(backend)
    await crowd(store, names(backend))
    assert [*await connections(backend)] == [first], "a crowd that goes at once has no use for it"
    second = await second_in_use(backend, store)

    async def rests() -> bool:
        before = await connections(backend)
        for key in names(backend):  # alone, each
            await crowd(store, [key])
        after = await connections(backend)
        return after[first] != before[first] and after[second] == before[second]

    await eventually(rests)


@asynccontextmanager
async def role_of(backend: Backend, *, connections: int) -> AsyncIterator[tuple[str, LockStore]]:
    """Somebody who may have so many connections, and a store that is opened in that name."""
    schema = backend.url.partition("search_path=")[2]
    role = f"few_{schema}"
    await run(backend.url, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {connections}")
    await run(backend.url, f"GRANT ALL ON SCHEMA {schema} TO {role}")
    store = open_store(backend.url.replace("test@", f"{role}@"), holder="few", prefix=backend.prefix, runtime=SYSTEM)
    try:
        await store.open()
        yield role, store
    finally:
        await store.close()
        await run(backend.url, f"DROP OWNED BY {role}")
        await run(backend.url, f"DROP ROLE {role}")


@pytest.mark.usefixtures("at_once")
async def test_nothing_fails_where_a_second_connection_is_refused(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with role_of(backend, connections=1) as (_, store):
        asked = 0
        reach = asyncpg.connect

        async def counted(*where: object, **named: object) -> asyncpg.Connection:
            nonlocal asked
            asked += 1
            return await reach(*where, **named)

        with monkeypatch.context() as counting:
            counting.setattr(asyncpg, "connect", counted)
            for _ in range(50):
                await crowd(store, names(backend))

        assert asked == 1, "not again for a while"


@pytest.mark.usefixtures("at_once")
async def test_nothing_fails_after_the_second_connection_was_lost(backend: Backend) -> None:
    async with role_of(backend, connections=2) as (role, store):
        second = await second_in_use(backend, store)
        await run(backend.url, f"ALTER ROLE {role} CONNECTION LIMIT 1")
        await run(backend.url, "SELECT pg_terminate_backend($1, 5000)", second)

        for _ in range(3):
            await crowd(store, names(backend))


@pytest.mark.usefixtures("at_once")
async def test_a_lost_second_connection_is_made_anew(backend: Backend, store: LockStore) -> None:
    second = await second_in_use(backend, store)
    await run(backend.url, "SELECT pg_terminate_backend($1, 5000)", second)

    assert await second_in_use(backend, store) != second


@pytest.mark.usefixtures("at_once")
async def test_nothing_fails_where_the_second_connection_went_silent_while_it_rested(
    backend: Backend, store: LockStore
) -> None:
    second = await second_in_use(backend, store)
    for key in names(backend):  # alone, each: so it rests
        await crowd(store, [key])

    os.kill(second, signal.SIGSTOP)
    try:
        for _ in range(10):
            await crowd(store, names(backend))
    finally:
        os.kill(second, signal.SIGCONT)


@pytest.mark.usefixtures("at_once")
async def test_what_waits_behind_a_lost_second_connection_goes_by_the_first(backend: Backend, store: LockStore) -> None:
    second = await second_in_use(backend, store)
    keys = [key for key in names(backend) if hash(key) & 1]
    waits = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
    other = await asyncpg.connect(backend.url)
    try:
        async with other.transaction():
            await other.execute("SELECT FROM holdfast_locks WHERE key = $1 FOR UPDATE", keys[0])
            sent = asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys[:20]), return_exceptions=True)
            await eventually(lambda: run(backend.url, waits, second))
            behind = asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys[20:]))
            await run(backend.url, "SELECT pg_terminate_backend($1, 5000)", second)

            assert all(isinstance(answer, Grant) for answer in await behind)
            assert {getattr(answer, "applied", ...) for answer in await sent} == {None}
    finally:
        await other.close()


@pytest.mark.usefixtures("at_once")
async def test_closing_leaves_no_connection_behind(backend: Backend) -> None:
    stores = []  # kept, or the collector would close what they forget
    for turns in range(0, 200, 4):  # before the second one is asked for, while it is made, and after
        store = backend.open()
        stores.append(store)
        await store.open()
        working = asyncio.gather(
            *(store.acquire(key, A, ttl_ms=LONG) for key in names(backend)), return_exceptions=True
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        await store.close()
        await working

    async def are_gone() -> bool:
        return not await connections(backend)

    await eventually(are_gone)


@pytest.mark.usefixtures("at_once")
async def test_closing_asks_for_no_second_connection(
    backend: Backend, store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would end it."""
    asked = 0

    async def unanswered(*where: object, **named: object) -> asyncpg.Connection:
        nonlocal asked
        asked += 1
        return await asyncio.Future()

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg, "connect", unanswered)
        for _ in range(5):
            await crowd(store, names(backend))
        assert asked == 1
        renewed = asyncio.ensure_future(store.renew([Renewal(backend.key("k"), A, LONG)]))
        await asyncio.sleep(0)  # sent

        await store.close()

        assert await renewed == [Standing.GONE]
        assert asked == 1


@pytest.mark.usefixtures("at_once")
async def test_second_connection_that_was_refused_is_not_asked_for_after_the_crowd(
    backend: Backend, store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def refused(*where: object, **named: object) -> asyncpg.Connection:
        nonlocal asked
        asked += 1
        raise asyncpg.TooManyConnectionsError("sorry, too many clients already")

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg, "connect", refused)
        patch.setattr(postgres, "PAUSE_S", 0.0)
        for _ in range(5):
            await crowd(store, names(backend))
        in_crowd = asked
        assert in_crowd > 0

        for key in names(backend)[:3]:  # alone, each
            await crowd(store, [key])

        assert asked == in_crowd
