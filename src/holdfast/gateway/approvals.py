"""`/v1/approvals`: what waits for a person's word, and the word."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from holdfast import api
from holdfast.api.approvals import (
    ApprovalPage,
    ApprovalView,
    Approve,
    DecideApproval,
    DelegateApproval,
    Edit,
    Interrupt,
    OriginalView,
    Reject,
    Respond,
    VerdictView,
    WordView,
)
from holdfast.core.approval import Approval, ApprovalState, from_record
from holdfast.core.ballot import choices_of, is_assigned, seats_in_favour
from holdfast.core.decision import Choice
from holdfast.core.record import Kind
from holdfast.flow.approve import Said
from holdfast.flow.audit import Entry
from holdfast.gateway import limits
from holdfast.gateway.actors import find_via, get_actor
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.jobs import version_of_tag
from holdfast.gateway.pages import PAGE_BYTES, Cursor, Limit, ReadRecords, newest_first, read_records, to_cursor

LOOKED_AT_MAX = 2000
"""Approvals that one request looks at for an assignee. A page may be short for it; its cursor goes on."""
LOOKED_AT_ONCE = 200
REASON = "holdfast:approval"
CHOICES: dict[type[DecideApproval], Choice] = {
    Approve: Choice.APPROVE,
    Reject: Choice.REJECT,
    Edit: Choice.EDIT,
    Respond: Choice.RESPOND,
}

SAID: dict[Choice, str] = {
    Choice.APPROVE: "approval.approved",
    Choice.REJECT: "approval.rejected",
    Choice.EDIT: "approval.edited",
    Choice.RESPOND: "approval.responded",
}
"""As the audit has it."""


class ApprovalQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100
    state: ApprovalState | None = None
    job: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """Or a run, for the approvals of its steps."""
    assignee: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """Whom the approval names, or whoever decides in their place."""


async def list_approvals(desk: Desk, call: Call) -> Answer:
    """Newest first."""
    query: ApprovalQuery = call.query
    read = newest_first(desk.plane.store, Kind.APPROVAL, call.tenant, state=query.state, parent=query.job)
    if query.assignee is None:
        page, more = await read_records(read, query.cursor, query.limit)
        found = [from_record(record) for record in page]
    else:
        found, more = await _read_assigned(read, query, query.assignee)
    return Answer(ApprovalPage(items=[approval_view(approval) for approval in found], next_cursor=more))


async def _read_assigned(read: ReadRecords, query: ApprovalQuery, assignee: str) -> tuple[list[Approval], str | None]:
    found: list[Approval] = []
    cursor, looked_at, weight = query.cursor, 0, 0
    while looked_at < LOOKED_AT_MAX:
        page, more = await read_records(read, cursor, LOOKED_AT_ONCE)
        for n, record in enumerate(page, start=1):
            approval = from_record(record)
            if is_assigned(approval, assignee):
                found.append(approval)
                weight += len(record.body)
            if len(found) == query.limit or weight >= PAGE_BYTES:
                return found, to_cursor(record.id) if n < len(page) else more
        looked_at += len(page)
        cursor = more
        if more is None:
            break
    return found, cursor


async def get_approval(desk: Desk, call: Call) -> Answer:
    return _answer(await desk.plane.approvals.get(call.tenant, call.path["id"]))


async def decide_approval(desk: Desk, call: Call) -> Answer:
    wanted: DecideApproval = call.body
    said = Said(by=get_actor(call), choice=CHOICES[type(wanted)], comment=wanted.comment, via=find_via(call))
    match wanted:
        case Edit():
            limits.stored_json(wanted.arguments, "arguments")
            said = replace(said, arguments=wanted.arguments)
        case Respond():
            limits.stored_json(wanted.response, "response")
            said = replace(said, response=wanted.response)
    version = version_of_tag(call.header(b"if-match"))
    entry = _entry(desk, call, SAID[said.choice], wanted.comment)
    decided = await desk.plane.approvals.decide(call.tenant, call.path["id"], said, version=version, entry=entry)
    return _answer(decided)


async def delegate_approval(desk: Desk, call: Call) -> Answer:
    wanted: DelegateApproval = call.body
    by, comment = get_actor(call), wanted.comment
    entry = _entry(desk, call, "approval.delegated", comment)
    approval = await desk.plane.approvals.delegate(
        call.tenant, call.path["id"], by=by, to=wanted.to, comment=comment, entry=entry
    )
    return _answer(approval)


def _entry(desk: Desk, call: Call, action: str, comment: str) -> Entry:
    return entry_of(desk, call, action, f"approval/{call.path['id']}", reason=comment)


def _answer(approval: Approval) -> Answer:
    return Answer(approval_view(approval), headers=((b"etag", b'"%d"' % approval.version),))


def approval_view(approval: Approval) -> ApprovalView:
    terms, original = approval.terms, approval.original
    return ApprovalView(
        id=approval.id,
        state=approval.state,
        job_id=approval.job_id,
        run=approval.run,
        step=approval.step,
        round=approval.round,
        fence=approval.fence,
        tool=approval.tool,
        arguments=approval.arguments,
        digest=approval.digest,
        original=None
        if original is None
        else OriginalView(arguments=original.arguments, digest=original.digest, policy=original.policy),
        effect_preview=approval.effect_preview,
        risk=approval.risk,
        rule=approval.rule,
        policy=approval.policy,
        reason=approval.reason,
        message=terms.message,
        requested_by=approval.requested_by,
        approvers=list(terms.approvers),
        delegates=approval.delegates,
        quorum=terms.quorum,
        in_favour=len(seats_in_favour(approval)),
        separate=terms.separate,
        choices=[str(choice) for choice in choices_of(approval)],
        response_schema=terms.response_schema,
        metadata=approval.metadata,
        words=[
            WordView(by=w.by, at=w.at, via=w.via, decision=w.choice, comment=w.comment, digest=w.digest)
            for w in approval.words
        ],
        verdict=_verdict_view(approval),
        response=approval.response,
        consumed_by_fence=approval.consumed_by_fence,
        created_at=approval.created_at,
        expires_at=approval.expires_at,
        version=approval.version,
        interrupt=interrupt_of(approval),
    )


def _verdict_view(approval: Approval) -> VerdictView | None:
    verdict = approval.verdict
    if verdict is None:
        return None
    return VerdictView(
        by=verdict.by,
        at=verdict.at,
        via=verdict.via,
        decision=verdict.decision,
        comment=verdict.comment,
        edited_arguments=None if approval.original is None else approval.arguments,
    )


def interrupt_of(approval: Approval) -> Interrupt:
    """The approval as AG-UI's interrupt. What AG-UI has no field for is in its metadata."""
    expires = datetime.fromtimestamp(approval.expires_at, UTC).isoformat(timespec="milliseconds")
    return Interrupt(
        id=approval.id,
        reason=REASON,
        message=approval.terms.message,
        tool_call_id=approval.metadata.get("tool_call_id"),
        response_schema=approval.terms.response_schema,
        expires_at=expires.replace("+00:00", "Z"),
        metadata={
            "tool": approval.tool,
            "jobId": approval.job_id,
            "run": approval.run,
            "step": approval.step,
            "risk": approval.risk,
            "digest": approval.digest,
            "effectPreview": approval.effect_preview,
            "choices": [str(choice) for choice in choices_of(approval)],
            "labels": approval.metadata,
        },
    )
