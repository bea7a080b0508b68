"""Approvals: a person's word on whether one job, or one step of a run, may go on.

An approval is bound to what was shown: the digest of the validated arguments, under one version of
the policy. It is decided once, by compare and set on its version; it lets one attempt begin, and is
used up by it. Whatever happens to the job happens to the approval in the same transaction: `follow`
says what.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.core.decision import CHOICES, EXPIRES_S, ApprovalDemand, Choice, are_enough
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.preview import preview
from holdfast.core.record import Kind, Record
from holdfast.core.schema import digest
from holdfast.core.states import Event, Risk, State
from holdfast.errors import Invalid

REMIND_AT = (0.5, 0.9)
"""When somebody who still has to decide is reminded: parts of the time from asking to expiry."""
_UNKNOWN_REQUESTER = (
    "whoever asks for this may not approve it, so it must be known who asks: "
    "send Holdfast-Actor, from a shell with HOLDFAST_ACTOR"
)


class ApprovalState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    """The next dispatch may use it up."""
    REJECTED = "rejected"
    EXPIRED = "expired"
    """Nobody decided in time, or nobody used it in time."""
    SUPERSEDED = "superseded"
    """What it was about is no more: the job ended, or the policy asks for something else by now."""
    CONSUMED = "consumed"
    """An attempt was dispatched on it. It is no good for another one."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Who may decide, and how."""

    approvers: tuple[str, ...] = ()
    """Names, or globs of names; empty: anybody who has a name."""
    quorum: int = 1
    """So many of them must say yes. One no is a no."""
    separate: bool = False
    """Whoever asked for the job may not decide."""
    message: str = ""
    """For whoever decides."""
    choices: tuple[Choice, ...] = CHOICES
    response_schema: dict[str, Any] | None = None
    """What an answer must look like; with one, RESPOND is a choice as well."""
    effect_preview: str = ""
    """A template for what a yes to the job would do; that of a step is filled in by its run."""
    expires_s: float = EXPIRES_S

    def allows(self, choice: Choice) -> bool:
        return choice in self.choices or (choice is Choice.RESPOND and self.response_schema is not None)

    def check_requester(self, name: str) -> None:
        """Raises `Invalid` if requester and approver must differ and nobody knows the requester, or too few are left."""
        if self.separate and not name:
            raise Invalid(_UNKNOWN_REQUESTER)
        if self.separate and not are_enough(self.approvers, self.quorum, without={name}):
            others = ", ".join(sorted({*self.approvers} - {name})) or "nobody else"
            raise Invalid(
                f"{name} asked for this and may not approve it: of {others}, {self.quorum} would have to say yes"
            )


def terms_of(demand: ApprovalDemand, *, message: str) -> Terms:
    """What the policy demands, as terms."""
    return Terms(
        approvers=tuple(demand.approvers),
        quorum=demand.quorum,
        separate=demand.separate,
        message=message,
        choices=demand.choices,
        response_schema=None if demand.response_schema is UNSET else demand.response_schema,
        effect_preview=demand.effect_preview or "",
        expires_s=demand.expires_s,
    )


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What one person said. `content` is the digest of what it was said of, or of what came with it: a yes
    to other arguments is another word."""

    by: str
    at: float
    choice: Choice
    comment: str = ""
    via: str = ""
    """By which face it came, in the caller's word: cli, http, ui; empty: nobody knows."""
    content: str
    digest: str = ""
    """Of what the approval was about with this word: what was said yes to. Empty: it was said before this was kept."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How it was decided. Set once; `by` is empty where time or the plane decided."""

    by: str
    at: float
    decision: str
    """A `Choice`, expire or supersede."""
    comment: str = ""
    via: str = ""
    """As in `Word`."""


