"""Runs within runs: what each tells the other, and what it does not any more."""

from __future__ import annotations

from typing import Any

import msgspec
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.run_stage import RunStage, chain, runs_staged
from flow.stage import ACME
from flow.telling import undelivered
from flow.test_runs_controlled import cancelled
from holdfast.core.run import Run, RunState
from holdfast.flow.record import End

PARENT = {
    "name": "parent",
    "output": "${steps.inner.output}",
    "steps": [{"id": "inner", "kind": "workflow", "workflow": "child", "input": {"n": 3}}],
}
CHILD: dict[str, Any] = {**chain("child", 1), "output": {"got": "${steps.s1.output}"}}


@on_virtual_time
async def test_a_run_within_a_run_tells_it_how_it_ended(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(CHILD)
        run = await staged.start(PARENT)
        child = await staged.run((await staged.steps(run.id))["inner"].ref)
        assert (child.parent_run, child.parent_step) == (run.id, "inner")
        assert msgspec.json.decode(child.input) == {"n": 3}
        await staged.do(child.id, "s1", result=b"42")
        await staged.first.tick()
        await staged.first.tick()

        ended = await staged.run(run.id)
        assert ended.state is RunState.SUCCEEDED
        assert msgspec.json.decode(ended.output) == {"got": 42}
        assert await staged.results() == 0


@undelivered
@on_virtual_time
async def test_cancelling_a_run_cancels_the_run_within_it(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(CHILD)
        run = await staged.start(PARENT)
        child_id = (await staged.steps(run.id))["inner"].ref
        await cancelled(staged, run)
        async with staged.going(workers=0):
            ended = await staged.wait_ended(run.id, within_s=30)

        assert ended.state is RunState.CANCELLED
        assert (await staged.run(child_id)).state is RunState.CANCELLED


async def failed_child_run_again(staged: RunStage) -> tuple[Run, Run]:
    """A run, and the run within it that has failed and was run again before the outer one has heard of that."""
    await staged.apply({**CHILD, "steps": [{**CHILD["steps"][0], "max_attempts": 1}]})
    run = await staged.start(PARENT)
    child_id = (await staged.steps(run.id))["inner"].ref
    await staged.do(child_id, "s1", End.FAILED, error={"code": "boom", "message": "it broke"})
    await staged.first.tick()
    assert (await staged.run(child_id)).state is RunState.FAILED
    assert (await staged.run(run.id)).state is RunState.RUNNING
    return run, await staged.first.runs.rerun(ACME, child_id, step="s1", by="ann")


@on_virtual_time
async def test_cancelling_a_run_leaves_the_run_within_it_alone_that_was_run_again(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run, child = await failed_child_run_again(staged)
        await cancelled(staged, run)
        async with staged.going(workers=0):
            ended = await staged.wait_ended(run.id, within_s=30)

        assert ended.state is RunState.CANCELLED
        assert (await staged.run(child.id)).state is RunState.RUNNING
        assert await staged.results() == 0


@on_virtual_time
async def test_a_run_within_a_run_that_is_run_again_is_on_its_own(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run, child = await failed_child_run_again(staged)
        await staged.do(child.id, "s1", result=b"42")
        await staged.first.tick()

        # Nobody has to hear of its second end, so nobody keeps it from ending.
        assert (await staged.run(child.id)).state is RunState.SUCCEEDED
        assert (await staged.run(run.id)).state is RunState.FAILED
        assert await staged.results() == 0


@undelivered
@on_virtual_time
async def test_a_workflow_that_is_not_there_fails_the_step(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(PARENT)
        assert run.state is RunState.FAILED
        failed = (await staged.steps(run.id))["inner"]
        assert failed.error is not None
        assert failed.error["code"] == "not-found"
