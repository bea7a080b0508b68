"""Threads of one process that want the same lock: in order, and passed on among themselves for a while."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import Backend, sooner_or_later

from holdfast.locks import Lease, LeaseLost, LockBusy, LockClass, LossReason, NotOwned, SyncLocks, Unavailable
from holdfast.locks.local_queue import may_pass_on
from holdfast.locks.renewal import believe
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.thread_queue import ThreadQueues, Turn
from locks.faults import Fault, Network
from locks.invariants import Told

RUN = LockClass("run", ttl=30, wait=20, local_mutex=True)


@pytest.fixture
def locks(backend: Backend) -> Iterator[SyncLocks]:
    with SyncLocks(backend.url, prefix=backend.prefix) as opened:
        yield opened


@pytest.fixture
def rival(backend: Backend) -> Iterator[SyncLocks]:
    """Another process's locks on the same store."""
    with SyncLocks(backend.url, prefix=backend.prefix, holder="rival") as opened:
        yield opened


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as opened:
        yield opened


def line_up(pool: ThreadPoolExecutor, locks: SyncLocks, key: str, work: list[Callable[[], None]]) -> list[Future[None]]:
    """Start each when the one before it stands in the process's queue."""
    futures = []
    for n, piece in enumerate(work):
        futures.append(pool.submit(piece))
        sooner_or_later(lambda n=n: len(locks._queues._lines[key].waiters) == n + 1)  # type: ignore[misc]
    return futures


def entering(
    locks: SyncLocks, order: list[tuple[object, int]], who: object, lock_class: LockClass = RUN
) -> Callable[[], None]:
    def enter() -> None:
        with locks.hold(lock_class, "x") as lease:
            order.append((who, lease.fence))

    return enter


def test_threads_are_served_in_order_and_pass_the_lock_on_with_growing_fences(
    locks: SyncLocks, rival: SyncLocks, pool: ThreadPoolExecutor
) -> None:
    """Row 80 for threads."""
    first = locks.acquire(RUN, "x")
    order: list[tuple[object, int]] = [(-1, first.fence)]
    entered = line_up(pool, locks, first.key, [entering(locks, order, n) for n in range(30)])
    locks.release(first)
    for future in entered:
        future.result(timeout=20)
    fences = [fence for _, fence in order]

    assert [n for n, _ in order] == list(range(-1, 30))
    assert fences == sorted(set(fences))
    # Eight in a row inside the process, then the store's turn: 31 holders cost the store four grants.
    assert len([line for line in locks.history(RUN, "x") if line.event == "granted"]) == 4
    assert rival.try_acquire(RUN, "x") is not None


def test_another_process_has_its_turn_when_the_fences_are_used_up(
    locks: SyncLocks, rival: SyncLocks, pool: ThreadPoolExecutor
) -> None:
    few = LockClass("few", ttl=30, wait=20, local_mutex=True, local_passes=3)
    first = locks.acquire(few, "x")
    order: list[tuple[object, int]] = []
    entered = line_up(pool, locks, first.key, [entering(locks, order, n, few) for n in range(4)])
    entered.append(pool.submit(entering(rival, order, "rival", few)))
    sooner_or_later(lambda: (holder := locks.inspect(few, "x")) is not None and holder.waiters == 1)
    locks.release(first)
    for future in entered:
        future.result(timeout=20)

    assert [who for who, _ in order] == [0, 1, "rival", 2, 3]
    assert [fence for _, fence in order[:2]] == [first.fence + 1, first.fence + 2]


def test_threads_without_a_local_mutex_are_served_in_the_order_of_the_store_s_queue(
    locks: SyncLocks, pool: ThreadPoolExecutor
) -> None:
    plain = LockClass("plain", ttl=30, wait=20)
    first = locks.acquire(plain, "x")
    order: list[tuple[object, int]] = []
    entered = []
    for n in range(6):
        entered.append(pool.submit(entering(locks, order, n, plain)))
        sooner_or_later(lambda n=n: (holder := locks.inspect(plain, "x")) is not None and holder.waiters == n + 1)  # type: ignore[misc]
    locks.release(first)
    for future in entered:
        future.result(timeout=20)

    assert [n for n, _ in order] == list(range(6))


def test_threads_of_two_processes_exclude_each_other_and_all_get_their_turn(
    locks: SyncLocks, rival: SyncLocks, pool: ThreadPoolExecutor
) -> None:
    inside, fences = threading.Lock(), list[int]()

    def work(at: SyncLocks) -> None:
        for _ in range(8):
            with at.hold(RUN, "x") as lease:
                assert inside.acquire(blocking=False)
                fences.append(lease.fence)
                inside.release()

    for future in [pool.submit(work, (locks, rival)[n % 2]) for n in range(8)]:
        future.result(timeout=60)

    assert len(fences) == 64
    assert fences == sorted(set(fences))
    assert locks._queues._lines == rival._queues._lines == {}
    assert locks.inspect(RUN, "x") is None


