"""Approvals: what waits for a person's word, and the word.

`interrupt` has the names and shapes of AG-UI's interrupt, so that it can be passed on to a front end
as it is; everything else is as in the rest of this API.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import NOT_BLANK, Reply, Request

Comment = Annotated[str, Meta(max_length=2000)]
Person = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,127}$(?!\n)")]


class Interrupt(Reply, kw_only=True, rename="camel", omit_defaults=True):
    """As AG-UI names it: `toolCallId`, `responseSchema`, `expiresAt` (ISO 8601, UTC)."""

    id: str
    reason: str
    message: str
    tool_call_id: str | None = None
    response_schema: dict[str, Any] | None = None
    expires_at: str
    metadata: dict[str, Any]


class WordView(Reply, kw_only=True):
    """What one person said."""

    by: str
    at: float
    via: str
    """By which face, in the caller's word: `Holdfast-Via`."""
    decision: str
    comment: str
    digest: str
    """Of what the approval was about with this word."""


class VerdictView(Reply, kw_only=True):
    """How it was decided. `decision`: approve, reject, edit, respond; expire, supersede with an empty `by`."""

    by: str
    at: float
    via: str
    decision: str
    comment: str
    edited_arguments: Any
    """What was decided about, where somebody had edited it; null else."""


class OriginalView(Reply, kw_only=True):
    """What was asked for, before anybody edited it."""

    arguments: Any
    digest: str
    policy: int


class ApprovalView(Reply, kw_only=True):
    id: str
    state: str
    """pending, approved, rejected, expired, superseded, consumed."""
    job_id: str
    """Empty: it is about a step of a run that is no job."""
    run: str
    step: str
    round: int
    fence: int
    """The job's when it was asked for."""
    tool: str
    arguments: Any
    """As they would be used, and as a yes is to them: validated, with defaults, edits included."""
    digest: str
    original: OriginalView | None
    """What was asked for; null: nobody has edited it, and it is `arguments`."""
    effect_preview: str
    """What a yes would do, put by the rule or the step; empty: it does not say."""
    risk: str
    rule: str
    policy: int
    reason: str
    message: str
    requested_by: str
    approvers: list[str]
    """Names, or globs of names; empty: anybody."""
    delegates: dict[str, str]
    """Who may decide in whose place."""
    quorum: int
    in_favour: int
    """Whose yes counts towards the quorum by now: none that was said before an edit, and one for somebody and who
    sits in their place."""
    separate: bool
    choices: list[str]
    response_schema: dict[str, Any] | None
    """What an answer must look like; null: nobody asks for one."""
    metadata: dict[str, str]
    """The job's labels, or the run's: words of a caller, shown and bound to nothing."""
    words: list[WordView]
    verdict: VerdictView | None
    response: Any
    consumed_by_fence: int | None
    """Of the attempt that was dispatched on it; null: none was."""
    created_at: float
    expires_at: float
    version: int
    interrupt: Interrupt


class ApprovalPage(Reply, kw_only=True):
    items: list[ApprovalView]
    next_cursor: str | None


class _Said(Request, kw_only=True, tag_field="decision"):
    pass


class Approve(_Said, kw_only=True, tag="approve"):
    comment: Comment = ""


class Reject(_Said, kw_only=True, tag="reject"):
    comment: Annotated[str, Meta(pattern=NOT_BLANK, max_length=2000)]
    """Why: it is what the requester reads."""


class Edit(_Said, kw_only=True, tag="edit"):
    comment: Comment = ""
    arguments: Any
    """All of them, as a new job would have them."""


class Respond(_Said, kw_only=True, tag="respond"):
    comment: Comment = ""
    response: Any


DecideApproval = Approve | Reject | Edit | Respond
"""`POST /v1/approvals/{id}:decide`; `decision` says which: approve, reject, edit, respond."""


class DelegateApproval(Request, kw_only=True):
    """`POST /v1/approvals/{id}:delegate`: `to` may decide in the caller's place."""

    to: Person
    comment: Comment = ""
