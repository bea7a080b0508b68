"""The loops of the plane on virtual time: what each promises, also beside a second replica."""

from __future__ import annotations

import asyncio

from flow.plane_invariants import check_calm, check_plane, check_snapshots
from flow.stage import staged
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast.core.job import Tenant
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.ports import Snapshot
from holdfast.reconciler import POLL_S
from holdfast.registry import SILENT_S, STUCK_S
from holdfast.snapshot import WRITE_S


@on_virtual_time
async def test_calm_plane_puts_nothing_right(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage, stage.loops(), stage.working(work_s=40):
        jobs = [await stage.submit() for _ in range(8)]
        done = await stage.wait_ended(*jobs, within_s=300)
        await check_plane(stage)
        check_calm(stage.seen, done)


@on_virtual_time
async def test_only_the_owner_of_the_window_ticks_and_it_ticks_at_every_poll(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        other = await stage.replica("R2")
        for _ in range(20):
            await stage.reconciler.tick()
            await other.reconciler.tick()
            await asyncio.sleep(POLL_S)
        assert stage.store.calls["list_recoverable"] == 20
        assert "list_recoverable" not in other.store.calls

        await asyncio.sleep(2 * POLL_S)  # the first one is gone: its window ends
        await other.reconciler.tick()
        assert other.store.calls["list_recoverable"] == 1


@on_virtual_time
async def test_snapshot_is_taken_over_within_fifteen_seconds_and_never_goes_back(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        other = await stage.replica("R2")
        stage.hello("w1")
        other.hello("w2")
        await stage.writer.tick()
        first = await stage.inner.read_snapshot()
        other.writer.start()
        died_at = stage.inner.now()
        while (latest := await stage.inner.read_snapshot()) == first:
            await asyncio.sleep(0.1)
        await other.writer.stop()

        assert first is not None
        assert latest is not None
        assert latest.at - died_at <= 15.0
        check_snapshots([first, latest])
        stale = Snapshot(first.fence, first.seq + 1000, stage.inner.now(), b"[]")
        assert not await stage.inner.write_snapshot(stale), "the old writer is fenced"
        assert await stage.inner.read_snapshot() == latest


@on_virtual_time
async def test_warm_start_knows_workers_and_revives_none(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        await stage.writer.tick()
        await asyncio.sleep(SILENT_S + WRITE_S)
        fresh = await stage.replica("R2")
        await fresh.writer.warm_up()

        [view] = fresh.registry.views(now=stage.inner.now())
        assert (view.id, view.alive) == ("w1", False)
        await stage.submit()
        await fresh.scheduler.tick()
        assert await stage.inner.list_in_hand("w1") == []
        fresh.hello("w1")
        await fresh.scheduler.tick()
        assert len(await stage.inner.list_in_hand("w1")) == 1


@on_virtual_time
async def test_roll_call_is_one_read_and_silent_workers_with_empty_hands_cost_none(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for n in range(5):
            stage.hello(f"w{n}")
        job = await stage.submit()
        await stage.dispatch(job, "w1")
        await stage.roll_call.tick()
        assert stage.store.calls["list_in_hand"] == 1

        await asyncio.sleep(SILENT_S)
        for reads in (2, 2):  # the second time nobody has anything any more
            await stage.reconciler.tick()
            assert stage.store.calls["list_in_hand"] == reads
            assert (await stage.job(job.id)).state is State.SCHEDULED
            stage.roll_call.heard(await stage.inner.list_events(after=0, limit=10))


@on_virtual_time
async def test_worker_whose_backlog_waits_for_a_slot_is_not_stuck(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1", slots=1, backlog=1)
        first = await stage.begun("w1")
        await stage.dispatch(await stage.submit(), "w1")
        conditions = []
        for end in (False, True):
            await asyncio.sleep(STUCK_S)
            if end:
                await stage.complete(first)
            stage.registry.seen("w1", now=stage.store.now())
            await stage.roll_call.tick()
            conditions += [view.condition for view in stage.registry.views(now=stage.store.now())]

    assert conditions == ["ready", "stuck"], "once it has a slot, it is to take what lies there"


@on_virtual_time
async def test_jobs_that_nobody_can_take_do_not_starve_those_behind_them(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1", slots=2, topics=["mail.*"])
        for _ in range(5):
            await stage.submit("nobody.serves-this", priority=50)
        served = await stage.submit("mail.send")
        await stage.scheduler.tick()

        assert (await stage.job(served.id)).state is State.DISPATCHED


@on_virtual_time
async def test_overdue_jobs_behind_many_that_cannot_be_helped_are_reached(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for _ in range(450):
            await stage.submit("nobody.serves-this")
        late = await stage.begun()
        await asyncio.sleep(31)
        await stage.reconciler.tick()
        assert (await stage.job(late.id)).state is State.SCHEDULED
        assert stage.store.calls["list_recoverable"] == 1, "however many wait for a worker"


@on_virtual_time
async def test_deadline_of_a_job_that_nobody_takes_ends_it(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, stage.loops():
        job = await stage.submit("nobody.serves-this", timeout_s=30.0)
        [ended] = await stage.wait_ended(job, within_s=60)
        assert ended.state is State.TIMEOUT
        await check_plane(stage)


@on_virtual_time
async def test_tenant_with_few_jobs_does_not_wait_behind_one_with_many(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for _ in range(300):
            await stage.submit(tenant=Tenant("flood"))
        small = [await stage.submit(tenant=Tenant("small")) for _ in range(3)]
        stage.hello("w1", slots=8)
        await stage.scheduler.tick()
        held = {job.id for job in await stage.inner.list_in_hand("w1")}
        assert {job.id for job in small} <= held


@on_virtual_time
async def test_delivery_waiting_at_a_silent_worker_goes_to_another(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, stage.loops():
        stage.hello("gone")
        job = await stage.submit()
        await asyncio.sleep(1)
        assert (await stage.job(job.id)).worker == "gone"
        async with stage.working("w2"):
            [done] = await stage.wait_ended(job, within_s=SILENT_S + 3 * POLL_S)
        assert (done.state, done.attempts, done.worker) == (State.SUCCEEDED, 1, "w2")
        await check_plane(stage)


@on_virtual_time
async def test_worker_known_to_another_replica_only_keeps_its_deliveries(runtime: VirtualRuntime) -> None:
    """R2 knows w1 from a snapshot alone; w1 speaks to R1. R2's window must not take w1's deliveries away."""
    async with staged(runtime) as stage:
        other = await stage.replica("R2")
        stage.hello("w1")
        await stage.writer.tick()
        await other.writer.warm_up()
        for _ in range(round(SILENT_S) + 10):
            stage.registry.seen("w1", now=stage.inner.now())
            await stage.writer.tick()
            await other.writer.tick()
            await asyncio.sleep(1.0)
        job = await stage.submit()
        await stage.dispatch(job, "w1")
        await other.reconciler.tick()
        assert (await stage.job(job.id)).state is State.DISPATCHED


@on_virtual_time
async def test_dispatch_timeout_is_the_topics_own(runtime: VirtualRuntime) -> None:
    topics = Topics((Topic(name="quick.*", dispatch_timeout_s=5.0),))
    async with staged(runtime, topics=topics) as stage:
        quick, usual = await stage.submit("quick.one"), await stage.submit("usual")
        await stage.dispatch(quick, "nobody")
        await stage.dispatch(usual, "nobody")
        await asyncio.sleep(5.5)
        await stage.reconciler.tick()
        assert (await stage.job(quick.id)).state is State.SCHEDULED
        assert (await stage.job(usual.id)).state is State.DISPATCHED
