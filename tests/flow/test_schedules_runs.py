"""The failure schedules of runs (55 to 57), step by step, with what each threatens.

W1: a step's end is recorded once, and it begins only after all that it waits for has ended. W2: the
fence under which a run is written never falls. W3: a run that is half done goes on by the definition
it began with. E1 and E2 are engines of two processes on one store.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.run_stage import RunStage, chain, fan_in, runs_staged
from flow.stage import ACME
from holdfast.core.run import Run, RunState
from holdfast.core.run_words import JobEnded
from holdfast.core.states import State
from holdfast.flow.advance import Turn, TurnEnd
from holdfast.flow.kept_locks import IDLE_S, RUN
from holdfast.ports import JobEvent

ENDS = ("step.succeeded", "step.failed", "step.skipped", "step.cancelled")


async def check_run(staged: RunStage, run_id: str, waits_for: dict[str, Sequence[str]]) -> Run:
    """What is true of every run at its end, by its timeline."""
    events = await staged.timeline(run_id)
    own = [event for event in events if not event.job_id and event.kind.split(".")[0] in {"run", "step"}]
    ended = Counter(event.detail["step"] for event in own if event.kind in ENDS)
    assert set(ended.values()) <= {1}, f"W1: {ended} ended more than once"
    for step, before in waits_for.items():
        begun_at = first(own, "step.started", step)
        assert all(first(own, "step.succeeded", other) < begun_at for other in before), f"W1: {step} was too early"
    fences = [event.detail["fence"] for event in own]
    assert fences == sorted(fences), "W2: the fence fell"
    jobs = Counter(event.job_id for event in events if event.kind == "job.submitted")
    assert set(jobs.values()) == {1}
    assert await staged.results() == 0, "a result was left behind"
    return await staged.run(run_id)


def first(events: Sequence[JobEvent], kind: str, step: str) -> int:
    return next(event.number for event in events if event.kind == kind and event.detail["step"] == step)


@on_virtual_time
async def test_schedule_55_the_last_two_children_of_a_fan_in_end_at_two_engines_at_once(
    runtime: VirtualRuntime,
) -> None:
    """With locks that exclude nobody: even then only one of them begins the step behind the join."""
    async with runs_staged(runtime) as staged:
        run = await staged.start(fan_in("join", 2))
        _, e2 = await staged.another("E2", lock_url="sqlite:///:memory:elsewhere")
        await staged.do(run.id, "a1")
        await staged.do(run.id, "a2")
        at_the_door = staged.stage.store.pause("transact")
        e1_ticks = asyncio.create_task(staged.first.tick())
        await at_the_door.reached.wait()
        await e2.tick()
        at_the_door.open()
        await e1_ticks

        steps = await staged.steps(run.id)
        assert steps["last"].state == "running"
        assert steps["last"].attempt == 1
        assert staged.first.counted("run_writes_refused", reason="moved-on") == 1
        await staged.do(run.id, "last")
        await e2.tick()
        ended = await check_run(staged, run.id, {"last": ["a1", "a2"]})
        assert ended.state is RunState.SUCCEEDED


@on_virtual_time
async def test_schedule_55_results_that_meet_a_busy_run_lock_wait_for_its_release(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(fan_in("join", 2))
        other, _ = await staged.another("E2")
        lease = await other.locks.acquire(RUN, run.id)
        await staged.do(run.id, "a1")
        await staged.do(run.id, "a2")
        await staged.first.tick()
        assert await staged.results() == 2
        assert (await staged.run(run.id)).version == 1

        await other.locks.release(lease)
        await asyncio.sleep(1.0)
        await staged.first.tick()
        assert await staged.results() == 0
        # Both were taken in one advance.
        assert (await staged.run(run.id)).version == 2
        await staged.do(run.id, "last")
        await staged.first.tick()
        assert (await check_run(staged, run.id, {"last": ["a1", "a2"]})).state is RunState.SUCCEEDED


@pytest.mark.parametrize("policy", ["fence", "continue"])
@on_virtual_time
async def test_schedule_56_an_engine_that_lost_the_run_lock_in_mid_advance_writes_nothing(
    runtime: VirtualRuntime, policy: Literal["fence", "continue"]
) -> None:
    async with runs_staged(runtime) as staged:
        staged.stage.locks.override(RUN.name, reason="both policies", on_renewal_failure=policy)
        run = await staged.start(chain("two", 2))
        other, e2 = await staged.another("E2")
        await staged.do(run.id, "s1")
        paused = staged.stage.store.pause("transact")
        e1_ticks = asyncio.create_task(staged.first.tick())
        await paused.reached.wait()
        held = await other.locks.inspect(RUN, run.id)
        assert held is not None
        # E1 stands still for longer than its lease; E2 takes over, and finishes the step.
        assert await other.locks.evict(RUN, run.id, fence=held.fence, reason="as if it had expired")
        await e2.tick()
        taken_over = await staged.run(run.id)
        assert taken_over.fence > held.fence
        paused.open()
        await e1_ticks

        assert (await staged.run(run.id)).version == taken_over.version
        assert staged.first.counted("run_writes_refused", reason="moved-on") == 1
        await staged.do(run.id, "s2")
        await e2.tick()
        assert (await check_run(staged, run.id, {"s2": ["s1"]})).state is RunState.SUCCEEDED


@on_virtual_time
async def test_schedule_56_a_lower_fence_is_refused_even_on_the_newest_version(runtime: VirtualRuntime) -> None:
    """Under `continue` an engine goes on with a lock that may be lost. The run's fence tells it."""
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("three", 3))
        staged.stage.locks.override(RUN.name, reason="as configured", on_renewal_failure="continue")
        await staged.do(run.id, "s1")
        await staged.first.tick()
        _, e2 = await staged.another("E2", lock_url="sqlite:///:memory:elsewhere")
        await staged.do(run.id, "s2")
        await asyncio.sleep(IDLE_S / 5)
        await e2.engine.tick()
        newest = await staged.run(run.id)
        await staged.do(run.id, "s3")
        ended = JobEnded("s2", (await staged.steps(run.id))["s2"].ref, State.SUCCEEDED)
        # E1 still has the lease that E2 knows nothing of: what it remembers of the run is old, and what it reads is not its own.
        for reason, end in (("moved-on", TurnEnd.LEFT), ("stale-fence", TurnEnd.DEFERRED)):
            assert await staged.first.advancer.advance([Turn(ACME, run.id, [ended])]) == [end]
            assert staged.first.counted("run_writes_refused", reason=reason) == 1
        assert (await staged.run(run.id)).version == newest.version
        await asyncio.sleep(1.0)
        await staged.first.tick()
        assert (await check_run(staged, run.id, {"s3": ["s2"], "s2": ["s1"]})).state is RunState.SUCCEEDED


@on_virtual_time
async def test_schedule_57_a_run_keeps_its_revision_when_the_definition_changes(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        old = await staged.start(chain("flow", 2))
        await staged.do(old.id, "s1")
        changed = {"name": "flow", "steps": [{"id": "other", "kind": "job", "topic": "work"}]}
        assert await staged.apply(changed) == 2
        # An engine that has never seen the first revision goes on with it all the same.
        _, upgraded = await staged.another("E2")
        await upgraded.tick()
        assert await staged.states(old.id) == {"s1": "succeeded", "s2": "running"}
        new = (await staged.order("flow")).run
        assert await staged.states(new.id) == {"other": "running"}
        for run_id, step in ((old.id, "s2"), (new.id, "other")):
            await staged.do(run_id, step)
        await upgraded.tick()

        assert (await check_run(staged, old.id, {"s2": ["s1"]})).revision == 1
        assert (await check_run(staged, new.id, {})).revision == 2
