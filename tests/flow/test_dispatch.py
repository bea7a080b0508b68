"""Dispatch, record and hand-back: what happens by the books. Rows 55 to 66, 72 to 74 and 109."""

from __future__ import annotations

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.plane_invariants import check_plane
from flow.stage import staged
from holdfast.buses.detached import Fault as BusFault
from holdfast.core.job import State
from holdfast.flow.cancel import cancel
from holdfast.flow.dispatch import PUBLISH_BACKOFF, Dispatched
from holdfast.flow.record import End


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
