"""Approve: a person's word on an approval, or time's, and what it makes of the job that waits for it.

The lock keeps two who decide the same job at once from working in vain, and tells the one who cannot
have it so. What makes the decision the only one is the compare and set inside: approval, job and
history are one transaction, which happens if neither has moved on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.approval import (
    JOB_EVENTS,
    REMIND_AT,
    Approval,
    ApprovalState,
    Word,
    edited,
    end,
    from_record,
    result_record,
    terms_of,
)
from holdfast.core.ballot import (
    answered,
    check_allowed,
    check_approver,
    check_open,
    delegate,
    is_answered,
    is_repeated,
    say,
)
from holdfast.core.decision import Choice
from holdfast.core.job import Job, Tenant, amend, step
from holdfast.core.policy import consequences
from holdfast.core.record import Kind
from holdfast.core.schema import digest
from holdfast.core.states import Event, State
from holdfast.core.topic import Topics
from holdfast.errors import Conflict, Invalid, VersionMismatch
from holdfast.flow.audit import Entry, transact
from holdfast.flow.decide import Policy
from holdfast.flow.gate import note_of_end, stored, told_of
from holdfast.flow.submit import bound_payload
from holdfast.locks import LockClass, Locks
from holdfast.ports import Change, Note, RecordChange, Store, Transaction
from holdfast.telemetry import Telemetry

APPROVAL = LockClass("approval", ttl=10, renew_every=0, wait=2)

TRIES = 5
"""How often a person's word is tried again when approval or job move under it."""