def test_a_lease_that_was_passed_on_is_renewed_and_its_predecessor_is_not(
    backend: Backend, pool: ThreadPoolExecutor
) -> None:
    brief = LockClass("brief", ttl=max(0.6, backend.ttl_ms / 1000), wait=20, local_mutex=True)
    told = Told()
    with SyncLocks(backend.url, prefix=backend.prefix, observer=told) as locks:
        first = locks.acquire(brief, "x")
        [waiting] = [pool.submit(locks.acquire, brief, "x")]
        sooner_or_later(lambda: len(locks._queues._lines[first.key].waiters) == 1)
        locks.release(first)
        second = waiting.result(timeout=5)
        with pytest.raises(NotOwned):
            first.check()
        began = second.belief.sent_at
        sooner_or_later(lambda: second.belief.sent_at > began + 1.5 * brief.ttl)
        second.check()

        assert list(locks._keeper._leases.values()) == [second]
        locks.release(second)
    assert told.count("acquired") == told.count("released") == 2


def test_who_waits_too_long_behind_its_own_process_goes_and_the_next_stays(
    locks: SyncLocks, pool: ThreadPoolExecutor
) -> None:
    first = locks.acquire(RUN, "x")
    with pytest.raises(LockBusy, match="this process"):
        locks.acquire(RUN, "x", wait=0.05)
    assert locks.try_acquire(RUN, "x") is None
    order: list[tuple[object, int]] = []
    entered = line_up(pool, locks, first.key, [entering(locks, order, 0)])
    locks.release(first)
    entered[0].result(timeout=20)

    assert [who for who, _ in order] == [0]


def test_a_loss_lets_the_next_thread_ask_the_store(locks: SyncLocks, pool: ThreadPoolExecutor) -> None:
    first = locks.acquire(RUN, "x")
    order: list[tuple[object, int]] = []
    entered = line_up(pool, locks, first.key, [entering(locks, order, 0)])
    locks.evict(RUN, "x", fence=first.fence, reason="test")
    first.lose(LossReason.REVOKED)
    with pytest.raises(LeaseLost):
        locks.release(first)
    entered[0].result(timeout=20)

    # Not passed on: it has a fence of a grant of its own.
    assert order[0][1] > first.fence + RUN.local_passes


def test_of_two_threads_that_release_one_lost_lease_one_lets_the_next_in(
    backend: Backend, pool: ThreadPoolExecutor
) -> None:
    """One of them comes while the other is just being told of the loss: each would let somebody in."""

    class Meddling(Told):
        def release_skipped(self, lock_class: LockClass, key: str, *, reason: LossReason) -> None:
            self.events.append(("release_skipped", {"reason": reason}))
            if self.count("release_skipped") == 1:
                second.append(pool.submit(locks.release, first).exception(timeout=5))

    second: list[BaseException | None] = []
    with SyncLocks(backend.url, prefix=backend.prefix, observer=Meddling()) as locks:
        first = locks.acquire(RUN, "x")
        inside, go_on = threading.Event(), threading.Event()

        def work() -> None:
            with locks.hold(RUN, "x"):
                inside.set()
                assert go_on.wait(20)

        entered = line_up(pool, locks, first.key, [work, work])
        locks.evict(RUN, "x", fence=first.fence, reason="test")
        first.lose(LossReason.REVOKED)
        with pytest.raises(LeaseLost):
            locks.release(first)
        assert inside.wait(20)

        assert [type(error) for error in second] == [NotOwned]
        assert len(locks._queues._lines[first.key].waiters) == 1
        go_on.set()
        for future in entered:
            future.result(timeout=20)
        assert locks._queues._lines == {}


