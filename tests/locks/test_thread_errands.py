"""What a thread leaves to the keeper: a store that did not answer hears it again, and nobody waits for the ttl."""

from __future__ import annotations

import threading
import time

import pytest
from harness import Backend, sooner_or_later

from holdfast.locks import LockClass, StoreRefused
from locks.faults import Fault, Network
from locks.invariants import Told

#: Whoever had to wait for the ttl would wait for an hour.
LONG = LockClass("long", ttl=3600, wait=0)


@pytest.fixture
def network(backend: Backend) -> Network:
    return Network.of_threads(backend)


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
