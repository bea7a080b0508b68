"""How a step begins, by kind. What needs nobody outside (condition, switch, transform) ends in the same turn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.expression import ExpressionFailed
from holdfast.core.preview import shortened
from holdfast.core.run import Fan, RunState, Step, StepState
from holdfast.core.run_turn import SLOTTED, Turn, kind_of
from holdfast.core.run_words import AskApproval, Notify, StartRun, SubmitJob
from holdfast.core.workflow import (
    ITEMS_MAX,
    NESTING_MAX,
    YEAR_S,
    ApprovalStep,
    Compensation,
    DelayStep,
    ForEachStep,
    JobStep,
    NotifyStep,
    SwitchStep,
    WorkflowStep,
)
from holdfast.core.workflow_graph import Node

LABEL_MAX, SESSION_MAX = 256, 128
OUTPUT_BYTES_MAX = 4 << 20
"""Of what the run itself makes: payloads and inputs, transforms, the gathered outputs of items, its own output."""


def begin_step(turn: Turn, step: Step) -> None:
    """All that the step waited for is there: begin it, skip it, or let it wait for its turn."""
    # Whoever waits for a slot already comes first.
    waits = turn.run.head and step.kind in SLOTTED
    if waits or not turn.may_begin or not turn.has_slot(step):
        turn.push_ready(step)
        return
    start(turn, step)


def deadline_of(turn: Turn) -> float | None:
    """When the run that begins now, or may not begin yet, is to have ended: its own time counts from its turn on."""
    timeout_s = None if turn.run.state is RunState.QUEUED else turn.graph.definition.timeout_s
    limits = (turn.run.deadline, None if timeout_s is None else turn.now + timeout_s)
    return min((time for time in limits if time is not None), default=None)


def start(turn: Turn, step: Step) -> None:
    """Begin an attempt. The first one asks `when`."""
    node = turn.graph.node(step.name)
    try:
        if node.when is not None and step.tries == 0 and not turn.test(node.when, node, step):
            turn.end(step, StepState.SKIPPED)
            return
        if step.tries == 0 and node.spec.timeout_s is not None:
            step = turn.put(step, deadline=turn.now + node.spec.timeout_s)
        _STARTS[kind_of(node)](turn, node, step)
    except ExpressionFailed as error:
        turn.fail(step, "expression-failed", str(error))


def _attempt(turn: Turn, step: Step, state: StepState) -> tuple[Step, str]:
    """The step with one attempt more, and the key that no other attempt of the run has."""
    attempt = step.attempt + 1
    begun = turn.move(step, state, attempt=attempt, tries=step.tries + 1, ref=turn.draw.new_id(), wake=None, error=None)
    turn.note("step.started", step=step.name, attempt=attempt, kind=step.kind, ref=begun.ref)
    return begun, f"run/{turn.run.id}/{step.name}/{attempt}"


def _limit(turn: Turn, step: Step) -> float | None:
    """When work for the step is no longer worth doing. The run's own limit does not end what undoes it."""
    undoes = turn.run.ending is not None
    limits = (step.deadline, None if undoes else turn.run.deadline)
    return min((time for time in limits if time is not None), default=None)


def _start_job(turn: Turn, node: Node, step: Step) -> None:
    spec, template = node.spec, node.template
    assert isinstance(spec, JobStep | Compensation)
    assert template is not None
    filled = turn.fill(template, node, step)
    payload = encoded(filled["payload"])
    labels = {name: _word(value, f"label {name}", LABEL_MAX) for name, value in filled["labels"].items()}
    session = _word(filled["session"], "session", SESSION_MAX) or turn.run.session
    # Only now: a step that cannot be filled in has not begun.
    begun, key = _attempt(turn, step, StepState.RUNNING)
    turn.order(
        SubmitJob(
            step=step.name,
            attempt=begun.attempt,
            key=key,
            job=begun.ref,
            topic=spec.topic,
            payload=payload,
            labels=labels,
            priority=spec.priority,
            risk=spec.risk,
            session=session,
            max_attempts=spec.max_attempts,
            deadline=_limit(turn, begun),
        )
    )


