"""A workflow as somebody defined it: its steps by kind, each field once. `docs/reference/workflows.md` explains them.

These are shapes only. What makes a definition sound (no cycle, no unknown step, no bad expression)
is asked in `core.workflow_check`, where it is read, and what becomes of it in `core.run`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.core.decision import Choice
from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.states import Risk

STEPS_MAX = 2_000
BRANCHES_MAX = 100
ITEMS_MAX = 10_000
NESTING_MAX = 8
"""Runs within runs."""
YEAR_S = 31_536_000.0

Name = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$(?!\n)")]
StepId = Annotated[str, Meta(pattern=r"^([A-Za-z][A-Za-z0-9_]{0,63})?$(?!\n)")]
"""A name in expressions too: `steps.<id>`."""
CaseName = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$(?!\n)")]
Formula = Annotated[str, Meta(max_length=2_000)]
"""An expression; empty: none."""
Seconds = Annotated[float, Meta(ge=0, le=YEAR_S)]
Span = Annotated[float, Meta(gt=0, le=YEAR_S)]
Count = Annotated[int, Meta(ge=1, le=1_000)]
Text = Annotated[str, Meta(max_length=2_000)]
Topic = Annotated[str, Meta(min_length=1, max_length=128)]
Priority = Annotated[int, Meta(ge=-100, le=100)]
Labels = Annotated[dict[str, Text], Meta(max_length=32)]
OnError = Literal["compensate", "fail", "continue"]
"""What a failure means: `compensate`, the run fails and what it did is undone; `fail`, the run fails and
what it did stays; `continue`, whoever depends on the step goes on, and can ask for its `error`."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Retry(Shape, frozen=True, kw_only=True):
    max_attempts: Count = 1
    first_s: Seconds = 1.0
    cap_s: Seconds = 30.0
    jitter: bool = True
    """A wait drawn between nothing and the back-off, so that many that failed together do not return together."""


class Compensation(Shape, frozen=True, kw_only=True):
    """The job that undoes what a step did. Its fields mean what they mean in a job step."""

    topic: Topic
    payload: Any = None
    labels: Labels = {}
    priority: Priority = 0
    risk: Risk | None = None
    session: Text = ""
    max_attempts: Count | None = None
    retry: Retry = Retry()
    timeout_s: Span | None = None


class AnyStep(Shape, frozen=True, kw_only=True, tag_field="kind"):
    """What all kinds have in common."""

    id: StepId = ""
    """Empty in a branch and in the body of a for_each: there it has its owner's."""
    depends_on: Annotated[tuple[str, ...], Meta(max_length=STEPS_MAX)] = ()
    """Ids, or `id=case` of a condition or a switch."""
    when: Formula = ""
    timeout_s: Span | None = None
    """From its start to its end, all attempts included."""
    on_error: OnError = "compensate"


class JobStep(AnyStep, frozen=True, kw_only=True, tag="job"):
    topic: Topic
    payload: Any = None
    """A template, like the texts of `labels` and `session`."""
    labels: Labels = {}
    priority: Priority = 0
    risk: Risk | None = None
    session: Text = ""
    max_attempts: Count | None = None
    """Of each job, by its workers; None: the topic's."""
    retry: Retry = Retry()
    compensate: Compensation | None = None


class ApprovalStep(AnyStep, frozen=True, kw_only=True, tag="approval"):
    message: Text
    """A template."""
    payload: Any = None
    """What is to be approved, for those who decide. A template."""
    approvers: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    quorum: Annotated[int, Meta(ge=1, le=100)] = 1
    expires_s: Span | None = None
    separate: bool = False
    """Whoever started the run may not approve."""
    choices: Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=len(Choice))] | None = None
    """What may be said; None: approve and reject, and respond where there is a schema for it."""
    response_schema: dict[str, Any] | None = None
    """What an answer must look like. It is `response` in the step's output."""
    effect_preview: Text = ""
    """What a yes would do, for those who decide. A template."""


class ConditionStep(AnyStep, frozen=True, kw_only=True, tag="condition"):
    test: Formula


