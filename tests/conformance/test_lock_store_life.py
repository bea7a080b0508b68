"""How a `LockStore` opens, closes and bears being cancelled, once, for every store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness import Backend, eventually, sockets

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import Busy, Grant, LockStore, Renewal, Standing

A, B, C = "a" * 32, "b" * 32, "c" * 32
LONG = 60_000


async def granted(store: LockStore, key: str, token: str) -> int:
    reply = await store.acquire(key, token, ttl_ms=LONG)
    assert isinstance(reply, Grant), reply
    return reply.fence


async def test_sibling_sees_the_same_locks(backend: Backend, store: LockStore) -> None:
    sibling = store.sibling()
    await sibling.open()
    try:
        await granted(store, backend.key(), A)
        assert await sibling.renew([Renewal(backend.key(), A, LONG)]) == [Standing.OWNED]
        assert isinstance(await sibling.acquire(backend.key(), B, ttl_ms=LONG), Busy)
    finally:
        await sibling.close()


async def test_open_and_close_may_be_repeated_and_leave_no_task(backend: Backend) -> None:
    before = asyncio.all_tasks()
    store = backend.open()
    await store.open()
    await store.open()
    await granted(store, backend.key(), A)
    await store.close()
    await store.close()
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds sockets by /proc")
@pytest.mark.parametrize("turns", range(4))
async def test_closing_leaves_nothing_to_whoever_has_just_begun_to_wait(backend: Backend, turns: int) -> None:
    tasks, before = asyncio.all_tasks(), sockets()

    async def are_those_of_before() -> bool:
        return asyncio.all_tasks() == tasks and sockets() <= before

    store = backend.open()
    await store.open()
    await granted(store, backend.key(), A)
    waiting = asyncio.ensure_future(store.acquire(backend.key(), B, ttl_ms=LONG, queue_ms=100))
    for _ in range(turns):
        await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(waiting, return_exceptions=True)

    await eventually(are_those_of_before)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds sockets by /proc")
async def test_closing_that_is_cancelled_leaves_no_connection_behind(backend: Backend) -> None:
    before, turns, was_cancelled = sockets(), 0, True
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))

    async def are_those_of_before() -> bool:
        return sockets() <= before

    while was_cancelled:
        turns += 1
        store = backend.open()
        await store.open()
        await granted(store, backend.key(), A)
        await asyncio.gather(*(store.acquire(backend.key(), token, ttl_ms=LONG, queue_ms=100) for token in (B, C)))
        closing = asyncio.create_task(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = closing.cancel()
        await asyncio.wait([closing])
        await eventually(are_those_of_before)

    assert troubles == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds sockets by /proc")
async def test_closing_that_is_cancelled_leaves_no_connection_behind_that_is_being_made(backend: Backend) -> None:
    before, turns, was_cancelled = sockets(), 0, True

    async def are_those_of_before() -> bool:
        return sockets() <= before

    while was_cancelled:
        turns += 1 + turns // 4
        store = backend.open()
        opening = asyncio.create_task(store.open())
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = closing.cancel()
        await asyncio.gather(opening, closing, return_exceptions=True)
        await eventually(are_those_of_before)


async def test_many_opens_at_once_prepare_one_store(backend: Backend) -> None:
    stores = [backend.open() for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    replies = await asyncio.gather(*(s.acquire(backend.key(), f"{n:032d}", ttl_ms=LONG) for n, s in enumerate(stores)))
    await asyncio.gather(*(store.close() for store in stores))

    assert sum(isinstance(reply, Grant) for reply in replies) == 1


async def test_cancelled_call_does_not_disturb_the_others(backend: Backend, store: LockStore) -> None:
    async def acquire(n: int) -> Grant | Busy:
        return await store.acquire(backend.key(f"k{n}"), A, ttl_ms=LONG)

    tasks = [asyncio.create_task(acquire(n)) for n in range(30)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    replies = await asyncio.gather(*tasks, return_exceptions=True)

    for n, reply in enumerate(replies):
        assert isinstance(reply, Grant) or (n % 3 == 0 and isinstance(reply, asyncio.CancelledError)), reply
    # Answers still match their questions.
    await granted(store, backend.key("after"), B)


async def test_closed_store_is_unavailable_and_nothing_was_applied(backend: Backend) -> None:
    store = backend.open()
    await store.open()
    await store.close()

    with pytest.raises(Unavailable) as caught:
        await store.acquire(backend.key(), A, ttl_ms=LONG)

    assert caught.value.applied is False
