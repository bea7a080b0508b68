"""The failure schedules of dispatch, bus and results (26 to 42), step by step, with the invariants that each threatens.

S1 and S2 are schedulers, W1 and W2 workers, R is the reconciler. "Paused" is a call that stands
at the store's door while everybody else goes on. 43 to 50 and 58 to 65 are in `test_schedules_loops.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.plane_invariants import check_blind_window, check_plane
from flow.stage import Stage, staged
from holdfast.buses.detached import Fault as BusFault
from holdfast.buses.embedded import TAKEN_S
from holdfast.core.effect import Ruling
from holdfast.core.job import Job
from holdfast.core.states import EffectState, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import Conflict, StaleAttempt
from holdfast.flow.cancel import cancel
from holdfast.flow.dispatch import Dispatched
from holdfast.flow.record import End
from holdfast.ports import Delivery
from holdfast.reconciler import POLL_S

DISPATCH_TIMEOUT_S = 20.0
BRISK = Topics((Topic(name="*", dispatch_timeout_s=DISPATCH_TIMEOUT_S),))


async def lose_lease(stage: Stage, job: Job) -> Job:
    """Time passes without a word of the worker, and R takes the job back."""
    await asyncio.sleep(stage.topics.get(job.topic).lease_s + 1)
    await stage.reconciler.tick()
    lost = await stage.job(job.id)
    assert lost.state is State.SCHEDULED
    return lost


async def taken_over(stage: Stage, job: Job) -> Job:
    """W1 has lost the job, and W2 has started it."""
    await stage.dispatch(await lose_lease(stage, job), "w2")
    return await stage.claim_one("w2")


@on_virtual_time
async def test_schedule_26_failed_dispatched_write_publishes_nothing(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        stage.store.fault("apply", Fault.FAIL, times=1)
        assert await stage.dispatch(job) is Dispatched.UNANSWERED
        assert stage.seen.published == []

        assert await stage.dispatch(await stage.job(job.id)) is Dispatched.SENT
        assert len(stage.seen.published) == 1
        await stage.complete(await stage.claim_one())
        await check_plane(stage)


@on_virtual_time
async def test_schedule_27_publish_in_doubt_that_got_through_is_not_rolled_back_under_the_worker(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        stage.publish_fault = BusFault.APPLIED_UNKNOWN
        rollback = stage.store.pause("apply", kind="dispatch.rolled_back")
        dispatching = asyncio.create_task(stage.dispatch(job))
        await rollback.reached.wait()
        attempt = await stage.claim_one()
        rollback.open()
        assert await dispatching is Dispatched.NOT_NOW

        assert (await stage.job(job.id)).state is State.RUNNING
        assert stage.counted("dispatch_rollback", topic=job.topic) == 0
        assert (await stage.complete(attempt)).code == "ok"
        await check_plane(stage)


@on_virtual_time
async def test_schedule_28_late_rollback_leaves_a_finished_job_alone(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        stage.publish_fault = BusFault.APPLIED_UNKNOWN
        rollback = stage.store.pause("apply", kind="dispatch.rolled_back")
        dispatching = asyncio.create_task(stage.dispatch(job))
        await rollback.reached.wait()
        await stage.complete(await stage.claim_one())
        rollback.open()
        await dispatching

        assert (await stage.job(job.id)).state is State.SUCCEEDED
        await check_plane(stage)


@on_virtual_time
async def test_schedule_29_failed_rollback_is_counted_and_dispatched_again_within_the_timeout(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime, topics=BRISK, detached=True) as stage:
        async with stage.loops(), stage.working():
            await asyncio.sleep(1)
            stage.publish_fault = BusFault.NOT_APPLIED
            stage.store.fault("apply", Fault.FAIL, kind="dispatch.rolled_back", times=1)
            job = await stage.submit()
            await asyncio.sleep(2)
            assert (await stage.job(job.id)).state is State.DISPATCHED
            assert stage.counted("dispatch_rollback_failed", topic=job.topic) == 1
            assert stage.counted("dispatch_rollback", topic=job.topic) == 0
            stage.publish_fault = None
            [done] = await stage.wait_ended(job, within_s=DISPATCH_TIMEOUT_S + 2 * POLL_S)
        assert (done.state, done.attempts) == (State.SUCCEEDED, 1)
        assert "job.timed_out" not in await stage.kinds(job.id)
        await check_plane(stage)
        check_blind_window(stage.seen, bound_s=DISPATCH_TIMEOUT_S, ended_at=stage.inner.now())


@on_virtual_time
async def test_schedule_30_attempt_after_a_publish_in_doubt_has_a_fence_of_its_own(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        stage.publish_fault = BusFault.APPLIED_UNKNOWN
        await stage.dispatch(job, "w1")
        stage.publish_fault = None
        await stage.dispatch(await stage.job(job.id), "w2")

        first, second = (delivery for delivery, _ in stage.seen.published)
        assert first.fence < second.fence
        assert await stage.claim("w1") == []
        assert (await stage.complete(await stage.claim_one("w2"))).code == "ok"
        await check_plane(stage)


@on_virtual_time
async def test_schedule_31_scheduler_that_dies_between_commit_and_publish_delays_the_job_by_the_timeout(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime, topics=BRISK, detached=True) as stage:
        dying = await stage.replica("S0")
        at_the_bus = asyncio.Event()

        async def die() -> None:
            at_the_bus.set()
            await asyncio.get_running_loop().create_future()

        stage.bus.before_publish = die
        job = await stage.submit()
        dispatching = asyncio.create_task(dying.dispatch(job))
        await at_the_bus.wait()
        dispatching.cancel()
        await asyncio.gather(dispatching, return_exceptions=True)
        stage.bus.before_publish = None

        async with stage.loops(), stage.working():
            [done] = await stage.wait_ended(job, within_s=DISPATCH_TIMEOUT_S + 3 * POLL_S)
        assert (done.state, done.attempts) == (State.SUCCEEDED, 1)
        await check_plane(stage)
        check_blind_window(stage.seen, bound_s=DISPATCH_TIMEOUT_S, ended_at=stage.inner.now())


@on_virtual_time
async def test_schedule_32_request_delivered_again_to_another_scheduler_publishes_nothing(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime, detached=True) as stage:
        second = await stage.replica("S2")
        job = await stage.submit()
        assert await stage.dispatch(job) is Dispatched.SENT
        assert await second.dispatch(job, "w2") is Dispatched.MOVED_ON

        assert len(stage.seen.published) == 1
        await stage.complete(await stage.claim_one())
        await check_plane(stage)


@on_virtual_time
async def test_schedule_33_unreadable_state_dispatches_nothing(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        async with stage.loops(), stage.working():
            stage.store.fault("list_dispatchable", Fault.FAIL)
            job = await stage.submit()
            await asyncio.sleep(30)
            assert stage.seen.published == []
            stage.store.heal()
            await stage.wait_ended(job, within_s=5)
        assert len(stage.seen.published) == 1
        await check_plane(stage)


@on_virtual_time
async def test_schedule_34_scheduler_paused_after_its_read_changes_nothing_later(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        # Its lock has long been another's, which a process that stands still cannot know.
        paused = await stage.replica("S2", lock_url="sqlite:///:memory:")
        job = await stage.submit()
        write = paused.store.pause("apply", kind="job.dispatched")
        late = asyncio.create_task(paused.dispatch(job, "w2"))
        await write.reached.wait()
        await stage.dispatch(job)
        await stage.complete(await stage.claim_one())
        write.open()

        assert await late in (Dispatched.MOVED_ON, Dispatched.NOT_NOW)
        assert (await stage.job(job.id)).state is State.SUCCEEDED
        assert len(stage.seen.published) == 1
        await check_plane(stage)


@on_virtual_time
async def test_schedule_35_redelivery_while_the_first_runs_enters_nothing(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        attempt = await stage.begun("w1")
        await stage.bus.publish([Delivery("w1", attempt.id, attempt.fence), Delivery("w2", attempt.id, attempt.fence)])
        assert await stage.claim("w1") == []
        assert await stage.claim("w2") == []
        assert (await stage.start(attempt, "w2")).code == "stale-fence"

        assert (await stage.complete(attempt)).code == "ok"
        await check_plane(stage)


@on_virtual_time
async def test_schedule_36_zombies_result_is_refused_counted_and_kept(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        zombie = await stage.begun("w1")
        successor = await taken_over(stage, zombie)
        await stage.complete(successor, result=b'"second"')
        await asyncio.sleep(600)
        late = await stage.complete(zombie, result=b'"first"')

        assert (late.code, late.current_fence) == ("stale-fence", successor.fence)
        assert stage.counted("attempts_refused", what="succeeded") == 1
        await stage.seen.look()
        [evidence] = [event for event in stage.seen.events if event.kind == "attempt.refused"]
        assert evidence.detail["offered_fence"] == zombie.fence
        assert (await stage.job(zombie.id)).result == b'"second"'
        await check_plane(stage)


@on_virtual_time
async def test_schedule_37_zombie_may_begin_no_effect_and_its_key_is_its_successors(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        zombie = await stage.begun("w1")
        first, _ = await stage.inner.prepare_effect(zombie.id, zombie.fence, "refund", idempotent=False)
        successor = await taken_over(stage, zombie)
        with pytest.raises(StaleAttempt):
            await stage.inner.prepare_effect(zombie.id, zombie.fence, "charge", idempotent=False)

        second, ruling = await stage.inner.prepare_effect(zombie.id, successor.fence, "refund", idempotent=False)
        assert (second.state, ruling) == (EffectState.UNKNOWN, Ruling.BLOCKED)
        assert first.idempotency_key == second.idempotency_key
        await stage.complete(successor, End.FAILED, retryable=False)
        await check_plane(stage)


@on_virtual_time
async def test_schedule_38_stale_ack_leaves_the_successors_delivery(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        zombie = await stage.begun("w1")
        await stage.dispatch(await lose_lease(stage, zombie), "w2")
        await stage.bus.settle([Delivery("w1", zombie.id, zombie.fence)])

        assert (await stage.complete(await stage.claim_one("w2"))).code == "ok"
        await check_plane(stage)


@on_virtual_time
async def test_schedule_39_duplicate_long_after_the_dedupe_window_is_nobodys_work(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        attempt = await stage.begun("w1")
        await stage.complete(attempt)
        await asyncio.sleep(180)
        await stage.bus.publish([Delivery("w1", attempt.id, attempt.fence)])

        assert await stage.claim("w1") == []
        await asyncio.sleep(TAKEN_S + 1)
        assert await stage.claim("w1") == []
        await check_plane(stage)


@on_virtual_time
async def test_schedule_40_result_said_twice_is_answered_the_same_and_another_one_is_refused(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime) as stage:
        attempt = await stage.begun()
        stage.store.fault("apply", Fault.LOSE_REPLY, times=1, kind="job.succeeded")
        with pytest.raises(ConnectionError):
            await stage.complete(attempt, result=b"1")
        assert (await stage.complete(attempt, result=b"1")).code == "ok"
        assert (await stage.complete(attempt, result=b"2")).code == "stale-fence"
        assert (await stage.complete(attempt, End.FAILED)).code == "stale-fence"

        assert (await stage.job(attempt.id)).result == b"1"
        assert (await stage.kinds(attempt.id)).count("attempt.refused") == 2
        await check_plane(stage)


@on_virtual_time
async def test_schedule_41_result_of_a_lost_attempt_is_refused_though_its_successor_has_not_begun(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime) as stage:
        zombie = await stage.begun("w1")
        await stage.dispatch(await lose_lease(stage, zombie), "w2")
        assert (await stage.job(zombie.id)).state is State.DISPATCHED
        assert (await stage.complete(zombie)).code == "stale-fence"

        await stage.complete(await stage.claim_one("w2"))
        await check_plane(stage)


@pytest.mark.parametrize(("end", "said"), [(End.SUCCEEDED, {"result": None}), (End.FAILED, {"retryable": False})])
@on_virtual_time
async def test_schedule_41_result_of_a_lost_attempt_is_refused_before_it_is_dispatched_again(
    runtime: VirtualRuntime, end: End, said: dict[str, Any]
) -> None:
    async with staged(runtime) as stage:
        zombie = await stage.begun("w1")
        lost = await lose_lease(stage, zombie)
        assert (await stage.complete(zombie, end, **said)).code == "stale-fence"

        await stage.dispatch(lost, "w2")
        await stage.complete(await stage.claim_one("w2"))
        await check_plane(stage)


@pytest.mark.parametrize("end", [End.FAILED, End.CANCELLED, End.HANDED_BACK])
@on_virtual_time
async def test_schedule_41_result_of_a_lost_attempt_is_refused_though_somebody_has_cancelled_the_job_since(
    runtime: VirtualRuntime, end: End
) -> None:
    async with staged(runtime) as stage:
        zombie = await stage.begun("w1")
        await lose_lease(stage, zombie)
        await cancel(zombie.tenant, zombie.id, "enough", store=stage.inner)

        assert (await stage.complete(zombie, end)).code == "stale-fence"
        await check_plane(stage)


@on_virtual_time
async def test_schedule_42_cancel_races_completion_and_one_of_them_wins(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        attempt = await stage.begun()
        completion = stage.store.pause("apply", kind="job.succeeded")
        completing = asyncio.create_task(stage.complete(attempt))
        await completion.reached.wait()
        asked = await cancel(attempt.tenant, attempt.id, "enough", store=stage.inner)
        assert asked.cancel_requested
        completion.open()
        assert (await completing).code == "ok"  # the request came too late to stop it

        assert (await stage.job(attempt.id)).state is State.SUCCEEDED
        with pytest.raises(Conflict):
            await cancel(attempt.tenant, attempt.id, "enough", store=stage.inner)
        await check_plane(stage)


@on_virtual_time
async def test_schedule_42_cancel_races_dispatch_and_nothing_is_published(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        write = stage.store.pause("apply", kind="job.dispatched")
        dispatching = asyncio.create_task(stage.dispatch(job))
        await write.reached.wait()
        await cancel(job.tenant, job.id, "enough", store=stage.inner)
        write.open()

        assert await dispatching is Dispatched.MOVED_ON
        assert stage.seen.published == []
        assert (await stage.job(job.id)).state is State.CANCELLED
        await check_plane(stage)
