"""A job handed to a claim that waits: dispatched and started in one transaction, or in doubt and said so."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.plane_invariants import check_plane
from flow.stage import ACME, Stage, staged
from holdfast.core.job import JobId, Tenant
from holdfast.core.share import Quota, Quotas
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import StoreUnavailable
from holdfast.flow.dispatch import Dispatched, Placed
from holdfast.flow.freeze import freeze
from holdfast.flow.give import MANY
from holdfast.flow.submit import Order, Submitter
from holdfast.ports import LISTED_PAYLOAD_MAX, Accepted, JobFilter
from holdfast.registry import SILENT_S
from holdfast.scheduler import BATCH
from holdfast.stores import StoreWithBus


async def kinds(stage: Stage, job_id: JobId) -> list[str]:
    return [event.kind for event in await stage.inner.list_events(after=0, limit=100, job_id=job_id)]


@on_virtual_time
async def test_job_is_running_and_handed_over_after_one_write(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            stage.store.calls.clear()
            assert await stage.dispatch(job) is Dispatched.SENT
            [handed] = await claim.take_handed()
        assert stage.store.calls == {"transact": 1}
        assert handed == await stage.job(job.id)
        assert (handed.state, handed.worker, handed.attempts) == (State.RUNNING, "w1", 1)
        assert await kinds(stage, job.id) == ["job.submitted", "job.dispatched", "job.started"]
        assert await stage.inner.list_deliveries("w1", limit=10) == []
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_job_whose_payload_the_queue_leaves_out_is_claimed_with_it(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit(payload=b'"' + b"x" * LISTED_PAYLOAD_MAX + b'"')
        [listed] = await stage.inner.list_dispatchable(limit=1)
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            assert await stage.dispatch(listed) is Dispatched.SENT
            assert await claim.take_handed() == []
        assert (await stage.claim_one()).payload == job.payload
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_no_more_is_handed_over_than_the_claim_asked_for(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        jobs = [await stage.submit() for _ in range(3)]
        with stage.claims.serving("w1") as claim, claim.open_for(2):
            await stage.dispatcher.dispatch([Placed(job, "w1") for job in jobs])
            handed = await claim.take_handed()
        assert [job.id for job in handed] == [job.id for job in jobs[:2]]
        assert (await stage.job(jobs[2].id)).state is State.DISPATCHED
        assert [d.job_id for d in await stage.inner.list_deliveries("w1", limit=10)] == [jobs[2].id]


@pytest.mark.parametrize("waiting", ["for another worker", "as a ghost", "not any more"])
@on_virtual_time
async def test_only_a_live_claim_of_that_worker_is_handed_anything(runtime: VirtualRuntime, waiting: str) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        with stage.claims.serving("w2" if waiting == "for another worker" else "w1") as claim:
            claim.is_ghost = waiting == "as a ghost"
            with claim.open_for(0 if waiting == "not any more" else 1):
                await stage.dispatch(job)
                assert await claim.take_handed() == []
        assert (await stage.job(job.id)).state is State.DISPATCHED
        assert len(await stage.inner.list_deliveries("w1", limit=10)) == 1


@on_virtual_time
async def test_job_that_has_moved_on_is_neither_dispatched_nor_handed_over(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        await stage.dispatch(job, "w2")
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            assert await stage.dispatch(job) is Dispatched.MOVED_ON
            assert await claim.take_handed() == []
        assert (await stage.job(job.id)).worker == "w2"


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
@on_virtual_time
async def test_claim_is_told_when_a_start_is_in_doubt(runtime: VirtualRuntime, fault: Fault) -> None:
    """It must not be answered with nothing: the worker would not ask again for what may run on it."""
    async with staged(runtime) as stage:
        job = await stage.submit()
        stage.store.fault("transact", fault, times=1)
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            assert await stage.dispatch(job) is Dispatched.UNANSWERED
            with pytest.raises(StoreUnavailable):
                await claim.take_handed()
        expected = State.RUNNING if fault is Fault.LOSE_REPLY else State.SCHEDULED
        assert (await stage.job(job.id)).state is expected


@on_virtual_time
async def test_claim_whose_time_is_over_still_waits_for_what_was_promised(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        with stage.claims.serving("w1") as claim:
            rule = stage.store.fault("transact", Fault.PAUSE, times=1)
            with claim.open_for(1):
                dispatching = asyncio.create_task(stage.dispatch(job))
                await rule.reached.wait()
            answering = asyncio.create_task(claim.take_handed())
            await asyncio.sleep(1)
            assert not answering.done()
            rule.open()
            assert [handed.id for handed in await answering] == [job.id]
            await dispatching


@on_virtual_time
async def test_lease_begins_after_the_time_from_which_the_worker_counts_it(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        lease_s = stage.topics.get(job.topic).lease_s
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            before = runtime.now()
            rule = stage.store.fault("transact", None, times=1, request_s=1.0)
            await stage.dispatch(job)
            [handed] = await claim.take_handed()
        assert rule.times == 0
        assert claim.opened_at == before
        assert handed.lease_until == handed.since + lease_s


def giving(stage: Stage) -> Submitter:
    """As a plane's own: it knows who waits."""
    store = cast(StoreWithBus, stage.store)
    return Submitter(store, stage.topics, stage.policy, stage.runtime, live_jobs_max=100_000, giver=stage.scheduler)


