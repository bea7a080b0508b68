"""Gate: a job that needs an approval, and its approval, change together.

Whoever moves such a job does it through here: what becomes of its approval is written in the same
transaction, so that no crash can leave a used approval unused, or an ended job on somebody's list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core.approval import (
    Approval,
    ApprovalState,
    ask,
    consume,
    end,
    follow,
    from_record,
    terms_of,
    to_record,
    why_unusable,
)
from holdfast.core.decision import ApprovalDemand, demand_of
from holdfast.core.job import Job, Tenant, amend, step
from holdfast.core.policy import Policy, bounds_today, consequences, still_allows
from holdfast.core.record import Kind
from holdfast.core.states import Event, State
from holdfast.errors import Invalid
from holdfast.flow.policies import find_active
from holdfast.flow.whole import with_payloads
from holdfast.ports import Change, Note, RecordChange, Store, Transaction

MOVED_ON = "moved-on"
POLICY_TIGHTENED = "policy-tightened"


class Asked(NamedTuple):
    """A job that waits for an approval, and what must be written with it."""

    job: Job
    records: tuple[RecordChange, ...] = ()
    notes: tuple[Note, ...] = ()


def ask_approval(job: Job, *, now: float, earlier: Approval | None = None) -> Asked:
    """The approval that the job's decision demands, made for the job as it stands. Raises `Invalid` as `ask`."""
    demand = demand_of(job) or ApprovalDemand()
    message = str((job.decision or {}).get("reason", ""))
    approval = ask(job, terms_of(demand, message=message), now=now, earlier=earlier)
    decision = told_of(job, {"id": approval.id, "expires_at": approval.expires_at})
    waiting = replace(job, approval=approval.id, decision=decision)
    detail = {
        "approval": approval.id,
        "approvers": demand.approvers,
        "quorum": demand.quorum,
        "expires_at": approval.expires_at,
        "rule": approval.rule,
        "policy": approval.policy,
    }
    return Asked(waiting, (stored(approval),), (Note(job.tenant, job.id, "approval.requested", detail),))


def ask_or_deny(job: Job, *, now: float, earlier: Approval | None = None) -> Asked:
    """As `ask_approval`, where there is no caller to be told of what is missing: the job is denied."""
    try:
        return ask_approval(job, now=now, earlier=earlier)
    except Invalid as error:
        return Asked(replace(job, state=State.DENIED, error={"code": "denied", "message": str(error)}))


def told_of(job: Job, news: dict[str, object]) -> dict[str, object]:
    """The job's decision, which says more about its approval: workers and recovery read it there."""
    decision = job.decision or {}
    return {**decision, "approval": {**decision.get("approval", {}), **news}}


def stored(approval: Approval) -> RecordChange:
    """The approval as its next version, in place of the one it was read at."""
    return RecordChange(after=to_record(approval), replaces=approval.version)


def is_gated(job: Job) -> bool:
    """Whether its dispatch needs an approval. Also where the approval itself is missing: then most of all."""
    return bool(job.approval) or "approval" in (job.decision or ())


async def apply_changes(changes: Sequence[Change], *, store: Store) -> list[bool]:
    """As `Store.apply`; the approval of each job follows it, and one that the job begins to wait for is asked for."""
    if not any(_concerns_approval(change) for change in changes):
        return await store.apply(changes)
    return await store.transact(await followed(changes, store=store))


async def followed(changes: Sequence[Change], *, store: Store) -> list[Transaction]:
    """Each change with what it makes of the job's approval."""
    approvals = await find_approvals([change.before for change in changes if _concerns_approval(change)], store=store)
    now = store.now()
    return [_followed(change, approvals.get(change.before.approval), now=now) for change in changes]


def _concerns_approval(change: Change) -> bool:
    before, after = change.before, change.after
    if before.state is after.state or before.state is State.RUNNING:
        return False
    return bool(before.approval) or after.state is State.APPROVAL_REQUIRED


def _followed(change: Change, approval: Approval | None, *, now: float) -> Transaction:
    if change.after.state is State.APPROVAL_REQUIRED:
        job, records, notes = ask_or_deny(change.after, now=now, earlier=approval)
        return Transaction(changes=[replace(change, after=job)], records=records, notes=notes)
    if approval is None:
        return Transaction(changes=[change])
    why = str(change.detail.get("reason") or change.detail.get("code") or change.kind)
    after = follow(approval, change.before, change.after, why=why, now=now)
    if after is None:
        return Transaction(changes=[change])
    has_ended = after.state in (ApprovalState.EXPIRED, ApprovalState.SUPERSEDED)
    return Transaction(changes=[change], records=[stored(after)], notes=[note_of_end(after, why)] if has_ended else [])