def test_a_block_is_not_entered_with_a_lease_that_was_lost_on_its_way(
    locks: SyncLocks, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = locks.acquire(RUN, "x")
    come = Turn.come

    def lost_on_the_way(turn: Turn) -> None:
        assert turn.passed is not None
        turn.passed.lose(LossReason.PAUSED)
        come(turn)

    entered = line_up(pool, locks, first.key, [entering(locks, [], 0)])
    monkeypatch.setattr(Turn, "come", lost_on_the_way)
    locks.release(first)
    with pytest.raises(LeaseLost):
        entered[0].result(timeout=20)

    assert locks._queues._lines == {}


def test_threads_wait_in_line_also_while_the_store_is_away(backend: Backend, pool: ThreadPoolExecutor) -> None:
    local = LockClass("local", ttl=30, wait=5, local_mutex=True, on_store_error="local")
    network = Network.of_threads(backend)
    with network.sync_locks(backend) as locks:
        network.fault("acquire", Fault.FAIL)
        first = locks.acquire(local, "x", wait=0)
        order: list[tuple[object, int]] = []
        entered = line_up(pool, locks, first.key, [entering(locks, order, n, local) for n in range(2)])
        network.heal()
        locks.release(first)
        for future in entered:
            future.result(timeout=20)

    assert first.fallback
    assert [who for who, _ in order] == [0, 1]
    assert all(fence > 0 for _, fence in order)


def test_a_store_that_fails_the_first_in_line_is_asked_by_the_next(backend: Backend, pool: ThreadPoolExecutor) -> None:
    network = Network.of_threads(backend)
    with network.sync_locks(backend) as locks:
        network.fault("acquire", Fault.FAIL)
        with pytest.raises(Unavailable):
            locks.acquire(RUN, "x", wait=0)
        network.heal()
        with locks.hold(RUN, "x"):
            pass

        assert locks._queues._lines == {}


def test_an_interrupted_waiter_leaves_its_place_in_line(tmp_path: Path) -> None:
    """Ctrl-C while other threads of the process hold the lock and wait for it."""
    script = f"""
import os, signal, threading
from holdfast.locks import LockClass, SyncLocks
RUN = LockClass("run", ttl=30, wait=20, local_mutex=True)
with SyncLocks("sqlite:///{tmp_path}/locks.db") as locks:
    lease = locks.acquire(RUN, "x")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        locks.acquire(RUN, "x")
        raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        pass
    locks.release(lease)
    with locks.hold(RUN, "x", wait=0):
        pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)

    assert done.returncode == 0, done.stderr[-500:]


# -- rules -----------------------------------------------------------------------------------------


def nobody(lease: Lease) -> None:
    pytest.fail(f"nobody was to get {lease}")


def lease_of(fence: int, *, left_s: float = 27.0) -> Lease:
    belief = believe(RUN.renewal, sent_at=SYSTEM.now() - RUN.renewal.trust_s + left_s)
    return Lease(RUN, "k", "t" * 32, fence, belief=belief, runtime=SYSTEM, observer=Told())


@pytest.mark.parametrize(
    ("fence", "left_s", "may"),
    [(7, 27.0, True), (8, 27.0, True), (9, 27.0, False), (20, 27.0, False), (7, 10.5, True), (7, 9.5, False)],
)
def test_a_lease_is_passed_on_while_fences_and_a_third_of_its_ttl_are_left(
    fence: int, left_s: float, may: bool
) -> None:
    assert may_pass_on(lease_of(fence, left_s=left_s), fences_end=10) is may


def interrupted_as_its_turn_comes(
    monkeypatch: pytest.MonkeyPatch, queues: ThreadQueues, event: Callable[[], object]
) -> None:
    def wait(turn: Turn, seconds: float) -> bool:
        event()
        raise KeyboardInterrupt

    monkeypatch.setattr(Turn, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        queues.enter("k", 5)


def test_a_turn_that_comes_to_an_interrupted_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    declined: list[Lease] = []
    queues = ThreadQueues(declined.append)
    assert queues.enter("k", 0) is None
    queues.reserve("k", 10)
    interrupted_as_its_turn_comes(monkeypatch, queues, lambda: queues.leave("k"))
    assert queues._lines == {}

    assert queues.enter("k", 0) is None
    queues.reserve("k", 10)
    watched: list[Lease] = []
    interrupted_as_its_turn_comes(monkeypatch, queues, lambda: queues.pass_on(lease_of(5), watched.append))
    assert declined == watched
    assert [lease.fence for lease in declined] == [6]


def test_a_turn_that_comes_when_the_time_is_up_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = ThreadQueues(nobody)
    assert queues.enter("k", 0) is None

    def too_late(turn: Turn, seconds: float) -> bool:
        queues.leave("k")
        return False

    monkeypatch.setattr(Turn, "wait", too_late)
    assert queues.enter("k", 0) is None
    queues.leave("k")
    assert queues._lines == {}


def test_of_two_threads_that_release_one_lease_only_one_passes_it_on() -> None:
    queues = ThreadQueues(nobody)
    queues.enter("k", 0)
    lease = lease_of(5)

    assert not queues.pass_on(lease, nobody)
    with pytest.raises(NotOwned):
        queues.pass_on(lease, nobody)


def test_of_a_loss_and_a_release_at_the_same_moment_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost after it was found good to be passed on: the next thread asks the store, and is not given what is lost."""
    queues = ThreadQueues(nobody)
    queues.enter("k", 0)
    queues.reserve("k", 10)
    queues._lines["k"].waiters.append(Turn())
    lease = lease_of(5)

    def lost_meanwhile(lease: Lease, fences_end: int) -> bool:
        lease.lose(LossReason.STOLEN)
        return True

    monkeypatch.setattr("holdfast.locks.thread_queue.may_pass_on", lost_meanwhile)
    assert not queues.pass_on(lease, nobody)
    assert len(queues._lines["k"].waiters) == 1
