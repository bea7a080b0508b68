"""Renewal: when a holder renews, when it gives up, and what becomes of its work. Acceptance rows 1-16."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from holdfast.locks import Lease, LeaseLost, LockClass, Locks, LossReason, Unavailable
from locks.faults import Fault, Network
from locks.invariants import Told, check_history
from locks.virtual import VirtualRuntime, on_virtual_time

TTLS = [0.05, 0.5, 1.0, 10.0, 30.0, 60.0, 3600.0]


class Work:
    """A body that runs until it is stopped, and what its caller saw."""

    def __init__(self, locks: Locks, lock_class: LockClass, runtime: VirtualRuntime, item: str = "x") -> None:
        self.lease: Lease
        self.lost: LeaseLost | None = None
        self.stopped_at = 0.0
        self.entered = asyncio.Event()
        self._runtime = runtime
        self.task = asyncio.create_task(self._run(locks, lock_class, item))

    async def _run(self, locks: Locks, lock_class: LockClass, item: str) -> None:
        try:
            async with locks.hold(lock_class, item) as self.lease:
                self.entered.set()
                try:
                    await asyncio.sleep(1e6)
                finally:
                    self.stopped_at = self._runtime.now()
        except LeaseLost as lost:
            self.lost = lost

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def memory(runtime: VirtualRuntime) -> Network:
    return await Network.over("sqlite:///:memory:", runtime)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST, Fault.HANG])
@pytest.mark.parametrize("ttl", TTLS)
@on_virtual_time
async def test_gives_up_after_three_failures_before_the_lease_can_expire(
    runtime: VirtualRuntime, ttl: float, fault: Fault
) -> None:
    """Rows 1, 2, 3, 5, 12: three tries, then the work is cancelled and the lock is left in place."""
    told = Told()
    job = LockClass("job", ttl=ttl)
    async with await memory(runtime) as network, network.locks(observer=told) as locks:
        work = Work(locks, job, runtime)
        await work.entered.wait()
        network.fault("renew", fault)
        await work.task
        expiry = network.history.tenures()[0].end
        holder = await network.store.find_holder(work.lease.key)
        await asyncio.sleep(ttl / 20)

        assert network.history.tried("renew") == 3
        assert work.stopped_at < expiry
        assert work.lost is not None
        assert work.lost.reason is LossReason.UNREACHABLE
        assert network.history.tried("release") == 0
        assert holder is not None
        assert holder.fence == work.lease.fence
        # The third hanging try may be cut off by the end of the window, which comes first then.
        assert told.count("renewal_failed") == 3 or (fault is Fault.HANG and ttl < 0.2)
        assert told.count("abandoned") == 1
        assert told.count("release_skipped") == 1
        check_history(network.history)


@on_virtual_time
async def test_a_success_resets_the_count_and_intermittent_failures_never_abandon(runtime: VirtualRuntime) -> None:
    """Rows 4 and 13: two failures before each success, for twenty ttls."""
    told = Told()
    async with await memory(runtime) as network, network.locks(observer=told) as locks:
        work = Work(locks, LockClass("job", ttl=60), runtime)
        await work.entered.wait()
        for _ in range(20):
            before = told.count("renewed")
            network.fault("renew", Fault.FAIL, times=2)
            while told.count("renewed") == before:
                await asyncio.sleep(1)

            assert work.lease.belief.failures == 0

        assert told.values("renewal_failed", "failures") == [1, 2] * 20
        assert told.count("abandoned") == 0
        assert not work.task.done()
        await work.stop()
        check_history(network.history)


@pytest.mark.parametrize("taken", [True, False])
@on_virtual_time
async def test_not_owned_ends_the_work_at_once_and_is_no_transient_failure(
    runtime: VirtualRuntime, taken: bool
) -> None:
    """Row 1: an evicted lease is lost at the next renewal, whatever the count of failures."""
    told = Told()
    async with await memory(runtime) as network, network.locks(observer=told) as locks:
        work = Work(locks, LockClass("job", ttl=30), runtime)
        await work.entered.wait()
        await network.store.evict(work.lease.key, work.lease.fence, reason="test")
        if taken:
            await network.store.acquire(work.lease.key, "b" * 32, ttl_ms=60_000)
        await work.task

        assert work.lost is not None
        assert work.lost.reason is (LossReason.STOLEN if taken else LossReason.REVOKED)
        assert network.history.tried("renew") == 1
        assert told.count("renewal_failed") == 0
        assert told.values("not_owned", "operation") == ["renew"]
        assert network.history.tried("release") == 0


@on_virtual_time
async def test_work_lives_far_past_its_ttl_while_renewals_succeed(runtime: VirtualRuntime) -> None:
    """Row 14, and P2: every moment of it lies inside some trust window."""
    async with await memory(runtime) as network, network.locks() as locks:
        work = Work(locks, LockClass("job", ttl=60), runtime)
        await work.entered.wait()
        for _ in range(600):
            await asyncio.sleep(10)
            work.lease.check()
        await work.stop()

        assert len(network.history.grants()) == 1
        assert 300 <= network.history.tried("renew") <= 340
        check_history(network.history)


@on_virtual_time
async def test_a_lease_ends_at_max_hold_however_well_it_renews(runtime: VirtualRuntime) -> None:
    async with await memory(runtime) as network, network.locks() as locks:
        started = runtime.now()
        work = Work(locks, LockClass("job", ttl=3, max_hold=20), runtime)
        await work.task

        assert 19 < work.stopped_at - started <= 20.1
        assert work.lost is not None
        assert work.lost.reason is LossReason.EXPIRED


@pytest.mark.parametrize("ending", ["release", "cancel", "close"])
@on_virtual_time
async def test_renewing_stops_with_the_work(runtime: VirtualRuntime, ending: str) -> None:
    """Row 15."""
    async with await memory(runtime) as network:
        locks = network.locks()
        await locks.open()
        work = Work(locks, LockClass("job", ttl=3), runtime)
        await work.entered.wait()
        await asyncio.sleep(10)
        if ending == "release":
            await locks.release(work.lease)
        elif ending == "cancel":
            await work.stop()
        else:
            await locks.close()
        tried = network.history.tried("renew")
        await asyncio.sleep(60)

        assert tried > 5
        assert network.history.tried("renew") == tried
        await work.stop()
        await locks.close()


class Swallowing:
    """Bodies that catch the cancellation and return a value all the same."""

    @staticmethod
    async def quietly(lease: Lease) -> str:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            return "done"
        raise AssertionError

    @staticmethod
    async def after_more_work(lease: Lease) -> str:
        for _ in range(3):
            try:
                await asyncio.sleep(1e6 if lease.lost is None else 0.01)
            except asyncio.CancelledError:
                continue
        return "done"

    @staticmethod
    async def without_noticing(lease: Lease) -> str:
        lease._runtime.stall(1e4)  # type: ignore[attr-defined]
        return "done"


@pytest.mark.parametrize("body", [Swallowing.quietly, Swallowing.after_more_work, Swallowing.without_noticing])
@on_virtual_time
async def test_the_caller_gets_an_error_even_if_the_body_returned_a_value(runtime: VirtualRuntime, body: Any) -> None:
    """Row 6; and nothing of the cancellation is left for the code that follows."""
    returned = None
    async with await memory(runtime) as network, network.locks() as locks:
        network.fault("renew", Fault.FAIL)
        with pytest.raises(LeaseLost):
            async with locks.hold(LockClass("job", ttl=60), "x") as lease:
                returned = await body(lease)

        assert returned == "done"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(1)


@on_virtual_time
async def test_continue_goes_on_as_suspect_and_is_counted(runtime: VirtualRuntime) -> None:
    """Rows 7 and 9; and a renewal that succeeds later clears the suspicion."""
    told = Told()
    run = LockClass("workflow.run", ttl=30, on_renewal_failure="continue")
    async with await memory(runtime) as network, network.locks(observer=told) as locks:
        work = Work(locks, run, runtime)
        await work.entered.wait()
        granted_until = network.history.tenures()[0].end
        network.fault("renew", Fault.LOSE_REPLY)
        while not work.lease.suspect:
            await asyncio.sleep(0.1)

        assert runtime.now() < granted_until
        assert told.values("abandoned", "reason") == [LossReason.UNREACHABLE]
        work.lease.check()
        assert work.lease.lost is None
        assert not work.task.done()

        network.heal()
        while work.lease.suspect:
            await asyncio.sleep(0.1)
        assert told.count("abandoned") == 1
        await work.stop()
        assert await network.store.find_holder(work.lease.key) is None


@on_virtual_time
async def test_continue_outlives_even_a_theft_without_touching_the_thief(runtime: VirtualRuntime) -> None:
    told = Told()
    run = LockClass("workflow.run", ttl=30, on_renewal_failure="continue")
    async with await memory(runtime) as network, network.locks(observer=told) as locks:
        async with locks.hold(run, "x") as lease:
            await network.store.evict(lease.key, lease.fence, reason="test")
            await network.store.acquire(lease.key, "b" * 32, ttl_ms=600_000)
            await asyncio.sleep(60)

            assert lease.suspect
            assert lease.lost is LossReason.STOLEN
            assert told.count("abandoned") == 1
        holder = await network.store.find_holder(lease.key)

        assert holder is not None
        assert network.history.tried("release") == 0


@pytest.mark.parametrize("policy", ["fence", "continue"])
@on_virtual_time
async def test_every_namespace_is_told_of_alike(runtime: VirtualRuntime, policy: str) -> None:
    """Rows 9, 10, 16 and 28: the workflow's path under both policies, with the same events as any other."""
    told: dict[str, list[str]] = {}
    for namespace in ("scheduler.job", "workflow.run"):
        observer = Told()
        async with await memory(runtime) as network, network.locks(observer=observer) as locks:
            network.fault("renew", Fault.FAIL)
            work = Work(locks, LockClass(namespace, ttl=30, on_renewal_failure=policy), runtime)
            await asyncio.sleep(60)
            await work.stop()
            told[namespace] = [name for name, _ in observer.events if name != "renewal_failed"]

    assert told["scheduler.job"] == told["workflow.run"]
    assert "abandoned" in told["workflow.run"]


