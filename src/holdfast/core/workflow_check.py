"""From the text that somebody wrote to a definition that can be run, or a refusal with line and reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.core.decision import Choice
from holdfast.core.document import Path, Refused, load_document, told
from holdfast.core.rules import Fault, faults_of_approvers, faults_of_choices
from holdfast.core.schema import PATTERNS_SIZE_MAX, TOO_MANY_PATTERNS, size_of_patterns
from holdfast.core.workflow import (
    AnyStep,
    ApprovalStep,
    Definition,
    DelayStep,
    ForEachStep,
    JobStep,
    ParallelStep,
    StepSpec,
)
from holdfast.core.workflow_graph import Graph

KINDS = (
    *("job", "approval", "condition", "switch", "delay", "for_each", "parallel", "workflow", "notify"),
    "transform",
)
RESERVED = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"),
        *("import", "let", "loop", "package", "namespace", "return", "var", "void", "while"),
    }
)
"""Words of the expression language: `steps.if` could not be asked for."""

_SAID = ", ".join(choice for choice in Choice if choice is not Choice.EDIT)
"""What may be said on the approval of a step."""

_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}")
"""As a job that is submitted may have it: `holdfast.api` says the same. Any other is one that not every store can keep, and it
would be found out when the step before has been done and cannot be recorded any more."""
_FIELD = re.compile(r"unknown field `(.*)`")
_PATTERN = re.compile(r"Expected `str` matching regex .*")


def parse(text: str | bytes) -> Definition:
    """Raises `Refused`. What it returns compiles."""
    document = load_document(text)
    definition = _shaped(document.value, document.line_of)
    _check_steps(definition, document.line_of)
    Graph.of(definition, document.line_of)
    return definition


def _shaped(value: Any, line_of: Callable[[Path], int]) -> Definition:
    try:
        return msgspec.convert(value, Definition)
    except msgspec.ValidationError as error:
        reason, path = told(str(error))
    if unknown := _FIELD.search(reason):
        path = (*path, unknown[1])
        reason = f"there is no field {unknown[1]!r} here"
    elif path[-1:] == ("kind",):
        reason = f"a step is one of: {', '.join(KINDS)}"
    elif "choices" in path and reason.startswith("Invalid enum value"):
        reason += f" (there are: {_SAID})"
    elif _PATTERN.match(reason):
        reason = "a name begins with a letter, has letters, digits and _ in it, and at most 64 characters"
    where = ".".join(str(part) for part in path if isinstance(part, str) and part != "steps")
    raise Refused(f"{where}: {reason}" if where else reason, line=line_of(path))


def _check_steps(definition: Definition, line_of: Callable[[Path], int]) -> None:
    seen: dict[str, int] = {}
    patterns = 0
    for at, step in enumerate(definition.steps):
        path: Path = ("steps", at)
        if not step.id:
            raise Refused("a step needs an id", line=line_of(path))
        if step.id in RESERVED:
            raise Refused(f"{step.id!r} is a word of the expression language; take another id", line=line_of(path))
        if step.id in seen:
            first = line_of(("steps", seen[step.id]))
            raise Refused(f"there are two steps {step.id!r}; the first is on line {first}", line=line_of(path))
        seen[step.id] = at
        # Each is compiled by itself, and there may be thousands: before any is, and only as many as one schema may have.
        patterns += sum(map(size_of_patterns, _schemas_of_answers(step)))
        if patterns > PATTERNS_SIZE_MAX:
            raise Refused(
                f"step {step.id}: response_schema: with those before it, {TOO_MANY_PATTERNS}", line=line_of(path)
            )
        for reason, where in _faults(step):
            raise Refused(f"step {step.id}: {reason}", line=line_of((*path, *where)))


def _schemas_of_answers(step: AnyStep) -> Iterator[Any]:
    match step:
        case ApprovalStep():
            yield step.response_schema
        case ForEachStep():
            yield from _schemas_of_answers(step.step)
        case ParallelStep():
            for branch in step.branches.values():
                yield from _schemas_of_answers(branch)
        case _:
            pass


def _faults(step: StepSpec) -> Iterator[tuple[str, Path]]:
    match step:
        case JobStep():
            yield from _faults_of_topics(step)
        case ApprovalStep():
            for fault in _faults_of_approval(step):
                yield f"{fault.path[0]}: {fault.reason}", (fault.path[0],)
        case DelayStep():
            if (step.seconds is None) == (not step.until):
                yield "a delay has either seconds or until", ()
        case ForEachStep():
            yield from _faults_inside(step.step, ("step",))
        case ParallelStep():
            if isinstance(step.wait, int) and step.wait > len(step.branches):
                yield f"{step.wait} of {len(step.branches)} branches can never succeed", ("wait",)
            for name, branch in step.branches.items():
                yield from _faults_inside(branch, ("branches", name))
        case _:
            pass


def _faults_of_topics(step: JobStep) -> Iterator[tuple[str, Path]]:
    topics: dict[Path, str] = {("topic",): step.topic}
    if step.compensate is not None:
        topics["compensate", "topic"] = step.compensate.topic
    for path, topic in topics.items():
        if not _TOPIC.fullmatch(topic):
            words = "is no topic: at most 128 letters, digits and _.:@/-, the first a letter or a digit"
            yield f"{'.'.join(map(str, path))}: {topic!r} {words}", path


def _faults_of_approval(step: ApprovalStep) -> Iterator[Fault]:
    yield from faults_of_approvers(step.approvers, step.quorum)
    if Choice.EDIT in (step.choices or ()):
        yield Fault(("choices",), f"what a step shows is the run's, and nobody edits it (there are: {_SAID})")
    yield from faults_of_choices(step.choices, step.response_schema, others=step.separate or step.quorum > 1)


def _faults_inside(step: AnyStep, path: Path) -> Iterator[tuple[str, Path]]:
    if step.id or step.depends_on:
        yield "what is inside of it has no id and depends on nothing by itself", path
    if isinstance(step, DelayStep | ApprovalStep | JobStep):
        yield from ((reason, (*path, *where)) for reason, where in _faults(step))
