"""Processes of one plane tell each other of their workers: who hears one need not be who gives it jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from flow.faulty_store import Fault
from flow.stage import Replica, Stage, staged
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast.attendance import LOOK_S, Attendance
from holdfast.core.policy_version import PLANE
from holdfast.core.presence import FORGET_S, from_record
from holdfast.core.record import Kind
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.registry import GONE_S, HEARTBEAT_S, SILENT_S

TOPICS = Topics((Topic(name="*", lease_s=10.0, dispatch_timeout_s=300.0),))
KNOWN_S = 3 * LOOK_S
"""By then a word said to one process is known to the other."""


def attendance_of(replica: Replica, role: str) -> Attendance:
    return Attendance(
        store=replica.typed_store,
        registry=replica.registry,
        roles=[role],
        wake=replica.scheduler.wake,
        runtime=replica.runtime,
    )


@asynccontextmanager
async def apart(runtime: VirtualRuntime) -> AsyncIterator[tuple[Stage, Replica]]:
    """A scheduler with its reconciler, and a gateway that hears the workers, as two processes."""
    async with staged(runtime, topics=TOPICS) as stage, AsyncExitStack() as stack:
        gateway = await stage.replica("G1")
        services = (attendance_of(stage, "scheduler"), attendance_of(gateway, "gateway"), gateway.roll_call)
        for service in services:
            service.start()
            stack.push_async_callback(service.stop)
        await stack.enter_async_context(stage.loops())
        yield stage, gateway


@on_virtual_time
async def test_worker_of_the_gateway_is_given_jobs_by_the_scheduler(runtime: VirtualRuntime) -> None:
    async with apart(runtime) as (stage, gateway), stage.working("w1", replica=gateway):
        done = await stage.wait_ended(*[await stage.submit() for _ in range(20)], within_s=20)

    assert {job.state for job in done} == {State.SUCCEEDED}


@on_virtual_time
async def test_heartbeats_are_passed_on_and_so_is_silence(runtime: VirtualRuntime) -> None:
    async with apart(runtime) as (stage, gateway):
        for _ in range(10):
            gateway.hello("w1")
            await asyncio.sleep(HEARTBEAT_S)
            assert stage.registry.silent(now=stage.inner.now()) == []

        await asyncio.sleep(SILENT_S)
        assert stage.registry.silent(now=stage.inner.now()) == ["w1"]


@on_virtual_time
async def test_room_taken_by_one_process_is_taken_for_all(runtime: VirtualRuntime) -> None:
    async with apart(runtime) as (stage, gateway):
        gateway.hello("w1", slots=2)
        await asyncio.sleep(KNOWN_S)
        for _ in range(5):
            await stage.submit()
        await asyncio.sleep(KNOWN_S)
        [view] = gateway.registry.views(now=gateway.store.now())
        assert view.in_hand == 2

        taken = await stage.claim("w1")
        await stage.complete(taken[0])
        await asyncio.sleep(KNOWN_S)
        assert len(await stage.inner.list_in_hand("w1")) == 2, "one ended, and the next one took its place"


@on_virtual_time
async def test_drained_worker_gets_nothing_more_from_anybody(runtime: VirtualRuntime) -> None:
    async with apart(runtime) as (stage, gateway):
        gateway.hello("w1")
        await asyncio.sleep(KNOWN_S)
        gateway.registry.drain("w1", now=gateway.store.now())
        await asyncio.sleep(KNOWN_S)
        job = await stage.submit()
        await asyncio.sleep(KNOWN_S)
        assert (await stage.job(job.id)).state is State.SCHEDULED

        gateway.hello("w1")
        await asyncio.sleep(KNOWN_S)
        assert (await stage.job(job.id)).state is State.DISPATCHED


@on_virtual_time
async def test_job_sent_to_a_worker_that_had_just_left_goes_to_another_at_once(runtime: VirtualRuntime) -> None:
    """The scheduler dispatches before it knows. Nobody waits until the dispatch has timed out."""
    async with apart(runtime) as (stage, gateway):
        gateway.hello("w1")
        await asyncio.sleep(KNOWN_S)
        gateway.registry.gone("w1", now=gateway.store.now())
        await stage.dispatch(await stage.submit(), "w1")
        gateway.hello("w2")
        await asyncio.sleep(5.0)

        assert await stage.inner.list_in_hand("w1") == []
        assert len(await stage.inner.list_in_hand("w2")) == 1
        await asyncio.sleep(2 * GONE_S)
        assert stage.registry.workers() == ["w2"]
        assert "w1" not in stage.registry.silent(now=stage.inner.now()), "and it is forgotten"


@on_virtual_time
async def test_worker_that_lost_its_lease_gets_nothing_until_it_speaks(runtime: VirtualRuntime) -> None:
    async with apart(runtime) as (stage, gateway):
        gateway.hello("w1")
        await asyncio.sleep(KNOWN_S)
        lost = await stage.submit()
        await asyncio.sleep(KNOWN_S)
        await stage.claim_one("w1")
        await asyncio.sleep(11.5)  # its lease has run out, while it may be silent for longer
        assert gateway.registry.candidates()[0].last_seen == float("-inf"), "heard from the reconciler's process"
        assert (await stage.job(lost.id)).state is State.SCHEDULED

        gateway.hello("w1")
        await asyncio.sleep(HEARTBEAT_S)
        assert (await stage.job(lost.id)).state is State.DISPATCHED


@on_virtual_time
async def test_scheduler_that_came_later_sends_once_to_a_worker_that_is_doubted(runtime: VirtualRuntime) -> None:
    """It has heard that the worker spoke lately, and not that it has let a lease run out since."""
    async with apart(runtime) as (stage, gateway), AsyncExitStack() as stack:
        gateway.hello("w1")
        await asyncio.sleep(KNOWN_S)
        await stage.submit()
        await asyncio.sleep(KNOWN_S)
        await stage.claim_one("w1")
        gateway.hello("w1")
        await asyncio.sleep(11.5)
        late = await stage.replica("S2")
        for service in (attendance_of(late, "scheduler"), late.roll_call, late.scheduler):
            service.start()
            stack.push_async_callback(service.stop)
        await stage.submit()
        await asyncio.sleep(SILENT_S)
        kinds = [event.kind for event in await stage.inner.list_events(after=0, limit=100)]

    assert 1 <= kinds.count("job.requeued") <= 2, "of each job once, at most: then it has heard"


@on_virtual_time
async def test_process_ends_in_peace_although_the_store_is_away(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        attendance = attendance_of(stage, "scheduler")
        await attendance.tick()
        stage.store.fault("transact", Fault.FAIL)

        await attendance.stop()

        assert stage.store.rules[0].reached.is_set()


@on_virtual_time
async def test_process_is_listed_while_it_runs_and_forgotten_when_it_died(runtime: VirtualRuntime) -> None:
    async def roles(stage: Stage) -> list[str]:
        records = await stage.inner.list_records(Kind.PRESENCE, PLANE, limit=10)
        return sorted(role for record in records for role in from_record(record).roles)

    async with staged(runtime) as stage:
        one, other = attendance_of(stage, "scheduler"), attendance_of(await stage.replica("G1"), "gateway")
        one.start()
        await other.tick()
        await asyncio.sleep(LOOK_S)
        assert await roles(stage) == ["gateway", "scheduler"]

        await asyncio.sleep(FORGET_S + KNOWN_S)
        assert await roles(stage) == ["scheduler"], "the other one was killed"

        await other.tick()  # it was only stopped, and goes on
        await other.tick()
        assert await roles(stage) == ["gateway", "scheduler"]
        await one.stop()
        await other.stop()
        assert await roles(stage) == []
