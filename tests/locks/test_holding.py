"""The face of the library, on every store: hold, claim, try_acquire, renew, release, and looking.

Acceptance rows 30-33, 36-40, 77-80, 86 and 95.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing

import pytest
from harness import Backend, eventually

from holdfast.locks import (
    Lease,
    LeaseLost,
    LockBusy,
    LockClass,
    LockError,
    Locks,
    LossReason,
    NotOwned,
    StaleFence,
    SyncLocks,
)
from holdfast.locks.port import LockStore

JOB = LockClass("job", ttl=30, wait=0)
TOKEN = "b" * 32


def short(backend: Backend) -> LockClass:
    """A class whose lease ends soon by itself: nobody renews it."""
    # Not too soon: on a busy machine its grant must still come in time.
    return LockClass("short", ttl=max(0.4, backend.ttl_ms / 1000), renew_every=0, wait=0)


@pytest.fixture
async def locks(backend: Backend) -> AsyncIterator[Locks]:
    async with Locks(backend.url, prefix=backend.prefix, holder="first") as opened:
        yield opened


@pytest.fixture
async def rival(backend: Backend) -> AsyncIterator[Locks]:
    """Another process's locks on the same store."""
    async with Locks(backend.url, prefix=backend.prefix, holder="second") as opened:
        yield opened


async def test_acquire_takes_a_free_lock_with_a_fresh_token_and_none_if_it_is_held(locks: Locks, rival: Locks) -> None:
    """Row 30."""
    first = await locks.try_acquire(JOB, "x")
    refused = await rival.try_acquire(JOB, "x")

    assert first is not None
    assert refused is None
    await locks.release(first)
    second = await rival.try_acquire(JOB, "x")
    assert second is not None
    assert second.token != first.token
    assert second.fence > first.fence
    await rival.release(second)


async def test_the_holder_is_seen_by_everybody_and_its_token_by_nobody(locks: Locks, rival: Locks) -> None:
    """Rows 30 and 86; inspect, list and history."""
    lease = await locks.acquire(JOB, "x")
    holder = await rival.inspect(JOB, "x")

    assert holder is not None
    assert (holder.key, holder.fence, holder.holder) == (lease.key, lease.fence, "first")
    assert lease.token not in repr(holder)
    assert lease.token not in repr(lease)
    assert [seen.key for seen in await rival.list(JOB)] == [lease.key]
    await locks.release(lease)
    assert await rival.inspect(JOB, "x") is None
    assert await rival.list() == []
    assert [(line.event, line.fence) for line in await rival.history(JOB, "x")] == [
        ("granted", lease.fence),
        ("released", lease.fence),
    ]


async def test_listing_is_by_class_and_by_page(locks: Locks) -> None:
    for n in range(5):
        await locks.acquire(JOB, f"x{n}")
    await locks.acquire(LockClass("other", ttl=30), "y")

    first = await locks.list(JOB, limit=3)
    rest = await locks.list(JOB, after=first[-1].key)

    assert len(first) == 3
    assert len(rest) == 2
    assert len(await locks.list()) == 6


async def test_release_with_the_wrong_token_changes_nothing(backend: Backend, locks: Locks, store: LockStore) -> None:
    """Rows 31, 33, 36 and 37."""
    lease = await locks.acquire(JOB, "x")

    assert not await store.release(lease.key, TOKEN)
    holder = await locks.inspect(JOB, "x")
    assert holder is not None
    assert holder.fence == lease.fence
    await locks.release(lease)


async def test_a_stale_owner_cannot_release_or_renew(backend: Backend, locks: Locks, rival: Locks) -> None:
    """Rows 36, 38 and 39: A expires, B acquires, A's release and renewal fail and B goes on."""
    stale = await locks.acquire(short(backend), "x")
    current = await rival.acquire(short(backend), "x", wait=5)

    with pytest.raises((LeaseLost, NotOwned)):
        await locks.renew(stale)
    with pytest.raises((LeaseLost, NotOwned)):
        await locks.release(stale)
    assert current.fence > stale.fence
    await rival.release(current)


async def test_renewing_by_hand_after_expiry_is_refused_by_the_store_too(
    backend: Backend, locks: Locks, store: LockStore
) -> None:
    """Row 38: also where the holder's own clock would still allow it."""
    lease = await locks.acquire(JOB, "x")
    await store.evict(lease.key, lease.fence, reason="test")
    await store.acquire(lease.key, TOKEN, ttl_ms=30_000)

    with pytest.raises(NotOwned, match=lease.key):
        await locks.renew(lease)
    assert lease.lost is LossReason.STOLEN
    with pytest.raises(LeaseLost):
        await locks.release(lease)


