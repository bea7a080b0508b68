"""An acquire that was given up leaves neither a lock nor a place in a queue behind."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.locks import LockClass, Unavailable
from locks.faults import Fault, Network
from locks.virtual import VirtualRuntime, on_virtual_time

JOB = LockClass("job", ttl=30, wait=5)


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