def note_of_end(approval: Approval, why: str) -> Note:
    detail = {"approval": approval.id, "reason": why}
    note = Note(approval.tenant, approval.job_id, "approval.superseded", detail, approval.run)
    return note._replace(kind="approval.expired") if approval.state is ApprovalState.EXPIRED else note


async def find_approvals(jobs: Sequence[Job], *, store: Store) -> Mapping[str, Approval]:
    """The approvals of these jobs, by id."""
    by_tenant: dict[Tenant, list[str]] = {}
    for job in jobs:
        if job.approval:
            by_tenant.setdefault(job.tenant, []).append(job.approval)
    found: dict[str, Approval] = {}
    for tenant, ids in by_tenant.items():
        for record in await store.find_records(Kind.APPROVAL, tenant, ids):
            if record is not None:
                found[record.id] = from_record(record)
    return found


class Passage(NamedTuple):
    """What the gate makes of one dispatch."""

    transaction: Transaction
    """Empty where the job has moved on, the policy cannot be asked now, or this process has an old one: it comes round
    again, if at all."""
    refused: str
    """Why the job is not dispatched but decided again; empty: it is dispatched, and its approval used up."""


async def pass_gate(dispatches: Sequence[Change], *, store: Store, policy: Policy) -> list[Passage]:
    """For each dispatch of a job that needs an approval: use the approval up, or have the job decided anew.

    An approval counts if it was given, has not expired, is about the very arguments that would be
    used now, and if today's policy asks for no more than it did then. What today's policy lets the job have
    holds for it, too.
    """
    approvals = await find_approvals([change.before for change in dispatches], store=store)
    jobs = await with_payloads([change.before for change in dispatches], store=store)
    now = store.now()
    passages = []
    for change, job in zip(dispatches, jobs, strict=True):
        if job is None:
            passages.append(Passage(Transaction(), MOVED_ON))
            continue
        approval = approvals.get(job.approval)
        why = why_unusable(approval, job, now=now)
        judged_by = policy.version  # it may hear of another while the store is asked
        if not why and not still_allows(job.decision, policy, job):
            why = POLICY_TIGHTENED
        if why == POLICY_TIGHTENED and not await _is_in_force(judged_by, store=store):
            passages.append(Passage(Transaction(), why))
        elif why:
            passages.append(Passage(_decided_anew(job, approval, why, policy=policy, now=now), why))
        else:
            assert approval is not None
            used = stored(consume(approval, change.after.fence))
            after = replace(change.after, **bounds_today(job.decision, policy, job))
            dispatch = replace(change, after=after, detail={**change.detail, "approval": approval.id})
            passages.append(Passage(Transaction(changes=[dispatch], records=[used]), ""))
    return passages


async def _is_in_force(version: int, *, store: Store) -> bool:
    """Whether the version that this process judges by is not an old one, which has no say: it hears of another with delay."""
    active = await find_active(store)
    return active.number in (0, version)


def _decided_anew(job: Job, approval: Approval | None, why: str, *, policy: Policy, now: float) -> Transaction:
    decision = policy.decide(job)
    changes = consequences(job, decision)
    detail = {"reason": why}
    records, notes = _let_go(approval, why, now=now)
    match decision.event:
        case Event.ALLOW:
            # No approval is needed any more: the next look dispatches it.
            after = amend(job, approval="", **changes)
        case Event.DENY:
            error = {"code": "denied", "message": decision.reason}
            after = step(job, Event.DENY, now=now, error=error, **changes)
        case Event.REQUIRE_APPROVAL:
            again = step(job, Event.REQUIRE_APPROVAL, now=now, **changes)
            after, asked, told = ask_or_deny(again, now=now, earlier=approval)
            records, notes = [*records, *asked], [*notes, *told]
        case _:
            return Transaction()
    return Transaction(
        changes=[Change(before=job, after=after, kind="job.decided", detail=detail)], records=records, notes=notes
    )


def _let_go(approval: Approval | None, why: str, *, now: float) -> tuple[list[RecordChange], list[Note]]:
    """An approval that is given and not used, but of no use any more."""
    if approval is None or approval.state not in (ApprovalState.PENDING, ApprovalState.APPROVED):
        return [], []
    state = ApprovalState.EXPIRED if why == "approval-expired" else ApprovalState.SUPERSEDED
    ended = end(approval, state, why=why, now=now)
    return [stored(ended)], [note_of_end(ended, why)]
