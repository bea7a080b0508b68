"""Results: what a run finds of the things it waits for, and of what others want of it, as they are kept.

Of a job only its id is kept, by the store: the job itself says how it ended.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, assert_never

import msgspec

from holdfast.core.job import Job
from holdfast.core.record import Record
from holdfast.core.run import RunState
from holdfast.core.run_words import (
    ApprovalDecided,
    AskApproval,
    CancelAsked,
    ChildRunEnded,
    Command,
    Happening,
    JobEnded,
    Notify,
    NotifySent,
    StartRun,
    SubmitJob,
    TurnCame,
)
from holdfast.core.states import State
from holdfast.errors import HoldfastError


class About(StrEnum):
    """What has ended, or is wanted: the `state` of a result's record."""

    JOB = "job"
    APPROVAL = "approval"
    RUN = "run"
    TURN = "turn"
    """The last run of its session that was ahead of it has ended."""
    CANCEL = "cancel"
    STOP = "stop"
    """Not for the run itself: jobs of its are to be stopped, by whoever finds this."""


class Decided(msgspec.Struct, frozen=True):
    """The body of the result that an approval leaves."""

    step: str
    decision: Literal["approved", "rejected", "expired"]
    detail: dict[str, Any]


class ChildResult(msgspec.Struct, frozen=True):
    """The body of the result that a run leaves for the run it is a part of."""

    step: str
    state: RunState
    output: msgspec.Raw
    error: dict[str, Any] | None


class TurnWord(msgspec.Struct, frozen=True):
    """The body of the result that a run leaves for the next one of its session."""

    generation: int


class CancelWish(msgspec.Struct, frozen=True):
    """The body of the result that a run leaves for one that is to stop: within it, or of its session."""

    by: str
    reason: str
    compensate: bool
    generation: int | None = None
    """Of the run that is to stop; None: whichever it is."""


class StopWish(msgspec.Struct, frozen=True):
    """The body of what a run leaves that wants many of its jobs stopped."""

    jobs: tuple[str, ...]
    reason: str


def job_ended(job: Job) -> JobEnded:
    return JobEnded(job.step, job.id, job.state, job.result, job.error)


def size_of(happening: Happening) -> int:
    """In bytes, of what a result brings along."""
    return len(happening.output or b"") if isinstance(happening, JobEnded | ChildRunEnded) else 0


def happening_of(record: Record, job: Job | None) -> Happening | None:
    """What a result says, with its job if it is about one; None where there is nothing left to say."""
    match About(record.state):
        case About.JOB:
            if job is None or not job.is_terminal:
                return None
            return job_ended(job)
        case About.APPROVAL:
            decided = msgspec.json.decode(record.body, type=Decided)
            return ApprovalDecided(decided.step, record.id, decided.decision, decided.detail)
        case About.RUN:
            ended = msgspec.json.decode(record.body, type=ChildResult)
            return ChildRunEnded(ended.step, record.id, ended.state, bytes(ended.output), ended.error)
        case About.TURN:
            return TurnCame(msgspec.json.decode(record.body, type=TurnWord).generation)
        case About.CANCEL:
            wish = msgspec.json.decode(record.body, type=CancelWish)
            return CancelAsked(wish.by, wish.reason, wish.compensate, wish.generation)
        case About.STOP:
            return None
        case never:
            assert_never(never)


def not_begun(command: Command, error: HoldfastError) -> list[Happening]:
    """What cannot even begin has ended: the step fails, the run goes on as its definition says."""
    why = {"code": error.code, "message": str(error)}
    match command:
        case SubmitJob():
            return [JobEnded(command.step, command.job, State.FAILED, None, why)]
        case AskApproval():
            return [ApprovalDecided(command.step, command.approval, "rejected", why)]
        case StartRun():
            return [ChildRunEnded(command.step, command.run, RunState.FAILED, None, why)]
        case Notify():
            return [NotifySent(command.step, command.post, why)]
        case _:
            raise error
