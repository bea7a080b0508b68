"""Runs of one session, for stories about whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flow.run_stage import RunStage
from flow.stage import ACME
from holdfast.core.run import Run
from holdfast.flow.session import SessionPolicy

CHAT = "chat-1"


async def join(staged: RunStage, policy: SessionPolicy = SessionPolicy.ENQUEUE, **more: Any) -> Run:
    return (await staged.order("two", session=CHAT, session_policy=policy, **more)).run


async def states(staged: RunStage, *runs: Run) -> list[str]:
    return [(await staged.run(run.id)).state.value for run in runs]


async def finish(staged: RunStage, run: Run) -> None:
    """Both steps of a run succeed; nobody else hears of it yet."""
    for step in ("s1", "s2"):
        await staged.do(run.id, step)
        await staged.first.tick()


async def cancel(staged: RunStage, run: Run) -> Run:
    return await staged.first.runs.cancel(ACME, run.id, by="ann", reason="", compensate=False)


async def check_in_turn(staged: RunStage, runs: Sequence[Run]) -> None:
    """S3: from the first event of a step to the end of its run, no other run of the session has an event of a step."""
    at_work = ""
    ended: list[str] = []
    for event in await staged.stage.inner.list_events(after=0, limit=100_000):
        if event.run not in {run.id for run in runs}:
            continue
        if event.kind.startswith("step.") and event.kind != "step.cancelled":
            at_work = at_work or event.run
            assert at_work == event.run, f"{event.run} has begun beside {at_work}"
        elif event.kind in ("run.succeeded", "run.failed", "run.cancelled", "run.timeout"):
            ended.append(event.run)
            at_work = "" if at_work == event.run else at_work
    assert sorted(ended) == sorted(run.id for run in runs)
