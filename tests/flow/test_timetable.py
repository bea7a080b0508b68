"""The timetable: each tick once, whoever looks, whatever fails, and as the schedule says of missed ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time
from msgspec.structs import replace

from flow.approving import Published
from flow.faulty_store import Fault
from flow.stage import ACME, Replica, Stage, staged
from flow.telling import undelivered
from holdfast.core.job import Job, Tenant
from holdfast.core.record import Kind
from holdfast.core.run import Run
from holdfast.core.schedule import (
    Due,
    JobToSubmit,
    Missed,
    Overlap,
    RunToStart,
    Schedule,
    schedule_from,
    schedule_record,
    ticks_after,
)
from holdfast.core.share import Quota, Quotas
from holdfast.core.topic import Topics
from holdfast.errors import Conflict, NotFound
from holdfast.flow.fire import fire
from holdfast.flow.keep import add_record, remove_record
from holdfast.flow.runs import RunOrder, Started
from holdfast.flow.submit import Submitter
from holdfast.ports import JobFilter, RecordChange, Transaction
from holdfast.timetable import Timetable


@dataclass
class StartedRuns:
    """As `flow.runs.Runs`: the same key gives the same run."""

    by_key: dict[str, str] = field(default_factory=dict)
    asked: int = 0

    async def start(self, order: RunOrder) -> Started:
        self.asked += 1
        assert order.key is not None
        known = order.key in self.by_key
        run_id = self.by_key.setdefault(order.key, f"run-{len(self.by_key)}")

        @dataclass
        class Named:
            id: str

        return Started(cast(Run, Named(run_id)), repeated=known)


class NoRuns:
    async def start(self, order: RunOrder) -> Started:
        raise NotFound(f"no workflow {order.workflow!r}")


def timetable(stage: Replica, submitter: Submitter, runs: Any) -> Timetable:
    return Timetable(
        store=stage.typed_store,
        locks=stage.locks,
        submitter=submitter,
        runs=runs,
        freezes=stage.freezes,
        telemetry=stage.telemetry,
        runtime=stage.runtime,
    )


@asynccontextmanager
async def ticking(stage: Stage, *, replicas: int = 1, runs: Any = None) -> AsyncIterator[None]:
    each = [stage, *[await stage.replica(f"R{n}") for n in range(1, replicas)]]
    made = [timetable(one, stage.submitter, runs or NoRuns()) for one in each]
    for one in made:
        one.start()
    try:
        yield
    finally:
        for one in made:
            await one.stop()


async def add(stage: Stage, **values: Any) -> Schedule:
    now = stage.store.now()
    plain = Schedule(
        tenant=ACME, name="beat", every_s=10.0, job=JobToSubmit(topic="t", payload={"n": 1}), created_at=now, next_at=0
    )
    schedule = replace(plain, **values)
    schedule = replace(schedule, next_at=next(ticks_after(schedule, now)))
    added = await add_record(schedule_record(schedule), store=stage.inner)
    assert added is not None
    return schedule_from(added)


async def schedule_now(stage: Stage, name: str = "beat") -> Schedule:
    return schedule_from(await stage.inner.get_record(Kind.SCHEDULE, ACME, name))


async def jobs(stage: Stage) -> list[Job]:
    found = await stage.inner.list_jobs(ACME, JobFilter(labels={"schedule": "beat"}), before=None, limit=1000)
    return found[::-1]


async def told(stage: Stage) -> list[str]:
    await stage.seen.look()
    return [event.kind for event in stage.seen.events if event.kind.startswith("schedule.")]


@undelivered
@on_virtual_time
async def test_each_tick_submits_a_job_within_a_second(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        beat = await add(stage)
        async with ticking(stage):
            await asyncio.sleep(51.5)

        made = await jobs(stage)
        late = [job.created_at - beat.created_at - 10 * n for n, job in enumerate(made, start=1)]
        assert len(made) == 5
        assert all(0 <= one <= 1.01 for one in late)
        assert (made[0].payload, made[0].labels) == (b'{"n":1}', {"schedule": "beat"})
        assert (await schedule_now(stage)).last == made[-1].id
        assert await told(stage) == ["schedule.fired"] * 5


@undelivered
@on_virtual_time
async def test_replica_that_was_held_up_leaves_a_new_schedule_of_the_same_name_alone(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await add(stage)
        door = stage.store.pause("transact")
        async with ticking(stage):
            await door.reached.wait()
            await remove_record(Kind.SCHEDULE, ACME, "beat", store=stage.inner)
            fresh = await add(stage, every_s=3600.0, job=JobToSubmit(topic="other"))
            door.open()
            await asyncio.sleep(5)

        assert await schedule_now(stage) == fresh
        assert await jobs(stage) == []


@on_virtual_time
async def test_several_replicas_fire_each_tick_once(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await add(stage, every_s=2.0)
        async with ticking(stage, replicas=4):
            await asyncio.sleep(60.9)

        assert len(await jobs(stage)) == 30


@undelivered
@on_virtual_time
async def test_replica_that_was_paused_in_its_tick_fires_nothing_twice(runtime: VirtualRuntime) -> None:
    """It has read the schedule, stands still, and goes on when another one has fired the tick."""
    async with staged(runtime) as stage:
        await add(stage)
        other = await stage.replica("R1")
        door = stage.store.pause("transact")
        first = timetable(stage, stage.submitter, NoRuns())
        second = timetable(other, stage.submitter, NoRuns())
        await asyncio.sleep(10.1)
        stuck = asyncio.create_task(first.tick())
        await door.reached.wait()
        await asyncio.sleep(3)
        await second.tick()
        door.open()
        await stuck

        assert len(await jobs(stage)) == 1


@pytest.mark.parametrize("fault", list(Fault)[:3])
@undelivered
@on_virtual_time
async def test_tick_whose_write_was_not_answered_is_fired_once(runtime: VirtualRuntime, fault: Fault) -> None:
    async with staged(runtime) as stage:
        await add(stage)
        stage.store.fault("transact", fault, times=2)
        async with ticking(stage):
            await asyncio.sleep(19)

        assert len(await jobs(stage)) == 1


@pytest.mark.parametrize(("missed", "made"), [(Missed.SKIP, 1), (Missed.ONE, 1), (Missed.ALL, 30)])
@undelivered
@on_virtual_time
async def test_outage_is_made_up_for_as_told(runtime: VirtualRuntime, missed: Missed, made: int) -> None:
    async with staged(runtime) as stage:
        await add(stage, missed=missed)
        await asyncio.sleep(301)
        async with ticking(stage):
            await asyncio.sleep(3)

        assert len(await jobs(stage)) == made


@undelivered
@on_virtual_time
async def test_missed_ticks_of_a_daily_schedule_are_skipped_for_good(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await add(stage, every_s=0.0, cron="0 3 * * *", missed=Missed.SKIP)
        await asyncio.sleep((await schedule_now(stage)).next_at - stage.store.now() + 3600)
        async with ticking(stage):
            await asyncio.sleep(60)

        assert (await jobs(stage), await told(stage)) == ([], ["schedule.skipped"])


@on_virtual_time
async def test_tick_is_skipped_while_the_last_job_lives(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await add(stage, overlap=Overlap.SKIP)
        async with ticking(stage):
            await asyncio.sleep(45)
            [job] = await jobs(stage)
            await stage.dispatch(job)
            await stage.complete(await stage.claim_one())
            await asyncio.sleep(10)

        assert len(await jobs(stage)) == 2
        assert await told(stage) == ["schedule.fired", *["schedule.skipped"] * 3, "schedule.fired"]


@undelivered
@on_virtual_time
async def test_paused_schedule_fires_nothing(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await add(stage, paused=True)
        async with ticking(stage):
            await asyncio.sleep(100)

        assert await jobs(stage) == []


@undelivered
@on_virtual_time
async def test_run_of_a_tick_is_started_once_even_if_the_schedule_was_not_written(runtime: VirtualRuntime) -> None:
    runs = StartedRuns()
    async with staged(runtime) as stage:
        await add(stage, job=None, run=RunToStart(workflow="w"))
        stage.store.fault("transact", Fault.FAIL, times=3)
        async with ticking(stage, runs=runs):
            await asyncio.sleep(25)

        assert (len(runs.by_key), runs.asked) == (2, 5)
        assert (await schedule_now(stage)).last == "run-1"


@undelivered
@on_virtual_time
async def test_what_cannot_be_submitted_is_told_and_tried_at_the_next_tick(runtime: VirtualRuntime) -> None:
    async with staged(runtime, topics=Topics(closed=True)) as stage:
        await add(stage)
        async with ticking(stage):
            await asyncio.sleep(25)

        schedule = await schedule_now(stage)
        assert (schedule.last, schedule.last_error.partition(":")[0]) == ("", "invalid")
        assert await told(stage) == ["schedule.failed"] * 2
        assert stage.counted("schedule_ticks", outcome="failed") == 2


@on_virtual_time
async def test_tick_of_a_full_tenant_waits_and_does_not_keep_others_waiting(runtime: VirtualRuntime) -> None:
    other = Tenant("other")
    async with staged(runtime, quotas=Quotas({ACME: Quota(live_jobs_max=1)})) as stage:
        blocker = await stage.begun()
        await add(stage)
        theirs = replace(await schedule_now(stage), tenant=other, version=0)
        await stage.inner.transact([Transaction(records=[RecordChange(after=schedule_record(theirs), replaces=0)])])
        async with ticking(stage):
            await asyncio.sleep(19)
            assert await jobs(stage) == []
            assert len(await stage.inner.list_jobs(other, JobFilter(), before=None, limit=9)) == 1
            assert "1 unfinished jobs" in (await schedule_now(stage)).last_error
            await stage.complete(blocker)
            await asyncio.sleep(7)

        assert len(await jobs(stage)) == 1
        assert (await schedule_now(stage)).last_error == ""
        assert stage.counted("schedule_ticks", outcome="deferred") > 0


@undelivered
@on_virtual_time
async def test_missed_ticks_are_made_up_for_as_far_as_the_tenant_has_room(runtime: VirtualRuntime) -> None:
    async with staged(runtime, live_jobs_max=5) as stage:
        for name in ("beat", "other"):
            await add(stage, name=name, missed=Missed.ALL)
        await asyncio.sleep(301)
        async with ticking(stage):
            await asyncio.sleep(3)

        assert len(await stage.inner.list_jobs(ACME, JobFilter(), before=None, limit=100)) == 5


@undelivered
@on_virtual_time
async def test_schedule_that_cannot_be_obeyed_here_does_not_keep_others_waiting(runtime: VirtualRuntime) -> None:
    """On a machine that does not know its time zone, say."""
    async with staged(runtime) as stage:
        await add(stage, name="a", every_s=9.0)
        lost = replace(await schedule_now(stage, "a"), every_s=0.0, cron="* * * * *", zone="Mars/Olympus")
        change = RecordChange(after=schedule_record(lost), replaces=lost.version)
        assert await stage.inner.transact([Transaction(records=[change])]) == [True]
        await add(stage)
        async with ticking(stage):
            await asyncio.sleep(15)

        assert len(await jobs(stage)) == 1
        assert stage.counted("schedule_ticks", outcome="deferred") > 0
        assert (await schedule_now(stage, "a")).next_at == lost.next_at
        assert "zone" in (await schedule_now(stage, "a")).last_error


@undelivered
@on_virtual_time
async def test_trigger_makes_one_and_leaves_the_ticks_as_they_are(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        beat = await add(stage, paused=True)
        current = await schedule_now(stage)
        now = stage.store.now()
        due = Due((now,), skipped=False, next_at=current.next_at)
        fired = await fire(current, due, store=stage.inner, submitter=stage.submitter, runs=NoRuns())
        again = await fire(current, due, store=stage.inner, submitter=stage.submitter, runs=NoRuns())

        assert fired is not None
        assert again is None
        assert [job.id for job in await jobs(stage)] == list(fired.made)
        assert (fired.schedule.next_at, fired.schedule.paused) == (beat.next_at, True)
        assert fired.schedule.version == beat.version + 1


@undelivered
@on_virtual_time
async def test_a_tick_that_somebody_else_obeyed_takes_nothing_from_a_rate(runtime: VirtualRuntime) -> None:
    limits = {"rate": "1/h", "burst": 2}
    policy = Published({"format": 1, "default": {"action": "throttle", "throttle": limits}})
    async with staged(runtime, policy=policy) as stage:
        await add(stage, paused=True)
        current = await schedule_now(stage)
        due = Due((stage.store.now(),), skipped=False, next_at=current.next_at)
        fired = [
            await fire(current, due, store=stage.inner, submitter=stage.submitter, runs=NoRuns()) for _ in range(3)
        ]

        assert [one is not None for one in fired] == [True, False, False]
        await stage.order()


@undelivered
@on_virtual_time
async def test_more_missed_ticks_than_the_policy_lets_through_at_once_come_by_and_by(runtime: VirtualRuntime) -> None:
    limits = {"rate": "12/m", "burst": 2}
    policy = Published({"format": 1, "default": {"action": "throttle", "throttle": limits}})
    async with staged(runtime, policy=policy) as stage:
        await add(stage, missed=Missed.ALL)
        await asyncio.sleep(205)
        async with ticking(stage):
            await asyncio.sleep(3)
            assert len(await jobs(stage)) == 2
            await asyncio.sleep(400)
        assert len(await jobs(stage)) == 60


class BusyRuns:
    async def start(self, order: RunOrder) -> Started:
        raise Conflict("try again")


@undelivered
@on_virtual_time
async def test_schedule_that_is_busy_does_not_keep_others_waiting(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await add(stage, name="busy", job=None, run=RunToStart(workflow="w"), every_s=9.0)
        await add(stage)
        async with ticking(stage, runs=BusyRuns()):
            await asyncio.sleep(15)
        assert len(await jobs(stage)) == 1
