"""Defects that were found in other lock libraries, by probe: none of them is ours.

Each test names the library where it was seen. On real servers unless our own timing is the subject.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest
from harness import Backend, eventually, sooner_or_later

from holdfast.locks import (
    Lease,
    LeaseLost,
    LockBusy,
    LockClass,
    LockError,
    Locks,
    LossReason,
    NotOwned,
    StoreRefused,
    SyncLocks,
    Unavailable,
)
from holdfast.locks.port import LockStore
from locks.faults import Fault, Network, Proxy
from locks.invariants import Told, check_history
from locks.virtual import VirtualRuntime, on_virtual_time

JOB = LockClass("job", ttl=30, wait=5)


def renewed(backend: Backend) -> LockClass:
    """A class that renews as often as a test can wait for."""
    return LockClass("renewed", ttl=max(1.5, backend.ttl_ms / 1000), wait=5)


@pytest.fixture
async def locks(backend: Backend) -> AsyncIterator[Locks]:
    async with Locks(backend.url, prefix=backend.prefix) as opened:
        yield opened


async def test_an_overrunning_task_cannot_release_its_successor(
    backend: Backend, locks: Locks, other: LockStore
) -> None:
    """redis-py asyncio `Lock`, one object shared by two tasks: A's release deleted B's lock."""
    brief = LockClass("brief", ttl=backend.ttl_ms / 1000, renew_every=0, wait=5)
    overrun = await locks.acquire(brief, "x")
    current = await locks.acquire(brief, "x")

    with pytest.raises((LeaseLost, NotOwned)):
        await locks.release(overrun)
    holder = await other.find_holder(current.key)
    assert holder is None or holder.fence == current.fence
    assert current.fence > overrun.fence


async def test_tasks_that_share_one_locks_object_have_leases_of_their_own(locks: Locks) -> None:
    """redis-py: the token lives in the lock object, so tasks overwrite each other's."""
    first = await locks.acquire(JOB, "x")
    waiting = asyncio.create_task(locks.acquire(JOB, "x"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await locks.release(first)
    second = await waiting

    with pytest.raises(NotOwned):
        await locks.release(first)
    assert second.token != first.token
    await locks.release(second)


async def test_three_hundred_random_cancels_leave_no_key(backend: Backend, locks: Locks) -> None:
    """redis-py asyncio: 4 of 300 cancels during acquire left a key that nobody owns."""
    rng = random.Random(300)
    leases: list[Lease] = []

    async def attempt(n: int) -> None:
        leases.append(await locks.acquire(JOB, f"x{n % 60}"))
        await locks.release(leases[-1])

    for start in range(0, 300, 30):
        tasks = [asyncio.create_task(attempt(n)) for n in range(start, start + 30)]
        for task in tasks:
            await asyncio.sleep(rng.choice([0, 0, 0.0002, 0.001, 0.003]))
            if rng.random() < 0.9:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def all_free() -> bool:
        return await locks.list(JOB) == []

    await eventually(all_free, within_s=5)
    assert len(leases) < 300


@on_virtual_time
async def test_a_lost_reply_to_acquire_costs_neither_the_lock_nor_a_fence(runtime: VirtualRuntime) -> None:
    """redis-py: the default retry re-sends, sees its own key, returns False; the key stays until its ttl."""
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        network.fault("acquire", Fault.LOSE_REPLY, times=2)
        lease = await locks.acquire(JOB, "x")

        assert len({change.answer for change in network.history.grants()}) == 1
        await locks.release(lease)
        network.fault("acquire", Fault.LOSE_REPLY, times=1)
        with pytest.raises(Unavailable):
            await locks.try_acquire(JOB, "x")
        await asyncio.sleep(0.5)
        assert await locks.inspect(JOB, "x") is None
        check_history(network.history)


async def test_a_lost_reply_to_acquire_is_recovered_over_a_real_connection(backend: Backend) -> None:
    """The same, with the reply dropped on the wire and the connection cut behind it."""
    if backend.server is None:
        pytest.skip("a file has no reply that could be lost on a wire")
    async with Proxy(backend.server.port) as proxy:
        async with Locks(proxy.url(backend.url), prefix=backend.prefix) as locks:
            await locks.release(await locks.acquire(JOB, "warm"))
            proxy.mute = True
            asking = asyncio.create_task(locks.acquire(JOB, "x"))
            await asyncio.sleep(0.1)
            proxy.mute = False
            proxy.cut()
            lease = await asking
            granted = [line.fence for line in await locks.history(JOB, "x") if line.event == "granted"]

            assert granted == [lease.fence]
            await locks.release(lease)


@on_virtual_time
async def test_a_lost_reply_to_release_is_no_error(runtime: VirtualRuntime) -> None:
    """redis-py: `LockNotOwnedError` although the release worked."""
    told = Told()
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks(observer=told) as locks:
        for fault in (Fault.LOSE_REPLY, Fault.LOSE_REQUEST):
            async with locks.hold(JOB, "x"):
                network.fault("release", fault, times=3)
            await asyncio.sleep(1)

            assert await locks.inspect(JOB, "x") is None
        assert told.count("not_owned") == 0
        check_history(network.history)


def test_a_lost_reply_to_release_is_no_error_for_threads(backend: Backend) -> None:
    told, network = Told(), Network.of_threads(backend)
    with network.sync_locks(backend, observer=told) as locks:
        for fault in (Fault.LOSE_REPLY, Fault.LOSE_REQUEST):
            with locks.hold(JOB, "x"):
                network.fault("release", fault, times=3)

            sooner_or_later(lambda: locks.inspect(JOB, "x") is None)
    assert told.count("not_owned") == 0
    assert told.count("released") == 2


async def test_a_stolen_lock_is_told_to_its_holder(backend: Backend, locks: Locks, other: LockStore) -> None:
    """python-redis-lock: the renewal thread dies, the main thread is never told. tooz: a log line."""
    with pytest.raises(LeaseLost) as lost:
        async with locks.hold(renewed(backend), "x") as lease:
            await other.evict(lease.key, lease.fence, reason="theft")
            await other.acquire(lease.key, "b" * 32, ttl_ms=60_000)
            await asyncio.sleep(5)

    assert lost.value.reason is LossReason.STOLEN
    assert lease.remaining() == 0


def test_a_stolen_lock_is_told_to_its_thread(backend: Backend) -> None:
    """tooz: `lock.acquired` stayed True."""
    with SyncLocks(backend.url, prefix=backend.prefix) as locks:
        with pytest.raises(LeaseLost) as lost, locks.hold(renewed(backend), "x") as lease:
            locks._ask(lambda: locks._keeper.store.evict(lease.key, lease.fence, reason="theft"))
            deadline = time.monotonic() + 5
            while lease.lost is None and time.monotonic() < deadline:
                time.sleep(0.01)
            lease.check()

    assert lost.value.reason is LossReason.REVOKED


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY, Fault.HANG, Fault.CRASH])
@on_virtual_time
async def test_one_transient_error_does_not_stop_renewal(runtime: VirtualRuntime, fault: Fault) -> None:
    """python-redis-lock: one ConnectionError ends the renewal for good, the lock expires on a healthy server."""
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        async with locks.hold(JOB, "x") as lease:
            network.fault("renew", fault, times=1)
            await asyncio.sleep(10 * JOB.ttl)

            lease.check()
        assert len({change.answer for change in network.history.grants()}) == 1
        check_history(network.history)


