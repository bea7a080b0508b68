"""Freezes: nothing of a scope is dispatched, on any replica, until it is thawed or its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.approving import deciding
from flow.stage import ACME, Replica, Stage, staged
from flow.telling import undelivered
from flow.test_timetable import add, jobs, schedule_now, ticking
from holdfast.core.approval import ApprovalState
from holdfast.core.audit import Act
from holdfast.core.job import Tenant
from holdfast.core.policy_version import PLANE
from holdfast.core.schedule import Missed
from holdfast.core.states import State
from holdfast.errors import Invalid, NotFound, TooMany
from holdfast.flow.audit import Audit, Entry, list_lines
from holdfast.flow.dispatch import Dispatched
from holdfast.flow.freeze import freeze, list_freezes, thaw
from holdfast.flow.record import End
from holdfast.freezes import Freezes

OTHER = Tenant("other")
KNOWN_S = 2.0
"""Within this time every replica obeys."""


def entry(stage: Stage, action: str, scope: str) -> Entry:
    act = Act(tenant=PLANE, action=action, subject=f"freeze/{scope}", by="ana", reason="x")
    return Entry(Audit(stage.inner, stage.runtime), act)


async def frozen(stage: Stage, scope: str = "all", for_s: float | None = None) -> None:
    await freeze(scope, reason="x", by="ana", for_s=for_s, store=stage.inner, entry=entry(stage, "freeze.began", scope))


async def thawed(stage: Stage, scope: str = "all") -> None:
    await thaw(scope, reason="well again", by="ben", store=stage.inner, entry=entry(stage, "freeze.ended", scope))


@asynccontextmanager
async def keeping(stage: Stage, *replicas: Replica) -> AsyncIterator[None]:
    """The service of each replica."""
    made = [
        Freezes(
            store=own.typed_store,
            live=own.scheduler._freezes,
            audit=Audit(own.typed_store, own.runtime),
            wake=own.scheduler.wake,
            telemetry=own.telemetry,
            runtime=own.runtime,
        )
        for own in (stage, *replicas)
    ]
    for one in made:
        one.start()
    try:
        yield
    finally:
        for one in made:
            await one.stop()


@pytest.mark.parametrize("scope", ["all", "tenant=acme", "topic=mail.send", "topic=mail.*"])
@on_virtual_time
async def test_what_is_frozen_is_taken_and_waits_and_the_rest_goes_on(runtime: VirtualRuntime, scope: str) -> None:
    async with staged(runtime) as stage, stage.loops(), stage.working():
        await frozen(stage, scope)
        await asyncio.sleep(KNOWN_S)
        waits = await stage.submit("mail.send")
        free = await stage.submit("report", OTHER)
        await asyncio.sleep(5)

        assert (await stage.job(waits.id)).state is State.SCHEDULED
        assert (await stage.job(free.id)).state is (State.SCHEDULED if scope == "all" else State.SUCCEEDED)
        await thawed(stage, scope)
        await stage.wait_ended(waits, free, within_s=5)


@on_virtual_time
async def test_what_runs_goes_on_and_its_retry_waits(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, stage.loops():
        good, bad = await stage.begun(), await stage.begun()
        await frozen(stage)
        await asyncio.sleep(KNOWN_S)

        assert (await stage.complete(good)).code == "ok"
        assert (await stage.complete(bad, End.FAILED, retryable=True)).code == "ok"
        async with stage.working():
            await asyncio.sleep(10)
            assert (await stage.job(bad.id)).state is State.SCHEDULED
            await thawed(stage)
            [again] = await stage.wait_ended(bad, within_s=5)
        assert (again.state, again.attempts) == (State.SUCCEEDED, 2)


@on_virtual_time
async def test_an_approved_job_stays_until_it_is_thawed(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk, desk.stage.loops(), desk.stage.working():
        await frozen(desk.stage, "topic=pay*")
        await asyncio.sleep(KNOWN_S)
        job = await desk.approved()
        await asyncio.sleep(5)

        assert (await desk.stage.job(job.id)).state is State.SCHEDULED
        assert (await desk.approval(job)).state is ApprovalState.APPROVED, "it is not used up"
        await thawed(desk.stage, "topic=pay*")
        await desk.stage.wait_ended(job, within_s=5)
        await desk.check()


@pytest.mark.parametrize("detached", [False, True])
@on_virtual_time
async def test_a_dispatch_that_was_about_to_happen_is_refused(runtime: VirtualRuntime, *, detached: bool) -> None:
    """Whoever placed the job did not know yet; the last look before the write does."""
    async with staged(runtime, detached=detached) as stage:
        job = await stage.submit()
        await frozen(stage, "tenant=acme")
        await stage.dispatcher._freezes.refresh()

        assert await stage.dispatch(job) is Dispatched.NOT_NOW
        assert await stage.job(job.id) == job


@on_virtual_time
async def test_replicas_that_hear_nothing_obey_within_two_seconds(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        other = await stage.replica("S2")
        async with stage.loops(), other.loops(), stage.working(), stage.working("w2", replica=other):
            for n in range(45):
                await stage.submit()
                if n == 20:
                    began = stage.inner.now()
                    await frozen(stage)
                await asyncio.sleep(0.1)
            await stage.seen.look()
            sent = [event.at for event in stage.seen.events if event.kind == "job.dispatched"]

        assert max(sent) < began + KNOWN_S
        assert len(sent) >= 20


@on_virtual_time
async def test_it_ends_by_itself_once_and_both_ends_are_audited(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        other = await stage.replica("S2")
        async with stage.loops(), stage.working(), keeping(stage, other):
            await frozen(stage, for_s=60)
            job = await stage.submit()
            await asyncio.sleep(59)
            assert (await stage.job(job.id)).state is State.SCHEDULED
            assert stage.telemetry.registry.get_sample_value("holdfast_frozen", {"scope": "all"}) == 1
            await stage.wait_ended(job, within_s=4)
            await asyncio.sleep(5)

        lines = await list_lines(PLANE, store=stage.inner, limit=10, after=0)
        await stage.seen.look()
        told = [(event.kind, event.detail["by"]) for event in stage.seen.events if event.kind.startswith("freeze.")]
        assert [(line.action, line.by, line.reason) for line in lines] == [
            ("freeze.began", "ana", "x"),
            ("freeze.ended", "", "its time is over"),
        ]
        assert told == [("freeze.began", "ana"), ("freeze.ended", "")]
        assert await list_freezes(store=stage.inner) == []
        assert stage.telemetry.registry.get_sample_value("holdfast_frozen", {"scope": "all"}) == 0


@pytest.mark.parametrize(("missed", "made_up"), [(Missed.ALL, 1), (Missed.ONE, 1), (Missed.SKIP, 1)])
@undelivered
@on_virtual_time
async def test_schedules_do_not_fire_and_do_not_pile_up(runtime: VirtualRuntime, missed: Missed, made_up: int) -> None:
    async with staged(runtime) as stage:
        await add(stage, missed=missed)
        async with ticking(stage):
            await asyncio.sleep(11.5)
            await frozen(stage, "topic=t")
            await asyncio.sleep(201)
            while_frozen = len(await jobs(stage))
            assert (await schedule_now(stage)).held
            await thawed(stage, "topic=t")
            await asyncio.sleep(6.5)
            after = await jobs(stage)
            await asyncio.sleep(30)

        assert while_frozen == 1
        assert len(after) == 1 + made_up, "one for all that fell into the freeze; `skip` had one just now"
        assert len(await jobs(stage)) == len(after) + 3
        assert not (await schedule_now(stage)).held


@undelivered
@on_virtual_time
async def test_replica_that_was_held_up_ends_no_freeze_but_the_one_whose_time_was_over(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await frozen(stage, for_s=10)
        await asyncio.sleep(11)
        door = stage.store.pause("transact")
        async with keeping(stage):
            await door.reached.wait()
            await thawed(stage)
            await frozen(stage)
            door.open()
            await asyncio.sleep(5)

            [standing] = await list_freezes(store=stage.inner)
            assert standing.until is None


@on_virtual_time
async def test_a_scope_is_frozen_once_and_thawed_once(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await frozen(stage, "tenant=acme", for_s=10)
        await frozen(stage, "tenant=acme")
        [standing] = await list_freezes(store=stage.inner)
        await thawed(stage, "tenant=acme")

        assert standing.until is None
        with pytest.raises(NotFound, match="freeze list"):
            await thawed(stage, "tenant=acme")
        with pytest.raises(Invalid):
            await frozen(stage, "pool=x")
        await stage.seen.look()
        assert {event.tenant for event in stage.seen.events if event.kind.startswith("freeze.")} == {ACME}


@undelivered
@on_virtual_time
async def test_scopes_are_bounded(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for n in range(100):
            await freeze(f"topic=t{n}", reason="x", for_s=None, store=stage.inner)
        with pytest.raises(TooMany, match="freeze all"):
            await freeze("topic=one-more", reason="x", for_s=None, store=stage.inner)
        await freeze("topic=t7", reason="again", for_s=None, store=stage.inner)
