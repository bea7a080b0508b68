"""The outbox and its relay: state and message in one transaction, passed on until the bus has them. Row 70."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.plane_invariants import check_plane
from flow.stage import Replica, Stage, staged
from holdfast.buses.detached import DetachedBus
from holdfast.buses.detached import Fault as BusFault
from holdfast.buses.outbox import OutboxBus
from holdfast.config import Settings
from holdfast.core.job import Job
from holdfast.core.recovery import UNSTARTED_MAX
from holdfast.core.states import State
from holdfast.errors import Invalid, StoreUnavailable
from holdfast.flow.cancel import cancel
from holdfast.flow.dispatch import Dispatched, Dispatcher
from holdfast.ports import Delivery
from holdfast.reconciler import Reconciler
from holdfast.relay import POLL_S, WINDOW, Relay

FAILOVER_S = WINDOW.ttl + 2 * POLL_S


@dataclass
class Post:
    """A stage whose dispatches go into the outbox, and the relay that empties it."""

    stage: Stage
    relay: Relay

    async def waiting(self) -> list[Delivery]:
        return await self.stage.inner.list_outbox(limit=1000)  # type: ignore[attr-defined, no-any-return]

    async def dispatched(self, jobs: int = 1) -> list[Job]:
        submitted = [await self.stage.submit() for _ in range(jobs)]
        for job in submitted:
            assert await self.stage.dispatch(job) is Dispatched.SENT
        return [await self.stage.job(job.id) for job in submitted]

    async def work(self) -> list[Job]:
        """What a worker claims now is done at once."""
        jobs = await self.stage.claim("w1")
        for job in jobs:
            self.stage.seen.entered.append((job.id, job.fence))
            await self.stage.complete(job)
        return jobs

    def published(self) -> Counter[Delivery]:
        return Counter(delivery for delivery, _ in self.stage.seen.published)


def relay_of(replica: Replica) -> Relay:
    outbox = OutboxBus(replica.store, replica.bus)
    return Relay(outbox=outbox, locks=replica.locks, telemetry=replica.telemetry, runtime=replica.runtime)


def reconciler_of(replica: Replica) -> Reconciler:
    return Reconciler(
        store=replica.typed_store,
        locks=replica.locks,
        registry=replica.registry,
        topics=replica.topics,
        policy=replica.policy,
        telemetry=replica.telemetry,
        runtime=replica.runtime,
        outbox=OutboxBus(replica.store, replica.bus),
    )


@asynccontextmanager
async def posting(runtime: VirtualRuntime) -> AsyncIterator[Post]:
    async with staged(runtime, detached=True) as stage:
        stage.dispatcher = Dispatcher(
            store=stage.typed_store,
            bus=OutboxBus(stage.store, stage.bus),
            locks=stage.locks,
            topics=stage.topics,
            policy=stage.policy,
            doors=stage.claims,
            freezes=stage.freezes,
            telemetry=stage.telemetry,
            runtime=runtime,
            is_gone=lambda _: False,
        )
        yield Post(stage, relay_of(stage))


@on_virtual_time
async def test_state_and_message_are_written_together_or_not_at_all(runtime: VirtualRuntime) -> None:
    async with posting(runtime) as post:
        job = await post.stage.submit()
        post.stage.store.fault("apply", Fault.FAIL, times=1)
        assert await post.stage.dispatch(job) is Dispatched.UNANSWERED
        await post.relay.tick()
        assert (await post.waiting(), post.stage.seen.published) == ([], [])

        assert await post.stage.dispatch(job) is Dispatched.SENT
        sent = await post.stage.job(job.id)
        assert await post.waiting() == [Delivery("w1", sent.id, sent.fence)]
        await post.relay.tick()
        assert (await post.waiting(), sum(post.published().values())) == ([], 1)
        assert [done.id for done in await post.work()] == [job.id]
        await check_plane(post.stage)


@on_virtual_time
async def test_crash_between_publish_and_removal_publishes_again_and_runs_once(runtime: VirtualRuntime) -> None:
    async with posting(runtime) as post:
        [sent] = await post.dispatched()
        post.stage.store.fault("settle_deliveries", Fault.FAIL, times=1)
        with pytest.raises(StoreUnavailable):
            await post.relay.tick()
        survivor = relay_of(await post.stage.replica("S2"))
        await asyncio.sleep(FAILOVER_S)
        await survivor.tick()
        assert post.published() == {Delivery("w1", sent.id, sent.fence): 2}
        assert [job.id for job in await post.work()] == [sent.id]

        await post.stage.bus.publish([Delivery("w1", sent.id, sent.fence)])  # outside of any window of the bus
        assert await post.work() == []
        assert await post.stage.kinds(sent.id) == ["job.submitted", "job.dispatched", "job.started", "job.succeeded"]
        await check_plane(post.stage)


@on_virtual_time
async def test_bus_that_is_down_rolls_nothing_back_and_everything_is_delivered_afterwards(
    runtime: VirtualRuntime,
) -> None:
    async with posting(runtime) as post:
        post.stage.publish_fault = BusFault.NOT_APPLIED
        post.relay.start()
        jobs = await post.dispatched(20)
        await asyncio.sleep(30.0)
        assert {(await post.stage.job(job.id)).state for job in jobs} == {State.DISPATCHED}
        assert len(await post.waiting()) == 20
        assert post.stage.counted("dispatch_retries", phase="relay") > 10

        post.stage.publish_fault = None
        await asyncio.sleep(2 * POLL_S)
        done = await post.work() + await post.work()
        await post.relay.stop()
        assert {job.id for job in done} == {job.id for job in jobs}
        assert {kind for job in jobs for kind in await post.stage.kinds(job.id)} == {
            "job.submitted", "job.dispatched", "job.started", "job.succeeded",
        }  # fmt: skip
        await check_plane(post.stage)


@on_virtual_time
async def test_bus_that_is_down_for_any_time_fails_no_job(runtime: VirtualRuntime) -> None:
    """Far more dispatch timeouts than may run out for a delivery that somebody was given."""
    async with posting(runtime) as post:
        stage = post.stage
        reconciler = reconciler_of(stage)
        stage.publish_fault = BusFault.NOT_APPLIED
        [sent] = await post.dispatched()
        for _ in range(2 * UNSTARTED_MAX):
            await asyncio.sleep(stage.topics.get(sent.topic).dispatch_timeout_s)
            await reconciler.tick()
            assert (await stage.job(sent.id)).state is State.SCHEDULED
            assert await post.waiting() == []
            assert await stage.dispatch(await stage.job(sent.id)) is Dispatched.SENT

        stage.publish_fault = None
        await post.relay.tick()
        assert (await stage.job(sent.id)).retries == {"publish": 2 * UNSTARTED_MAX}
        await asyncio.sleep(stage.topics.get(sent.topic).dispatch_timeout_s)
        await reconciler.tick()
        assert (await stage.job(sent.id)).retries["requeue"] == 1, "it had been given to somebody, who did not begin"
        assert stage.counted("jobs_recovered", reason="never-sent") == 2 * UNSTARTED_MAX

        assert await stage.dispatch(await stage.job(sent.id)) is Dispatched.SENT
        await post.relay.tick()
        assert [job.id for job in await post.work()] == [sent.id]
        await check_plane(stage)


@on_virtual_time
async def test_workers_that_go_while_the_bus_is_down_cost_no_job(runtime: VirtualRuntime) -> None:
    """However many: none of them was ever given it."""
    async with posting(runtime) as post:
        stage = post.stage
        reconciler = reconciler_of(stage)
        stage.publish_fault = BusFault.NOT_APPLIED
        job = await stage.submit()
        for number in range(UNSTARTED_MAX):
            stage.hello(f"w{number}")
            assert await stage.dispatch(await stage.job(job.id), f"w{number}") is Dispatched.SENT
            stage.registry.gone(f"w{number}", now=stage.inner.now())
            await reconciler.tick()

        found = await stage.job(job.id)
        assert (found.state, found.retries) == (State.SCHEDULED, {"publish": UNSTARTED_MAX})
        assert stage.counted("jobs_recovered", reason="never-sent") == UNSTARTED_MAX


@on_virtual_time
async def test_publish_without_an_answer_is_repeated_and_its_job_runs_once(runtime: VirtualRuntime) -> None:
    async with posting(runtime) as post:
        [sent] = await post.dispatched()
        post.stage.publish_fault = BusFault.APPLIED_UNKNOWN
        await post.relay.tick()
        assert [job.id for job in await post.work()] == [sent.id], "it had arrived"
        assert await post.waiting() == [], "and what was started need not be passed on"

        post.stage.publish_fault = None
        await post.relay.tick()
        assert await post.work() == []
        await check_plane(post.stage)


@on_virtual_time
async def test_one_relay_works_at_a_time_and_another_takes_over(runtime: VirtualRuntime) -> None:
    async with posting(runtime) as post:
        other = relay_of(await post.stage.replica("S2"))
        await post.relay.tick()
        other.start()
        first = await post.dispatched(5)
        await asyncio.sleep(POLL_S)
        assert post.published() == {}, "the window is the first one's"

        await asyncio.sleep(FAILOVER_S)  # which was killed
        await other.stop()
        assert post.published() == {Delivery("w1", job.id, job.fence): 1 for job in first}


@on_virtual_time
async def test_delivery_that_the_bus_never_takes_holds_up_no_other(runtime: VirtualRuntime) -> None:
    async with posting(runtime) as post:
        poison, *others = await post.dispatched(10)

        def refuse(deliveries: Sequence[Delivery]) -> BusFault | None:
            is_among = any(delivery.job_id == poison.id for delivery in deliveries)
            return BusFault.NOT_APPLIED if is_among else None

        picky = DetachedBus(post.stage.inner.now, fail=refuse)
        relay = Relay(
            outbox=OutboxBus(post.stage.store, picky),
            locks=post.stage.locks,
            telemetry=post.stage.telemetry,
            runtime=runtime,
        )
        await relay.tick()
        assert {delivery.job_id for delivery in await picky.take("w1", limit=100)} == {job.id for job in others}
        assert [delivery.job_id for delivery in await post.waiting()] == [poison.id]


@on_virtual_time
async def test_what_was_cancelled_in_the_outbox_is_not_passed_on(runtime: VirtualRuntime) -> None:
    async with posting(runtime) as post:
        [sent] = await post.dispatched()
        await cancel(sent.tenant, sent.id, "enough", store=post.stage.inner)
        await post.relay.tick()
        assert (await post.waiting(), post.published()) == ([], {})


def test_outbox_needs_a_bus_to_pass_deliveries_on_to() -> None:
    with pytest.raises(Invalid, match="name one"):
        Settings(dispatch="outbox")
    with pytest.raises(Invalid, match="direct or outbox"):
        Settings(dispatch="later")


def test_outbox_needs_a_store_that_keeps_one() -> None:
    with pytest.raises(Invalid, match="SQL store"):
        OutboxBus(object(), DetachedBus(float, fail=lambda _: None))