class Original(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, kept beside what somebody made of it."""

    arguments: Any
    digest: str
    policy: int


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    tenant: Tenant
    id: str
    state: ApprovalState = ApprovalState.PENDING
    version: int = 0
    """Of its record; 0 before there is one."""
    created_at: float
    expires_at: float
    job_id: JobId
    """Empty: it is about a step of a run that is no job."""
    run: str = ""
    step: str = ""
    round: int = 1
    """Of the same job: 2 and more when an earlier one was used up, or did not hold any more."""
    fence: int = 0
    """The job's when it was asked for."""
    tool: str
    """What is to be done: the job's topic, or the step's name."""
    arguments: Any
    """As they would be used: validated, with defaults."""
    digest: str
    original: Original | None = None
    """None: nobody has edited it."""
    effect_preview: str = ""
    """What a yes would do, for people to read; empty: nobody has said how to put it."""
    risk: Risk
    rule: str
    """The policy's that asked for it."""
    policy: int
    """The version of the policy that asked for it; 0: it was not a policy."""
    reason: str
    requested_by: str
    """Empty: nobody knows."""
    metadata: dict[str, str]
    """The job's labels: words of its caller, shown and bound to nothing."""
    terms: Terms
    delegates: dict[str, str] = {}
    """Who may decide in whose place."""
    words: tuple[Word, ...] = ()
    verdict: Verdict | None = None
    response: Any = None
    reminders: int = 0
    consumed_by_fence: int | None = None

    @property
    def subject(self) -> str:
        """What the lock and the list are by: one decision at a time for each job, or step of a run."""
        return self.job_id or f"{self.run}:{self.step}"

    @property
    def assignees(self) -> tuple[str, ...]:
        return (*self.terms.approvers, *self.delegates)

    @property
    def due(self) -> float | None:
        """When time has the next word: a reminder, or the end."""
        if self.state is not ApprovalState.PENDING:
            return None
        if self.reminders < len(REMIND_AT):
            return self.created_at + REMIND_AT[self.reminders] * (self.expires_at - self.created_at)
        return self.expires_at


def bind(*, tenant: Tenant, tool: str, arguments: Any, policy: int) -> str:
    """The digest of what is approved. No label, message or description is in it: a model words those
    anew with each try, and an approval that nobody can use is worth nothing."""
    return digest({"tenant": tenant, "tool": tool, "policy": policy, "arguments": arguments})


def digest_of(job: Job, policy: int) -> str:
    """As `bind`, of the job as it would run now."""
    return bind(tenant=job.tenant, tool=job.topic, arguments=msgspec.json.decode(job.payload), policy=policy)


def approval_id(subject: str, step: str, digest: str, round: int) -> str:  # noqa: A002  (its name everywhere else)
    """The same for the same question: asked twice, it is one. Sorts with its job."""
    material = "\0".join((step, digest, str(round))).encode()
    return f"{subject}-{hashlib.sha256(material).hexdigest()[:12]}"


def ask(job: Job, terms: Terms, *, now: float, earlier: Approval | None = None) -> Approval:
    """A new approval for the job as it stands, which carries the decision that asks for it.

    Raises `Invalid` if requester and approver must differ, and nobody knows the requester, or too few are left without them.
    """
    terms.check_requester(job.actor)
    decision = job.decision or {}
    policy, rounds = decision.get("policy", 0), 1 if earlier is None else earlier.round + 1
    bound = digest_of(job, policy)
    return Approval(
        tenant=job.tenant,
        id=approval_id(job.id, job.step, bound, rounds),
        created_at=now,
        expires_at=now + terms.expires_s,
        job_id=job.id,
        run=job.run,
        step=job.step,
        round=rounds,
        fence=job.fence,
        tool=job.topic,
        arguments=msgspec.json.decode(job.payload),
        digest=bound,
        effect_preview=preview(terms.effect_preview, job),
        risk=job.risk,
        rule=str(decision.get("rule", "")),
        policy=policy,
        reason=str(decision.get("reason", "")),
        requested_by=job.actor,
        metadata=job.labels,
        terms=terms,
    )


def ask_step(
    approval: str,
    terms: Terms,
    *,
    tenant: Tenant,
    run: str,
    step: str,
    arguments: Any,
    requested_by: str,
    labels: dict[str, str],
    now: float,
    effect_preview: str = "",
) -> Approval:
    """A new approval for a step of a run that is no job. Its decision reaches the run as a RESULT record.

    Raises `Invalid` as `ask`. Nobody edits it: what it shows is the run's, and not the approver's to change.
    """
    terms.check_requester(requested_by)
    return Approval(
        tenant=tenant,
        id=approval,
        created_at=now,
        expires_at=now + terms.expires_s,
        job_id=JobId(""),
        run=run,
        step=step,
        tool=step,
        arguments=arguments,
        digest=bind(tenant=tenant, tool=step, arguments=arguments, policy=0),
        effect_preview=effect_preview,
        risk=Risk.MEDIUM,
        rule="",
        policy=0,
        reason="",
        requested_by=requested_by,
        metadata=labels,
        terms=replace(terms, choices=tuple(choice for choice in terms.choices if choice is not Choice.EDIT)),
    )


def edited(approval: Approval, job: Job, terms: Terms, now: float) -> Approval:
    """The same approval about the job as it has just been edited and decided anew, under those terms.

    It expires no later than it did, and sooner where the terms want it. Who was to sit in whose place was said
    of those who were to decide then: where others are, nobody was asked. An answer was to other arguments.

    Raises `Invalid` as `ask`.
    """
    terms.check_requester(approval.requested_by)
    decision = job.decision or {}
    policy = decision.get("policy", approval.policy)
    asked = Original(arguments=approval.arguments, digest=approval.digest, policy=approval.policy)
    return replace(
        approval,
        original=approval.original or asked,
        arguments=msgspec.json.decode(job.payload),
        digest=digest_of(job, policy),
        effect_preview=preview(terms.effect_preview, job),
        policy=policy,
        rule=str(decision.get("rule", "")),
        reason=str(decision.get("reason", "")),
        terms=terms,
        response=None,
        expires_at=min(approval.expires_at, now + terms.expires_s),
        delegates=approval.delegates if terms.approvers == approval.terms.approvers else {},
    )


def end(approval: Approval, state: ApprovalState, *, why: str, now: float) -> Approval:
    """Expired or superseded. The verdict of a decided one stays: it was made, only not used."""
    decision = "expire" if state is ApprovalState.EXPIRED else "supersede"
    verdict = approval.verdict or Verdict(by="", at=now, decision=decision, comment=why)
    return replace(approval, state=state, verdict=verdict)


def why_unusable(approval: Approval | None, job: Job, *, now: float) -> str:
    """Why the job may not be dispatched on this approval; empty if it may. A stable code."""
    if approval is None:
        return "approval-missing"
    if approval.state is not ApprovalState.APPROVED:
        return f"approval-{approval.state}"
    if now >= approval.expires_at:
        return "approval-expired"
    if approval.digest != digest_of(job, approval.policy):
        return "approval-digest"
    return ""


def consume(approval: Approval, fence: int) -> Approval:
    return replace(approval, state=ApprovalState.CONSUMED, consumed_by_fence=fence)


def follow(approval: Approval, before: Job, after: Job, *, why: str, now: float) -> Approval | None:
    """What a change of its job makes of the approval; None: nothing.

    A dispatch that nobody has begun on gives it back. One that somebody has begun on has used it up:
    whoever began may have done what was approved, once.
    """
    if before.state is State.DISPATCHED and after.state is State.SCHEDULED:
        if approval.state is ApprovalState.CONSUMED and approval.consumed_by_fence == before.fence:
            return replace(approval, state=ApprovalState.APPROVED, consumed_by_fence=None)
        return None
    if after.is_terminal and approval.state in (ApprovalState.PENDING, ApprovalState.APPROVED):
        expired = why == "approval-expired"
        return end(approval, ApprovalState.EXPIRED if expired else ApprovalState.SUPERSEDED, why=why, now=now)
    return None


JOB_EVENTS = {
    ApprovalState.APPROVED: Event.APPROVE,
    ApprovalState.REJECTED: Event.DENY,
    ApprovalState.EXPIRED: Event.EXPIRE,
}
"""What its end is to a job that waits for it."""


def result_record(approval: Approval, *, now: float) -> Record:
    """What tells a run that its approval step was decided; written together with the decision."""
    verdict = approval.verdict
    assert verdict is not None
    detail = {"by": verdict.by, "at": verdict.at, "comment": verdict.comment, "response": approval.response}
    body = {"step": approval.step, "decision": approval.state, "detail": detail}
    return Record(
        kind=Kind.RESULT,
        tenant=approval.tenant,
        id=approval.id,
        state=Kind.APPROVAL,
        parent=approval.run,
        due=now,
        created_at=now,
        body=msgspec.json.encode(body),
    )


def to_record(approval: Approval) -> Record:
    """As it is to be stored, one version on."""
    stored = replace(approval, version=approval.version + 1)
    return Record(
        kind=Kind.APPROVAL,
        tenant=stored.tenant,
        id=stored.id,
        version=stored.version,
        state=stored.state,
        parent=stored.job_id or stored.run,
        due=stored.due,
        created_at=stored.created_at,
        body=msgspec.json.encode(stored),
    )


def from_record(record: Record) -> Approval:
    return _decode(record.body)


_decode = msgspec.json.Decoder(Approval).decode
