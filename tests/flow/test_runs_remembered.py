"""What an engine remembers of a run may be old, where its lock was lost unnoticed. No result is lost by it."""

from __future__ import annotations

import asyncio
from typing import Any

from locks.virtual import VirtualRuntime, on_virtual_time

from flow.run_stage import runs_staged
from holdfast.core.run import RunState
from holdfast.flow.kept_locks import IDLE_S


def _job(name: str, *after: str) -> dict[str, Any]:
    return {"id": name, "kind": "job", "topic": "work", "depends_on": list(after)}


@on_virtual_time
async def test_result_is_not_thrown_away_by_what_is_remembered(runtime: VirtualRuntime) -> None:
    """E1 reads ahead, and remembers that the last step has not been reached; E2 reaches it, with locks of its own."""
    between = {"id": "between", "kind": "transform", "value": 1, "depends_on": ["first"]}
    steps = [_job("first"), between, _job("second", "between"), _job("last", "second")]
    async with runs_staged(runtime) as staged:
        run = await staged.start({"name": "ahead", "steps": steps})
        _, e2 = await staged.another("E2", lock_url="sqlite:///:memory:elsewhere")
        await staged.do(run.id, "first")
        await staged.first.engine.tick()
        await staged.do(run.id, "second")
        await asyncio.sleep(IDLE_S / 5)  # E1 keeps its lock meanwhile; the fence of E2 is higher
        await e2.engine.tick()
        await staged.do(run.id, "last")

        await staged.first.engine.tick()

        assert await staged.results() == 1
        await e2.tick()
        assert (await staged.run(run.id)).state is RunState.SUCCEEDED
