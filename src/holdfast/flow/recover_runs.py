"""Recover runs: carry out what `core.run_recovery` says about runs of which nothing was heard for long.

Results are never lost between a job and its run: both are one transaction. This is for what no
transaction covers, such as a store that was restored from a backup, and for deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.approval import Approval, ApprovalState
from holdfast.core.approval import from_record as approval_of
from holdfast.core.job import JobId
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run, Step, run_of, step_of
from holdfast.core.run_recovery import RunRemedy, lost, recover_run, recover_step
from holdfast.core.run_words import ApprovalDecided, ChildRunEnded, Happening, JobEnded, NotifySent, TimerDue, TurnCame
from holdfast.flow.advance import Advancer, Turn, TurnEnd
from holdfast.flow.run_session import may_begin
from holdfast.ports import Store
from holdfast.telemetry import Telemetry

PAGE = 100
"""Steps. Each may have an output of a megabyte."""


class Missed(NamedTuple):
    """What a run is to be told."""

    run: Run
    turn: Turn
    reason: str
    """Empty: it was only looked at. That nothing was missed is no recovery."""


async def find_missed(record: Record, *, store: Store) -> Missed | None:
    """Look at a run whose time has come. None: there is nothing to be done about it."""
    run, now = run_of(record), store.now()
    action = recover_run(run, now=now)
    if action.remedy is RunRemedy.NOTHING:
        return None
    missed: list[Happening] = []
    if action.remedy is RunRemedy.LOOK:
        missed = await _ask_steps(run, now=now, store=store)
    elif action.remedy is RunRemedy.TAKE_TURN and await may_begin(run, store=store):
        missed = [TurnCame(run.generation)]
    reason = action.reason if missed or action.remedy is RunRemedy.FIRE else ""
    return Missed(run, Turn(run.tenant, run.id, [*missed, TimerDue()]), reason)


async def tell_missed(found: Sequence[Missed], *, advancer: Advancer, telemetry: Telemetry) -> list[TurnEnd]:
    """Tell each run what it has missed. A second reconciler tells it nothing new."""
    ends = await advancer.advance([missed.turn for missed in found]) if found else []
    for missed, end in zip(found, ends, strict=True):
        if missed.reason and end is TurnEnd.WRITTEN:
            telemetry.run_recovered(missed.run, reason=missed.reason)
    return ends


async def _ask_steps(run: Run, *, now: float, store: Store) -> list[Happening]:
    missed: list[Happening] = []
    after = ""
    while True:
        page = await store.list_records(Kind.STEP, run.tenant, parent=run.id, after=after, limit=PAGE)
        for step in map(step_of, page):
            match recover_step(step, now=now).remedy:
                case RunRemedy.FIRE:
                    missed.append(TimerDue(step.name))
                case RunRemedy.ASK:
                    ended = await _ask(step, store)
                    missed += [] if ended is None else [ended]
                case _:
                    pass
        if len(page) < PAGE:
            return missed
        after = page[-1].id
        await asyncio.sleep(0)  # a store that answers at once would not let anybody else have a turn


async def _ask(step: Step, store: Store) -> Happening | None:
    """How that which the step waits for has ended; None: it has not."""
    if step.kind == "job":
        [job] = await store.find_jobs([JobId(step.ref)])
        if job is None:
            return lost(step)
        return JobEnded(step.name, job.id, job.state, job.result, job.error) if job.is_terminal else None
    kind = {"workflow": Kind.RUN, "approval": Kind.APPROVAL, "notify": Kind.POST}[step.kind]
    [record] = await store.find_records(kind, step.tenant, [step.ref])
    if record is None:
        return lost(step)
    match kind:
        case Kind.RUN:
            child = run_of(record)
            if not child.is_terminal:
                return None
            return ChildRunEnded(step.name, child.id, child.state, bytes(child.output), child.error)
        case Kind.APPROVAL:
            return _decided(step, approval_of(record))
        case _:
            return NotifySent(step.name, step.ref)


def _decided(step: Step, approval: Approval) -> Happening | None:
    detail = {} if approval.verdict is None else {"by": approval.verdict.by, "comment": approval.verdict.comment}
    match approval.state:
        case ApprovalState.PENDING:
            return None
        case ApprovalState.APPROVED | ApprovalState.CONSUMED:
            return ApprovalDecided(step.name, approval.id, "approved", {**detail, "response": approval.response})
        case ApprovalState.REJECTED:
            return ApprovalDecided(step.name, approval.id, "rejected", detail)
        case ApprovalState.EXPIRED | ApprovalState.SUPERSEDED:
            return ApprovalDecided(step.name, approval.id, "expired", detail)
