"""The replayer: jobs that nobody has yet, and whose wake-up was lost. Row 104."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest
from flow.faulty_store import Fault
from flow.stage import ACME, Stage, staged
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast import replayer
from holdfast.core.job import Job, JobId
from holdfast.core.recovery import SCHEDULED_STALE_S
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import StoreUnavailable
from holdfast.flow.decide import AllowAll, Decision
from holdfast.flow.submit import Order, new_job
from holdfast.ports import LISTED_PAYLOAD_MAX, Store, Submission
from holdfast.replayer import BATCH, Replayer


async def undecided(stage: Stage, payload: bytes = b"{}") -> Job:
    """A job whose decision was lost: the process died between the two."""
    order = Order(tenant=ACME, topic="mail.send", payload=payload, labels={})
    now = stage.inner.now()
    job = new_job(order, Topic(name="mail.send"), job_id=JobId(f"{stage.runtime.wall_us():014x}z"), now=now)
    await stage.inner.submit([Submission(job=job, key=None, digest="")])
    return job


def replayer_of(stage: Stage, woken: list[float]) -> Replayer:
    return Replayer(
        store=cast(Store, stage.store),
        locks=stage.locks,
        topics=stage.topics,
        policy=stage.policy,
        telemetry=stage.telemetry,
        runtime=stage.runtime,
        wake_scheduler=lambda: woken.append(stage.inner.now()),
    )


@on_virtual_time
async def test_lost_wake_up_wakes_the_scheduler_and_is_counted(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        woken: list[float] = []
        await stage.submit()
        await replayer_of(stage, woken).tick()
        assert woken == []
        await asyncio.sleep(SCHEDULED_STALE_S)
        await replayer_of(stage, woken).tick()

        assert len(woken) == 1
        assert stage.counted("jobs_orphan_replayed") == 1


@on_virtual_time
async def test_scheduler_looks_once_for_all_whose_wake_ups_were_lost(runtime: VirtualRuntime) -> None:
    """Each look walks past all of them that nobody serves."""
    async with staged(runtime) as stage:
        woken: list[float] = []
        await stage.submit_all([Order(tenant=ACME, topic="mail.send", payload=b"{}", labels={})] * (3 * BATCH))
        await asyncio.sleep(SCHEDULED_STALE_S)
        await replayer_of(stage, woken).tick()

        assert stage.counted("jobs_orphan_replayed") == 3 * BATCH
        assert len(woken) == 1


@on_virtual_time
async def test_lost_decision_is_made_on_a_payload_that_lists_leave_out(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        read: list[bytes] = []

        class Reader(AllowAll):
            def decide(self, job: Job) -> Decision:
                read.append(job.payload)
                return super().decide(job)

        stage.policy = Reader()
        job = await undecided(stage, b'"' + b"x" * LISTED_PAYLOAD_MAX + b'"')
        await asyncio.sleep(Topic(name="").pending_timeout_s)
        await replayer_of(stage, []).tick()

        assert read == [job.payload]
        decided = await stage.job(job.id)
        assert (decided.state, decided.payload) == (State.SCHEDULED, job.payload)


@on_virtual_time
async def test_what_cannot_be_put_right_is_told_all_the_same(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await undecided(stage)
        await asyncio.sleep(Topic(name="").pending_timeout_s)
        for verb in ("apply", "transact"):
            stage.store.fault(verb, Fault.FAIL)
        with pytest.raises(StoreUnavailable):
            await replayer_of(stage, []).tick()

        assert stage.telemetry.registry.get_sample_value("holdfast_jobs_stale", {"state": "PENDING"}) == 1


@on_virtual_time
async def test_orphan_behind_a_stuck_head_is_reached_in_bounded_batches(runtime: VirtualRuntime) -> None:
    """More than two pages of jobs that cannot be helped, and behind them one whose decision was lost."""
    async with staged(runtime) as stage:
        order = Order(tenant=ACME, topic="nobody.serves-this", payload=b"{}", labels={})
        await stage.submitter.submit([order] * (2 * BATCH + 50))
        orphan = await undecided(stage)
        await asyncio.sleep(Topic(name="").pending_timeout_s)
        await replayer_of(stage, []).tick()

        assert (await stage.job(orphan.id)).state is State.SCHEDULED
        assert stage.store.calls["list_recoverable"] == 1 + 3


@on_virtual_time
async def test_long_queue_is_walked_past_over_several_ticks_and_counted_once(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayer, "PAGES", 1)
    async with staged(runtime) as stage:
        order = Order(tenant=ACME, topic="nobody.serves-this", payload=b"{}", labels={})
        queue = [replace(order, timeout_s=15.0 if n == 2 * BATCH else None) for n in range(2 * BATCH + 1)]
        await stage.submitter.submit(queue)
        await asyncio.sleep(SCHEDULED_STALE_S + 5)
        service = replayer_of(stage, [])
        counted = []
        for _ in range(6):
            stage.store.calls.clear()
            await service.tick()
            assert stage.store.calls["list_recoverable"] == 2, "one page of each state"
            counted.append(stage.counted("jobs_orphan_replayed"))

        assert counted[0] < counted[1] <= counted[2] == counted[-1] == 2 * BATCH, "by the first of two walks"
        assert stage.telemetry.registry.get_sample_value("holdfast_jobs_stale", {"state": "SCHEDULED"}) == 2 * BATCH
        assert await stage.inner.count_jobs() == {(ACME, State.SCHEDULED): 2 * BATCH}, "one had a deadline"


@pytest.mark.parametrize("state", [State.PENDING, State.SCHEDULED, State.DISPATCHED, State.RUNNING])
@on_virtual_time
async def test_orphan_of_every_live_state_ends_well(runtime: VirtualRuntime, state: State) -> None:
    """The plane died with the job in this state; the loops of the next one take it to its end."""
    topics = Topics((Topic(name="*", pending_timeout_s=3.0, dispatch_timeout_s=3.0, lease_s=3.0),))
    async with staged(runtime, topics=topics) as stage:
        if state is State.PENDING:
            orphan = await undecided(stage)
        else:
            orphan = await stage.submit()
        if state in (State.DISPATCHED, State.RUNNING):
            await stage.dispatch(orphan, "dead")
        if state is State.RUNNING:
            await stage.claim_one("dead")
        assert (await stage.job(orphan.id)).state is state

        async with stage.loops(), stage.working():
            [done] = await stage.wait_ended(orphan, within_s=120)

        assert done.state is State.SUCCEEDED