def _start_approval(turn: Turn, node: Node, step: Step) -> None:
    spec, template = node.spec, node.template
    assert isinstance(spec, ApprovalStep)
    assert template is not None
    filled = turn.fill(template, node, step)
    payload = encoded(filled["payload"])
    begun, key = _attempt(turn, step, StepState.ASKING)
    turn.commands.append(
        AskApproval(
            step=step.name,
            attempt=begun.attempt,
            key=key,
            approval=begun.ref,
            message=_text(filled["message"]),
            payload=payload,
            approvers=spec.approvers,
            quorum=spec.quorum,
            expires_s=spec.expires_s,
            separate=spec.separate,
            choices=spec.choices,
            response_schema=spec.response_schema,
            effect_preview=shortened(_text(filled["effect_preview"])),
        )
    )


def _start_run(turn: Turn, node: Node, step: Step) -> None:
    spec, template = node.spec, node.template
    assert isinstance(spec, WorkflowStep)
    assert template is not None
    if turn.run.depth + 1 >= NESTING_MAX:
        turn.fail(step, "too-deep", f"runs within runs, more than {NESTING_MAX} deep")
        return
    given = encoded(turn.fill(template, node, step)["input"])
    begun, key = _attempt(turn, step, StepState.RUNNING)
    turn.order(
        StartRun(
            step=step.name,
            attempt=begun.attempt,
            key=key,
            run=begun.ref,
            workflow=spec.workflow,
            revision=spec.revision,
            input=given,
            deadline=_limit(turn, begun),
            depth=turn.run.depth + 1,
        )
    )


def _start_notify(turn: Turn, node: Node, step: Step) -> None:
    spec, template = node.spec, node.template
    assert isinstance(spec, NotifyStep)
    assert template is not None
    payload = encoded(turn.fill(template, node, step)["payload"])
    begun, key = _attempt(turn, step, StepState.RUNNING)
    turn.commands.append(
        Notify(step=step.name, attempt=begun.attempt, key=key, post=begun.ref, webhook=spec.webhook, payload=payload)
    )


def _start_delay(turn: Turn, node: Node, step: Step) -> None:
    spec = node.spec
    assert isinstance(spec, DelayStep)
    if "until" in node.formulas:
        wake = _time(turn.evaluate(node.formulas["until"], node, step))
    elif "seconds" in node.formulas:
        wake = turn.now + _number(turn.evaluate(node.formulas["seconds"], node, step))
    else:
        assert isinstance(spec.seconds, int | float)
        wake = turn.now + spec.seconds
    if wake > turn.now + YEAR_S:
        raise ExpressionFailed("a delay is at most a year")
    if wake <= turn.now:
        turn.end(step, StepState.SUCCEEDED)
        return
    turn.move(step, StepState.DELAYED, wake=wake)
    turn.note("step.started", step=step.name, kind=step.kind, until=wake)


def _decide(turn: Turn, node: Node, step: Step) -> None:
    if isinstance(node.spec, SwitchStep):
        case = next((case for case, test in node.formulas.items() if turn.test(test, node, step)), node.spec.default)
        output: Any = case or None
    else:
        output = turn.test(node.formulas["test"], node, step)
        case = str(output).lower()
    turn.end(turn.put(step, case=case), StepState.SUCCEEDED, output=msgspec.json.encode(output))


def _transform(turn: Turn, node: Node, step: Step) -> None:
    assert node.template is not None
    output = msgspec.json.encode(turn.fill(node.template, node, step)["value"])
    succeed_with(turn, step, output)


def succeed_with(turn: Turn, step: Step, output: bytes) -> None:
    """End the step with what the run itself has made; that has a limit."""
    if len(output) > OUTPUT_BYTES_MAX:
        too_large(turn, step, len(output))
    else:
        turn.end(step, StepState.SUCCEEDED, output=output)


def too_large(turn: Turn, step: Step, size: int) -> None:
    turn.fail(step, "output-too-large", f"the output has {size} bytes, more than {OUTPUT_BYTES_MAX}")


def encoded(value: Any) -> bytes:
    """What a template was filled to, as JSON. Raises `ExpressionFailed` if that is more than anybody keeps."""
    written = msgspec.json.encode(value)
    if len(written) > OUTPUT_BYTES_MAX:
        raise ExpressionFailed(f"it makes {len(written)} bytes, more than {OUTPUT_BYTES_MAX}")
    return written


