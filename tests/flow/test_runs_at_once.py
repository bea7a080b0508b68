"""Runs that go on in the commit that ends a job, and whose next job is handed out in it: in one piece, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.run_stage import RunStage, chain, fan_in, runs_staged
from holdfast.core.decision import Decision, Throttle
from holdfast.core.job import Job
from holdfast.core.placement import WorkerView
from holdfast.core.run import Run, RunState
from holdfast.core.states import Event, State
from holdfast.errors import Invalid, StoreUnavailable
from holdfast.flow.record import End, Outcome, record
from holdfast.gateway.claims import Claim
from holdfast.ports import Transaction


@asynccontextmanager
async def waiting(staged: RunStage, *, slots: int = 16) -> AsyncIterator[Claim]:
    """A worker that waits for jobs, while nobody else's are there."""
    stage = staged.stage
    stage.hello("w1", slots=slots)
    await stage.scheduler.tick()
    with stage.claims.serving("w1") as claim, claim.open_for(4):
        yield claim


async def handed(staged: RunStage, document: dict[str, Any]) -> tuple[Run, Job]:
    """A run, and the job of its first step as a worker was handed it."""
    async with waiting(staged) as claim:
        run = await staged.start(document)
        [job] = await claim.take_handed()
    return run, job


@on_virtual_time
async def test_a_step_of_a_chain_is_one_write(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run, job = await handed(staged, chain("two", 2))
        assert (job.state, job.step, job.attempts) == (State.RUNNING, "s1", 1)

        async with waiting(staged) as claim:
            staged.stage.store.calls.clear()
            await staged.stage.complete(job, advancer=staged.first.advancer)
            [second] = await claim.take_handed()
        assert staged.stage.store.calls.get("apply", 0) + staged.stage.store.calls["transact"] == 1
        assert (second.state, second.step) == (State.RUNNING, "s2")
        assert await staged.results() == 0

        await staged.stage.complete(second, advancer=staged.first.advancer)
        assert (await staged.run(run.id)).state is RunState.SUCCEEDED
        kinds = [event.kind for event in await staged.timeline(run.id)]
        assert kinds.index("job.succeeded") < len(kinds) - 1 - kinds[::-1].index("job.submitted")


@on_virtual_time
async def test_without_the_lock_at_hand_the_end_is_left_for_whoever_has_it(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run, job = await handed(staged, chain("two", 2))
        await asyncio.sleep(1)  # given back by now
        _, other = await staged.another("E2")
        async with other.locks.hold(run.id):
            await staged.stage.complete(job, advancer=staged.first.advancer)

            assert (await staged.stage.job(job.id)).state is State.SUCCEEDED
            assert await staged.results() == 1
        await other.tick()
        assert (await staged.states(run.id))["s2"] == "running"


@on_virtual_time
async def test_an_end_that_a_run_does_not_wait_for_is_written_all_the_same(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run, job = await handed(staged, chain("two", 2))
        await staged.first.runs.cancel(run.tenant, run.id, by="ann", reason="", compensate=False)
        assert (await staged.stage.job(job.id)).cancel_requested
        await staged.stage.complete(job, End.CANCELLED, advancer=staged.first.advancer)
        assert (await staged.run(run.id)).state is RunState.CANCELLED

        # Said once more, and of a job whose step has moved on.
        standing = await staged.stage.complete(job, End.CANCELLED, advancer=staged.first.advancer)
        assert standing.code == "ok"


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
@on_virtual_time
async def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_happens_twice(
    runtime: VirtualRuntime, fault: Fault
) -> None:
    async with runs_staged(runtime) as staged:
        run, job = await handed(staged, chain("two", 2))
        async with waiting(staged) as claim:
            staged.stage.store.fault("transact", fault, times=1)
            with pytest.raises(StoreUnavailable):
                await staged.stage.complete(job, advancer=staged.first.advancer)
            with pytest.raises(StoreUnavailable):  # the worker hears that something may have been started for it
                await claim.take_handed()
        was_written = fault is Fault.LOSE_REPLY
        assert ((await staged.stage.job(job.id)).state is State.SUCCEEDED) is was_written

        assert (await staged.stage.complete(job, advancer=staged.first.advancer)).code == "ok"
        await staged.first.tick()
        assert [event.kind for event in await staged.timeline(run.id)].count("step.succeeded") == 1
        assert set(await staged.steps(run.id)) == {"s1", "s2"}


@on_virtual_time
async def test_a_job_that_moved_meanwhile_does_not_lose_its_end(runtime: VirtualRuntime) -> None:
    """A renewal in between makes another version of it: neither the job nor its run misses the end."""
    async with runs_staged(runtime) as staged:
        run, job = await handed(staged, chain("two", 2))
        rule = staged.stage.store.pause("transact", kind="job.succeeded")
        ending = asyncio.create_task(staged.stage.complete(job, advancer=staged.first.advancer))
        await rule.reached.wait()
        await staged.stage.renew(job)
        rule.open()

        assert (await ending).code == "ok"
        assert (await staged.stage.job(job.id)).state is State.SUCCEEDED
        # In the second try as in the first: nothing is left for the engine.
        assert (await staged.states(run.id)) == {"s1": "succeeded", "s2": "running"}
        assert await staged.results() == 0


@on_virtual_time
async def test_two_that_end_a_fan_in_at_once_advance_it_once(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        async with waiting(staged) as claim:
            run = await staged.start(fan_in("join", 2))
            jobs = await claim.take_handed()
        await asyncio.gather(*(staged.stage.complete(job, advancer=staged.first.advancer) for job in jobs))
        await staged.first.tick()

        assert await staged.results() == 0
        assert (await staged.states(run.id))["last"] == "running"
        started = [event for event in await staged.timeline(run.id) if event.kind == "step.started"]
        assert [event.detail["step"] for event in started].count("last") == 1


@on_virtual_time
async def test_of_a_wide_step_as_many_are_given_as_there_is_room_for_with_one_look(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs_staged(runtime) as staged:
        stage, looks = staged.stage, 0
        views = stage.registry.candidates_for

        def candidates_for(jobs: Collection[Job], **asked: Any) -> list[WorkerView]:
            nonlocal looks
            looks += 1
            return views(jobs, **asked)

        sides: list[dict[str, Any]] = [{"id": f"a{n}", "kind": "job", "topic": "work"} for n in range(30)]
        document = {"name": "wide", "steps": [*sides, {"id": "b", "kind": "job", "topic": "rare"}]}
        for worker, topic in (("w1", "work"), ("w2", "rare")):
            stage.hello(worker, slots=4, topics=[topic])
        await stage.scheduler.tick()
        monkeypatch.setattr(stage.registry, "candidates_for", candidates_for)
        with stage.claims.serving("w1") as work, work.open_for(2), stage.claims.serving("w2") as rare, rare.open_for(1):
            run = await staged.start(document)
            handed = [len(await claim.take_handed()) for claim in (work, rare)]

        assert handed == [2, 1], "as many as were asked for"
        states = Counter([(await staged.job_of(run.id, step["id"])).state for step in sides])
        assert states == {State.RUNNING: 2, State.DISPATCHED: 2, State.SCHEDULED: 26}
        assert looks == 1


class Sparing:
    """A policy under which jobs of topic `work` have a limit in common."""

    version = 1
    hash = ""

    def decide(self, job: Job) -> Decision:
        return Decision(Event.ALLOW, version=1, rule="slow", throttle=Throttle(key="slow", concurrency=2))


@pytest.mark.parametrize("who", ["somebody waits", "a session", "a limit", "no room"])
@on_virtual_time
async def test_nobody_is_given_a_worker_past_others_or_past_a_limit(runtime: VirtualRuntime, who: str) -> None:
    options: dict[str, Any] = {"policy": Sparing()} if who == "a limit" else {}
    async with runs_staged(runtime, **options) as staged:
        async with waiting(staged, slots=1) as claim:
            if who == "no room":
                staged.stage.registry.took("w1", "another")
            if who == "somebody waits":
                first = await staged.stage.submit("work")
                staged.stage.scheduler.heard(await staged.stage.inner.list_events(after=0, limit=10))
            order = {"session": "s"} if who == "a session" else {}
            run = await staged.start(chain("one", 1), **order)
            assert await claim.take_handed() == []
        assert (await staged.job_of(run.id, "s1")).state is State.SCHEDULED
        if who == "somebody waits":
            assert (await staged.stage.job(first.id)).state is State.SCHEDULED


@on_virtual_time
async def test_what_one_run_cannot_store_fails_neither_the_end_of_its_job_nor_another_run(
    runtime: VirtualRuntime,
) -> None:
    async with runs_staged(runtime) as staged:
        stage = staged.stage
        cursed, first = await handed(staged, chain("two", 2))
        sound, second = await handed(staged, chain("another", 2))
        transact = stage.store.transact

        async def transact_storable(transactions: Sequence[Transaction]) -> list[bool]:
            orders = [submission.job for one in transactions for submission in one.submissions]
            if any(job.run == cursed.id for job in orders):
                raise Invalid("this cannot be stored: UnicodeEncodeError")
            return list(await transact(transactions))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(stage.store, "transact", transact_storable)
            async with waiting(staged) as claim:
                standings = await record(
                    [Outcome(job.id, job.fence, End.SUCCEEDED, b"null") for job in (first, second)],
                    store=stage.typed_store,
                    topics=stage.topics,
                    telemetry=stage.telemetry,
                    runtime=stage.runtime,
                    advancer=staged.first.advancer,
                )
                handed_over = [job.run for job in await claim.take_handed()]

        assert [standing.code for standing in standings] == ["ok", "ok"]
        assert [(await stage.job(job.id)).state for job in (first, second)] == [State.SUCCEEDED] * 2
        assert handed_over == [sound.id]
        assert await staged.states(sound.id) == {"s1": "succeeded", "s2": "running"}
        # It comes round again, and goes on as soon as it can.
        await staged.first.tick()
        assert await staged.states(cursed.id) == {"s1": "succeeded", "s2": "running"}