class SwitchStep(AnyStep, frozen=True, kw_only=True, tag="switch"):
    cases: Annotated[dict[CaseName, Formula], Meta(min_length=1, max_length=BRANCHES_MAX)]
    """In order; the first that is true is taken."""
    default: Annotated[str, Meta(pattern=r"^([A-Za-z][A-Za-z0-9_]{0,63})?$(?!\n)")] = ""


class DelayStep(AnyStep, frozen=True, kw_only=True, tag="delay"):
    seconds: Seconds | Formula | None = None
    """A number, or an expression for one."""
    until: Formula = ""
    """An expression for a time: seconds since 1970, or a text like 2030-01-31T08:00:00Z."""


class TransformStep(AnyStep, frozen=True, kw_only=True, tag="transform"):
    value: Any
    """A template."""


class NotifyStep(AnyStep, frozen=True, kw_only=True, tag="notify"):
    webhook: Name
    payload: Any = None
    retry: Retry = Retry()
    compensate: Compensation | None = None


class WorkflowStep(AnyStep, frozen=True, kw_only=True, tag="workflow"):
    workflow: Name
    revision: Annotated[int, Meta(ge=1)] | None = None
    """None: the newest when the step starts."""
    input: Any = None
    retry: Retry = Retry()
    compensate: Compensation | None = None


SimpleStep = JobStep | ApprovalStep | DelayStep | TransformStep | NotifyStep | WorkflowStep


class ForEachStep(AnyStep, frozen=True, kw_only=True, tag="for_each"):
    items: Formula
    step: SimpleStep
    parallel: Count = 10
    """How many items at once."""
    collect: bool = True
    """The output is the list of the items' outputs; else only how many there were."""


class ParallelStep(AnyStep, frozen=True, kw_only=True, tag="parallel"):
    branches: Annotated[dict[CaseName, SimpleStep], Meta(min_length=1, max_length=BRANCHES_MAX)]
    wait: Annotated[int, Meta(ge=1, le=BRANCHES_MAX)] | Literal["all", "any"] = "all"
    """How many must succeed. The others are cancelled then."""


StepSpec = SimpleStep | ConditionStep | SwitchStep | ForEachStep | ParallelStep


class Definition(Shape, frozen=True, kw_only=True):
    name: Name
    description: Annotated[str, Meta(max_length=10_000)] = ""
    input_schema: dict[str, Any] | None = None
    output: Any = None
    """A template for what the run gives back."""
    output_schema: dict[str, Any] | None = None
    timeout_s: Span | None = None
    max_parallel: Annotated[int, Meta(ge=1, le=ITEMS_MAX)] | None = None
    """How many jobs, runs and notifications of one run at once; None: no limit."""
    steps: Annotated[tuple[StepSpec, ...], Meta(min_length=1, max_length=STEPS_MAX)]


def wanted_of(step: ParallelStep) -> int:
    """How many branches must succeed."""
    match step.wait:
        case "all":
            return len(step.branches)
        case "any":
            return 1
        case number:
            return number


# -- as records -----------------------------------------------------------------------------------------


def workflow_record(definition: Definition, *, tenant: Tenant, revision: int, now: float) -> Record:
    """A revision is never changed: it is stored as new, or not at all."""
    return Record(
        kind=Kind.WORKFLOW,
        tenant=tenant,
        id=workflow_record_id(definition.name, revision),
        parent=definition.name,
        created_at=now,
        body=msgspec.json.encode(definition),
    )


def workflow_record_id(name: str, revision: int) -> str:
    """Sorts by revision: the last one is the newest."""
    return f"{name}@{revision:06d}"


def definition_of(record: Record) -> Definition:
    return _decode(record.body)


def revision_of(record: Record) -> int:
    return int(record.id.rpartition("@")[2])


_decode = msgspec.json.Decoder(Definition).decode
# Made here, and not by the first who asks: definitions are read in threads, and msgspec shows other threads what it knows of a
# type before that is complete. The process crashes if one uses it.
