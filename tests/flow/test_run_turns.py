"""Whose turn it is in a session where runs are run again, are within others, or have no more time."""

from __future__ import annotations

import asyncio
import math

from locks.virtual import VirtualRuntime, on_virtual_time

from flow.run_stage import chain, runs_staged
from flow.session_runs import CHAT, cancel, finish, join, states
from flow.stage import ACME
from flow.telling import undelivered
from holdfast.core.run import RunState
from holdfast.flow.record import End
from holdfast.flow.session import SessionPolicy
from holdfast.workflow_engine import AGAIN_S_MIN


@on_virtual_time
async def test_run_that_is_run_again_is_the_last_of_its_session(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2, timeout_s=3600))
        first = await join(staged)
        await staged.do(first.id, "s1")
        await staged.first.tick()
        await staged.do(first.id, "s2", End.FAILED, retryable=False)
        await staged.first.tick()
        assert await states(staged, first) == ["failed"]
        second = await join(staged)
        again = await staged.first.runs.rerun(ACME, first.id, step="s2", by="ann")
        assert (again.state, again.deadline) == (RunState.QUEUED, None)
        assert await staged.states(first.id) == {"s1": "succeeded", "s2": "ready"}

        await finish(staged, second)
        await staged.first.tick()
        again = await staged.run(first.id)
        assert (again.state, await staged.states(first.id)) == (RunState.RUNNING, {"s1": "succeeded", "s2": "running"})
        await staged.do(first.id, "s2")
        await staged.first.tick()
        assert (await join(staged)).state is RunState.RUNNING


@on_virtual_time
async def test_word_of_an_earlier_turn_does_not_begin_a_run_that_waits_anew(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second, third = [await join(staged) for _ in range(3)]
        await finish(staged, first)
        assert await staged.results() == 1  # the second one's turn has come, and nobody has told it
        await cancel(staged, second)
        await staged.first.runs.rerun(ACME, second.id, step="s1", by="ann")
        for _ in range(2):
            await staged.first.tick()

        assert await states(staged, second, third) == ["queued", "running"]
        await finish(staged, third)
        await staged.first.tick()
        assert await states(staged, second, third) == ["running", "succeeded"]


@undelivered
@on_virtual_time
async def test_newer_run_does_not_stop_one_that_is_run_again_behind_it(runtime: VirtualRuntime) -> None:
    """It told that one to stop, which has ended by itself and come again before it heard of it."""
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second = await join(staged), await join(staged)
        newer = await join(staged, SessionPolicy.INTERRUPT)
        await cancel(staged, second)
        await staged.first.runs.rerun(ACME, second.id, step="s1", by="ann")
        for _ in range(3):
            await staged.first.tick()

        assert await states(staged, first, second, newer) == ["cancelled", "queued", "running"]
        # One that comes now means the run as it is, and is heard.
        last = await join(staged, SessionPolicy.INTERRUPT)
        for _ in range(3):
            await staged.first.tick()
        assert await states(staged, newer, second, last) == ["cancelled", "cancelled", "running"]
        assert await staged.results() == 0


@on_virtual_time
async def test_run_within_a_run_does_not_wait_for_it(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        outer = {"name": "outer", "steps": [{"id": "inner", "kind": "workflow", "workflow": "two"}]}
        run = await staged.start(outer, session=CHAT)
        behind = await join(staged)
        inner = (await staged.steps(run.id))["inner"].ref
        assert (await staged.run(inner)).state is RunState.RUNNING

        async with staged.going():
            assert (await staged.wait_ended(behind.id, within_s=60)).state is RunState.SUCCEEDED
        assert await states(staged, run) == ["succeeded"]

        # Run again by itself, it is a run of the session like any other.
        last = await join(staged)
        assert (await staged.first.runs.rerun(ACME, inner, step="s1", by="ann")).state is RunState.QUEUED
        await finish(staged, last)
        await staged.first.tick()
        assert (await staged.run(inner)).state is RunState.RUNNING


@on_virtual_time
async def test_time_of_a_run_counts_from_its_turn_on(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2, timeout_s=10))
        await staged.apply(chain("slow", 2))
        first = (await staged.order("slow", session=CHAT)).run
        second, third = await join(staged), await join(staged)
        assert second.deadline is None
        await asyncio.sleep(30)
        await finish(staged, first)
        await staged.first.tick()
        begun = await staged.run(second.id)
        assert (begun.state, begun.deadline) == (RunState.RUNNING, begun.since + 10)
        # Nobody works: the time of the second one passes, and then it is the third one's turn.
        for service in (staged.first.engine, staged.first.reconciler):
            service.start()
        assert (await staged.wait_ended(second.id, within_s=60)).state is RunState.TIMEOUT
        assert (await staged.wait_ended(third.id, within_s=60)).state is RunState.TIMEOUT
        await staged.first.reconciler.stop()


@on_virtual_time
async def test_run_that_needs_nobody_waits_for_its_turn_and_leaves_no_seat(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        at_once = {"name": "at-once", "steps": [{"id": "t", "kind": "transform", "value": 1}]}
        alone = await staged.start(at_once, session=CHAT)
        assert alone.state is RunState.SUCCEEDED
        first = await join(staged)
        assert first.state is RunState.RUNNING
        behind = (await staged.order("at-once", session=CHAT)).run
        last = await join(staged)
        assert (behind.state, last.state) == (RunState.QUEUED, RunState.QUEUED)
        await finish(staged, first)
        for _ in range(2):
            await staged.first.tick()
        assert await states(staged, behind, last) == ["succeeded", "running"]


@undelivered
@on_virtual_time
async def test_key_that_repeats_a_request_gives_the_run_that_waits(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        await join(staged)
        first = await staged.order("two", session=CHAT, key="k")
        again = await staged.order("two", session=CHAT, key="k")
        assert (again.run.id, again.repeated, again.run.state) == (first.run.id, True, RunState.QUEUED)


@undelivered
@on_virtual_time
async def test_sessions_of_others_do_not_make_a_run_wait(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        await join(staged)
        assert (await staged.order("two", session="chat-2")).run.state is RunState.RUNNING
        assert (await staged.order("two")).run.state is RunState.RUNNING


@undelivered
@on_virtual_time
async def test_engine_that_leaves_a_run_alone_lets_time_pass_before_it_looks_again(runtime: VirtualRuntime) -> None:
    """However little is left of the wait: less than the loop's clock can add to itself would never be over."""
    async with runs_staged(runtime) as staged:
        engine = staged.first.engine
        engine._busy_until["r"] = math.nextafter(runtime.now(), math.inf)
        await engine.tick()
        assert engine._again is not None
        assert engine._again.when() >= runtime.loop.time() + AGAIN_S_MIN / 2