@on_virtual_time
async def test_job_that_a_claim_waits_for_is_running_when_its_submission_is_acknowledged(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1")
        await stage.scheduler.tick()  # nobody waits in the queue
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            stage.store.calls.clear()
            accepted = await stage.order(key="k")
            [handed] = await claim.take_handed()
        assert (stage.store.calls["submit"], "transact" in stage.store.calls) == (1, False)
        assert (accepted.job, accepted.repeated) == (handed, False)
        assert await kinds(stage, handed.id) == ["job.submitted", "job.dispatched", "job.started"]
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            again = await stage.order(key="k")
            assert await claim.take_handed() == []
        assert (again.job.id, again.repeated) == (handed.id, True)
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_of_many_jobs_the_most_urgent_are_given_as_far_as_there_is_room(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1", slots=3)
        await stage.scheduler.tick()
        orders = [
            Order(tenant=ACME, topic="mail.send", payload=b"{}", labels={}, priority=priority)
            for priority in (0, 5, 0, 9)
        ]
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            answers = await stage.submitter.submit(orders)
            handed = await claim.take_handed()
        jobs = [cast(Accepted, answer).job for answer in answers]
        assert [job.state for job in jobs] == [State.DISPATCHED, State.DISPATCHED, State.SCHEDULED, State.RUNNING]
        assert handed == [jobs[3]]
        assert {d.job_id for d in await stage.inner.list_deliveries("w1", limit=10)} == {jobs[0].id, jobs[1].id}
        assert jobs == [await stage.job(job.id) for job in jobs]
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_worker_that_comes_while_many_are_ruled_on_is_handed_them(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1", slots=MANY)
        await stage.scheduler.tick()
        await stage.submitter.admission.count()
        orders = [Order(tenant=ACME, topic="mail.send", payload=b"{}", labels={})] * MANY
        submitting = asyncio.create_task(stage.submitter.submit(orders))
        await asyncio.sleep(0)  # they are ruled on, and its claim is read
        await asyncio.sleep(0)
        with stage.claims.serving("w1") as claim, claim.open_for(MANY):
            answers = await submitting
            handed = await claim.take_handed()
        assert [cast(Accepted, answer).job for answer in answers] == handed
        assert len(handed) == MANY


@pytest.mark.parametrize("waiting_for_room", [0, 1])
@on_virtual_time
async def test_past_many_different_demands_jobs_are_given_unless_one_of_those_waits_for_room(
    runtime: VirtualRuntime, waiting_for_room: int
) -> None:
    async with staged(runtime) as stage:
        order = Order(tenant=ACME, topic="mail.send", payload=b"{}", labels={})
        unmet = [replace(order, labels={"require.host": f"gone{n}"}) for n in range(2 * BATCH)]
        await stage.submit_all(unmet)
        await asyncio.sleep(1)
        await stage.submit_all([replace(order, labels={"require.host": "h1"})] * (1 + waiting_for_room))
        stage.hello("w1", slots=1, host="h1")
        stage.hello("w2", slots=10)
        for _ in range(2):
            await stage.scheduler.tick()
        fresh = await stage.submit()

        assert bool(stage.scheduler.give([fresh])) == (not waiting_for_room)


@on_virtual_time
async def test_room_that_those_in_the_queue_need_is_given_to_nobody(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1", slots=3)
        await stage.scheduler.tick()
        for _ in range(2):
            await stage.submit()
        stage.scheduler.heard(await stage.inner.list_events(after=0, limit=10))
        stage.submitter = giving(stage)
        given, waits = await stage.submit(), await stage.submit()
        assert (await stage.job(given.id)).state is State.DISPATCHED
        assert (await stage.job(waits.id)).state is State.SCHEDULED


@pytest.mark.parametrize("wanted", [{"topic": "nobody.s"}, {"labels": {"require.gpu": "a100"}}])
@on_virtual_time
async def test_job_is_given_past_those_whom_nobody_serves(runtime: VirtualRuntime, wanted: dict[str, Any]) -> None:
    async with staged(runtime) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1", topics=["mail.*"])
        orphan = await stage.submit(**wanted)
        await stage.scheduler.tick()
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            job = await stage.submit()
            assert [handed.id for handed in await claim.take_handed()] == [job.id]
        assert (await stage.job(orphan.id)).state is State.SCHEDULED


LIMITED = Tenant("limited")


@on_virtual_time
async def test_job_that_no_limit_is_for_is_given_past_those_who_wait_for_theirs(runtime: VirtualRuntime) -> None:
    topics, quotas = Topics((Topic(name="slow", running_max=1),)), Quotas({LIMITED: Quota(running_max=1)})
    async with staged(runtime, topics=topics, quotas=quotas) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1", slots=10)
        for _ in range(2):
            await stage.submit("slow")
            await stage.submit(tenant=LIMITED)
        await stage.scheduler.tick()
        with stage.claims.serving("w1") as claim, claim.open_for(5):
            free = await stage.submit()
            await stage.submit("slow")
            await stage.submit(tenant=LIMITED)
            assert [handed.id for handed in await claim.take_handed()] == [free.id]
        states = Counter(job.state for job in await stage.inner.list_jobs(LIMITED, JobFilter(), before=None, limit=9))
        assert states == {State.DISPATCHED: 1, State.SCHEDULED: 2}


@on_virtual_time
async def test_jobs_are_given_while_it_is_looked_past_very_many_whom_nobody_serves(runtime: VirtualRuntime) -> None:
    """Else each would have to be looked for past them, and the next one would come in the midst of that."""
    async with staged(runtime) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1", topics=["mail.*"])
        await stage.submit_all([Order(tenant=ACME, topic="pdf.make", payload=b"{}", labels={})] * (BATCH + 1))
        await stage.scheduler.tick()
        stage.store.fault("list_dispatchable", None, times=2)  # a batch, and those of other tenants
        next_batch = stage.store.pause("list_dispatchable")
        look = asyncio.create_task(stage.scheduler.tick())
        await next_batch.reached.wait()
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            job = await stage.submit("mail.send")
            assert [handed.id for handed in await claim.take_handed()] == [job.id]
        next_batch.open()
        await look


@on_virtual_time
async def test_the_longer_a_look_takes_the_less_often_it_is_taken_unasked(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        stage.store.fault("list_dispatchable", None, request_s=0.2)
        stage.scheduler.start()
        await asyncio.sleep(10)
        assert stage.store.calls["list_dispatchable"] <= 6
        job = await stage.submit()
        await asyncio.sleep(0.5)
        assert (await stage.job(job.id)).state is State.DISPATCHED
        await stage.scheduler.stop()


@pytest.mark.parametrize("comes", ["a worker", "a silent one again"])
@on_virtual_time
async def test_whoever_comes_is_first_for_those_who_waited_for_him(runtime: VirtualRuntime, comes: str) -> None:
    async with staged(runtime) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1", topics=["mail.*"])
        if comes == "a silent one again":
            stage.hello("w2", slots=1, topics=["pdf.*"])
            await asyncio.sleep(SILENT_S + 1)
            stage.hello("w1", topics=["mail.*"])
        older = await stage.submit("pdf.make")
        await asyncio.sleep(1)
        await stage.scheduler.tick()
        stage.hello("w2", slots=1, topics=["pdf.*"])
        newer = await stage.submit("pdf.make")
        await stage.scheduler.tick()
        states = [(await stage.job(job.id)).state for job in (older, newer)]
        assert states == [State.DISPATCHED, State.SCHEDULED]


@pytest.mark.parametrize("ahead", ["a job that waits", "a freeze", "nobody who looked"])
@on_virtual_time
async def test_nobody_is_given_a_job_past(runtime: VirtualRuntime, ahead: str) -> None:
    async with staged(runtime) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1", slots=1)
        if ahead == "a job that waits":
            await stage.submit()
        if ahead == "a freeze":
            await freeze("all", reason="an incident", for_s=None, store=stage.inner)
        if ahead != "nobody who looked":
            await stage.scheduler.tick()
            await stage.submit()
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            job = await stage.submit()
            assert await claim.take_handed() == []
        assert (await stage.job(job.id)).state is State.SCHEDULED


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
@on_virtual_time
async def test_submission_in_doubt_is_repeated_without_a_second_job(runtime: VirtualRuntime, fault: Fault) -> None:
    async with staged(runtime) as stage:
        stage.submitter = giving(stage)
        stage.hello("w1")
        await stage.scheduler.tick()
        stage.store.fault("submit", fault, times=1)
        with stage.claims.serving("w1") as claim, claim.open_for(1):
            with pytest.raises(StoreUnavailable):
                await stage.order(key="k")
            with pytest.raises(StoreUnavailable):
                await claim.take_handed()
        again = await stage.order(key="k")
        assert again.repeated is (fault is Fault.LOSE_REPLY)
        assert len(await stage.inner.list_jobs(ACME, JobFilter(), before=None, limit=10)) == 1
