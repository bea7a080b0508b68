"""What becomes of deliveries that nobody begins, and of jobs whose time is over."""

from __future__ import annotations

import asyncio

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.plane_invariants import check_plane
from flow.stage import ACME, staged
from flow.telling import undelivered
from holdfast.core.recovery import DRAINING, UNABLE, UNSTARTED_MAX
from holdfast.core.states import State
from holdfast.flow.recover import lose_attempts


@pytest.mark.parametrize(("reason", "state"), [("worker-died", State.FAILED), (DRAINING, State.SCHEDULED)])
@on_virtual_time
async def test_delivery_that_ends_its_worker_before_it_has_begun_is_not_repeated_for_ever(
    runtime: VirtualRuntime, reason: str, state: State
) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        for number in range(UNSTARTED_MAX):
            await stage.dispatch(await stage.job(job.id), f"w{number}")
            [taken] = await stage.claim(f"w{number}", start=False)
            await lose_attempts([taken], reason=reason, store=stage.typed_store, telemetry=stage.telemetry)

        assert (await stage.job(job.id)).state is state
        letters = await stage.inner.list_dead_letters(ACME, before=None, limit=10)
        assert [letter.reason for letter in letters] == (["never-started"] if state is State.FAILED else [])
        await check_plane(stage, all_ended=state is State.FAILED)


@pytest.mark.parametrize("reason", [DRAINING, UNABLE])
@on_virtual_time
async def test_deliveries_that_were_handed_back_do_not_count_when_one_comes_to_nothing(
    runtime: VirtualRuntime, reason: str
) -> None:
    """Workers that are replaced one after the other, and then a delivery that got lost: nobody was dying of the job."""
    async with staged(runtime) as stage:
        job = await stage.submit()
        for number in range(UNSTARTED_MAX):
            await stage.dispatch(await stage.job(job.id), f"w{number}")
            [taken] = await stage.claim(f"w{number}", start=False)
            lost = "worker-died" if number == UNSTARTED_MAX - 1 else reason
            await lose_attempts([taken], reason=lost, store=stage.typed_store, telemetry=stage.telemetry)

        found = await stage.job(job.id)
        assert found.state is State.SCHEDULED
        assert found.retries == {"hand_back": UNSTARTED_MAX - 1, "requeue": 1}


@undelivered
@on_virtual_time
async def test_a_job_that_was_ended_says_to_people_why(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit(timeout_s=5)
        await asyncio.sleep(6)
        await stage.reconciler.tick()
        await stage.replayer.tick()

        assert (await stage.job(job.id)).error == {
            "code": "deadline-passed",
            "message": "the time that its submitter gave it was over; it was SCHEDULED",
        }
