"""`SyncLocks` from its first thread to its last: begun at once, closed under others, forked, and at the end of a program.
And `Locks` that are closed, or whose loop is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from harness import Backend, sooner_or_later

from holdfast.locks import LockClass, Locks, SyncLocks, Unavailable
from locks.invariants import Told

JOB = LockClass("job", ttl=30, wait=20)
WINDOW = LockClass("window", ttl=30, pattern="ttl_hold")


def keepers() -> int:
    return sum(thread.name == "holdfast-keeper" for thread in threading.enumerate())


def test_threads_that_begin_at_once_have_one_keeper(backend: Backend) -> None:
    for n in range(5):
        locks, before, gate = SyncLocks(backend.url, prefix=backend.prefix), keepers(), threading.Barrier(16)

        def begin(who: int, locks: SyncLocks = locks, gate: threading.Barrier = gate, n: int = n) -> None:
            gate.wait(20)
            locks.release(locks.acquire(JOB, f"{n}.{who}"))

        with ThreadPoolExecutor(16) as pool:
            for future in [pool.submit(begin, who) for who in range(16)]:
                future.result(timeout=20)
        assert keepers() - before == 1
        locks.close()
        assert keepers() == before


def test_what_is_asked_of_closed_locks_is_refused_and_does_not_wait(backend: Backend) -> None:
    locks = SyncLocks(backend.url, prefix=backend.prefix)
    with locks:
        lease = locks.acquire(JOB, "x")
    asked: list[Callable[[], object]] = [
        locks.open,
        lambda: locks.inspect(JOB, "x"),
        lambda: locks.history(JOB, "x"),
        lambda: locks.acquire(JOB, "x", wait=1),
        lambda: locks.renew(lease),
    ]
    for ask in asked:
        with pytest.raises(Unavailable, match=r"closed|not open"):
            ask()
    locks.close()


def test_a_thread_that_waits_when_its_locks_are_closed_is_told(backend: Backend) -> None:
    locks = SyncLocks(backend.url, prefix=backend.prefix)
    with SyncLocks(backend.url, prefix=backend.prefix) as rival, ThreadPoolExecutor(1) as pool:
        locks.open()
        rival.acquire(JOB, "x")
        waiting = pool.submit(locks.acquire, JOB, "x")
        sooner_or_later(lambda: (holder := rival.inspect(JOB, "x")) is not None and holder.waiters == 1)
        locks.close()

        with pytest.raises(Unavailable):
            waiting.result(timeout=10)


def test_a_hold_is_for_one_block_at_a_time(backend: Backend) -> None:
    """A thread whose lease is lost would else release that of the thread which has entered since."""
    with SyncLocks(backend.url, prefix=backend.prefix) as locks:
        shared = locks.hold(JOB, "x")
        for _ in range(2):  # one after the other may
            with shared as lease:
                with pytest.raises(RuntimeError, match="each block"), shared:
                    raise AssertionError("entered")
                lease.check()


def in_child(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_nothing_from_its_parent_s_locks(backend: Backend) -> None:
    """It has nobody who renews, and the tokens of its parent's windows: what it got would be its parent's."""
    mutex = LockClass("mutex", ttl=30, wait=20, local_mutex=True)
    with SyncLocks(backend.url, prefix=backend.prefix) as locks:
        assert locks.claim(WINDOW, "w") is not None
        held = locks.acquire(mutex, "x")

        def try_all() -> None:
            for ask in (
                lambda: locks.claim(WINDOW, "w"),
                lambda: locks.acquire(JOB, "free"),
                lambda: locks.acquire(mutex, "x"),
                lambda: locks.inspect(JOB, "free"),
            ):
                with pytest.raises(Unavailable, match="opened before a fork"):
                    ask()

        in_child(try_all)
        assert locks.inspect(JOB, "free") is None
        locks.release(held)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_locks_that_are_only_made_before_a_fork_are_the_child_s_to_open(backend: Backend) -> None:
    """As of a program that makes its locks when it is loaded, and its workers from itself."""
    made = SyncLocks(backend.url, prefix=backend.prefix)

    def use() -> None:
        with pytest.raises(Unavailable, match="opened before a fork"):
            made.acquire(JOB, "x")
        with made:
            made.release(made.acquire(JOB, "x"))
            assert made.claim(WINDOW, "w") is not None

    in_child(use)
    with made:
        assert [line.event for line in made.history(JOB, "x")] == ["granted", "released"]
        assert made.claim(WINDOW, "w") is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_window_that_was_claimed_before_a_fork_is_not_the_child_s(backend: Backend) -> None:
    made = SyncLocks(backend.url, prefix=backend.prefix)

    def claim() -> None:
        with suppress(Unavailable), made:
            assert made.claim(WINDOW, "w") is None

    try:
        with suppress(Unavailable):  # most stores serve nobody who has not opened them
            assert made.claim(WINDOW, "w") is not None
            in_child(claim)
    finally:
        made.close()


def test_a_thread_that_is_interrupted_as_it_gets_its_lock_does_not_keep_it(backend: Backend) -> None:
    class Interrupted(Told):
        def acquired(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    with SyncLocks(backend.url, prefix=backend.prefix, observer=Interrupted()) as locks:
        with pytest.raises(KeyboardInterrupt):
            locks.acquire(JOB, "x")

        sooner_or_later(lambda: locks.inspect(JOB, "x") is None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_forked_child_asks_nothing_through_its_parent_s_connection(backend: Backend) -> None:
    """The answer would come to the parent, who would take it for its own."""
    async with Locks(backend.url, prefix=backend.prefix) as locks:
        await locks.release(await locks.acquire(JOB, "x"))
        made = Locks(backend.url, prefix=backend.prefix)

        async def ask() -> None:
            for verb in (
                lambda: locks.acquire(JOB, "x"),
                lambda: locks.claim(WINDOW, "w"),
                lambda: locks.inspect(JOB, "x"),
                locks.list,
                locks.open,
            ):
                with pytest.raises(Unavailable, match="opened before a fork"):
                    await verb()
            async with made:  # only made, not opened
                await made.release(await made.acquire(JOB, "x"))

        def elsewhere() -> None:
            running = threading.Thread(target=lambda: asyncio.run(ask()))
            running.start()
            running.join()
            assert made.loop is not None

        in_child(elsewhere)
        assert [line.event for line in await locks.history(JOB, "x")] == ["granted", "released"] * 2


def test_locks_that_are_used_when_the_program_is_all_but_over_do_not_hang_it(tmp_path: Path) -> None:
    """By then the keeper's thread does not run any more: a destructor would wait for it for ever."""
    script = f"""
import atexit, os, sys
from holdfast.locks import LockClass, LockError, SyncLocks
JOB = LockClass("job", ttl=30)
locks = SyncLocks("sqlite:///{tmp_path}/locks.db")
atexit.register(lambda: locks.release(early))
early, late = locks.acquire(JOB, "early"), locks.acquire(JOB, "late")
class Last:
    def __del__(self, locks=locks, late=late, LockError=LockError, sys=sys, os=os):
        try:
            locks.release(late)
        except LockError:
            pass
        os.write(1, b"over" if sys.is_finalizing() else b"too early")
last = Last()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)

    assert (done.returncode, done.stdout) == (0, "over"), done.stderr[-500:]
    with SyncLocks(f"sqlite:///{tmp_path}/locks.db") as locks:
        assert [holder.key for holder in locks.list()] == ["holdfast:job:late"]


def test_locks_of_a_loop_that_is_closed_say_so(tmp_path: Path) -> None:
    """As a module's own have it that are used by one `asyncio.run` after the other. In a process of its own: what the
    first loop has left open would be told of by whichever test comes next."""
    script = f"""
import asyncio
from holdfast.locks import LockClass, Locks, Unavailable
locks = Locks("sqlite:///{tmp_path}/locks.db")
asyncio.run(locks.open())
try:
    asyncio.run(locks.acquire(LockClass("job", ttl=30, wait=1), "x"))
except Unavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)

    assert done.stdout == "locks: opened in an event loop that is closed: open others\n", done.stderr[-500:]


async def test_locks_that_are_closed_are_not_opened_again(backend: Backend) -> None:
    """As those of a module that one function after the other enters: nobody would renew what the second one holds."""
    locks = Locks(backend.url, prefix=backend.prefix)
    async with locks:
        pass
    with pytest.raises(Unavailable, match="open others"):
        async with locks:
            raise AssertionError("entered")