async def test_a_stale_release_is_told_as_an_event(
    backend: Backend, store: LockStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 40."""
    caplog.set_level(logging.INFO, "holdfast.locks")
    async with Locks(backend.url, prefix=backend.prefix) as locks:
        evicted = await locks.acquire(JOB, "evicted")
        await store.evict(evicted.key, evicted.fence, reason="test")
        with pytest.raises(NotOwned):
            await locks.release(evicted)
        lost = await locks.acquire(JOB, "lost")
        lost.lose(LossReason.UNREACHABLE)
        with pytest.raises(LeaseLost):
            await locks.release(lost)

    messages = [getattr(record, "event", "") for record in caplog.records]
    assert "lock.not_owned" in messages
    assert "lock.release_skipped" in messages


async def test_a_lease_is_released_once(locks: Locks) -> None:
    lease = await locks.acquire(JOB, "x")
    await locks.release(lease)

    with pytest.raises(NotOwned):
        await locks.release(lease)
    assert lease.remaining() == 0


async def test_a_released_lease_permits_nothing_any_more(locks: Locks) -> None:
    """Work that goes on after its block must not pass a check as if it still held the lock."""
    async with locks.hold(JOB, "x") as lease:
        lease.check()

    with pytest.raises(LockError):
        lease.check()


async def test_pattern_per_item_releases_at_the_end(locks: Locks, rival: Locks) -> None:
    """Row 77; also when the body raises."""
    with pytest.raises(ZeroDivisionError):
        async with locks.hold(JOB, "x"):
            assert await rival.try_acquire(JOB, "x") is None
            raise ZeroDivisionError

    assert await rival.try_acquire(JOB, "x") is not None


async def test_pattern_ttl_hold_keeps_others_out_and_lets_its_owner_in(
    backend: Backend, locks: Locks, rival: Locks
) -> None:
    """Row 78: the owner ticks every poll; nobody else inside the window."""
    loop = LockClass("loop", ttl=max(1.0, backend.ttl_ms / 1000), pattern="ttl_hold")
    window = await locks.claim(loop, "default")

    assert window is not None
    assert await rival.claim(loop, "default") is None
    with pytest.raises(ValueError, match="ttl_hold"):
        await locks.release(window)
    again = await locks.claim(loop, "default")
    assert again is not None
    assert again.fence == window.fence
    assert again.remaining() > 0

    async def taken_over() -> Lease | None:
        return await rival.claim(loop, "default")

    successor = await eventually(taken_over)
    assert successor is not None
    assert successor.fence > window.fence
    assert await locks.claim(loop, "default") is None
    with pytest.raises(LeaseLost):
        window.check()


async def test_a_window_claimed_again_goes_on_counting_its_operations(locks: Locks) -> None:
    """Row 79: (fence, seq) grows over re-claims; else the owner's next write looks like its last one."""
    loop = LockClass("loop", ttl=30, pattern="ttl_hold")
    first = await locks.claim(loop, "default")
    assert first is not None
    marks = [(first.fence, first.next_seq()), (first.fence, first.next_seq())]

    again = await locks.claim(loop, "default")
    assert again is not None
    marks.append((again.fence, again.next_seq()))

    assert marks == sorted(set(marks))


async def test_operation_of_an_earlier_lease_of_a_window_makes_one_with_an_older_number_late(locks: Locks) -> None:
    """Row 79: both leases have the same fence, so what the earlier one does must have a number, too."""
    loop = LockClass("loop", ttl=30, pattern="ttl_hold")
    first, again = await locks.claim(loop, "default"), await locks.claim(loop, "default")
    assert first is not None
    assert again is not None
    with closing(sqlite3.connect(":memory:")) as bank:
        late = again.next_seq()
        with first.guard(bank, "accounts/42"):
            pass

        with pytest.raises(StaleFence), again.guard(bank, "accounts/42", seq=late):
            pass


async def test_pattern_local_mutex_passes_the_lock_on_with_growing_fences(locks: Locks, rival: Locks) -> None:
    """Row 80: tasks of one process queue among themselves; other processes stay out."""
    run = LockClass("run", ttl=30, wait=10, local_mutex=True)
    order: list[tuple[int, int]] = []
    inside = 0

    async def enter(n: int) -> None:
        nonlocal inside
        async with locks.hold(run, "x") as lease:
            inside += 1
            assert inside == 1
            order.append((n, lease.fence))
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(enter(n) for n in range(30)))
    fences = [fence for _, fence in order]

    assert [n for n, _ in order] == list(range(30))
    assert fences == sorted(set(fences))
    # Eight in a row inside the process, then the store's turn: 30 holders cost the store four grants.
    grants = [line for line in await locks.history(run, "x") if line.event == "granted"]
    assert len(grants) == 4
    assert await rival.try_acquire(run, "x") is not None


