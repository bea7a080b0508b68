"""Locks on a Redis Cluster that moves a slot: for a while its keys are in two places, and some commands are turned away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import count
from typing import Protocol

import pytest
import servers
from harness import SOON_S, eventually

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import BlockingStore, Busy, Grant, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores.redis.cluster import slot_of
from holdfast.locks.stores.redis.connection import Run
from holdfast.locks.stores.redis.wire import Caller
from locks.redis_moving import moving
from locks.redis_setup import LONG, A, B, C, blocking, granted, opened

pytest_plugins = ["locks.redis_fixtures"]

both_faces = pytest.mark.parametrize("face", ["tasks", "threads"])


@both_faces
async def test_locks_are_kept_and_waited_for_while_their_slot_is_moved(
    cluster: list[servers.Server], prefix: str, face: str
) -> None:
    held, free = _in_one_slot(prefix, "held", "free")
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    with blocking(url, prefix) as sync_store, moving(cluster, held) as slot:
        async with opened(url, prefix) as store:
            caller: Verbs = store if face == "tasks" else InThreads(sync_store)
            fence = _fence(await caller.acquire(held, A, ttl_ms=LONG))
            slot.begin()
            assert await caller.renew([Renewal(held, A, LONG)]) == [Standing.OWNED]
            slot.carry(held)  # away from its fence and its history
            assert await caller.renew([Renewal(held, A, LONG)]) == [Standing.OWNED]
            acquiring = asyncio.ensure_future(caller.acquire(free, B, ttl_ms=LONG))
            releasing = asyncio.ensure_future(caller.release(held, A))
            await eventually(slot.has_turned_away)
            assert (acquiring.done(), releasing.done()) == (False, False)
            slot.carry_all()
            slot.finish()

            assert _fence(await acquiring) > fence
            assert await releasing

            history = await _history(url, prefix, held)
    assert history == [("granted", fence), ("released", fence)]


@both_faces
async def test_slot_that_is_moved_for_long_is_waited_for_within_the_timeout(
    cluster: list[servers.Server], prefix: str, face: str
) -> None:
    held, free = _in_one_slot(prefix, "held", "free")
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    with blocking(url, prefix, timeout_s=0.5) as sync_store, moving(cluster, held) as slot:
        async with opened(url, prefix, timeout_s=0.5) as store:
            caller: Verbs = store if face == "tasks" else InThreads(sync_store)
            _fence(await caller.acquire(held, A, ttl_ms=LONG))
            slot.begin()
            for _ in ("at the server that gives it away", "at the one that gets it"):
                began = SYSTEM.now()
                with pytest.raises(Unavailable, match="moves the slot") as turned_away:
                    await caller.acquire(free, B, ttl_ms=LONG)
                assert turned_away.value.applied is False
                assert SYSTEM.now() - began < SOON_S
                slot.carry_all()
            assert await caller.renew([Renewal(held, A, LONG)]) == [Standing.OWNED]
            slot.finish()
            assert isinstance(await caller.acquire(held, B, ttl_ms=LONG), Busy)
            _fence(await caller.acquire(free, B, ttl_ms=LONG))


async def test_lock_goes_to_who_waits_for_it_while_its_slot_is_moved(
    cluster: list[servers.Server], prefix: str
) -> None:
    """All that this takes is where it was. What the script removed there, it could not make again."""
    (held,) = _in_one_slot(prefix, "held")
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    with moving(cluster, held) as slot:
        async with opened(url, prefix) as store:
            fence = await granted(store, held, A)
            for waiter in (B, C, "d" * 32):
                assert isinstance(await store.acquire(held, waiter, ttl_ms=LONG, queue_ms=20_000), Busy)
            slot.begin()

            assert await store.release(held, A)

            second = await granted(store, held, B)
            assert second > fence
            assert await store.evict(held, second, reason="test")
            third = await granted(store, held, C)
            assert third > second
            slot.carry_all()
            slot.finish()
            history = await _history(url, prefix, held)
    granted_once = [
        ("granted", fence),
        ("released", fence),
        ("granted", second),
        ("evicted", second),
        ("granted", third),
    ]
    assert history == granted_once


async def test_server_that_forgot_the_script_is_asked_again_for_a_slot_it_is_about_to_get(
    cluster: list[servers.Server], prefix: str
) -> None:
    """The permission to ask is for one command."""
    (held,) = _in_one_slot(prefix, "held")
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    with moving(cluster, held) as slot, blocking(url, prefix) as sync_store:
        async with opened(url, prefix) as store:
            await granted(store, held, A)
            slot.begin()
            slot.carry_all()
            renewals = [Renewal(held, A, LONG)]
            for caller in (store, InThreads(sync_store)):
                assert await caller.renew(renewals) == [Standing.OWNED]
                slot.target.script_flush()
                assert await caller.renew(renewals) == [Standing.OWNED]
            slot.finish()


async def test_history_of_a_lock_is_read_where_its_slot_has_gone(cluster: list[servers.Server], prefix: str) -> None:
    (held,) = _in_one_slot(prefix, "held")
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    with moving(cluster, held) as slot:
        async with opened(url, prefix) as store:
            fence = await granted(store, held, A)
            slot.begin()
            slot.carry_all()
            slot.finish()

            assert [(line.event, line.fence) for line in await store.list_history(held)] == [("granted", fence)]


async def test_what_was_cancelled_meanwhile_is_not_sent_again() -> None:
    """Its undoing may have been heard before it."""
    caller = Caller("redis://h", holder="host:1", prefix="p", runtime=SYSTEM, timeout_s=1)
    gone, waiting = (asyncio.get_running_loop().create_future() for _ in range(2))
    gone.cancel()

    run = Run(caller, ["a", "b"], ["A of a", "A of b"], [gone, waiting])

    assert run.leave_out_the_gone()
    assert (run.keys, run.items, run.futures) == (["b"], ["A of b"], [waiting])
    assert not Run(caller, ["a", "b"], ["N of a", "N of b"], [gone], whole=True).leave_out_the_gone()


class Verbs(Protocol):
    def acquire(self, key: str, token: str, *, ttl_ms: int) -> Awaitable[Grant | Busy]: ...

    def renew(self, renewals: Sequence[Renewal]) -> Awaitable[list[Standing]]: ...

    def release(self, key: str, token: str) -> Awaitable[bool]: ...


class InThreads:
    """The store for threads, asked by tasks."""

    def __init__(self, store: BlockingStore) -> None:
        self._store = store

    async def acquire(self, key: str, token: str, *, ttl_ms: int) -> Grant | Busy:
        return await asyncio.to_thread(self._store.acquire, key, token, ttl_ms=ttl_ms)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        return await asyncio.to_thread(self._store.renew, renewals)

    async def release(self, key: str, token: str) -> bool:
        return await asyncio.to_thread(self._store.release, key, token)


def _in_one_slot(prefix: str, *names: str) -> list[str]:
    """Keys that begin on the first server."""
    tag = next(f"{{{prefix}{n}}}" for n in count() if slot_of(f"{{{prefix}{n}}}") < 8192)
    return [f"{prefix}{tag}{name}" for name in names]


async def _history(url: str, prefix: str, key: str) -> list[tuple[str, int]]:
    async with opened(url, prefix) as store:
        return [(line.event, line.fence) for line in await store.list_history(key)]


def _fence(reply: Grant | Busy) -> int:
    assert isinstance(reply, Grant), reply
    return reply.fence
