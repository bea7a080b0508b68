"""What follows from the end of a step: for its followers, for the step it is a part of, and for the run."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from holdfast.core.expression import ExpressionFailed
from holdfast.core.job import UNDO
from holdfast.core.run import Fan, RunState, Step, StepState
from holdfast.core.run_start import (
    OUTPUT_BYTES_MAX,
    begin_parts,
    begin_step,
    encoded,
    part_names,
    start,
    succeed_with,
    too_large,
)
from holdfast.core.run_stop import conclude, end_run, give_up, stop_parts, undone
from holdfast.core.run_turn import Turn, is_part
from holdfast.core.workflow import AnyStep, ForEachStep, ParallelStep, wanted_of
from holdfast.core.workflow_graph import Edge, owner_of
from holdfast.errors import Invalid

READ_AHEAD = 100


def follow(turn: Turn) -> None:
    """Draw all conclusions, until there is nothing left to do but to wait."""
    while True:
        while turn.ended:
            _settle(turn, turn.get(turn.ended.popleft()))
        if turn.may_begin and (step := turn.pop_ready()) is not None:
            start(turn, step)
        elif turn.run.ending is not None:
            conclude(turn)
        elif turn.run.open == 0 and turn.run.active == 0 and not turn.run.is_terminal:
            _complete(turn)
        if not turn.ended and not (turn.may_begin and turn.run.head and _can_go_on(turn)):
            return


def _can_go_on(turn: Turn) -> bool:
    first = turn.get(turn.run.head)
    return first.state is not StepState.READY or turn.has_slot(first)


def _settle(turn: Turn, step: Step) -> None:
    if step.name.endswith(UNDO):
        undone(turn, step)
    elif is_part(step.name):
        _tell_owner(turn, step)
    else:
        turn.change_run(open=turn.run.open - 1)
        if step.state is StepState.FAILED and not turn.graph.node(step.name).continues:
            _fail_run(turn, step)
        elif turn.run.ending is None:
            followers = turn.graph.nodes[step.name].followers
            if not turn.run.generation:
                # Who waits for this one alone was never reached before, unless the run was run again.
                turn.assume_absent(f.step for f in followers if len(turn.graph.nodes[f.step].waits_for) == 1)
            if turn.unread(follower.step for follower in followers):
                # More than the next steps is settled in this turn: then perhaps more than these, too.
                turn.require(turn.graph.after(step.name, limit=READ_AHEAD))
            for follower in followers:
                _tell_follower(turn, follower, met=is_met(step, follower.case))


def is_met(step: Step, case: str) -> bool:
    """Whether a step that has ended lets a follower begin that waits for this case of it; "" is any."""
    if step.state is StepState.FAILED:
        return not case
    return step.state is StepState.SUCCEEDED and case in ("", step.case)


def _tell_follower(turn: Turn, follower: Edge, *, met: bool) -> None:
    waits_for = turn.graph.nodes[follower.step].waits_for
    step = turn.find(follower.step) or turn.new_step(follower.step, StepState.WAITING, missing=len(waits_for))
    step = turn.put(step, missing=step.missing - 1, met=step.met + met)
    if step.missing > 0:
        return
    if step.met:
        begin_step(turn, step)
    else:
        turn.end(step, StepState.SKIPPED)


# -- parts of a step ------------------------------------------------------------------------------------


def _tell_owner(turn: Turn, part: Step) -> None:
    owner, spec = turn.get(owner_of(part.name)), turn.graph.nodes[owner_of(part.name)].spec
    if owner.is_terminal:
        return
    assert owner.fan is not None
    assert isinstance(spec, AnyStep)
    tolerated = part.state is StepState.FAILED and turn.graph.node(part.name).continues
    fan = replace(
        owner.fan,
        done=owner.fan.done + 1,
        succeeded=owner.fan.succeeded + (part.state is StepState.SUCCEEDED),
        tolerated=owner.fan.tolerated + tolerated,
        size=owner.fan.size + len(bytes(part.output)),
    )
    owner = turn.put(owner, fan=fan)
    broken = part.state is StepState.FAILED and not tolerated
    match _verdict(turn, owner, fan, broken=broken):
        case True:
            _gather(turn, owner)
        case False:
            stop_parts(turn, owner, "sibling-failed", undoes=spec.on_error != "fail")
            error = {"code": "part-failed", "message": f"{part.name} did not succeed", "part": part.name}
            if part.error is not None:
                error["cause"] = part.error.get("code", "")
            turn.end(turn.get(owner.name), StepState.FAILED, error=error)
        case None:
            begin_parts(turn, owner)


def _verdict(turn: Turn, owner: Step, fan: Fan, *, broken: bool) -> bool | None:
    """Has the step succeeded, by now, or failed? None: that is open."""
    spec = turn.graph.node(owner.name).spec
    if isinstance(spec, ParallelStep) and spec.wait != "all":
        if fan.succeeded >= wanted_of(spec):
            return True
        return False if fan.succeeded + fan.total - fan.done < wanted_of(spec) else None
    if broken:
        return False
    return True if fan.done == fan.total else None


def _gather(turn: Turn, owner: Step) -> None:
    """The outputs of all parts, put together without looking into them."""
    spec, fan = turn.graph.node(owner.name).spec, owner.fan
    assert fan is not None
    if fan.done < fan.total:
        stop_parts(turn, owner, "enough-succeeded")
    if isinstance(spec, ForEachStep) and not spec.collect:
        output = msgspec.json.encode({"succeeded": fan.succeeded, "failed": fan.tolerated})
    elif fan.size > OUTPUT_BYTES_MAX:
        too_large(turn, turn.get(owner.name), fan.size)
        return
    else:
        names = part_names(turn, owner, range(fan.total))
        turn.require(names)
        parts = [turn.get(name) for name in names]
        outputs = [bytes(part.output) for part in parts]
        if isinstance(spec, ForEachStep):
            output = b"[" + b",".join(outputs) + b"]"
        else:
            keys = [msgspec.json.encode(name) for name in turn.graph.node(owner.name).parts]
            output = b"{" + b",".join(b":".join(pair) for pair in zip(keys, outputs, strict=True)) + b"}"
    succeed_with(turn, owner, output)


# -- the run --------------------------------------------------------------------------------------------


def _fail_run(turn: Turn, step: Step) -> None:
    spec = turn.graph.node(step.name).spec
    assert isinstance(spec, AnyStep)
    error = {"code": "step-failed", "message": f"step {step.name} failed", "step": step.name}
    if step.error is not None:
        error["cause"] = step.error.get("code", "")
    give_up(turn, RunState.FAILED, error, undoes=spec.on_error == "compensate", step=step.name)


def _complete(turn: Turn) -> None:
    """Every step has ended, and no failure has ended the run: say what came out of it."""
    graph = turn.graph
    try:
        output = graph.output.fill(turn.variables(graph.output_reads))
        if graph.output_schema is not None:
            output = graph.output_schema.bind(output)
        written = encoded(output)
    except (ExpressionFailed, Invalid) as error:
        code = "output-invalid" if isinstance(error, Invalid) else "expression-failed"
        give_up(turn, RunState.FAILED, {"code": code, "message": f"output: {error}"}, undoes=True)
        conclude(turn)
        return
    turn.change_run(output=msgspec.Raw(written))
    end_run(turn, RunState.SUCCEEDED)
