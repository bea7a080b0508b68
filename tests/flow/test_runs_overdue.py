"""Runs whose time has come, beside others that cannot be helped: nobody is kept from his deadline by those."""

from __future__ import annotations

import asyncio

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.run_stage import RunStage, runs_staged
from flow.stage import ACME
from flow.telling import undelivered
from holdfast import workflow_engine
from holdfast.core.record import Kind, Record
from holdfast.core.run import RunState
from holdfast.core.run_result import About
from holdfast.ports import RecordChange, Transaction


async def leave_unreadable(staged: RunStage, count: int) -> None:
    """Runs that are overdue for long, and were written by something newer, say."""
    for n in range(count):
        record = Record(kind=Kind.RUN, tenant=ACME, id=f"x{n}", created_at=0.0, due=float(n), body=b"{}")
        change = Transaction(records=[RecordChange(after=record, replaces=0)])
        assert await staged.stage.inner.transact([change]) == [True]


@pytest.mark.parametrize("unreadable", [1, 7])
@undelivered
@on_virtual_time
async def test_runs_that_cannot_be_helped_keep_no_other_from_its_deadline(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch, unreadable: int
) -> None:
    monkeypatch.setattr(workflow_engine, "BATCH", 2)
    async with runs_staged(runtime) as staged:
        await leave_unreadable(staged, unreadable)
        # A job would have the deadline of its run, and tell it.
        delay = {"id": "long", "kind": "delay", "seconds": 3600}
        run = await staged.start({"name": "late", "timeout_s": 60, "steps": [delay]})
        async with staged.going(workers=0):
            await asyncio.sleep(70)

        assert (await staged.run(run.id)).state is RunState.TIMEOUT


async def leave_unreadable_results(staged: RunStage, count: int) -> list[str]:
    """Results that are due for long, and that nobody here can make out. Their ids."""
    states = [About.APPROVAL, About.RUN, About.TURN, About.CANCEL, About.STOP, "of something newer"]
    ids = [f"x{n}" for n in range(count)]
    for n, name in enumerate(ids):
        state = states[n % len(states)]
        record = Record(
            kind=Kind.RESULT, tenant=ACME, id=name, parent="r-x", state=state, created_at=0.0, due=float(n), body=b"{}"
        )
        change = Transaction(records=[RecordChange(after=record, replaces=0)])
        assert await staged.stage.inner.transact([change]) == [True]
    return ids


@pytest.mark.parametrize("unreadable", [1, 12])
@undelivered
@on_virtual_time
async def test_results_that_cannot_be_read_keep_no_run_waiting_and_are_kept(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unreadable: int
) -> None:
    monkeypatch.setattr(workflow_engine, "LOOK_MAX", 2)
    async with runs_staged(runtime) as staged:
        left = await leave_unreadable_results(staged, unreadable)
        delay = {"id": "soon", "kind": "delay", "seconds": 2}
        await staged.apply({"name": "inner", "steps": [delay]})
        within = {"id": "within", "kind": "workflow", "workflow": "inner", "depends_on": ["soon"]}
        run = await staged.start({"name": "outer", "steps": [delay, within]})
        async with staged.going(workers=0):
            ended = await staged.wait_ended(run.id, within_s=15)

        assert ended.state is RunState.SUCCEEDED
        due = await staged.stage.inner.list_due(Kind.RESULT, limit=100)
        assert sorted(record.id for record in due) == sorted(left)
        told = {record.__dict__["record"] for record in caplog.records if record.message == "loop.record_failed"}
        assert told == set(left)


@undelivered
@on_virtual_time
async def test_run_that_cannot_be_helped_is_told_of_now_and_then(
    runtime: VirtualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs_staged(runtime) as staged:
        await leave_unreadable(staged, 1)
        async with staged.going(workers=0):
            await asyncio.sleep(60)

        told = [record for record in caplog.records if record.message == "loop.record_failed"]
        assert 5 <= len(told) <= 7
