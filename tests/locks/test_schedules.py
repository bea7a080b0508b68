"""The failure schedules of a lock, step by step, with the invariants that each one threatens.

Here 1 to 15, about fences and clocks; 16 to 25, about ownership and turns, are in
`test_schedules_turns.py`. A and B are holders. "Paused" is time in which nothing of A runs, while the store and B go on.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast.locks import LeaseLost, LockClass, LockError, LossReason, StaleFence, Unavailable
from holdfast.locks.port import Grant, LockStore, Renewal, Standing
from holdfast.locks.stores import open_store
from locks.faults import Network
from locks.invariants import (
    Resource,
    check_fenced_accept,
    check_history,
    check_no_lost_ack,
    check_progress,
    check_self_stop,
    check_token_order,
)
from locks.virtual import VirtualRuntime, on_virtual_time

JOB = LockClass("job", ttl=30, wait=5)
KEY = "holdfast:job:x"
B = "b" * 32


async def memory(runtime: VirtualRuntime) -> Network:
    return await Network.over("sqlite:///:memory:", runtime)


async def file_store(runtime: VirtualRuntime, path: Path) -> LockStore:
    store = open_store(f"sqlite:///{path}", holder="file", prefix="holdfast:", runtime=runtime)
    await store.open()
    return store


async def granted(store: LockStore, token: str = B, *, ttl_ms: int = 30_000) -> int:
    reply = await store.acquire(KEY, token, ttl_ms=ttl_ms)
    assert isinstance(reply, Grant), reply
    return reply.fence


def skewed(runtime: VirtualRuntime, clock: Callable[[], float]) -> VirtualRuntime:
    """The same loop, on another machine's clock."""
    elsewhere = copy.copy(runtime)
    elsewhere.now = clock  # type: ignore[method-assign]
    return elsewhere


def check_all(network: Network, resource: Resource) -> None:
    check_history(network.history)
    check_fenced_accept(resource)
    check_no_lost_ack(resource)


@on_virtual_time
async def test_schedule_01_a_paused_holder_writes_after_its_successor(runtime: VirtualRuntime) -> None:
    resource = Resource()
    async with await memory(runtime) as network, network.locks("A") as a:
        lease = await a.acquire(JOB, "x")
        resource.append(lease, "a1")
        runtime.stall(JOB.ttl + 1)
        fence = await granted(network.store)
        resource.write(fence, 2, (*resource.read(fence, 1), "b1"))
        resource.acknowledged.append("b1")

        with pytest.raises(LeaseLost) as lost:
            resource.append(lease, "a2")
        assert lost.value.reason is LossReason.PAUSED
        with pytest.raises(StaleFence):
            resource.write(lease.fence, lease.next_seq(), ("a2",))
        check_all(network, resource)


@on_virtual_time
async def test_schedule_02_a_holder_is_paused_between_its_check_and_its_send(runtime: VirtualRuntime) -> None:
    """No local deadline can help here: only the fence at the resource does."""
    resource = Resource()
    async with await memory(runtime) as network, network.locks("A") as a:
        lease = await a.acquire(JOB, "x")
        lease.check()
        check_self_stop(lease, runtime.now())
        runtime.stall(JOB.ttl + 1)
        fence = await granted(network.store)
        resource.write(fence, 1, ("b1",))
        resource.acknowledged.append("b1")

        with pytest.raises(StaleFence) as stale:
            resource.write(lease.fence, lease.next_seq(), ("a1",))
        assert stale.value.current == (fence, 1)
        check_all(network, resource)


@on_virtual_time
async def test_schedule_03_a_delayed_write_arrives_after_the_successor_s(runtime: VirtualRuntime) -> None:
    resource = Resource()
    async with await memory(runtime) as network:
        packet = (await granted(network.store, "a" * 32), 1, ("a1",))
        await asyncio.sleep(31)
        resource.write(await granted(network.store), 1, ("b1",))
        resource.acknowledged.append("b1")

        with pytest.raises(StaleFence):
            resource.write(*packet)
        check_all(network, resource)


@on_virtual_time
async def test_schedule_04_a_delayed_write_arrives_between_the_successor_s_read_and_write(
    runtime: VirtualRuntime,
) -> None:
    """The successor's read raises the mark: else its write would overwrite what was acknowledged to A."""
    resource = Resource()
    async with await memory(runtime) as network:
        packet = (await granted(network.store, "a" * 32), 1, ("a1",))
        await asyncio.sleep(31)
        fence = await granted(network.store)
        seen = resource.read(fence, 1)
        with pytest.raises(StaleFence):
            resource.write(*packet)
        resource.write(fence, 2, (*seen, "b1"))
        resource.acknowledged.append("b1")

        check_all(network, resource)


