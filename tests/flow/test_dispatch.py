"""Dispatch, record and hand-back: what happens by the books. Rows 55 to 66, 72 to 74 and 109."""

from __future__ import annotations

import asyncio

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.plane_invariants import check_plane
from flow.stage import staged
from holdfast.buses.detached import Fault as BusFault
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.flow.cancel import cancel
from holdfast.flow.dispatch import JOB, PUBLISH_BACKOFF, Dispatched, Placed
from holdfast.flow.record import End
from holdfast.scheduler import POLL_S, STORE_RETRY_S


@pytest.mark.parametrize("state", [State.DISPATCHED, State.RUNNING, State.SUCCEEDED, State.CANCELLED])
@on_virtual_time
async def test_redelivery_is_a_no_op_in_every_later_state(runtime: VirtualRuntime, state: State) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        if state is State.CANCELLED:
            await cancel(job.tenant, job.id, "enough", store=stage.inner)
        else:
            await stage.dispatch(job)
        if state in (State.RUNNING, State.SUCCEEDED):
            attempt = await stage.claim_one()
            if state is State.SUCCEEDED:
                await stage.complete(attempt)
        before, published = await stage.job(job.id), len(stage.seen.published)
        assert before.state is state
        for copy in (job, before):  # what the request carried, and what the store has now
            assert await stage.dispatch(copy, "w2") is Dispatched.MOVED_ON
        assert await stage.job(job.id) == before
        assert len(stage.seen.published) == published
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_failed_publish_goes_back_to_scheduled_counted_once_with_backoff(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        stage.publish_fault = BusFault.NOT_APPLIED
        for n in range(1, 9):
            assert await stage.dispatch(await stage.job(job.id)) is Dispatched.NOT_NOW
            back = await stage.job(job.id)
            assert (back.state, back.attempts, back.schedulings) == (State.SCHEDULED, 0, 2 * n)
            assert 0 <= back.not_before - stage.inner.now() <= min(30.0, 2.0 ** (n - 1))
            assert stage.counted("dispatch_rollback", topic=job.topic) == n
            assert stage.counted("dispatch_retries", phase="publish") == n
        assert PUBLISH_BACKOFF.cap_s == 30.0
        assert stage.counted("dispatch_rollback_failed", topic=job.topic) == 0
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_what_waits_for_a_bus_that_was_away_is_given_out_within_two_seconds_of_its_return(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime, detached=True) as stage:
        stage.hello("w1", slots=10)
        jobs = [await stage.submit() for _ in range(4)]
        later = await stage.submit(delay_s=1000.0)
        stage.publish_fault = BusFault.NOT_APPLIED
        for _ in range(8):
            await asyncio.sleep(PUBLISH_BACKOFF.cap_s)
            stage.hello("w1", slots=10)
            await stage.scheduler.tick()
        waiting = [(await stage.job(job.id)).not_before - stage.inner.now() for job in jobs]
        assert max(waiting) > 2.0, "else there is nothing to hasten"
        await cancel(jobs[0].tenant, jobs[0].id, "enough", store=stage.inner)

        stage.publish_fault = None
        stage.bus_returned()
        for _ in range(8):
            await stage.scheduler.tick()
            await asyncio.sleep(POLL_S)

        states = [(await stage.job(job.id)).state for job in jobs]
        assert states == [State.CANCELLED, *[State.DISPATCHED] * 3]
        assert await stage.job(later.id) == later
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_failed_write_and_failed_rollback_are_counted_by_their_phase(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        stage.store.fault("apply", Fault.FAIL, times=1)
        await stage.dispatch(job)
        assert stage.counted("dispatch_retries", phase="dispatched_write") == 1
        stage.publish_fault = BusFault.NOT_APPLIED
        stage.store.fault("apply", Fault.FAIL, times=1, kind="dispatch.rolled_back")
        await stage.dispatch(job)
        assert stage.counted("dispatch_retries", phase="rollback_write") == 1
        assert stage.counted("dispatch_rollback_failed", topic=job.topic) == 1
        assert stage.counted("dispatch_rollback", topic=job.topic) == 0


@on_virtual_time
async def test_hand_back_costs_no_attempt(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        attempt = await stage.begun(max_attempts=1)
        assert (await stage.complete(attempt, End.HANDED_BACK)).code == "ok"
        back = await stage.job(attempt.id)
        assert (back.state, back.attempts) == (State.SCHEDULED, 0)
        await stage.dispatch(back, "w2")
        await stage.complete(await stage.claim_one("w2"))
        await check_plane(stage)


@on_virtual_time
async def test_failure_is_retried_until_no_attempt_is_left_and_then_a_dead_letter(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit(max_attempts=2)
        for _ in range(2):
            await stage.dispatch(await stage.job(job.id))
            await stage.complete(await stage.claim_one(), End.FAILED, error={"code": "boom", "message": "it broke"})
        ended = await stage.job(job.id)
        assert (ended.state, ended.attempts) == (State.FAILED, 2)
        [letter] = await stage.inner.list_dead_letters(job.tenant, before=None, limit=10)
        assert (letter.job_id, letter.reason) == (job.id, "no-attempts-left")
        await check_plane(stage)


@pytest.mark.parametrize("known", [True, False])
@on_virtual_time
async def test_lock_of_a_scheduler_whose_process_is_gone_holds_nobody_up(runtime: VirtualRuntime, known: bool) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        killed = await stage.replica("S2")
        await killed.locks.acquire(JOB, job.id)
        if known:
            stage.gone.add("S2")

        assert await stage.dispatch(job) is Dispatched.NOT_NOW

        again = Dispatched.SENT if known else Dispatched.NOT_NOW
        assert await stage.dispatch(job) is again
        assert ("its process is gone" in str(await stage.locks.history(JOB, job.id))) is known


@on_virtual_time
async def test_failures_that_could_not_be_written_stand_in_the_next_event_by_phase(runtime: VirtualRuntime) -> None:
    topics = Topics((Topic(name="*", dispatch_timeout_s=20.0),))
    async with staged(runtime, topics=topics, detached=True) as stage:
        job = await stage.submit()
        stage.store.fault("apply", Fault.FAIL, times=2)
        assert await stage.dispatch(job) is Dispatched.UNANSWERED
        assert await stage.dispatch(job) is Dispatched.UNANSWERED
        stage.publish_fault = BusFault.NOT_APPLIED
        stage.store.fault("apply", Fault.FAIL, times=1, kind="dispatch.rolled_back")
        await stage.dispatch(job)
        assert (await stage.job(job.id)).retries == {"dispatched_write": 2}
        stage.publish_fault = None
        await asyncio.sleep(21.0)
        await stage.reconciler.tick()

        assert await stage.dispatch(await stage.job(job.id)) is Dispatched.SENT

        sent = await stage.job(job.id)
        assert sent.retries == {"dispatched_write": 2, "requeue": 1, "publish": 1, "rollback_write": 1}
        told = [e.detail["retried"] for e in stage.seen.events if "retried" in e.detail]
        assert told == [{"dispatched_write": 2}, {"publish": 1, "rollback_write": 1}]
        assert sent.attempts == 0


@pytest.mark.parametrize("detached", [True, False])
@on_virtual_time
async def test_scheduler_asks_a_store_that_did_not_answer_again_after_a_second(
    runtime: VirtualRuntime, detached: bool
) -> None:
    async with staged(runtime, detached=detached) as stage:
        stage.hello("w1")
        job = await stage.submit()
        stage.store.fault("apply", Fault.FAIL, times=1)
        async with stage.loops():
            await asyncio.sleep(STORE_RETRY_S - 0.1)
            assert (await stage.job(job.id)).state is State.SCHEDULED
            assert stage.seen.published == []
            await asyncio.sleep(0.1 + 2 * POLL_S)
        assert (await stage.job(job.id)).state is State.DISPATCHED
        assert stage.counted("dispatch_retries", phase="dispatched_write") == 1


@on_virtual_time
async def test_bus_in_the_store_takes_a_batch_in_one_write_and_no_lock(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        jobs = [await stage.submit() for _ in range(50)]
        placed = [Placed(job, f"w{n % 3}") for n, job in enumerate(jobs)]
        stage.store.fault("apply", Fault.FAIL, times=1)
        assert set(await stage.dispatcher.dispatch(placed)) == {Dispatched.UNANSWERED}

        second = await stage.replica("S2")
        both = await asyncio.gather(stage.dispatcher.dispatch(placed), second.dispatcher.dispatch(placed))

        assert [sorted(pair) for pair in zip(*both, strict=True)] == [[Dispatched.MOVED_ON, Dispatched.SENT]] * 50
        assert await stage.locks.list() == []
        assert await stage.locks.history(JOB, jobs[0].id) == []
        for worker in ("w0", "w1", "w2"):
            for attempt in await stage.claim(worker, limit=50):
                stage.seen.entered.append((attempt.id, attempt.fence))
                await stage.complete(attempt)
        await check_plane(stage)


@pytest.mark.parametrize("detached", [True, False])
@on_virtual_time
async def test_every_attempt_has_a_higher_fence_even_if_the_clock_stands(
    runtime: VirtualRuntime, detached: bool
) -> None:
    async with staged(runtime, detached=detached) as stage:
        job = await stage.submit(max_attempts=9)
        fences = []
        for _ in range(5):
            await stage.dispatch(await stage.job(job.id))
            attempt = await stage.claim_one()
            fences.append(attempt.fence)
            await stage.complete(attempt, End.HANDED_BACK)
        assert fences == sorted(set(fences))
