"""What a run makes of each thing it hears. What does not concern it any more changes nothing."""

from __future__ import annotations

from typing import assert_never

import msgspec

from holdfast.core.job import UNDO
from holdfast.core.retry import Backoff
from holdfast.core.run import Run, RunState, Step, StepState
from holdfast.core.run_rerun import rerun
from holdfast.core.run_start import begin_step, deadline_of, start
from holdfast.core.run_stop import give_up, stop
from holdfast.core.run_turn import Error, Turn
from holdfast.core.run_words import (
    ApprovalDecided,
    CancelAsked,
    ChildRunEnded,
    Happening,
    JobEnded,
    NotifySent,
    PauseAsked,
    RerunAsked,
    ResumeAsked,
    TimerDue,
    TurnCame,
)
from holdfast.core.states import State
from holdfast.core.workflow import ForEachStep, ParallelStep
from holdfast.core.workflow_graph import Graph

_FINAL = (State.DENIED, State.CANCELLED)
"""Trying again would not change that."""


def hear(turn: Turn, happening: Happening) -> None:
    match happening:
        case JobEnded():
            _hear_job(turn, happening)
        case ChildRunEnded():
            _hear_child(turn, happening)
        case ApprovalDecided():
            _hear_decision(turn, happening)
        case NotifySent():
            _hear_post(turn, happening)
        case TimerDue():
            _hear_timer(turn, happening.step)
        case TurnCame():
            _hear_turn(turn, happening)
        case CancelAsked() | PauseAsked() | ResumeAsked() | RerunAsked():
            if not refusal(turn.graph, turn.run, happening):
                _obey(turn, happening)
        case never:
            assert_never(never)


def _obey(turn: Turn, asked: CancelAsked | PauseAsked | ResumeAsked | RerunAsked) -> None:
    match asked:
        case CancelAsked():
            error = {"code": "cancelled", "message": asked.reason or "cancelled on request"}
            give_up(turn, RunState.CANCELLED, error, undoes=asked.compensate, by=asked.by)
        case PauseAsked():
            turn.change_run(state=RunState.PAUSED, since=turn.now)
            turn.note("run.paused", by=asked.by, reason=asked.reason)
        case ResumeAsked():
            turn.change_run(state=RunState.RUNNING, since=turn.now)
            turn.note("run.resumed", by=asked.by)
        case RerunAsked():
            rerun(turn, asked.step, by=asked.by, queued=asked.queued)
        case never:
            assert_never(never)


def refusal(graph: Graph, run: Run, happening: Happening) -> str:
    """Why the run cannot be asked for that now; empty: it can. `advance` ignores what is refused."""
    match happening:
        case CancelAsked() if run.state not in (RunState.QUEUED, RunState.RUNNING, RunState.PAUSED):
            return f"run {run.id} is {run.state}; only one that is queued, running or paused can be cancelled"
        case CancelAsked() if happening.generation not in (None, run.generation):
            return f"run {run.id} was run again since"
        case PauseAsked() if run.state is not RunState.RUNNING:
            return f"run {run.id} is {run.state}; only one that is running can be paused"
        case ResumeAsked() if run.state is not RunState.PAUSED:
            return f"run {run.id} is {run.state}, not paused"
        case RerunAsked() if not run.is_terminal:
            return f"run {run.id} is {run.state}; cancel it, or wait until it has ended"
        case RerunAsked() if happening.step not in graph.nodes:
            return f"workflow {run.workflow} has no step {happening.step!r}; a part is run again with its whole step"
        case _:
            return ""


def _waiting(turn: Turn, name: str, ref: str) -> Step | None:
    """The step, if it still waits for just that."""
    step = turn.find(name)
    at_work = (StepState.RUNNING, StepState.ASKING, StepState.STOPPING)
    return step if step is not None and step.ref == ref and step.state in at_work else None


def _hear_job(turn: Turn, ended: JobEnded) -> None:
    step = _waiting(turn, ended.step, ended.job)
    if step is None:
        return
    if ended.state is State.SUCCEEDED:
        turn.end(step, StepState.SUCCEEDED, output=ended.output)
        return
    error = {"code": ended.state.lower(), "message": f"the job ended {ended.state}", **(ended.error or {})}
    _fail(turn, step, {**error, "job": ended.job}, final=ended.state in _FINAL)


