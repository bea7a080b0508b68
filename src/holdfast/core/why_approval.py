"""Why an approval is as it is: who must still say yes, or who has said what."""

from __future__ import annotations

from holdfast.core.approval import Approval, ApprovalState
from holdfast.core.ballot import choices_of, seats_in_favour
from holdfast.core.decision import Choice
from holdfast.core.job import Job
from holdfast.core.why import Finding, Reason, finding
from holdfast.core.why_facts import ApprovalFacts

_YES = {
    Choice.APPROVE: "holdfast approval approve",
    Choice.EDIT: "holdfast approval edit",
    Choice.RESPOND: "holdfast approval respond",
}


def why_approval(facts: ApprovalFacts) -> list[Finding]:
    """Never empty."""
    approval = facts.approval
    if approval.state is ApprovalState.PENDING:
        return [awaits_approval(approval.id, approval, facts.job)]
    if approval.state is ApprovalState.APPROVED and facts.job is not None and not facts.job.is_terminal:
        return [_unused(facts)]
    return [_decided(approval)]


def _about(approval: Approval) -> str:
    return f"job {approval.job_id}" if approval.job_id else f"step {approval.step} of run {approval.run}"


def _ask(approval: Approval) -> str:
    return f"holdfast why job {approval.job_id}" if approval.job_id else f"holdfast why run {approval.run}"


def _unused(facts: ApprovalFacts) -> Finding:
    approval, verdict, cause = facts.approval, facts.approval.verdict, facts.cause
    because = "" if cause is None else f": {cause.summary}"
    return finding(
        Reason.APPROVAL_UNUSED,
        f"it is approved, and {_about(approval)} has not been dispatched yet{because}",
        since=None if verdict is None else verdict.at,
        until=approval.expires_at,
        then=(_ask(approval),),
        because=None if cause is None else cause.reason.value,
        by="" if verdict is None else verdict.by,
        rule=approval.rule,
    )


def _decided(approval: Approval) -> Finding:
    verdict = approval.verdict
    assert verdict is not None, "what is not pending was decided, by somebody or by time"
    by, about = verdict.by, _about(approval)
    reason, summary = {
        ApprovalState.APPROVED: (Reason.APPROVED, f"{by} said yes to {about}"),
        ApprovalState.REJECTED: (Reason.REJECTED, f"{by} said no to {about}"),
        ApprovalState.EXPIRED: (
            Reason.APPROVAL_EXPIRED,
            f"{by} said yes, and it was not used in time" if by else f"nobody decided on {about} in time",
        ),
        ApprovalState.SUPERSEDED: (
            Reason.SUPERSEDED,
            f"what it was about is no more ({verdict.comment or 'the job has ended'})",
        ),
        ApprovalState.CONSUMED: (
            Reason.APPROVAL_CONSUMED,
            f"{by} said yes, and {about} was dispatched on it; another attempt needs another approval",
        ),
    }[approval.state]
    return finding(
        reason,
        summary,
        since=verdict.at,
        then=(_ask(approval),),
        by=by,
        comment=verdict.comment,
        words=len(approval.words),
        rule=approval.rule,
        fence=approval.consumed_by_fence,
    )


def awaits_approval(approval_id: str, approval: Approval | None, job: Job | None) -> Finding:
    """A person must say yes: who, how many, and until when."""
    if approval is None:
        return finding(
            Reason.APPROVAL_REQUIRED,
            "it needs an approval, and the approval is missing",
            who="whoever submitted it: cancel it, and submit it again",
            then=(f"holdfast job cancel {job.id}",) if job is not None else (),
            approval=approval_id,
        )
    said_yes = sorted(seats_in_favour(approval))
    missing = approval.terms.quorum - len(said_yes)
    people = ", ".join(approval.assignees) or "anybody who has a name"
    a_yes = next(choice for choice in choices_of(approval) if choice is not Choice.REJECT)
    others = f", but not {approval.requested_by}, who asked for it" if approval.terms.separate else ""
    return finding(
        Reason.APPROVAL_REQUIRED,
        f"{missing} more of {people} must say yes" if said_yes else f"{people} must say yes",
        since=approval.created_at,
        until=approval.expires_at,
        who=f"{people}{others}",
        then=(f"holdfast approval show {approval.id}", f"{_YES[a_yes]} {approval.id}"),
        approval=approval.id,
        rule=approval.rule,
        policy=approval.policy,
        quorum=approval.terms.quorum,
        said_yes=said_yes,
        requested_by=approval.requested_by,
        reason=approval.reason,
    )
