"""Runs of workflows, and their steps."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import NO_NUL, Labels, Reply, Request, Session

Revision = Annotated[int, Meta(ge=1, le=999_999)]
Reason = Annotated[str, Meta(max_length=500)]


class StartRun(Request, kw_only=True):
    """`POST /v1/runs`, and `POST /v1/runs:plan`, which stores nothing and says what would happen."""

    workflow: Annotated[str, Meta(min_length=1, max_length=64, pattern=NO_NUL)]
    revision: Revision | None = None
    """None: the newest."""
    input: Any = None
    labels: Labels = {}
    session: Session = ""
    """Of its runs one is at work at a time, in the order they came; and so it is with their jobs."""
    session_policy: Annotated[str, Meta(pattern=r"^(enqueue|reject|interrupt|rollback)$(?!\n)")] = "enqueue"
    """What to do about the session's runs that have not ended."""


class RunView(Reply, kw_only=True):
    id: str
    workflow: str
    revision: int
    state: str
    since: float
    input: Any
    output: Any
    error: dict[str, Any] | None
    labels: dict[str, str]
    actor: str
    session: str
    held: dict[str, Any] | None
    """What its steps wait for, if that is its session or a limit: `code`, `message`, `since`. None if nothing of the kind."""
    parent_run: str
    """The run of which this is a step; empty if none."""
    parent_step: str
    generation: int
    """How often it was run again from some step."""
    created_at: float
    deadline: float | None
    version: int
    fence: int
    """Of the run's lock at the last write."""


class RunPage(Reply, kw_only=True):
    items: list[RunView]
    next_cursor: str | None


class StepView(Reply, kw_only=True):
    name: str
    """`id`, `id[item]` of a step that fans out, either with `~undo` for what undoes it."""
    kind: str
    state: str
    since: float
    attempt: int
    ref: str
    """The job, approval, run or message of its last attempt; empty before there was one."""
    output: Any
    error: dict[str, Any] | None
    due: float | None
    """When a delay, the wait between two attempts, or its time is over."""
    created_at: float


class StepPage(Reply, kw_only=True):
    items: list[StepView]
    next_cursor: str | None


class PlannedStep(Reply, kw_only=True):
    id: str
    kind: str
    prospect: str
    """runs, skipped, depends (on what other steps give), or fails (an expression in it has no value)."""
    why: str
    case: str | None
    """Of a condition or a switch: which one it would take, if that is known."""
    items: int | None
    """Of a for_each: how many, if that is known."""


class RunPlan(Reply, kw_only=True):
    workflow: str
    revision: int
    input: Any
    """With the defaults of what was left out."""
    steps: list[PlannedStep]


class CancelRun(Request, kw_only=True):
    reason: Reason = ""
    compensate: bool = True
    """Undo what was done, where the definition says how."""


class PauseRun(Request, kw_only=True):
    reason: Reason = ""


class RerunRun(Request, kw_only=True):
    """`POST /v1/runs/{id}:rerun`: again from this step; what came before it stays as it was."""

    step: Annotated[str, Meta(min_length=1, max_length=128)]
