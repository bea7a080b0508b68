"""The failure schedules of a lock, 16 to 25: late releases, lost replies, waiting, dying, restoring.

1 to 15 are in `test_schedules.py`.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.locks import Lease, LeaseLost, LockClass, Locks, LossReason, NotOwned, StaleFence
from holdfast.locks.port import Busy, Grant, LockStore
from holdfast.locks.stores import open_store
from locks.faults import Fault, Network
from locks.invariants import Resource, check_fenced_accept, check_history, check_progress
from locks.virtual import VirtualRuntime, on_virtual_time

JOB = LockClass("job", ttl=30, wait=5)
UNRENEWED = LockClass("job", ttl=30, renew_every=0, wait=5)
KEY = "holdfast:job:x"
B, C = "b" * 32, "c" * 32


async def memory(runtime: VirtualRuntime) -> Network:
    return await Network.over("sqlite:///:memory:", runtime)


async def granted(store: LockStore, token: str = B, *, ttl_ms: int = 30_000) -> int:
    reply = await store.acquire(KEY, token, ttl_ms=ttl_ms)
    assert isinstance(reply, Grant), reply
    return reply.fence


async def arrives_after_the_successor(
    network: Network, verb: str, late: Coroutine[Any, Any, None]
) -> BaseException | None:
    """Send a request that takes 31 s; B acquires in the 31st; the request must change nothing of B's.
    What its sender was told."""
    network.fault(verb, None, times=1, who="A", request_s=31)
    sent = asyncio.create_task(late)
    await asyncio.sleep(30.5)
    fence = await granted(network.store)
    [error] = await asyncio.gather(sent, return_exceptions=True)
    holder = await network.store.find_holder(KEY)

    assert holder is not None
    assert holder.fence == fence
    assert 29_000 < holder.remaining_ms < 30_000
    check_history(network.history)
    return error


@on_virtual_time
async def test_schedule_16_a_late_release_arrives_after_the_successor(runtime: VirtualRuntime) -> None:
    async with await memory(runtime) as network, network.locks("A") as a:
        lease = await a.acquire(UNRENEWED, "x")
        told = await arrives_after_the_successor(network, "release", a.release(lease))

    assert isinstance(told, (NotOwned, LeaseLost))


@on_virtual_time
async def test_schedule_17_a_late_renewal_arrives_after_the_successor(runtime: VirtualRuntime) -> None:
    async with await memory(runtime) as network, network.locks("A") as a:
        lease = await a.acquire(UNRENEWED, "x")
        told = await arrives_after_the_successor(network, "renew", a.renew(lease))

    assert isinstance(told, (NotOwned, LeaseLost))


@on_virtual_time
async def test_schedule_18_the_reply_to_an_acquire_is_lost(runtime: VirtualRuntime) -> None:
    """The retry carries the same token, so the holder does not wait a whole ttl on itself."""
    async with await memory(runtime) as network, network.locks("A") as a:
        network.fault("acquire", Fault.LOSE_REPLY, times=1)
        started = runtime.now()
        lease = await a.acquire(JOB, "x")

        assert runtime.now() - started < 1
        assert [grant.answer for grant in network.history.grants()] == [Grant(lease.fence)] * 2
        await a.release(lease)
        check_history(network.history)


@on_virtual_time
async def test_schedule_19_a_request_is_delivered_twice(runtime: VirtualRuntime) -> None:
    """A client that re-sends by itself burns no fence, and never sees its own lock as foreign."""
    async with await memory(runtime) as network:
        link = network.link("A")
        await link.open()
        first = await link.acquire(KEY, B, ttl_ms=30_000)
        again = await link.acquire(KEY, B, ttl_ms=30_000)
        released = [await link.release(KEY, B) for _ in range(2)]
        other = await link.acquire(KEY, C, ttl_ms=30_000)
        late = await link.release(KEY, B)

        assert first == again
        assert released == [True, False]
        assert isinstance(other, Grant)
        assert not late
        check_history(network.history)
        await link.close()


@on_virtual_time
async def test_schedule_20_a_waiter_s_place_lapses_while_it_is_queued(runtime: VirtualRuntime) -> None:
    """etcd#11456: it was told "granted" after its session had ended. Here the grant goes to the living,
    and a waiter that comes back asks anew."""
    async with await memory(runtime) as network:
        store = network.store
        first = await granted(store, "a" * 32)
        assert isinstance(await store.acquire(KEY, B, ttl_ms=30_000, queue_ms=3000), Busy)
        runtime.stall(2)
        assert isinstance(await store.acquire(KEY, C, ttl_ms=30_000, queue_ms=3000), Busy)
        runtime.stall(2)
        await store.release(KEY, "a" * 32)
        late = await store.acquire(KEY, B, ttl_ms=30_000, queue_ms=3000)
        alive = await store.acquire(KEY, C, ttl_ms=30_000, queue_ms=3000)

        assert isinstance(late, Busy)
        assert isinstance(alive, Grant)
        assert alive.fence > first


@on_virtual_time
async def test_schedule_20_a_waiter_that_was_granted_and_did_not_come_costs_little(runtime: VirtualRuntime) -> None:
    async with await memory(runtime) as network, network.locks("C") as c:
        await granted(network.store, "a" * 32)
        await network.store.acquire(KEY, B, ttl_ms=30_000, queue_ms=3000)
        waiting = asyncio.create_task(c.acquire(JOB, "x", wait=20))
        await asyncio.sleep(1)
        await network.store.release(KEY, "a" * 32)
        gone_at = runtime.now()
        lease = await waiting

        check_progress(network.history, KEY, gone_at=gone_at, within_s=3.5)
        assert isinstance(await network.store.acquire(KEY, B, ttl_ms=30_000), Busy)
        await c.release(lease)


@on_virtual_time
async def test_schedule_21_two_failures_go_on_and_three_stop_without_a_release(runtime: VirtualRuntime) -> None:
    async with await memory(runtime) as network, network.locks("A") as a:
        with pytest.raises(LeaseLost) as lost:
            async with a.hold(JOB, "x") as lease:
                network.fault("renew", Fault.FAIL, times=2)
                await asyncio.sleep(60)
                lease.check()
                network.fault("renew", Fault.FAIL, times=3)
                await asyncio.sleep(60)

        assert lost.value.reason is LossReason.UNREACHABLE
        assert network.history.tried("release") == 0
        assert await network.store.find_holder(KEY) is not None
        check_history(network.history)


async def test_schedule_22_the_loop_is_blocked_while_the_work_runs_in_a_thread(tmp_path: Path) -> None:
    """The keeper's thread renews; the work's checks pass for three ttls."""
    brief = LockClass("brief", ttl=0.4)
    async with Locks(f"sqlite:///{tmp_path}/locks.db") as locks, locks.hold(brief, "x") as lease:

        def work() -> int:
            checks = 0
            end = time.monotonic() + 1.2
            while time.monotonic() < end:
                lease.check()
                checks += 1
                time.sleep(0.01)
            return checks

        working = asyncio.get_running_loop().run_in_executor(None, work)
        time.sleep(1.2)

        assert await working > 50


@on_virtual_time
async def test_schedule_22_nothing_at_all_ran_until_the_window_had_ended(runtime: VirtualRuntime) -> None:
    async with await memory(runtime) as network, network.locks("A") as a:
        lease = await a.acquire(JOB, "x")
        runtime.stall(JOB.ttl)

        with pytest.raises(LeaseLost) as lost:
            lease.check()
        assert lost.value.reason is LossReason.PAUSED
        await asyncio.sleep(60)
        assert network.history.tried("renew") == 0


@on_virtual_time
async def test_schedule_23_a_thousand_waiters_wait_for_one_lock(runtime: VirtualRuntime) -> None:
    """Each release wakes one of them. Nobody waits longer than all the others' turns together."""
    served: list[int] = []
    hot = LockClass("job", ttl=30, wait=60)
    async with await memory(runtime) as network, network.locks("A") as a, network.locks("B") as b:
        lease = await a.acquire(hot, "x")

        async def enter(n: int) -> None:
            async with (a, b)[n % 2].hold(hot, "x"):
                served.append(n)
                await asyncio.sleep(0.001)

        tasks = [asyncio.create_task(enter(n)) for n in range(1000)]
        await asyncio.sleep(0.1)
        asked = network.history.tried("acquire")
        started = runtime.now()
        await a.release(lease)
        await asyncio.gather(*tasks)

        assert served == list(range(1000))
        assert runtime.now() - started < 1.1
        assert network.history.tried("acquire") - asked <= 3 * 1000
        check_history(network.history)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST, Fault.HANG, Fault.CRASH])