@on_virtual_time
async def test_fallback_excludes_this_process_only_and_is_counted(runtime: VirtualRuntime) -> None:
    """Row 11: with `local`, a store that fails at acquire costs the fence, not the work."""
    told = Told()
    local = LockClass("cache", ttl=30, on_store_error="local", wait=10)
    inside = 0
    async with await memory(runtime) as network, network.locks(observer=told) as locks:
        network.fault("acquire", Fault.FAIL)

        async def enter() -> None:
            nonlocal inside
            async with locks.hold(local, "x") as lease:
                inside += 1
                assert inside == 1
                assert lease.fallback
                await asyncio.sleep(100)
                lease.check()
                inside -= 1

        async with asyncio.TaskGroup() as group:
            group.create_task(enter())
            await asyncio.sleep(105)
            group.create_task(enter())
        with pytest.raises(Unavailable):
            await locks.try_acquire(LockClass("job", ttl=30), "x")

        assert told.count("fallback") == 2
        assert network.history.tried("release") == 0


@on_virtual_time
async def test_a_late_answer_revives_nothing(runtime: VirtualRuntime) -> None:
    """A loss is final: the renewal that hung until the end may still be answered."""
    async with await memory(runtime) as network, network.locks() as locks:
        work = Work(locks, LockClass("job", ttl=3), runtime)
        await work.entered.wait()
        network.fault("renew", None, request_s=2.5)
        await work.task
        await asyncio.sleep(5)

        assert work.lost is not None
        assert work.lease.remaining() == 0
        with pytest.raises(LeaseLost):
            work.lease.check()