@on_virtual_time
async def test_schedule_05_a_holder_s_own_delayed_retry_arrives_after_its_next_write(runtime: VirtualRuntime) -> None:
    resource = Resource()
    async with await memory(runtime) as network, network.locks("A") as a:
        lease = await a.acquire(JOB, "x")
        delayed = (lease.fence, lease.next_seq(), ("a1",))
        second = (lease.fence, lease.next_seq(), ("a2",))
        resource.write(*second)
        resource.acknowledged.append("a2")

        with pytest.raises(StaleFence):
            resource.write(*delayed)
        resource.write(*second)  # its own repeat is recognised, and changes nothing
        assert resource.values == ["a2"]
        check_all(network, resource)


@on_virtual_time
async def test_schedule_06_a_holder_that_stalls_while_acquiring_gets_no_higher_fence(runtime: VirtualRuntime) -> None:
    """Grant and fence are one step: a reply that is 31 s late still carries the fence of its grant."""
    async with await memory(runtime) as network, network.locks("A") as a:
        network.fault("acquire", None, times=1, who="A", reply_s=31)
        late = asyncio.create_task(a.acquire(JOB, "x", wait=0))
        await asyncio.sleep(30.5)
        fence = await granted(network.store)
        await asyncio.gather(late, return_exceptions=True)

        assert all(grant.answer.fence < fence for grant in network.history.grants())  # type: ignore[union-attr]
        check_token_order(network.history)


@pytest.mark.parametrize("lost", ["DELETE FROM holdfast_meta WHERE name = 'last_fence'", "DELETE FROM holdfast_locks"])
@on_virtual_time
async def test_schedule_07_the_fence_counter_is_evicted(runtime: VirtualRuntime, tmp_path: Path, lost: str) -> None:
    store = await file_store(runtime, tmp_path / "locks.db")
    before = await granted(store, ttl_ms=1000)
    await store.close()
    runtime.stall(2)
    connection = apsw.Connection(str(tmp_path / "locks.db"))
    connection.execute(lost)
    connection.close()
    store = await file_store(runtime, tmp_path / "locks.db")

    assert await granted(store) > before
    await store.close()


async def replica_of(
    runtime: VirtualRuntime, tmp_path: Path, *, grants_seen: int, grants: int
) -> tuple[list[int], LockStore]:
    """A store that grants, and a copy of it that was taken after the first few grants."""
    store = await file_store(runtime, tmp_path / "primary.db")
    fences = []
    for n in range(grants):
        if n == grants_seen:
            await store.close()
            shutil.copy(tmp_path / "primary.db", tmp_path / "replica.db")
            store = await file_store(runtime, tmp_path / "primary.db")
        runtime.stall(0.001)
        fences.append(await granted(store, f"{n:032d}"))
        await store.release(KEY, f"{n:032d}")
    await store.close()
    runtime.stall(0.5)
    return fences, await file_store(runtime, tmp_path / "replica.db")


@on_virtual_time
async def test_schedule_08_a_lagging_replica_is_promoted(runtime: VirtualRuntime, tmp_path: Path) -> None:
    """A real Redis primary and its replica: tests/locks/test_redis_places.py."""
    fences, promoted = await replica_of(runtime, tmp_path, grants_seen=100, grants=151)

    assert await granted(promoted) > max(fences)
    await promoted.close()


@on_virtual_time
async def test_schedule_09_a_failover_loses_the_lock_of_a_living_holder(runtime: VirtualRuntime) -> None:
    """Exclusion at the store is lost with the store's data; the holder is told, the resource decides."""
    resource = Resource()
    async with await memory(runtime) as network, network.locks("A") as a:
        with pytest.raises(LeaseLost) as lost:
            async with a.hold(JOB, "x") as lease:
                resource.append(lease, "a1")
                await network.store.evict(KEY, lease.fence, reason="failover")
                fence = await granted(network.store, ttl_ms=600_000)
                resource.write(fence, 2, (*resource.read(fence, 1), "b1"))
                resource.acknowledged.append("b1")
                with pytest.raises(StaleFence):
                    resource.append(lease, "a2")
                await asyncio.sleep(60)

        assert lost.value.reason is LossReason.STOLEN
        check_fenced_accept(resource)
        check_no_lost_ack(resource)


@on_virtual_time
async def test_schedule_10_the_old_primary_still_answers(runtime: VirtualRuntime, tmp_path: Path) -> None:
    """Split brain: A is renewed by the old primary while B holds at the new one."""
    resource = Resource()
    _, new = await replica_of(runtime, tmp_path, grants_seen=1, grants=2)
    old = await file_store(runtime, tmp_path / "primary.db")
    stale = await granted(old, "a" * 32)
    runtime.stall(0.1)
    fence = await granted(new)
    resource.write(fence, 1, ("b1",))
    resource.acknowledged.append("b1")

    assert await old.renew([Renewal(KEY, "a" * 32, 30_000)]) == [Standing.OWNED]
    with pytest.raises(StaleFence):
        resource.write(stale, 2, ("a1",))
    check_fenced_accept(resource)
    check_no_lost_ack(resource)
    await old.close()
    await new.close()