@pytest.mark.parametrize("cancelled", [False, True])
@on_virtual_time
async def test_schedule_24_a_holder_dies_in_its_release(runtime: VirtualRuntime, fault: Fault, cancelled: bool) -> None:
    async with await memory(runtime) as network, network.locks("B") as b:
        locks = network.locks("A")
        await locks.open()
        lease = await locks.acquire(JOB, "x")
        network.fault("release", fault, who="A")
        releasing = asyncio.create_task(locks.release(lease))
        await asyncio.sleep(0.01)
        if cancelled:
            releasing.cancel()
        await asyncio.wait([releasing], timeout=2)
        releasing.cancel()
        await asyncio.gather(releasing, return_exceptions=True)
        gone_at = runtime.now()
        await locks.close()
        lease_of_b = await b.acquire(JOB, "x", wait=60)

        check_progress(network.history, KEY, gone_at=gone_at, within_s=JOB.ttl + 1)
        assert lease_of_b.fence > lease.fence
        check_history(network.history)
        await b.release(lease_of_b)


@on_virtual_time
async def test_schedule_25_the_store_is_restored_from_a_backup(runtime: VirtualRuntime, tmp_path: Path) -> None:
    """The counter of the backup is older than the mark at the resource; the clock floor is not."""
    resource = Resource()
    path = tmp_path / "locks.db"

    async def opened() -> LockStore:
        store = open_store(f"sqlite:///{path}", holder="s", prefix="holdfast:", runtime=runtime)
        await store.open()
        return store

    store = await opened()
    await granted(store, ttl_ms=1000)
    await store.close()
    shutil.copy(path, tmp_path / "backup.db")
    runtime.stall(10)
    store = await opened()
    fence = await granted(store)
    resource.write(fence, 1, ("b1",))
    await store.close()
    runtime.stall(1)
    shutil.copy(tmp_path / "backup.db", path)
    store = await opened()
    restored = await granted(store, C)
    resource.write(restored, 1, ("b1", "c1"))

    assert restored > fence
    with pytest.raises(StaleFence):
        resource.write(fence, 2, ("b2",))
    check_fenced_accept(resource)
    await store.close()


@on_virtual_time
async def test_windows_that_are_over_are_forgotten(runtime: VirtualRuntime) -> None:
    """Who claims a window for every message, to do it once, claims new ones for as long as it runs."""
    once = LockClass("once", ttl=1, pattern="ttl_hold")
    async with await memory(runtime) as network, network.locks() as locks:
        mine = await locks.claim(once, "mine")
        assert mine is not None
        for n in range(3000):
            assert await locks.claim(once, f"message-{n}") is not None
            await asyncio.sleep(0.01)
            if n % 50 == 0:
                again = await locks.claim(once, "mine")
                assert again is not None
                assert again.fence == mine.fence
        gc.collect()
        remembered = [lease for lease in gc.get_objects() if isinstance(lease, Lease) and lease.lock_class is once]

        assert len(remembered) < 1500
