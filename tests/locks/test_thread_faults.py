"""A store that does not answer a thread: it is asked again, and nobody waits for the ttl."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest
from harness import Backend, sooner_or_later

from holdfast.locks import LockClass, StoreRefused, SyncLocks
from locks.faults import Fault, Network, Proxy
from locks.invariants import Told

#: Whoever had to wait for the ttl would wait for an hour.
LONG = LockClass("long", ttl=3600, wait=0)
JOB = LockClass("job", ttl=30, wait=5)


@pytest.fixture
def network(backend: Backend) -> Network:
    return Network.of_threads(backend)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
def test_a_lost_reply_to_acquire_costs_a_thread_neither_the_lock_nor_a_fence(
    backend: Backend, network: Network, fault: Fault
) -> None:
    with network.sync_locks(backend) as locks:
        network.fault("acquire", fault, times=2)
        lease = locks.acquire(JOB, "x")

        assert {change.answer for change in network.history.grants()} == {(lease.fence,)}
        locks.release(lease)


async def test_a_thread_recovers_a_lost_reply_to_acquire_over_a_real_connection(backend: Backend) -> None:
    if backend.server is None:
        pytest.skip("a file has no reply that could be lost on a wire")
    async with Proxy(backend.server.port) as proxy:
        locks = SyncLocks(proxy.url(backend.url), prefix=backend.prefix)
        with contextlib.ExitStack() as opened:
            await asyncio.to_thread(opened.enter_context, locks)
            await asyncio.to_thread(lambda: locks.release(locks.acquire(JOB, "warm")))
            proxy.mute = True
            asking = asyncio.create_task(asyncio.to_thread(locks.acquire, JOB, "x"))
            await asyncio.sleep(0.1)
            proxy.mute = False
            proxy.cut()
            lease = await asking
            lines = await asyncio.to_thread(locks.history, JOB, "x")

            assert [line.fence for line in lines if line.event == "granted"] == [lease.fence]
            await asyncio.to_thread(locks.release, lease)
            await asyncio.to_thread(locks.close)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST])
def test_a_release_that_is_not_heard_is_repeated_until_it_is(backend: Backend, network: Network, fault: Fault) -> None:
    told = Told()
    with network.sync_locks(backend, observer=told) as locks:
        lease = locks.acquire(LONG, "x")
        network.fault("release", fault)
        locks.release(lease)  # does not wait for the store to come back
        assert locks.inspect(LONG, "x") is not None
        network.heal()

        sooner_or_later(lambda: locks.inspect(LONG, "x") is None)
    assert told.count("released") == 1
    assert told.count("not_owned") == 0


def test_a_release_that_is_refused_is_told_and_goes_on(backend: Backend, network: Network) -> None:
    with network.sync_locks(backend) as locks:
        network.fault("release", Fault.REFUSE)
        with pytest.raises(StoreRefused), locks.hold(LONG, "x"):
            pass
        assert locks.inspect(LONG, "x") is not None
        network.heal()

        sooner_or_later(lambda: locks.inspect(LONG, "x") is None)


@pytest.mark.parametrize("ended_by", [ZeroDivisionError, KeyboardInterrupt])
def test_a_release_that_is_refused_does_not_hide_what_ended_the_block(
    backend: Backend, network: Network, ended_by: type[BaseException]
) -> None:
    with network.sync_locks(backend) as locks:
        network.fault("release", Fault.REFUSE, times=1)
        with pytest.raises(ended_by), locks.hold(LONG, "x"):
            raise ended_by


def test_a_release_that_is_interrupted_goes_on(backend: Backend, network: Network) -> None:
    """Ctrl-C, just then."""

    def interrupted(key: str, token: str) -> bool:
        raise KeyboardInterrupt

    with network.sync_locks(backend) as locks:
        lease = locks.acquire(LONG, "x")
        locks._store.release = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            locks.release(lease)

        sooner_or_later(lambda: locks.inspect(LONG, "x") is None)


def test_closing_waits_for_what_is_still_to_be_told(backend: Backend, network: Network) -> None:
    with network.sync_locks(backend) as locks:
        lease = locks.acquire(LONG, "x")
        network.fault("release", Fault.FAIL, times=3)
        locks.release(lease)

    with network.sync_locks(backend) as later:
        assert later.inspect(LONG, "x") is None


def test_closing_does_not_wait_for_a_store_that_never_hears(backend: Backend, network: Network) -> None:
    threads = set(threading.enumerate())
    with network.sync_locks(backend) as locks:
        lease = locks.acquire(LONG, "x")
        network.fault("release", Fault.FAIL)
        locks.release(lease)
        began = time.monotonic()

    assert time.monotonic() - began < 5
    assert [thread.name for thread in set(threading.enumerate()) - threads] == []