EXPIRED = {"code": "approval-expired", "message": "nobody decided in time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a person says on an approval."""

    by: str
    choice: Choice
    comment: str = ""
    via: str = ""
    """By which face."""
    arguments: Any = None
    """With EDIT."""
    response: Any = None
    """With RESPOND."""


class Approvals:
    def __init__(self, *, store: Store, locks: Locks, topics: Topics, policy: Policy, telemetry: Telemetry) -> None:
        self._store = store
        self._locks = locks
        self._topics = topics
        self._policy = policy
        self._telemetry = telemetry

    async def get(self, tenant: Tenant, approval_id: str) -> Approval:
        """Raises `NotFound`."""
        return from_record(await self._store.get_record(Kind.APPROVAL, tenant, approval_id))

    async def decide(
        self, tenant: Tenant, approval_id: str, said: Said, *, version: int | None = None, entry: Entry | None = None
    ) -> Approval:
        """The approval after what was said. The same person saying the same again is answered the same.

        Raises `AlreadyDecided` with who was first, `NotApprover`, `Invalid` for arguments or an answer
        that do not fit, `VersionMismatch`, and `LockBusy` while somebody else decides this very job.
        """
        approval = await self.get(tenant, approval_id)
        if approval.state is not ApprovalState.PENDING:
            # Decided for good: nobody has to queue up to be told so.
            return _answer_late(approval, said, now=self._store.now())
        async with self._locks.hold(APPROVAL, approval.subject):
            for _ in range(TRIES):
                approval = await self.get(tenant, approval_id)
                word = _word(approval, said, now=self._store.now())
                if approval.state is not ApprovalState.PENDING or is_repeated(
                    approval, word, anew=version == approval.version
                ):
                    return _answer_late(approval, said, now=word.at)
                _check_read(approval, said.choice, version)
                if word.at >= approval.expires_at:
                    # Too late, whether or not anybody has noticed yet.
                    await self.expire(approval)
                    continue
                job = await self._find_waiting(approval)
                if approval.job_id and job is None:
                    await self.supersede(approval, "job-ended")
                    continue
                after, transaction = self._decide(approval, job, said, word)
                detail = {"state": after.state, "via": word.via, **_digests(after), **_about(after)}
                if await transact(transaction, store=self._store, entry=entry, **detail):
                    if after.state is not ApprovalState.PENDING:
                        self._telemetry.approval_decided(after, waited_s=word.at - after.created_at)
                    return replace(after, version=approval.version + 1)
        raise Conflict(f"approval {approval_id} keeps changing; try again")

    async def delegate(
        self, tenant: Tenant, approval_id: str, *, by: str, to: str, comment: str, entry: Entry | None = None
    ) -> Approval:
        """`to` may decide in the place of `by`, this once. Said again, it changes nothing. Raises as `decide`."""
        approval = await self.get(tenant, approval_id)
        async with self._locks.hold(APPROVAL, approval.subject):
            for _ in range(TRIES):
                approval = await self.get(tenant, approval_id)
                after = delegate(approval, by, to)
                if after is approval:
                    return approval
                detail = {"approval": approval.id, "by": by, "to": to, "comment": comment}
                note = Note(tenant, approval.job_id, "approval.delegated", detail, approval.run)
                transaction = Transaction(records=[stored(after)], notes=[note])
                if await transact(transaction, store=self._store, entry=entry, to=to, **_about(after)):
                    return replace(after, version=approval.version + 1)
        raise Conflict(f"approval {approval_id} keeps changing; try again")

    async def look_after(self, approval: Approval) -> None:
        """What time asks for: a reminder, or the end. Somebody else may be first: then nothing happens."""
        now = self._store.now()
        if now >= approval.expires_at:
            await self.expire(approval)
        elif approval.job_id and await self._find_waiting(approval) is None:
            await self.supersede(approval, "job-ended")
        else:
            passed = (now - approval.created_at) / (approval.expires_at - approval.created_at)
            reminded = replace(approval, reminders=sum(part <= passed for part in REMIND_AT))
            detail = {"approval": approval.id, "approvers": list(approval.assignees), "expires_at": approval.expires_at}
            note = Note(approval.tenant, approval.job_id, "approval.reminded", detail, approval.run)
            await self._store.transact([Transaction(records=[stored(reminded)], notes=[note])])

    async def expire(self, approval: Approval) -> bool:
        """Nobody decided in time: the job that waits is TIMEOUT. False if somebody was faster."""
        now = self._store.now()
        expired = end(approval, ApprovalState.EXPIRED, why="approval-expired", now=now)
        job = await self._find_waiting(approval)
        changes = []
        if job is not None:
            after = step(job, Event.EXPIRE, now=now, error=EXPIRED)
            detail = {"reason": EXPIRED["code"], "approval": approval.id}
            changes = [
                Change(before=job, after=after, kind="job.timed_out", detail=detail, dead_letter=EXPIRED["code"])
            ]
        transaction = Transaction(
            changes=changes,
            records=[stored(expired), *_told_to_run(expired, now=now)],
            notes=[note_of_end(expired, "approval-expired")],
        )
        [written] = await self._store.transact([transaction])
        if written:
            self._telemetry.approval_decided(expired, waited_s=now - approval.created_at)
        return written

    async def supersede(self, approval: Approval, why: str) -> bool:
        """What it was about is no more. False if somebody was faster."""
        ended = end(approval, ApprovalState.SUPERSEDED, why=why, now=self._store.now())
        [written] = await self._store.transact([Transaction(records=[stored(ended)], notes=[note_of_end(ended, why)])])
        return written

    async def _find_waiting(self, approval: Approval) -> Job | None:
        """The job, if it still waits for this very approval."""
        if not approval.job_id:
            return None
        [job] = await self._store.find_jobs([approval.job_id])
        waits = job is not None and job.state is State.APPROVAL_REQUIRED and job.approval == approval.id
        return job if waits else None

    def _decide(self, approval: Approval, job: Job | None, said: Said, word: Word) -> tuple[Approval, Transaction]:
        candidate = job
        # First of all: what came with a word that nobody may say is not looked at.
        check_allowed(approval, said.choice)
        if said.choice is Choice.EDIT:
            # Of this one; `say` asks the same of what it becomes. Else anybody could make of it what is theirs to decide.
            check_approver(approval, said.by)
            approval, candidate = self._edit(approval, job, said.arguments, now=word.at)
        elif said.choice is Choice.RESPOND:
            approval = answered(approval, said.response)
        after = say(approval, word)
        changes = [] if job is None or candidate is None else _change(job, candidate, after, word)
        detail = {
            "approval": after.id,
            "by": word.by,
            "decision": word.choice,
            "comment": word.comment,
            "via": word.via,
            "words": len(after.words),
            "quorum": after.terms.quorum,
            **_digests(after),
        }
        note = Note(after.tenant, after.job_id, "approval.voted", detail, after.run)
        if after.state is not ApprovalState.PENDING:
            note = note._replace(kind="approval.decided")
        transaction = Transaction(
            changes=changes,
            records=[stored(after), *_told_to_run(after, now=word.at)],
            notes=[note],
        )
        return after, transaction

    def _edit(self, approval: Approval, job: Job | None, arguments: Any, *, now: float) -> tuple[Approval, Job | None]:
        """The approval about other arguments: validated like those of a new job, and decided by today's policy."""
        if job is None:
            raise Invalid("only the arguments of a job can be edited: approve or reject")
        payload = bound_payload(msgspec.json.encode(arguments), self._topics.get(job.topic))
        candidate = replace(job, payload=payload)
        decision = self._policy.decide(candidate)
        if decision.event is Event.DENY:
            raise Invalid(f"the policy denies the edited arguments: {decision.reason}")
        if decision.event is None:
            raise Conflict("the policy cannot be asked about the edited arguments now; try again")
        candidate = replace(candidate, **consequences(candidate, decision))
        demand = decision.approval
        terms = approval.terms if demand is None else terms_of(demand, message=decision.reason)
        return edited(approval, candidate, terms, now), candidate


def _word(approval: Approval, said: Said, *, now: float) -> Word:
    match said.choice:
        case Choice.EDIT:
            content = digest(said.arguments)
        case Choice.RESPOND:
            content = digest(said.response)
        case _:
            content = approval.digest
    return Word(by=said.by, at=now, choice=said.choice, comment=said.comment, via=said.via, content=content)


def _answer_late(approval: Approval, said: Said, *, now: float) -> Approval:
    """The approval as it is, to whoever says again what they have said. Raises `AlreadyDecided` to everybody else."""
    if not is_repeated(approval, _word(approval, said, now=now)):
        check_open(approval)
    return approval


def _check_read(approval: Approval, choice: Choice, version: int | None) -> None:
    """Raises `VersionMismatch` to whoever may say yes to something else than they have read."""
    if version is None:
        was_edited = any(word.choice is Choice.EDIT for word in approval.words)
        if was_edited and choice in (Choice.APPROVE, Choice.RESPOND):
            news = f"the arguments of approval {approval.id} were edited"
        elif choice is Choice.APPROVE and is_answered(approval):
            news = f"approval {approval.id} was given an answer, which a yes would be to"
        else:
            return
        raise VersionMismatch(f"{news}; read it again, and name the version you have read")
    if approval.version != version:
        raise VersionMismatch(f"approval {approval.id} has version {approval.version}, not {version}")


def _change(job: Job, candidate: Job, approval: Approval, word: Word) -> list[Change]:
    """What it makes of the job: nothing while a quorum is missing, unless its arguments were edited."""
    detail = {"approval": approval.id, "by": word.by}
    if approval.state is ApprovalState.PENDING:
        if candidate is job:
            return []
        news = {"id": approval.id, "expires_at": approval.expires_at}
        after = amend(candidate, decision=told_of(candidate, news))
        return [Change(before=job, after=after, kind="job.edited", detail=detail)]
    news = {
        "id": approval.id,
        "expires_at": approval.expires_at,
        "decision": word.choice,
        "by": word.by,
        "at": word.at,
        "comment": word.comment,
    }
    if is_answered(approval):
        news["response"] = approval.response
    decision = told_of(candidate, news)
    if approval.state is ApprovalState.REJECTED:
        error = {"code": "rejected", "message": word.comment, "by": word.by}
        after = step(candidate, JOB_EVENTS[approval.state], now=word.at, decision=decision, error=error)
        return [Change(before=job, after=after, kind="job.denied", detail=detail)]
    after = step(candidate, JOB_EVENTS[approval.state], now=word.at, decision=decision)
    return [Change(before=job, after=after, kind="job.approved", detail=detail)]


def _digests(approval: Approval) -> dict[str, str]:
    """What it is about, and what it was asked about: for history and audit, which contain no arguments."""
    original = approval.original
    asked = {} if original is None else {"original_digest": original.digest}
    return {"digest": approval.digest, **asked}


def _about(approval: Approval) -> dict[str, str]:
    """What it is to decide, for the audit."""
    return {"job": approval.job_id} if approval.job_id else {"run": approval.run, "step": approval.step}


def _told_to_run(approval: Approval, *, now: float) -> list[RecordChange]:
    """An approval step of a run is not a job: its run learns of the end from a record of its own."""
    if approval.job_id or approval.state is ApprovalState.PENDING:
        return []
    return [RecordChange(after=result_record(approval, now=now), replaces=0)]
