"""Recovery of runs: from a run or a step and the time to what must be done about it. Total, like `core.recovery`.

Nothing here repairs anything by itself. What a run missed is told to it again, through `advance`, which
knows an echo for one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, assert_never

from holdfast.core.run import LOOK_S, Run, RunState, Step, StepState
from holdfast.core.run_words import ApprovalDecided, ChildRunEnded, JobEnded, NotifySent
from holdfast.core.states import State


class RunRemedy(StrEnum):
    NOTHING = "nothing"
    FIRE = "fire"
    """Tell the run `TimerDue`: of the step, or its own."""
    GO_ON = "go_on"
    """Tell the run `TimerDue`: it is held up by a limit, and there may be room by now."""
    TAKE_TURN = "take_turn"
    """Look into its session: if nobody is ahead of it any more, tell the run `TurnCame`."""
    LOOK = "look"
    """Apply `recover_step` to each of its steps that has not ended, then tell it `TimerDue`."""
    ASK = "ask"
    """Look up what the step waits for. If it has ended, tell the run so; if it is not there, tell it `lost`."""


class RunAction(NamedTuple):
    remedy: RunRemedy
    reason: str = ""
    """A stable code."""


NOTHING = RunAction(RunRemedy.NOTHING)


def recover_run(run: Run, *, now: float) -> RunAction:
    """What to do about the run now."""
    match run.state:
        case RunState.QUEUED:
            if run.deadline is not None and now >= run.deadline:
                return RunAction(RunRemedy.FIRE, "deadline-passed")
            is_due = run.due is None or now >= run.due
            return RunAction(RunRemedy.TAKE_TURN, "turn-may-have-come") if is_due else NOTHING
        case RunState.RUNNING | RunState.PAUSED:
            if run.deadline is not None and now >= run.deadline:
                return RunAction(RunRemedy.FIRE, "deadline-passed")
            if run.held is not None and run.due is not None and now >= run.due:
                return RunAction(RunRemedy.GO_ON, "limit-may-have-passed")
            return _look(run, now)
        case RunState.CANCELLING | RunState.COMPENSATING:
            # Its deadline has no say any more: what was done is undone, however long that takes.
            return _look(run, now)
        case RunState.SUCCEEDED | RunState.FAILED | RunState.CANCELLED | RunState.TIMEOUT:
            return NOTHING
        case never:
            assert_never(never)


def _look(run: Run, now: float) -> RunAction:
    return RunAction(RunRemedy.LOOK, "nothing-heard") if run.due is None or now >= run.due else NOTHING


def recover_step(step: Step, *, now: float) -> RunAction:
    """What to do about a step of a run that has not ended."""
    if step.due is not None and now >= step.due:
        return RunAction(RunRemedy.FIRE, "time-has-come")
    match step.state:
        case StepState.READY:
            return RunAction(RunRemedy.FIRE, "turn-may-have-come")
        case StepState.RUNNING if step.fan is not None:
            return NOTHING  # its parts are steps too
        case StepState.RUNNING | StepState.ASKING | StepState.STOPPING:
            stale = now - step.since >= LOOK_S
            return RunAction(RunRemedy.ASK, "nothing-heard") if stale else NOTHING
        case StepState.WAITING | StepState.DELAYED | StepState.RETRYING:
            return NOTHING
        case StepState.SUCCEEDED | StepState.FAILED | StepState.SKIPPED | StepState.CANCELLED | StepState.COMPENSATED:
            return NOTHING
        case never:
            assert_never(never)


def lost(step: Step) -> JobEnded | ChildRunEnded | ApprovalDecided | NotifySent:
    """What to tell a run about a step whose job, run, approval or message is nowhere to be found."""
    error = {"code": "lost", "message": "what the step waited for is not there any more"}
    match step.kind:
        case "workflow":
            return ChildRunEnded(step.name, step.ref, RunState.FAILED, None, error)
        case "approval":
            return ApprovalDecided(step.name, step.ref, "expired", error)
        case "notify":
            return NotifySent(step.name, step.ref, error)
        case _:
            return JobEnded(step.name, step.ref, State.FAILED, None, error)