@on_virtual_time
async def test_leases_of_one_process_do_not_renew_in_step(runtime: VirtualRuntime) -> None:
    async with await memory(runtime) as network, network.locks() as locks:
        job = LockClass("job", ttl=60)
        for n in range(50):
            await locks.acquire(job, f"x{n}")
        await asyncio.sleep(25)
        times = sorted(change.at for change in network.history.changes if change.verb == "renew")

        assert len(times) == 50
        assert len(set(times)) >= 2
        assert times[-1] - times[0] <= 60 / 3 * 0.1 + 1.5
        assert all(later - earlier <= 1.5 for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize("max_hold", [None, 100])
@on_virtual_time
async def test_leases_renewed_together_are_each_trusted_for_their_own_time(
    runtime: VirtualRuntime, max_hold: float | None
) -> None:
    """They share a request, but not its ttl if their class was changed meanwhile, nor the end of `max_hold`."""
    job = LockClass("job", ttl=30, renew_every=3, max_hold=max_hold)
    async with await memory(runtime) as network, network.locks() as locks:
        leases = [await locks.acquire(job, "old")]
        await asyncio.sleep(1)
        leases += [await locks.acquire(job, "younger")]
        locks.override("job", reason="a test", ttl=10)
        leases += [await locks.acquire("job", "changed")]
        ends = [lease.belief.hold_until for lease in leases]
        for _ in range(5):
            runtime.stall(3)  # all of them are due after it
            await asyncio.sleep(0.5)

            trusted_s = [lease.belief.trusted_until - lease.belief.sent_at for lease in leases]
            assert trusted_s == pytest.approx([27, 27, 9])
            assert [lease.belief.hold_until for lease in leases] == ends


class Faulty(Told):
    def not_owned(self, *_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug in an observer")

    abandoned = not_owned


@on_virtual_time
async def test_an_observer_that_raises_keeps_no_work_from_being_stopped(runtime: VirtualRuntime) -> None:
    """And costs no other lease."""
    job = LockClass("job", ttl=3)
    async with await memory(runtime) as network, network.locks(observer=Faulty()) as locks:
        evicted, others = Work(locks, job, runtime), [Work(locks, job, runtime, item) for item in "yz"]
        await asyncio.gather(*(work.entered.wait() for work in [evicted, *others]))
        assert await locks.evict(job, "x", fence=evicted.lease.fence, reason="test")
        async with asyncio.timeout(job.ttl):
            await evicted.task
        await asyncio.sleep(10 * job.ttl)

        assert evicted.lost is not None
        for other in others:
            other.lease.check()
            await other.stop()
