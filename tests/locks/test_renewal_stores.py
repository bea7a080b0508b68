"""Renewal against every real store: acceptance rows 1-7, 9 and 11-16, with failures injected at the port.

The same rules with exact times, for every ttl, are in `test_renewal.py` on virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from harness import Backend, eventually

from holdfast.locks import LeaseLost, LockClass, LossReason
from holdfast.locks.runtime import SYSTEM
from locks.faults import Fault, Network
from locks.invariants import Told, check_history


@pytest.fixture
async def network(backend: Backend) -> AsyncIterator[Network]:
    store = backend.open()
    await store.open()
    async with Network(store, SYSTEM) as opened:
        yield opened


def brief(**policy: str) -> LockClass:
    # Not briefer: after two failures that a test makes up, the last try has a seventh of it to be answered in.
    return LockClass("job", ttl=1.8, **policy)  # type: ignore[arg-type]


async def test_three_failures_abandon_the_work_and_leave_the_lock(backend: Backend, network: Network) -> None:
    """Rows 1, 2, 3, 5, 6, 9 and 12."""
    told = Told()
    returned = None
    async with network.locks(observer=told, prefix=backend.prefix) as locks:
        with pytest.raises(LeaseLost) as lost:
            async with locks.hold(brief(), "x") as lease:
                network.fault("renew", Fault.FAIL)
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    returned = "a value"
        stopped_at = SYSTEM.now()
        holder = await network.store.find_holder(lease.key)

    assert returned == "a value"
    assert lost.value.reason is LossReason.UNREACHABLE
    assert told.values("renewal_failed", "failures") == [1, 2, 3]
    assert told.count("abandoned") == 1
    assert stopped_at < lease.belief.sent_at + lease.lock_class.ttl
    assert network.history.tried("release") == 0
    assert holder is not None
    assert holder.fence == lease.fence


async def test_intermittent_failures_never_abandon_and_the_work_outlives_its_ttl(
    backend: Backend, network: Network
) -> None:
    """Rows 4, 13 and 14: two failures, then a success, twice over."""
    told = Told()
    async with network.locks(observer=told, prefix=backend.prefix) as locks:
        async with locks.hold(brief(), "x") as lease:
            for _ in range(2):
                before = told.count("renewed")
                network.fault("renew", Fault.FAIL, times=2)

                async def renewed(before: int = before) -> bool:
                    return told.count("renewed") > before

                await eventually(renewed)
                lease.check()
        assert told.values("renewal_failed", "failures") == [1, 2, 1, 2]
        assert await network.store.find_holder(lease.key) is None
    check_history(network.history)


async def test_renewing_stops_when_the_work_is_cancelled(backend: Backend, network: Network) -> None:
    """Row 15."""
    ttl = brief().ttl
    async with network.locks(prefix=backend.prefix) as locks:

        async def work() -> None:
            async with locks.hold(brief(), "x"):
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.5 * ttl)
        task.cancel()
        await asyncio.wait([task])
        tried = network.history.tried("renew")
        await asyncio.sleep(0.5 * ttl)

        assert tried >= 1
        assert network.history.tried("renew") == tried


async def test_continue_goes_on_as_suspect(backend: Backend, network: Network) -> None:
    """Rows 7, 9 and 16."""
    told = Told()
    async with network.locks(observer=told, prefix=backend.prefix) as locks:
        async with locks.hold(brief(on_renewal_failure="continue"), "x") as lease:
            network.fault("renew", Fault.LOSE_REPLY)

            async def suspect() -> bool:
                return lease.suspect

            await eventually(suspect)
            lease.check()
            assert told.values("abandoned", "reason") == [LossReason.UNREACHABLE]
            network.heal()

    assert lease.lost is None or lease.suspect


async def test_a_store_that_fails_at_acquire_may_be_replaced_by_a_local_mutex(
    backend: Backend, network: Network
) -> None:
    """Row 11."""
    told = Told()
    async with network.locks(observer=told, prefix=backend.prefix) as locks:
        network.fault("acquire", Fault.FAIL)
        async with locks.hold(brief(on_store_error="local"), "x", wait=0) as lease:
            assert lease.fallback
            assert await locks.try_acquire(brief(on_store_error="local"), "x") is None

        assert told.count("fallback") == 1
        assert network.history.tried("release") == 0
