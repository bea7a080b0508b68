"""An acquire that was given up leaves neither a lock nor a place in a queue behind; an open, no thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest
from harness import Backend, sooner_or_later

from holdfast.locks import LockBusy, LockClass, Locks, StoreRefused, SyncLocks, Unavailable
from locks.faults import Fault, Network
from locks.virtual import VirtualRuntime, on_virtual_time

JOB = LockClass("job", ttl=30, wait=5)
#: Whoever had to wait for the ttl would wait for an hour.
LONG = LockClass("long", ttl=3600, wait=0)


@on_virtual_time
async def test_an_acquire_that_one_try_may_have_got_is_undone_though_the_last_was_not_sent(
    runtime: VirtualRuntime,
) -> None:
    """Its reply is lost and then nothing can be sent: the last error alone would say that there is nothing to undo."""
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        network.fault("acquire", Fault.LOSE_REPLY, times=1)
        network.fault("acquire", Fault.FAIL)
        with pytest.raises(Unavailable, match="may have got it") as unknown:
            await locks.acquire(JOB, "x", wait=1)
        await asyncio.sleep(1)

        assert unknown.value.applied is None
        assert await locks.inspect(JOB, "x") is None


@on_virtual_time
async def test_a_place_in_the_queue_is_given_up_though_the_last_try_was_not_sent(runtime: VirtualRuntime) -> None:
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        held = await locks.acquire(JOB, "x")
        waiting = asyncio.create_task(locks.acquire(JOB, "x", wait=2))
        await asyncio.sleep(0.1)
        network.fault("acquire", Fault.FAIL)
        with pytest.raises(Unavailable):
            await waiting
        await asyncio.sleep(0.1)
        await locks.release(held)

        assert await locks.inspect(JOB, "x") is None


@on_virtual_time
async def test_who_does_not_wait_for_a_busy_lock_asks_once(runtime: VirtualRuntime) -> None:
    async with await Network.over("sqlite:///:memory:", runtime) as network, network.locks() as locks:
        held = await locks.acquire(JOB, "x")
        asked = len(network.history.attempts)

        assert await locks.try_acquire(JOB, "x") is None
        await asyncio.sleep(1)

        assert [verb for _, verb, _ in network.history.attempts[asked:]] == ["acquire"]
        await locks.release(held)


def test_a_thread_that_does_not_wait_for_a_busy_lock_asks_once(backend: Backend) -> None:
    network = Network.of_threads(backend)
    with SyncLocks(backend.url, prefix=backend.prefix) as rival, network.sync_locks(backend) as locks:
        held = rival.acquire(LONG, "x")

        assert locks.try_acquire(LONG, "x") is None
        rival.release(held)
    assert [verb for _, verb, _ in network.history.attempts] == ["acquire"]


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST, Fault.REFUSE])
def test_a_thread_s_acquire_is_undone_however_often_that_fails(backend: Backend, fault: Fault) -> None:
    network = Network.of_threads(backend)
    with network.sync_locks(backend) as locks:
        network.fault("acquire", Fault.LOSE_REPLY, times=1)
        network.fault("release", fault)
        with pytest.raises(Unavailable, match="reply lost"):
            locks.acquire(LONG, "x")
        assert locks.inspect(LONG, "x") is not None
        network.heal()

        sooner_or_later(lambda: locks.inspect(LONG, "x") is None)


@pytest.mark.parametrize("last", [Fault.FAIL, Fault.REFUSE])
def test_a_thread_s_acquire_that_one_try_may_have_got_is_undone(backend: Backend, last: Fault) -> None:
    network = Network.of_threads(backend)
    with network.sync_locks(backend) as locks:
        network.fault("acquire", Fault.LOSE_REPLY, times=1)
        network.fault("acquire", last)
        with pytest.raises((Unavailable, StoreRefused)):
            locks.acquire(LONG, "x", wait=0.3)

        sooner_or_later(lambda: locks.inspect(LONG, "x") is None)


def test_a_thread_s_place_in_the_queue_is_given_up_however_often_that_fails(backend: Backend) -> None:
    network = Network.of_threads(backend)
    with SyncLocks(backend.url, prefix=backend.prefix) as rival, network.sync_locks(backend) as locks:
        held = rival.acquire(LONG, "x")
        network.fault("release", Fault.FAIL, times=3)
        with pytest.raises(LockBusy):
            locks.acquire(LONG, "x", wait=0.1)

        # Sooner than the store finds by itself that nobody waits there any more.
        sooner_or_later(lambda: (holder := rival.inspect(LONG, "x")) is not None and holder.waiters == 0, within_s=2)
        rival.release(held)
        assert rival.inspect(LONG, "x") is None


def test_a_thread_undoes_nothing_that_was_never_sent(backend: Backend) -> None:
    """A store that is away for an hour is not asked by everybody who gave up in the meantime."""
    network = Network.of_threads(backend)
    with network.sync_locks(backend) as locks:
        network.fault("acquire", Fault.FAIL)
        with pytest.raises(Unavailable):
            locks.acquire(LONG, "x")
    assert [verb for _, verb, _ in network.history.attempts if verb == "release"] == []


def test_a_lock_that_nobody_could_renew_is_not_entered_and_given_back(tmp_path: Path) -> None:
    """No descriptor is left for the keeper's loop: the body would run on, cancelled by nobody, when its lease has ended.
    In a process of its own: pytest wants descriptors as well."""
    script = f"""
import asyncio, os, resource
from holdfast.locks import LockClass, Locks, Unavailable
JOB = LockClass("job", ttl=30, wait=5)
async def main():
    async with Locks("sqlite:///{tmp_path}/locks.db") as locks:
        await locks.inspect(JOB, "x")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            async with locks.hold(JOB, "x", wait=0):
                print("entered")
        except Unavailable as refused:
            print(refused)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with locks.hold(JOB, "x"):
            print("free again")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)

    first, *rest = done.stdout.splitlines()
    assert "nobody can be had to renew them" in first
    assert rest == ["free again"], done.stderr[-500:]


async def test_opening_that_is_cancelled_leaves_no_writer_behind(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    before = {*threading.enumerate()}
    async with Locks(f"sqlite:///{path}"):
        pass
    blocker = apsw.Connection(str(path))
    locks = Locks(f"sqlite:///{path}")
    opening = asyncio.create_task(locks.__aenter__())
    blocker.execute("BEGIN IMMEDIATE")
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.sleep(0)
    blocker.execute("ROLLBACK")
    blocker.close()

    with pytest.raises(asyncio.CancelledError):
        await opening

    await asyncio.get_running_loop().shutdown_default_executor()  # whatever was begun has ended
    assert {*threading.enumerate()} <= before