@on_virtual_time
async def test_schedule_11_the_store_s_clock_steps_forward(runtime: VirtualRuntime) -> None:
    step = 0.0
    store_clock = skewed(runtime, lambda: runtime.now() + step)
    resource = Resource()
    store = open_store("sqlite:///:memory:", holder="s", prefix="holdfast:", runtime=store_clock)
    await store.open()
    async with Network(store, runtime) as network, network.locks("A") as a:
        with pytest.raises(LeaseLost):
            async with a.hold(JOB, "x") as lease:
                resource.append(lease, "a1")
                step = 3600.0
                fence = await granted(store, ttl_ms=600_000)
                resource.write(fence, 2, (*resource.read(fence, 1), "b1"))
                resource.acknowledged.append("b1")
                with pytest.raises(StaleFence):
                    resource.append(lease, "a2")
                await asyncio.sleep(60)

        check_token_order(network.history)
        check_fenced_accept(resource)
        check_no_lost_ack(resource)


@on_virtual_time
async def test_schedule_12_the_wall_clock_steps_back_under_a_dead_holder(runtime: VirtualRuntime) -> None:
    """SQLite judges expiry by the boot clock, so a step costs nothing. Redis and Postgres judge by
    their own wall clock: there a dead holder's lease lasts as much longer as the step was."""
    async with await memory(runtime) as network, network.locks("B") as b:
        dead = await granted(network.store, "a" * 32)
        died_at = runtime.now() + 30
        runtime.wall_step_us = -3600 * 1_000_000
        lease = await b.acquire(JOB, "x", wait=40)

        assert lease.fence > dead
        check_progress(network.history, KEY, gone_at=died_at, within_s=1)


@on_virtual_time
async def test_schedule_13_a_holder_s_wall_clock_jumps_back(runtime: VirtualRuntime) -> None:
    async with await memory(runtime) as network, network.locks("A") as a:
        lease = await a.acquire(JOB, "x")
        runtime.wall_step_us = -7200 * 1_000_000
        runtime.stall(JOB.ttl - JOB.renewal.margin_s)

        assert lease.remaining() == 0
        with pytest.raises(LeaseLost):
            lease.check()


@on_virtual_time
async def test_schedule_14_two_stores_grant_the_same_key(runtime: VirtualRuntime) -> None:
    """Redlock's nodes that disagree. There is no quorum of stores here; where a key is moved to another
    store, the clock floor orders the fences and the resource refuses the older."""
    resource = Resource()
    async with await memory(runtime) as one, await memory(runtime) as another:
        older = await granted(one.store, "a" * 32)
        runtime.stall(0.01)
        newer = await granted(another.store)
        resource.write(newer, 1, ("b1",))

        assert newer > older
        with pytest.raises(StaleFence):
            resource.write(older, 1, ("a1",))


@on_virtual_time
async def test_schedule_15_the_reply_to_an_acquire_is_read_after_the_lease_has_lapsed(runtime: VirtualRuntime) -> None:
    """Validity starts before the request: whoever wakes up too late has no lock, and enters no body."""
    entered: list[float] = []
    async with await memory(runtime) as network, network.locks("A") as a:
        network.fault("acquire", None, times=1, who="A", reply_s=JOB.ttl + 1)

        async def work() -> None:
            async with a.hold(JOB, "x", wait=0) as lease:
                entered.append(lease.remaining())

        task = asyncio.create_task(work())
        await asyncio.sleep(JOB.ttl + 0.5)
        fence = await granted(network.store)
        [error] = await asyncio.gather(task, return_exceptions=True)
        holder = await network.store.find_holder(KEY)

        assert isinstance(error, LockError)
        assert entered == []
        assert holder is not None
        assert holder.fence == fence


@on_virtual_time
async def test_schedule_15_the_reply_to_a_claim_is_read_after_its_window_has_lapsed(runtime: VirtualRuntime) -> None:
    """Whoever is given a window acts, and does not ask it first."""
    loop = LockClass("loop", ttl=10, pattern="ttl_hold")
    async with await memory(runtime) as network, network.locks("A") as a, network.locks("B") as b:
        network.fault("acquire", None, times=1, who="A", reply_s=11)
        claiming = asyncio.create_task(a.claim(loop, "x"))
        await asyncio.sleep(10.5)
        taken = await b.claim(loop, "x")

        assert taken is not None
        assert await claiming is None  # asked again: it is another's by now
        network.fault("acquire", None, times=1, who="A", reply_s=11)
        window = await a.claim(loop, "y")  # asked again: it is free, or still ours
        assert window is not None
        window.check()
        network.fault("acquire", None, who="A", reply_s=11)
        with pytest.raises(Unavailable, match="could be trusted"):
            await a.claim(loop, "z")
        network.heal()
