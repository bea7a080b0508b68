"""Fire: what the ticks of a schedule submit, and the schedule's next tick, once.

Jobs are stored in the transaction that moves the schedule on. A run is started first, under a key
that is the tick's own: whoever repeats it after a crash, or at the same time, gets the same run.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core.job import JobId
from holdfast.core.record import Kind
from holdfast.core.run import RUN_TERMINAL
from holdfast.core.schedule import Due, JobToSubmit, RunToStart, Schedule, schedule_record
from holdfast.core.states import Risk
from holdfast.errors import Invalid, KeyReused, NotFound, TooMany
from holdfast.flow.audit import Entry, transact
from holdfast.flow.runs import RunOrder, Started
from holdfast.flow.submit import Order, Submitter
from holdfast.ports import Note, RecordChange, Store, Submission, Transaction

LABEL = "schedule"
"""Of every job and run that a schedule has made: its name."""


class Starts(Protocol):
    async def start(self, order: RunOrder) -> Started: ...


class Fired(NamedTuple):
    schedule: Schedule
    made: tuple[str, ...]
    """Jobs or runs, in the order of their ticks."""
    error: str
    """Why there are none; empty if there are, or if no tick was to be obeyed."""


async def fire(
    schedule: Schedule, due: Due, *, store: Store, submitter: Submitter, runs: Starts, entry: Entry | None = None
) -> Fired | None:
    """Obey these ticks and move the schedule on. None, and nothing happened, if somebody else did, or changed it.

    Raises `TooMany` if the tenant may not have even one more now: then the ticks stay due. So do those that come
    after the last one it may have.
    """
    submissions: list[Submission] = []
    made: list[str] = []
    error = ""
    try:
        for n, tick in enumerate(due.ticks):
            try:
                if schedule.job is not None:
                    submissions.append(await submitter.admit(_job(schedule, schedule.job, tick)))
                    made.append(submissions[-1].job.id)
                elif schedule.run is not None:
                    made += await _start(_run(schedule, schedule.run, tick), runs)
            except TooMany:
                if n == 0:
                    raise
                due = Due(due.ticks[:n], skipped=False, next_at=tick)
                break
    except (Invalid, NotFound) as refused:
        # It will be refused at the next tick as well, until a person looks: that is what the event is for.
        await submitter.withdraw(submission.job for submission in submissions)
        submissions, made, error = [], [], f"{refused.code}: {refused}"
    after = replace(schedule, next_at=due.next_at, held=False)
    if due.ticks:
        after = replace(after, last_at=due.ticks[-1], last=made[-1] if made else "", last_error=error)
    transaction = Transaction(
        submissions=submissions,
        records=[RecordChange(after=schedule_record(after), replaces=schedule.version)],
        notes=[_told(schedule, due, made, error)],
    )
    written = await transact(transaction, store=store, entry=entry, made=made)
    if not written:
        await submitter.withdraw(submission.job for submission in submissions)
        return None
    return Fired(replace(after, version=after.version + 1), tuple(made), error)


async def _start(order: RunOrder, runs: Starts) -> list[str]:
    try:
        return [(await runs.start(order)).run.id]
    except KeyReused:
        # The tick was obeyed by the schedule as it was before somebody changed it.
        return []


async def last_lives(schedule: Schedule, *, store: Store) -> bool:
    """Whether what the last tick made has not ended."""
    if not schedule.last:
        return False
    if schedule.job is not None:
        [job] = await store.find_jobs([JobId(schedule.last)])
        return job is not None and not job.is_terminal
    [run] = await store.find_records(Kind.RUN, schedule.tenant, [schedule.last])
    return run is not None and run.state not in RUN_TERMINAL


def _told(schedule: Schedule, due: Due, made: list[str], error: str) -> Note:
    detail = {
        "schedule": schedule.name,
        "ticks": list(due.ticks),
        "jobs" if schedule.job is not None else "runs": made,
        "skipped": due.skipped,
        "next_at": due.next_at,
    }
    if error:
        return _note(schedule, {**detail, "error": error}, kind="schedule.failed")
    return (
        _note(schedule, detail, kind="schedule.fired")
        if due.ticks
        else _note(schedule, detail, kind="schedule.skipped")
    )


def _note(schedule: Schedule, detail: dict[str, Any], *, kind: str) -> Note:
    return Note(schedule.tenant, JobId(""), kind, detail)


def _key(schedule: Schedule, tick: float) -> str:
    # No caller's key begins with a control character, so none can stand in for this one.
    return f"\x1fschedule/{schedule.name}/{tick:.3f}"


def _job(schedule: Schedule, wanted: JobToSubmit, tick: float) -> Order:
    return Order(
        tenant=schedule.tenant,
        topic=wanted.topic,
        payload=msgspec.json.encode(wanted.payload),
        labels={**wanted.labels, LABEL: schedule.name},
        priority=wanted.priority,
        risk=None if wanted.risk is None else Risk(wanted.risk),
        max_attempts=wanted.max_attempts,
        timeout_s=wanted.timeout_s,
        session=wanted.session,
        actor=wanted.actor,
        key=_key(schedule, tick),
    )


def _run(schedule: Schedule, wanted: RunToStart, tick: float) -> RunOrder:
    return RunOrder(
        tenant=schedule.tenant,
        workflow=wanted.workflow,
        input=wanted.input,
        labels={**wanted.labels, LABEL: schedule.name},
        session=wanted.session,
        actor=wanted.actor,
        key=_key(schedule, tick),
    )
