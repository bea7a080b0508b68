"""Run again from a step: it and all after it begin anew, whatever else has ended well stays as it is."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.job import UNDO
from holdfast.core.run import NULL, STEP_TERMINAL, Fan, RunState, Step, StepState
from holdfast.core.run_follow import is_met
from holdfast.core.run_start import begin_step, deadline_of
from holdfast.core.run_turn import Turn, is_part
from holdfast.core.workflow_graph import Graph, owner_of
from holdfast.errors import Conflict

_KEPT = (StepState.SUCCEEDED, StepState.SKIPPED)


def rerun(turn: Turn, name: str, *, by: str, queued: bool = False) -> None:
    """The run must have ended. What did not end well, and what was undone, is done again as well:
    the run could not end otherwise.

    Raises `Conflict` for a run that retention has begun to remove: steps that succeeded are not known any more, and would
    be done a second time."""
    steps = {step.name: step for step in turn.every_step() if not step.name.endswith(UNDO)}
    known = sum(step.state in STEP_TERMINAL for name, step in steps.items() if name in turn.graph.nodes)
    if known < len(turn.graph.nodes) - turn.run.open:
        raise Conflict(f"run {turn.run.id} is so old that it is just being removed: start another one")
    again = _again(turn.graph, name, steps)
    highest: dict[str, int] = {}
    for step in steps.values():
        if is_part(step.name) and owner_of(step.name) in again:
            highest[owner_of(step.name)] = max(highest.get(owner_of(step.name), 0), step.attempt)
            turn.remove(step)
    turn.change_run(
        state=RunState.QUEUED if queued else RunState.RUNNING,
        since=turn.now,
        output=NULL,
        error=None,
        undoes=False,
        undone_badly=0,
        generation=turn.run.generation + 1,
        open=len(again),
        deadline=None,
        undo="",
    )
    turn.change_run(deadline=deadline_of(turn))
    turn.note("run.rerun", step=name, by=by, generation=turn.run.generation, steps=len(again))
    _stack_undo(turn, [step for step in steps.values() if owner_of(step.name) not in again])
    begins = [
        _reset(turn, step_id, steps, again, highest.get(step_id, 0)) for step_id in turn.graph.order if step_id in again
    ]
    for step in begins:
        if step.missing:
            continue
        if step.met or not turn.graph.nodes[step.name].waits_for:
            begin_step(turn, step)
        else:
            turn.end(step, StepState.SKIPPED)


def _again(graph: Graph, name: str, steps: dict[str, Step]) -> frozenset[str]:
    compensated = {owner_of(step.name) for step in steps.values() if step.state is StepState.COMPENSATED}
    roots = {name} | compensated
    for step_id, node in graph.nodes.items():
        step = steps.get(step_id)
        passed = step is not None and (step.state in _KEPT or (step.state is StepState.FAILED and node.continues))
        if not passed:
            roots.add(step_id)
    found: set[str] = set()
    for root in roots:
        if root not in found:
            found |= graph.after(root)
    return frozenset(found)


def _reset(turn: Turn, name: str, steps: dict[str, Step], again: frozenset[str], highest: int) -> Step:
    missing = met = 0
    for edge in turn.graph.nodes[name].waits_for:
        if edge.step in again:
            missing += 1
        else:
            met += is_met(steps[edge.step], edge.case)
    old = steps.get(name)
    before = old.fan.attempt if old and old.fan else 0
    fan = Fan(total=0, attempt=max(highest, before)) if turn.graph.nodes[name].parts else None
    return turn.new_step(name, StepState.WAITING, missing=missing, met=met, fan=fan)


def _stack_undo(turn: Turn, kept: list[Step]) -> None:
    """What may have to be undone, in the order in which it ended."""
    done = [step for step in kept if step.state is StepState.SUCCEEDED and turn.graph.node(step.name).undo is not None]
    before = ""
    moved: dict[str, str] = {}
    for step in sorted(done, key=lambda step: step.order):
        if step.undo != before:
            moved[step.name] = before
        before = step.name
    turn.require(moved)
    for name, undo in moved.items():
        turn.put(replace(turn.get(name), undo=undo))
    turn.change_run(undo=before)
