"""How a step is stopped, and how a run ends other than well: stop what is at work, undo what was done.

A job or a run that was told to stop may have succeeded all the same. So the run waits for the word of
each one, and only then undoes: in the reverse order of their ends, one after the other. Where it is
with that is in the records, not in anybody's memory.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.job import UNDO
from holdfast.core.run import RunState, Step, StepState
from holdfast.core.run_start import part_names, start
from holdfast.core.run_turn import Error, Turn
from holdfast.core.run_words import CancelJob, CancelRun, TellParent, WithdrawApproval


def stop(turn: Turn, step: Step, reason: str, *, error: Error | None = None, undoes: bool = True) -> None:
    """End the step as cancelled or, with an error, as failed: now, or when what it waits for has ended.

    `undoes`: whether a run within this one undoes what it did by then. Nobody else could: it has not succeeded."""
    ending = StepState.CANCELLED if error is None else StepState.FAILED
    match step.state:
        case StepState.RUNNING if step.kind == "job":
            turn.commands.append(CancelJob(step.name, step.ref, reason))
            turn.move(step, StepState.STOPPING, error=error)
        case StepState.RUNNING if step.kind == "workflow":
            turn.commands.append(CancelRun(step.name, step.ref, reason, compensate=undoes))
            turn.move(step, StepState.STOPPING, error=error)
        case StepState.RUNNING if step.fan is not None:
            stop_parts(turn, step, reason, undoes=undoes)
            turn.end(turn.get(step.name), ending, error=error)
        case StepState.ASKING:
            turn.commands.append(WithdrawApproval(step.name, step.ref, reason))
            turn.end(step, ending, error=error)
        case StepState.STOPPING:
            pass
        case _ if not step.is_terminal:
            turn.end(step, ending, error=error)


def stop_parts(turn: Turn, step: Step, reason: str, *, undoes: bool = True) -> None:
    """Those that have begun are stopped, the others never begin."""
    assert step.fan is not None
    for part in turn.unended(part_names(turn, step, range(step.fan.total))):
        stop(turn, part, reason, undoes=undoes)


# -- the run --------------------------------------------------------------------------------------------


def give_up(turn: Turn, ending: RunState, error: Error, *, undoes: bool, **detail: Any) -> None:
    """Begin to end the run, if it is not ending already."""
    if turn.run.state not in (RunState.QUEUED, RunState.RUNNING, RunState.PAUSED):
        return
    live = turn.unended([step.name for step in turn.every_step()])
    turn.change_run(
        state=RunState.CANCELLING, since=turn.now, ending=ending, error=error, undoes=undoes, head="", tail=""
    )
    turn.note("run.cancelling", ending=ending.value, code=error["code"], **detail)
    for step in live:
        stop(turn, turn.get(step.name), error["code"], undoes=undoes)


def conclude(turn: Turn) -> None:
    """When nothing is at work any more: undo the next step, or end the run."""
    run = turn.run
    assert run.ending is not None
    if run.active or run.state not in (RunState.CANCELLING, RunState.COMPENSATING):
        return
    if not (run.undoes and run.undo):
        end_run(turn, run.ending)
        return
    step = turn.get(run.undo)
    undoing = turn.find(step.name + UNDO)
    if run.state is RunState.COMPENSATING and undoing is not None and undoing.state is StepState.RETRYING:
        return
    if run.state is RunState.CANCELLING:
        turn.change_run(state=RunState.COMPENSATING, since=turn.now)
        turn.note("run.compensating", first=step.name)
    item = {"item": step.item, "index": step.index} if step.index >= 0 else {}
    start(turn, turn.new_step(step.name + UNDO, StepState.WAITING, **item))


def undone(turn: Turn, undoing: Step) -> None:
    """What undid a step has ended, well or not: on to the one before it."""
    step = turn.get(undoing.name.removesuffix(UNDO))
    if undoing.state is StepState.SUCCEEDED:
        turn.put(step, state=StepState.COMPENSATED, since=turn.now)
        turn.note("step.compensated", step=step.name)
    else:
        turn.change_run(undone_badly=turn.run.undone_badly + 1)
    turn.change_run(undo=step.undo)


def end_run(turn: Turn, state: RunState) -> None:
    turn.change_run(state=state, since=turn.now, ending=None, head="", tail="")
    run = turn.run
    failures = {"compensations_failed": run.undone_badly} if run.undone_badly else {}
    turn.note(f"run.{state}", **({"code": run.error["code"]} if run.error else {}), **failures)
    # Once: run again by itself, it is on its own, and the run around it has gone on with what it was told.
    if run.parent_run and not run.generation:
        turn.commands.append(TellParent(run.parent_run, run.parent_step, run.id, state, bytes(run.output), run.error))
