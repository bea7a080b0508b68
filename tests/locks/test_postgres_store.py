"""What is particular to Postgres: batches, the sweep, lost connections, refusals. The rest is in the conformance suite."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import servers
from harness import SOON_S, Backend, eventually

from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.port import Busy, Grant, LockStore, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from locks.postgres_setup import LONG, OURS, A, B, C, own_schema, run


@pytest.fixture
async def backend(running: dict[str, servers.Server | None], tmp_path: Path) -> AsyncIterator[Backend]:
    async with own_schema(running, tmp_path) as own:
        yield own


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A server of this test's own, to be killed, paused and configured."""
    try:
        started = servers.postgres_server(fsync=True).start()
    except (FileNotFoundError, RuntimeError) as why:
        servers.unavailable("postgres", str(why))
    yield started
    started.remove()


@pytest.fixture
async def lone(server: servers.Server) -> AsyncIterator[LockStore]:
    opened = make(server.url)
    await opened.open()
    yield opened
    await opened.close()


def make(url: str, **options: float) -> LockStore:
    return open_store(url, holder="test-holder", prefix="p:", runtime=SYSTEM, **options)


async def granted(store: LockStore, key: str, token: str, ttl_ms: int = LONG, **options: int) -> int:
    reply = await store.acquire(key, token, ttl_ms=ttl_ms, **options)
    assert isinstance(reply, Grant), reply
    return reply.fence


# -- batches ---------------------------------------------------------------------------------------


async def test_requests_for_one_key_in_one_tick_happen_in_their_order(backend: Backend, store: LockStore) -> None:
    key = backend.key()

    first, refused, released, second, again, mine = await asyncio.gather(
        store.acquire(key, A, ttl_ms=LONG),
        store.acquire(key, B, ttl_ms=LONG),
        store.release(key, A),
        store.acquire(key, B, ttl_ms=LONG),
        store.acquire(key, B, ttl_ms=LONG),
        store.release(key, A),
    )

    assert isinstance(first, Grant)
    assert isinstance(refused, Busy)
    assert released is True
    assert isinstance(second, Grant)
    assert second.fence > first.fence
    assert again == second
    assert mine is False


async def test_release_does_not_overtake_the_acquire_it_undoes(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n:03d}") for n in range(600)]  # more than one batch
    abandoned = [asyncio.ensure_future(store.acquire(key, A, ttl_ms=LONG)) for key in keys]
    released = [store.release(key, A) for key in keys]
    for acquire in abandoned:
        acquire.cancel()
    await asyncio.gather(*released)

    assert await store.list_holders(backend.prefix) == []