async def test_waiters_of_two_processes_are_served_and_nobody_starves(locks: Locks, rival: Locks) -> None:
    hot = LockClass("hot", ttl=30, wait=20)
    served: list[str] = []
    fences: list[int] = []

    async def enter(who: str, at: Locks) -> None:
        async with at.hold(hot, "x") as lease:
            served.append(who)
            fences.append(lease.fence)

    await asyncio.gather(*(enter(f"{n % 2}", (locks, rival)[n % 2]) for n in range(20)))

    assert sorted(served) == ["0"] * 10 + ["1"] * 10
    assert fences == sorted(set(fences))


async def test_busy_names_the_holder_and_when_to_come_back(locks: Locks, rival: Locks) -> None:
    lease = await locks.acquire(JOB, "x")
    started = time.monotonic()

    with pytest.raises(LockBusy, match="first") as busy:
        await rival.acquire(JOB, "x", wait=0.1)

    assert 0.1 <= time.monotonic() - started < 2
    assert 0 < busy.value.retry_in_s <= 30
    assert isinstance(busy.value, TimeoutError)
    await locks.release(lease)


async def test_a_lease_moves_between_tasks_and_threads(locks: Locks) -> None:
    lease = await locks.acquire(JOB, "x")

    async def work() -> None:
        lease.check()
        await locks.renew(lease)
        await asyncio.to_thread(lease.check)
        await locks.release(lease)

    await asyncio.create_task(work())
    assert await locks.inspect(JOB, "x") is None


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_lease_is_not_copied(locks: Locks, duplicate: Callable[[Lease], object]) -> None:
    """Both would give their operations the same numbers; and where clocks differ one would be trusted for days."""
    lease = await locks.acquire(JOB, "x")
    with pytest.raises(TypeError, match="acquire a lock of its own"):
        duplicate(lease)
    await locks.release(lease)


async def test_ten_thousand_leases_make_no_thread_of_their_own(backend: Backend, locks: Locks) -> None:
    """Row 95, at the size a test may have: one keeper for all."""
    await locks.acquire(JOB, "first")
    before = threading.active_count()
    await asyncio.gather(*(locks.acquire(JOB, f"x{n}") for n in range(200)))

    assert threading.active_count() <= before + 1


async def test_closing_leaves_no_task_and_no_thread(backend: Backend) -> None:
    threads = set(threading.enumerate())
    tasks = asyncio.all_tasks()
    async with Locks(backend.url, prefix=backend.prefix) as locks:
        held = await locks.acquire(JOB, "x")
        with pytest.raises(LockBusy):
            await locks.acquire(JOB, "x", wait=0.05)
    left = [t.name for t in set(threading.enumerate()) - threads if not t.name.startswith("asyncio_")]

    assert left == []
    assert asyncio.all_tasks() <= tasks
    assert held.lost is None


def test_threads_use_the_same_verbs(backend: Backend) -> None:
    with SyncLocks(backend.url, prefix=backend.prefix, holder="threads") as locks:
        with locks.hold(JOB, "x") as lease:
            assert locks.try_acquire(JOB, "x") is None
            locks.renew(lease)
            holder = locks.inspect(JOB, "x")
            assert holder is not None
            assert holder.holder == "threads"
            assert len(locks.list(JOB)) == 1
            assert locks.in_force("job") is JOB
        assert locks.inspect(JOB, "x") is None
        assert [line.event for line in locks.history(JOB, "x")] == ["granted", "released"]
        with pytest.raises(NotOwned):
            locks.release(lease)


def test_threads_exclude_each_other_and_all_get_their_turn(backend: Backend) -> None:
    hot = LockClass("hot", ttl=30, wait=20)
    inside: list[int] = []
    fences: list[int] = []
    with SyncLocks(backend.url, prefix=backend.prefix) as locks:

        def work(n: int) -> None:
            with locks.hold(hot, "x") as lease:
                inside.append(n)
                assert inside == [n]
                fences.append(lease.fence)
                inside.remove(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(fences) == 12
    assert fences == sorted(set(fences))
