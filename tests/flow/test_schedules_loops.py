"""The failure schedules of load, loops and storage (43 to 50 and 58 to 65), step by step.

51 to 57 are about approvals and workflows: `test_schedules_approvals.py` and `test_schedules_runs.py`. The steps before are in
`test_schedules_jobs.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.plane_invariants import check_plane, check_snapshots
from flow.stage import staged
from flow.telling import undelivered
from holdfast.app import running
from holdfast.buses.detached import Fault as BusFault
from holdfast.config import Settings
from holdfast.core.job import Tenant
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import StoreUnavailable
from holdfast.flow.dispatch import Dispatched
from holdfast.flow.submit import Order
from holdfast.loops import Loop
from holdfast.scheduler import POLL_S

SLOTS = 2


class Elsewhere(VirtualRuntime):
    """Another host, in the same story: its clock is wrong, and its steady clock began at another time."""

    def __init__(self, here: VirtualRuntime, *, ahead_s: float, booted_s: float) -> None:
        self.__dict__.update(here.__dict__)
        self.wall_step_us = round(ahead_s * 1e6)
        self.booted_s = booted_s

    def now(self) -> float:
        return super().now() + self.booted_s


@pytest.mark.usefixtures("unhurried")
@on_virtual_time
async def test_schedule_43_bus_down_for_a_quarter_of_an_hour_loses_nothing_and_stays_bounded(
    runtime: VirtualRuntime,
) -> None:
    """Submissions go on; tries per job grow slowly (backoff to 30 s); on return each tenant gets its turn."""
    async with staged(runtime, detached=True) as stage, stage.loops(), stage.working(slots=SLOTS, work_s=5):
        stage.publish_fault = BusFault.NOT_APPLIED
        flood = [await stage.submit(tenant=Tenant("flood")) for _ in range(12)]
        small = await stage.submit(tenant=Tenant("small"))
        await asyncio.sleep(900)
        tries = max([(await stage.job(job.id)).retries["publish"] for job in [*flood, small]])
        assert tries <= 900 / 15 * 2, "the backoff bounds the tries"
        stage.publish_fault = None
        due_at = (await stage.job(small.id)).not_before
        done = await stage.wait_ended(small, *flood, within_s=120)

        assert {(job.state, job.attempts) for job in done} == {(State.SUCCEEDED, 1)}
        await check_plane(stage)
        begun = [event for event in stage.seen.events if event.kind == "job.started"]
        before = list(itertools.takewhile(lambda event: event.job_id != small.id, begun))
        assert len(before) < len(flood), "it stood behind the whole flood"
        assert sum(event.at >= due_at for event in before) <= 2 * SLOTS, "what was in hand, and one turn of the other"


@on_virtual_time
async def test_schedule_44_slow_worker_never_has_more_in_hand_than_it_asked_for(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage, stage.loops(), stage.working(slots=2, work_s=10):
        jobs = [await stage.submit() for _ in range(12)]
        for _ in range(100):
            await asyncio.sleep(0.5)
            assert len(await stage.inner.list_in_hand("w1")) <= 2
        await stage.wait_ended(*jobs, within_s=60)
        await check_plane(stage)


@on_virtual_time
async def test_schedule_45_payload_that_kills_every_worker_ends_as_a_dead_letter(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        for n in range(3):
            await stage.dispatch(await stage.job(job.id), f"w{n}")
            await stage.claim_one(f"w{n}")
            await asyncio.sleep(31)
            await stage.reconciler.tick()

        dead = await stage.job(job.id)
        assert (dead.state, dead.attempts) == (State.FAILED, 3)
        [letter] = await stage.inner.list_dead_letters(job.tenant, before=None, limit=10)
        assert (letter.job_id, letter.reason) == (job.id, "lease-expired-no-attempts-left")
        await check_plane(stage)


@on_virtual_time
async def test_schedule_46_two_failed_replays_cost_no_attempt(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        stage.publish_fault = BusFault.NOT_APPLIED
        for _ in range(2):
            await stage.dispatch(await stage.job(job.id))
        back = await stage.job(job.id)
        assert (back.attempts, back.schedulings, back.retries) == (0, 4, {"publish": 2})

        stage.publish_fault = None
        await stage.dispatch(back)
        await stage.complete(await stage.claim_one())
        assert (await stage.job(job.id)).attempts == 1
        await check_plane(stage)


@on_virtual_time
async def test_schedule_47_reconciler_paused_in_its_tick_changes_nothing_later(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        second = await stage.replica("R2")
        zombie = await stage.begun("w1")
        await asyncio.sleep(31)
        write = stage.store.pause("apply", kind="job.lost")
        ticking = asyncio.create_task(stage.reconciler.tick())
        await write.reached.wait()
        await asyncio.sleep(3)  # R1's window has ended
        await second.reconciler.tick()
        await second.dispatch(await stage.job(zombie.id), "w2")
        attempt = await stage.claim_one("w2")
        write.open()
        await ticking

        assert (await stage.job(zombie.id)).fence == attempt.fence
        assert (await stage.kinds(zombie.id)).count("job.lost") == 1
        await stage.complete(attempt)
        await check_plane(stage)


@undelivered
@on_virtual_time
async def test_schedule_48_second_replica_does_not_tick_in_the_window_of_a_fast_first_one(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime) as stage:
        second = await stage.replica("R2")
        await stage.reconciler.tick()
        await asyncio.sleep(0.1)
        await second.reconciler.tick()
        assert "list_recoverable" not in second.store.calls


@on_virtual_time
async def test_schedule_49_slow_worker_keeps_its_job_until_its_lease_ends(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        attempt = await stage.begun("w1")
        await asyncio.sleep(25)  # silent for longer than a worker may be, but inside its lease
        await stage.reconciler.tick()
        assert (await stage.renew(attempt)).code == "ok"
        await asyncio.sleep(31)
        await stage.reconciler.tick()
        assert (await stage.renew(attempt)).code == "stale-fence"

        await stage.dispatch(await stage.job(attempt.id), "w2")
        await stage.complete(await stage.claim_one("w2"))
        assert (await stage.complete(attempt)).code == "stale-fence"
        await check_plane(stage)


@undelivered
@on_virtual_time
async def test_schedule_50_old_snapshot_writer_that_wakes_overwrites_nothing(runtime: VirtualRuntime) -> None:
    """A snapshot is one row in one transaction: there is no part 1 and part 2 to die between."""
    async with staged(runtime) as stage:
        second = await stage.replica("R2")
        await stage.writer.tick()
        first = await stage.inner.read_snapshot()
        write = stage.store.pause("write_snapshot")
        late = asyncio.create_task(stage.writer.tick())
        await write.reached.wait()
        await asyncio.sleep(11)
        await second.writer.tick()
        newer = await stage.inner.read_snapshot()
        write.open()
        await late

        assert first is not None
        assert newer is not None
        assert newer.fence > first.fence
        assert await stage.inner.read_snapshot() == newer
        check_snapshots([first, newer])


@pytest.mark.parametrize("detached", [True, False])
@on_virtual_time
async def test_schedule_58_commit_in_doubt_is_not_repeated_blindly(runtime: VirtualRuntime, detached: bool) -> None:
    topics = Topics((Topic(name="*", dispatch_timeout_s=20.0),))
    async with staged(runtime, topics=topics, detached=detached) as stage:
        job = await stage.submit()
        stage.store.fault("apply", Fault.LOSE_REPLY, kind="job.dispatched", times=1)
        assert await stage.dispatch(job) is Dispatched.UNANSWERED
        assert await stage.dispatch(job) is Dispatched.MOVED_ON
        async with stage.loops(), stage.working():
            [done] = await stage.wait_ended(job, within_s=25)
        assert (done.state, done.attempts) == (State.SUCCEEDED, 1)
        await check_plane(stage)


@on_virtual_time
async def test_schedule_59_store_that_takes_no_writes_acknowledges_nothing_and_loses_nothing(
    runtime: VirtualRuntime,
) -> None:
    """What SQLite itself does on a full disk is in tests/plane/test_sqlite_store.py."""
    async with staged(runtime) as stage, stage.loops(), stage.working():
        before = [await stage.submit() for _ in range(5)]
        for verb in ("submit", "apply", "add_notes", "renew_leases", "write_snapshot"):
            stage.store.fault(verb, Fault.FAIL)
        with pytest.raises(StoreUnavailable):
            await stage.submit(key="k")
        stage.store.heal()
        after = await stage.submit(key="k")
        await stage.wait_ended(*before, after, within_s=60)
        await check_plane(stage)


async def test_schedule_61_corrupt_file_refuses_to_start(tmp_path: Path) -> None:
    path = tmp_path / "plane.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 8192)
    with pytest.raises(StoreUnavailable, match="backup"):
        async with running(Settings(store=f"sqlite:///{path}")):
            pass


@pytest.mark.parametrize("hours", [-1, 1])
@on_virtual_time
async def test_schedule_62_host_clock_that_steps_changes_no_timeout(runtime: VirtualRuntime, hours: int) -> None:
    async with staged(runtime) as stage:
        attempt = await stage.begun()
        runtime.wall_step_us = hours * 3_600_000_000
        await stage.reconciler.tick()
        assert (await stage.job(attempt.id)).state is State.RUNNING
        await asyncio.sleep(31)
        await stage.reconciler.tick()
        assert (await stage.job(attempt.id)).state is State.SCHEDULED


@pytest.mark.parametrize("hours", [-1, 1])
@on_virtual_time
async def test_schedule_62_gateways_whose_clocks_differ_agree_on_every_timeout(
    runtime: VirtualRuntime, hours: int
) -> None:
    """Leases and timeouts are told by the clock of the server. SQLite serves one host, which has one clock."""
    async with staged(runtime) as stage:
        other = await stage.replica("S2", runtime=Elsewhere(runtime, ahead_s=hours * 3600.0, booted_s=5000.0))
        attempt = await stage.begun()
        await other.reconciler.tick()
        assert (await stage.job(attempt.id)).state is State.RUNNING
        await asyncio.sleep(29)
        assert (await stage.renew(attempt)).code == "ok"
        await asyncio.sleep(29)
        await other.reconciler.tick()
        assert (await stage.job(attempt.id)).state is State.RUNNING
        await asyncio.sleep(2)
        await other.reconciler.tick()
        assert (await stage.job(attempt.id)).state is State.SCHEDULED
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_schedule_63_slow_store_is_not_asked_more_often(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, stage.loops(), stage.working(work_s=5):
        stage.store.fault("apply", None, request_s=2.0)
        jobs = [await stage.submit() for _ in range(10)]
        await asyncio.sleep(150)
        assert stage.store.calls["apply"] <= 10 * 3 * 2, "at most two tries for each step"
        await stage.wait_ended(*jobs, within_s=60)
        await check_plane(stage)


@on_virtual_time
async def test_schedule_64_flood_of_one_tenant_leaves_the_other_its_turn(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await stage.submit_all([Order(tenant=Tenant("flood"), topic="mail.send", payload=b"{}", labels={})] * 500)
        small = [await stage.submit(tenant=Tenant("small")) for _ in range(4)]
        async with stage.loops(), stage.working(slots=4, work_s=1):
            await stage.wait_ended(*small, within_s=20)
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_schedule_65_listener_that_misses_events_finds_the_job_at_its_next_poll(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        Loop.start(stage.scheduler)  # without its subscription
        await asyncio.sleep(0.1)
        job = await stage.submit()
        await asyncio.sleep(2 * POLL_S)
        assert (await stage.job(job.id)).state is State.DISPATCHED
        await stage.scheduler.stop()