# -- steps of several parts -----------------------------------------------------------------------------


def _start_items(turn: Turn, node: Node, step: Step) -> None:
    """Every item gets its record now, and keeps its value there: the items are never evaluated again."""
    items = turn.evaluate_json(node.formulas["items"], node, step)
    if not isinstance(items, list):
        raise ExpressionFailed("items must be a list, and are none")
    if len(items) > ITEMS_MAX:
        turn.fail(step, "too-many-items", f"there are {len(items)} items, and at most {ITEMS_MAX} are allowed")
        return
    values = [Raw(msgspec.json.encode(item)) for item in items]
    begun = _begin_fan(turn, step, len(items))
    assert begun.fan is not None
    names = part_names(turn, begun, range(len(items)))
    turn.assume_absent(names)
    for index, (name, item) in enumerate(zip(names, values, strict=True)):
        turn.new_step(name, StepState.WAITING, item=item, index=index, attempt=begun.fan.attempt)
    if items:
        begin_parts(turn, begun)
    else:
        assert isinstance(node.spec, ForEachStep)
        turn.end(begun, StepState.SUCCEEDED, output=b"[]" if node.spec.collect else b'{"succeeded":0,"failed":0}')


def _start_branches(turn: Turn, node: Node, step: Step) -> None:
    begun = _begin_fan(turn, step, len(node.parts))
    assert begun.fan is not None
    names = part_names(turn, begun, range(len(node.parts)))
    turn.assume_absent(names)
    for name in names:
        turn.new_step(name, StepState.WAITING, attempt=begun.fan.attempt)
    begin_parts(turn, begun)


def _begin_fan(turn: Turn, step: Step, total: int) -> Step:
    turn.note("step.started", step=step.name, kind=step.kind, parts=total)
    attempt = step.fan.attempt if step.fan else 0
    return turn.move(step, StepState.RUNNING, tries=1, fan=Fan(total=total, attempt=attempt))


def begin_parts(turn: Turn, step: Step) -> None:
    """As many more as there may be at once. A part that ends at once makes room in the same turn."""
    fan = step.fan
    assert fan is not None
    spec = turn.graph.node(step.name).spec
    at_once = spec.parallel if isinstance(spec, ForEachStep) else fan.total
    begun = max(fan.begun, min(fan.total, fan.done + at_once))
    names = part_names(turn, step, range(fan.begun, begun))
    turn.require(names)
    turn.put(step, fan=replace(fan, begun=begun))
    for name in names:
        begin_step(turn, turn.get(name))


def part_names(turn: Turn, step: Step, places: range) -> list[str]:
    node = turn.graph.node(step.name)
    if isinstance(node.spec, ForEachStep):
        return [f"{step.name}[{place}]" for place in places]
    branches = list(node.parts)
    return [f"{step.name}[{branches[place]}]" for place in places]


_STARTS: dict[str, Callable[[Turn, Node, Step], None]] = {
    "job": _start_job,
    "approval": _start_approval,
    "workflow": _start_run,
    "notify": _start_notify,
    "delay": _start_delay,
    "condition": _decide,
    "switch": _decide,
    "transform": _transform,
    "for_each": _start_items,
    "parallel": _start_branches,
}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _word(value: Any, what: str, chars_max: int) -> str:
    """As whoever submits a job may have it: else a store might refuse it, ever again, and the run would never end."""
    word = _text(value)
    if len(word) > chars_max or "\0" in word:
        raise ExpressionFailed(f"the {what} must be a text of at most {chars_max} characters without NUL")
    return word


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionFailed("seconds must be a number, and are none")
    # A path hands on whatever the data has, so a whole number may be too large for a float; and what is no number
    # compares with nothing: the step would wait for a time that never comes.
    if not abs(value) <= sys.float_info.max:
        raise ExpressionFailed("seconds must be a finite number")
    return float(value)


def _time(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ExpressionFailed("until must be a time like 2030-01-31T08:00:00Z, and is none") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ExpressionFailed("until must say its time zone, as in 2030-01-31T08:00:00Z")
        return value.timestamp()
    return _number(value)