async def test_what_cannot_be_a_token_is_nobodys_and_spoils_no_batch(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    answers = asyncio.gather(store.release(key, "\udc80"), store.acquire(key, A, ttl_ms=LONG))

    released, reply = await asyncio.wait_for(answers, 10)

    assert not released
    assert isinstance(reply, Grant)


async def test_a_waiter_in_the_tick_of_the_release_is_granted(backend: Backend, store: LockStore) -> None:
    key = backend.key()
    await granted(store, key, A)

    queued, released, fenced = await asyncio.gather(
        store.acquire(key, B, ttl_ms=LONG, queue_ms=5000),
        store.release(key, A),
        store.acquire(key, B, ttl_ms=LONG, queue_ms=5000),
    )

    assert isinstance(queued, Busy)
    assert released is True
    assert isinstance(fenced, Grant)


async def test_processes_with_overlapping_keys_do_not_deadlock(
    backend: Backend, store: LockStore, other: LockStore
) -> None:
    keys = [backend.key(f"k{n:02d}") for n in range(40)]

    async def work(mine: LockStore, token: str, ordered: list[str]) -> None:
        for _ in range(15):
            await asyncio.gather(
                *(mine.acquire(key, token, ttl_ms=LONG, queue_ms=n % 2 * 5) for n, key in enumerate(ordered))
            )
            await asyncio.gather(
                mine.renew([Renewal(key, token, LONG) for key in ordered]),
                *(mine.release(key, token) for key in ordered[::2]),
                *(mine.acquire(key, token, ttl_ms=LONG) for key in ordered[1::2]),
            )
            await asyncio.gather(*(mine.release(key, token) for key in ordered))

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = await run(backend.url, deadlocks)
    await asyncio.gather(work(store, A, keys), work(other, B, keys[::-1]), work(store, C, keys[::-1]))

    assert await run(backend.url, deadlocks) == before


async def test_stricter_isolation_of_the_database_does_not_matter(backend: Backend) -> None:
    stores = [make(f"{backend.url}&default_transaction_isolation=serializable") for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    for _ in range(10):
        replies = await asyncio.gather(*(s.acquire("p:k", f"{n:032d}", ttl_ms=LONG) for n, s in enumerate(stores)))
        assert sum(isinstance(reply, Grant) for reply in replies) == 1
        await asyncio.gather(*(s.release("p:k", f"{n:032d}") for n, s in enumerate(stores)))
    await asyncio.gather(*(store.close() for store in stores))


# -- what the tables hold --------------------------------------------------------------------------


async def test_fences_grow_although_the_row_was_swept_and_the_clock_set_back(
    backend: Backend, store: LockStore
) -> None:
    key = backend.key()
    await granted(store, key, A)
    await store.release(key, A)
    # As if the clock had been an hour ahead when the lock was last held, two days ago.
    ahead = (await run(backend.url, "SELECT (extract(epoch FROM now() + interval '1 hour') * 1000000)::bigint"))[0][0]
    await run(
        backend.url,
        "UPDATE holdfast_locks SET fence = $2, last_fence = $2, expires_at = now() - interval '2 days' WHERE key = $1",
        key,
        ahead,
    )

    await run(backend.url, "SELECT holdfast_collect(100)")
    assert await run(backend.url, "SELECT FROM holdfast_locks"), "removed before the floor was raised"
    await run(backend.url, "SELECT holdfast_collect(100)")
    assert not await run(backend.url, "SELECT FROM holdfast_locks")

    assert await granted(store, key, B) > ahead


async def test_sweep_goes_through_all_rows_and_leaves_the_young(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n:02d}") for n in range(30)]
    await asyncio.gather(*(granted(store, key, A) for key in keys))
    await asyncio.gather(*(store.release(key, A) for key in keys))
    old = (
        "SET expires_at = now() - interval '25 hours' WHERE key < $1",
        "SET ended_at = now() - interval '25 hours' WHERE key < $1",
    )
    await run(backend.url, f"UPDATE holdfast_locks {old[0]}", keys[20])
    await run(backend.url, f"UPDATE holdfast_history {old[1]}", keys[20])

    for _ in range(12):
        await run(backend.url, "SELECT holdfast_collect(7)")

    for table in ("holdfast_locks", "holdfast_history"):
        assert [row["key"] for row in await run(backend.url, f"SELECT key FROM {table} ORDER BY key")] == keys[20:]


async def test_tokens_never_reach_the_database(backend: Backend, store: LockStore) -> None:
    await granted(store, backend.key(), A)
    await store.acquire(backend.key(), B, ttl_ms=LONG, queue_ms=5000)

    for table in ("holdfast_locks", "holdfast_queue"):
        rows = await run(backend.url, f"SELECT * FROM {table}")
        assert rows
        assert A not in repr(rows)
        assert B not in repr(rows)


async def test_tables_of_a_newer_version_are_refused(backend: Backend, store: LockStore) -> None:
    await run(backend.url, "UPDATE holdfast_store SET version = 99")
    late = backend.open()

    with pytest.raises(StoreRefused, match=r"version 99.*Upgrade Holdfast"):
        await late.open()
    await late.close()


async def test_tables_that_have_lost_their_version_are_refused_until_they_are_dropped(
    backend: Backend, store: LockStore
) -> None:
    before = await granted(store, backend.key(), A)
    await run(backend.url, "DELETE FROM holdfast_store")
    late = backend.open()

    with pytest.raises(StoreRefused, match=r"holdfast_store has lost its row.*drop them all and open"):
        await late.open()
    tables = "holdfast_store, holdfast_locks, holdfast_queue, holdfast_history, holdfast_releases"
    await run(backend.url, f"DROP TABLE {tables} CASCADE")
    await late.open()
    assert await granted(late, backend.key(), B) > before
    await late.close()


# -- lost connections ------------------------------------------------------------------------------


async def test_terminated_backend_ends_calls_as_unknown_and_the_next_ones_work(
    backend: Backend, store: LockStore
) -> None:
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%holdfast_batch%' AND {OURS}"
    answers: list[Grant | Busy | Unavailable] = []

    async def work(n: int) -> None:
        key = backend.key(f"k{n}")
        while not any(isinstance(answer, Unavailable) for answer in answers):
            try:
                answers.append(await store.acquire(key, A, ttl_ms=LONG))
                await store.release(key, A)
            except Unavailable as failure:
                answers.append(failure)

    async with asyncio.TaskGroup() as tasks:
        for n in range(20):
            tasks.create_task(work(n))

        async def interrupted() -> bool:
            await run(backend.url, end)
            return any(isinstance(answer, Unavailable) for answer in answers)

        await eventually(interrupted)

    assert all(answer.applied in (None, False) for answer in answers if isinstance(answer, Unavailable))
    await granted(store, backend.key("after"), B)


async def test_acknowledged_grants_survive_kill_9_of_the_server(server: servers.Server, lone: LockStore) -> None:
    acknowledged: dict[str, int] = {}
    failures: list[Unavailable] = []

    async def work(n: int) -> None:
        for turn in range(100_000):
            key = f"p:{n}:{turn}"
            try:
                acknowledged[key] = await granted(lone, key, A)
            except Unavailable as failure:
                failures.append(failure)
                return

    working = asyncio.gather(*(work(n) for n in range(20)))
    await eventually(lambda: asyncio.sleep(0, len(acknowledged) > 200))
    server.kill()
    await working
    with pytest.raises(Unavailable) as down:
        await lone.acquire("p:down", A, ttl_ms=LONG)
    server.start()

    assert len(failures) == 20
    assert {failure.applied for failure in failures} <= {None, False}
    assert down.value.applied is False
    held = list(acknowledged)
    assert await lone.renew([Renewal(key, A, LONG) for key in held]) == [Standing.OWNED] * len(held)
    assert [await granted(lone, key, A) for key in held[-50:]] == [acknowledged[key] for key in held[-50:]]


async def test_silent_server_ends_calls_in_time(backend: Backend) -> None:
    store = backend.open(timeout_s=1.0)
    await store.open()
    asked = await run(backend.url, f"SELECT pid FROM pg_stat_activity WHERE query LIKE '%holdfast_collect%' AND {OURS}")
    pid = asked[0]["pid"]
    loop = asyncio.get_running_loop()
    os.kill(pid, signal.SIGSTOP)
    began = loop.time()

    sent = asyncio.ensure_future(store.acquire(backend.key("a"), A, ttl_ms=LONG))
    await asyncio.sleep(0.1)
    unsent = asyncio.ensure_future(store.acquire(backend.key("b"), A, ttl_ms=LONG))
    replies = await asyncio.gather(sent, unsent, return_exceptions=True)
    took_s = loop.time() - began
    os.kill(pid, signal.SIGCONT)

    assert [(type(r), getattr(r, "applied", ...)) for r in replies] == [(Unavailable, None), (Unavailable, False)]
    assert took_s < SOON_S
    await granted(store, backend.key("a"), A)
    await store.close()


async def test_wakes_are_heard_again_after_the_listening_connection_broke(backend: Backend, store: LockStore) -> None:
    wakes: list[tuple[str, str]] = []
    store.on_wake(lambda key, token: wakes.append((key, token)))
    await granted(store, backend.key(), A)
    await store.acquire(backend.key(), B, ttl_ms=LONG, queue_ms=20_000)
    await eventually(lambda: asyncio.sleep(0, wakes))

    wakes.clear()
    await run(
        backend.url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND {OURS}"
    )
    await eventually(lambda: asyncio.sleep(0, wakes))
    assert set(wakes) == {("", "")}  # all of them: what was told meanwhile, nobody heard
    await store.release(backend.key(), A)

    await eventually(lambda: asyncio.sleep(0, (backend.key(), B) in wakes))


# -- refusals --------------------------------------------------------------------------------------


async def test_unreachable_server_is_unavailable() -> None:
    store = make(f"postgresql://someone:s3cret@127.0.0.1:{servers.free_port()}/x")

    with pytest.raises(Unavailable) as caught:
        await store.open()
    await store.close()

    assert caught.value.applied is False
    assert "s3cret" not in str(caught.value)


async def test_unknown_database_is_refused(server: servers.Server) -> None:
    store = make(server.url.replace("/postgres", "/nowhere"))

    with pytest.raises(StoreRefused, match="Create the database"):
        await store.open()
    await store.close()


async def test_wrong_password_is_refused_without_showing_it(server: servers.Server) -> None:
    await run(server.url, "CREATE ROLE guest LOGIN PASSWORD 'right'")
    rules = server.directory / "data/pg_hba.conf"
    rules.write_text("host all guest 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    await run(server.url, "SELECT pg_reload_conf()")
    store = make(server.url.replace("test@", "guest:s3cret@"))

    with pytest.raises(StoreRefused, match="Check user and password") as caught:
        await store.open()
    await store.close()

    assert "s3cret" not in str(caught.value)


async def test_role_that_may_not_create_tables_is_refused_until_somebody_did(backend: Backend) -> None:
    schema = backend.url.partition("search_path=")[2]
    role = f"guest_{schema}"
    await run(backend.url, f"CREATE ROLE {role} LOGIN")
    await run(backend.url, f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    guest, owner = make(backend.url.replace("test@", f"{role}@")), backend.open()

    with pytest.raises(StoreRefused, match="Grant this role"):
        await guest.open()

    await owner.open()
    await run(backend.url, f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
    await guest.open()
    await granted(guest, backend.key(), A)
    assert isinstance(await guest.acquire(backend.key(), B, ttl_ms=LONG, queue_ms=50), Busy)
    await guest.close()
    await owner.close()
    await run(backend.url, f"DROP OWNED BY {role}")
    await run(backend.url, f"DROP ROLE {role}")


async def test_read_only_session_is_refused(backend: Backend, store: LockStore) -> None:
    reader = make(f"{backend.url}&default_transaction_read_only=on")

    with pytest.raises(StoreRefused, match="Use the primary"):
        await reader.open()
    await reader.close()
