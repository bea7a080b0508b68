"""What a worker's word that it has begun is worth."""

from __future__ import annotations

import asyncio
import logging

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.stage import staged
from holdfast.core.states import State
from holdfast.flow.execute import Attempt, report_progress
from holdfast.flow.recover import lose_attempts


@on_virtual_time
async def test_start_that_came_too_late_is_not_told_as_one(
    runtime: VirtualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """Two at once, one of them requeued between the read and the write."""
    caplog.set_level(logging.DEBUG, logger="holdfast")
    async with staged(runtime) as stage:
        lost, kept = await stage.submit(), await stage.submit()
        for job in (lost, kept):
            await stage.dispatch(job, "w1")
        door = stage.store.pause("apply", kind="job.started")
        claiming = asyncio.create_task(stage.claim("w1"))
        await door.reached.wait()
        taken = await stage.job(lost.id)
        await lose_attempts([taken], reason="worker-died", store=stage.inner, telemetry=stage.telemetry)
        door.open()

        assert [job.id for job in await claiming] == [kept.id]
        assert (await stage.job(lost.id)).state is State.SCHEDULED
    told = [record.__dict__["job_id"] for record in caplog.records if record.__dict__.get("event") == "job.started"]
    assert told == [kept.id]


@on_virtual_time
async def test_claim_that_looks_again_leaves_room_for_what_the_worker_was_handed(runtime: VirtualRuntime) -> None:
    """What it found first is gone when it is to be started; by then two others are on their way to the worker."""
    async with staged(runtime) as stage:
        *gone, there = [await stage.submit() for _ in range(4)]
        for job in gone:
            await stage.dispatch(job, "w1")
        kept_free: list[int] = []

        def keep_free(wanted: int) -> int:
            kept_free.append(wanted)
            return 2

        door = stage.store.pause("apply", kind="job.started")
        claiming = asyncio.create_task(stage.claim("w1", limit=3, keep_free=keep_free))
        await door.reached.wait()
        found = [await stage.job(job.id) for job in gone]
        await lose_attempts(found, reason="worker-died", store=stage.inner, telemetry=stage.telemetry)
        await stage.dispatch(there, "w1")
        door.open()

        assert [job.id for job in await claiming] == [there.id]
        assert kept_free == [3, 3, 1]


@on_virtual_time
async def test_renewal_is_one_call_of_the_store_and_another_for_what_is_lost(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        jobs = [await stage.submit() for _ in range(2)]
        for job in jobs:
            await stage.dispatch(job, "w1")
        kept, lost = await stage.claim("w1", limit=2)
        await lose_attempts([lost], reason="worker-died", store=stage.inner, telemetry=stage.telemetry)
        stage.store.calls.clear()

        assert (await stage.renew(kept)).code == "ok"
        assert stage.store.calls == {"renew_leases": 1}
        assert (await stage.renew(lost)).code == "stale-fence"
        assert stage.store.calls == {"renew_leases": 2, "find_jobs": 1, "add_notes": 1}


@on_virtual_time
async def test_no_progress_is_lost_because_others_report_at_the_same_time(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        await stage.dispatch(job, "w1")
        [running] = await stage.claim("w1")
        attempt = Attempt(running.id, running.fence)

        told = await asyncio.gather(
            *(report_progress(attempt, n, store=stage.store, telemetry=stage.telemetry) for n in range(8))
        )

        kept = [
            e for e in await stage.store.list_events(after=0, limit=100, job_id=job.id) if e.kind == "job.progressed"
        ]
        assert (len(told), len(kept)) == (8, 8)
