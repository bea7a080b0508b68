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