async def test_renewal_survives_a_connection_that_is_cut(backend: Backend) -> None:
    """The same on the wire: every connection is reset once, in the middle of a lease."""
    if backend.server is None:
        pytest.skip("a file has no connection that could be cut")
    brief = LockClass("brief", ttl=max(1.0, backend.ttl_ms / 1000))
    async with Proxy(backend.server.port) as proxy:
        async with Locks(proxy.url(backend.url), prefix=backend.prefix) as locks:
            async with locks.hold(brief, "x") as lease:
                await asyncio.sleep(0.5)
                proxy.cut()
                await asyncio.sleep(1.5)
                lease.check()


@on_virtual_time
async def test_nothing_is_created_anew_after_another_holder_came_and_went(runtime: VirtualRuntime) -> None:
    """aioredlock: the watchdog re-creates the key and `lock.valid` is True."""
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        with pytest.raises(LeaseLost) as lost:
            async with locks.hold(JOB, "x") as lease:
                await network.store.evict(lease.key, lease.fence, reason="test")
                await network.store.acquire(lease.key, "b" * 32, ttl_ms=60_000)
                await network.store.release(lease.key, "b" * 32)
                await asyncio.sleep(3 * JOB.ttl)

        assert lost.value.reason is LossReason.REVOKED
        assert await network.store.find_holder(lease.key) is None
        assert len(network.history.grants()) == 1


async def test_no_lock_is_without_an_end(backend: Backend, locks: Locks) -> None:
    """sherlock: `expire=None` makes a lock that vanishes at once; others make one that never ends."""
    with pytest.raises((ValueError, TypeError)):
        LockClass("endless", ttl=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ttl must be between"):
        LockClass("endless", ttl=-1)
    lease = await locks.acquire(JOB, "x")
    holder = await locks.inspect(JOB, "x")

    assert holder is not None
    assert 0 < holder.remaining_ms <= JOB.ttl_ms
    await locks.release(lease)


async def test_a_block_is_never_entered_without_the_lock(backend: Backend, locks: Locks) -> None:
    """aetcd and python-etcd3 enter it after 10 s, redlock-ng at once, with `valid=False`."""
    async with locks.hold(JOB, "x"):
        with pytest.raises(LockBusy):
            async with locks.hold(JOB, "x", wait=0.05):
                pytest.fail("entered without the lock")
        with pytest.raises(LockBusy):
            async with locks.hold(JOB, "x", wait=0):
                pytest.fail("entered without the lock")


def test_a_thread_s_block_is_never_entered_without_the_lock(backend: Backend) -> None:
    with SyncLocks(backend.url, prefix=backend.prefix) as locks, locks.hold(JOB, "x"):
        for wait in (0.05, 0):
            with pytest.raises(LockBusy), locks.hold(JOB, "x", wait=wait):
                pytest.fail("entered without the lock")


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.CRASH])
@on_virtual_time
async def test_a_failing_store_enters_no_block_either(runtime: VirtualRuntime, fault: Fault) -> None:
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        network.fault("acquire", fault)
        with pytest.raises((Unavailable, RuntimeError)):
            async with locks.hold(JOB, "x"):
                pytest.fail("entered without the lock")
        network.heal()
        await asyncio.sleep(1)

        assert await locks.inspect(JOB, "x") is None


def burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))


@pytest.mark.parametrize("blocked", [time.sleep, burn], ids=["sleep", "pure-Python"])
async def test_a_blocked_loop_keeps_its_lease(backend: Backend, locks: Locks, blocked: object) -> None:
    """An asyncio-task renewal loses the lease when the loop is blocked 1.5 s with a ttl of 1 s; a thread does not."""
    assert callable(blocked)
    async with locks.hold(LockClass("second", ttl=1), "x") as lease:
        blocked(1.5)
        lease.check()
        holder = await locks.inspect(LockClass("second", ttl=1), "x")

        assert holder is not None
        assert holder.fence == lease.fence


async def test_reacquiring_by_the_holder_burns_no_fence(backend: Backend, locks: Locks, other: LockStore) -> None:
    """Redisson: the fence grows on reentry. Ours is not reentrant; a repeat of the same grant keeps it."""
    lease = await locks.acquire(JOB, "x")
    again = await other.acquire(lease.key, lease.token, ttl_ms=JOB.ttl_ms)

    assert again == (lease.fence,)
    await locks.release(lease)


async def test_the_ttl_asked_for_is_the_ttl_kept(backend: Backend, locks: Locks) -> None:
    """Redisson: `lockAndGetToken(lease, unit)` ignores the lease."""
    for ttl in (5.0, 600.0):
        lock_class = LockClass(f"ttl-{ttl:.0f}", ttl=ttl)
        await locks.acquire(lock_class, "x")
        holder = await locks.inspect(lock_class, "x")

        assert holder is not None
        assert 0.8 * ttl * 1000 < holder.remaining_ms <= ttl * 1000


@pytest.mark.parametrize("step_s", [3600, -3600])
@on_virtual_time
async def test_a_step_of_the_wall_clock_moves_no_lease(runtime: VirtualRuntime, step_s: int) -> None:
    """Redisson's FairLock and kazoo's NonBlockingLease compare client wall clocks."""
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        first = await locks.acquire(JOB, "x")
        runtime.wall_step_us = step_s * 1_000_000
        first.check()
        assert first.remaining() > 20
        with pytest.raises(LockBusy):
            await locks.acquire(JOB, "x", wait=0.5)
        await locks.release(first)
        second = await locks.acquire(JOB, "x")

        assert second.fence > first.fence
        check_history(network.history)


@on_virtual_time
async def test_a_release_that_fails_keeps_the_right_to_try_again(runtime: VirtualRuntime) -> None:
    """redis-py sync clears its token before the call succeeds: a failed release can never be repeated.

    Ours goes on by itself until the store has heard it.
    """
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        lease = await locks.acquire(JOB, "x")
        network.fault("release", Fault.FAIL, times=20)
        await locks.release(lease)
        assert await network.store.find_holder(lease.key) is not None
        await asyncio.sleep(5)

        assert await network.store.find_holder(lease.key) is None


@on_virtual_time
async def test_a_release_that_is_refused_is_told_and_goes_on(runtime: VirtualRuntime) -> None:
    """A full disk, say: who released it must hear of it, and nobody else need wait for the ttl."""
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        network.fault("release", Fault.REFUSE, times=20)
        with pytest.raises(StoreRefused):
            async with locks.hold(JOB, "x") as lease:
                pass
        assert await network.store.find_holder(lease.key) is not None
        await asyncio.sleep(5)

        assert await network.store.find_holder(lease.key) is None


@pytest.mark.parametrize("ended_by", [ZeroDivisionError, asyncio.CancelledError, SystemExit])
@on_virtual_time
async def test_a_release_that_is_refused_does_not_hide_what_ended_the_block(
    runtime: VirtualRuntime, ended_by: type[BaseException]
) -> None:
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        network.fault("release", Fault.REFUSE, times=1)
        with pytest.raises(ended_by):
            async with locks.hold(JOB, "x"):
                raise ended_by


async def test_release_needs_the_token_not_the_name(backend: Backend, locks: Locks, other: LockStore) -> None:
    """etcd's `Unlock` deletes by key name, whoever holds it by then."""
    lease = await locks.acquire(JOB, "x")
    assert not await other.release(lease.key, "c" * 32)
    await locks.release(lease)
    with pytest.raises(LockError):
        await locks.release(lease)