def _hear_child(turn: Turn, ended: ChildRunEnded) -> None:
    step = _waiting(turn, ended.step, ended.run)
    if step is None:
        return
    if ended.state is RunState.SUCCEEDED:
        turn.end(step, StepState.SUCCEEDED, output=ended.output)
        return
    error = {"code": ended.state.value, "message": f"the run ended {ended.state}", **(ended.error or {})}
    _fail(turn, step, {**error, "run": ended.run}, final=ended.state is RunState.CANCELLED)


def _hear_decision(turn: Turn, decided: ApprovalDecided) -> None:
    step = _waiting(turn, decided.step, decided.approval)
    if step is None:
        return
    if decided.decision == "approved":
        output = {"decision": decided.decision, "approval": decided.approval, **decided.detail}
        turn.end(step, StepState.SUCCEEDED, output=msgspec.json.encode(output))
        return
    error = {"code": decided.decision, "message": f"the approval was {decided.decision}", "approval": decided.approval}
    # Where nobody could be asked, or the approval is lost, the detail has a code of its own.
    turn.end(step, StepState.FAILED, error={**error, **decided.detail})


def _hear_post(turn: Turn, sent: NotifySent) -> None:
    step = _waiting(turn, sent.step, sent.post)
    if step is None:
        return
    if sent.error is None:
        turn.end(step, StepState.SUCCEEDED)
    else:
        _fail(turn, step, sent.error, final=False)


def _fail(turn: Turn, step: Step, error: Error, *, final: bool) -> None:
    """The attempt has failed; perhaps there is another one."""
    if step.state is StepState.STOPPING:
        # It did what it was told. With an error it was stopped for that, else for the sake of others.
        state = StepState.CANCELLED if step.error is None else StepState.FAILED
        turn.end(step, state, error=step.error)
        return
    retry = turn.graph.node(step.name).retry
    if final or retry is None or step.tries >= retry.max_attempts:
        turn.end(step, StepState.FAILED, error=error)
        return
    chance = turn.draw.chance() if retry.jitter else 1.0
    wake = turn.now + Backoff(first_s=retry.first_s, cap_s=retry.cap_s).delay(step.tries, chance)
    turn.move(step, StepState.RETRYING, wake=wake, error=error)
    turn.note("step.retrying", step=step.name, attempt=step.attempt, code=error.get("code", ""), until=wake)


def _hear_turn(turn: Turn, came: TurnCame) -> None:
    if turn.run.state is RunState.QUEUED and came.generation == turn.run.generation:
        turn.change_run(state=RunState.RUNNING, since=turn.now)
        turn.change_run(deadline=deadline_of(turn))
        turn.note("run.begun")


def _hear_timer(turn: Turn, name: str) -> None:
    if not name:
        _look(turn)
        return
    step = turn.find(name)
    if step is None or step.due is None or step.due > turn.now:
        return
    # A delay that was over before its deadline has ended in time, however late anybody looks.
    was_over = step.state is StepState.DELAYED and step.due == step.wake
    if step.deadline is not None and step.deadline <= turn.now and not was_over:
        spec = turn.graph.node(name).spec
        # As where a part fails: what the others did stays if its failure means that.
        undoes = not (isinstance(spec, ForEachStep | ParallelStep) and spec.on_error == "fail")
        error = {"code": "timeout", "message": f"the step had not ended after {spec.timeout_s} s"}
        stop(turn, step, "step-timeout", error=error, undoes=undoes)
    elif step.state is StepState.DELAYED:
        turn.end(step, StepState.SUCCEEDED)
    elif step.state is StepState.RETRYING:
        (start if name.endswith(UNDO) else begin_step)(turn, step)


def _look(turn: Turn) -> None:
    run = turn.run
    if run.deadline is not None and run.deadline <= turn.now and run.ending is None and not run.is_terminal:
        message = "the run had not ended at its deadline"
        give_up(turn, RunState.TIMEOUT, {"code": "timeout", "message": message}, undoes=True)
    elif run.due is not None and run.due <= turn.now:
        # Nothing to do: only say when to look again.
        turn.change_run(due=None)
