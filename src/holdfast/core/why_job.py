"""Why a job is where it is. `why_scheduled` knows why one is not dispatched."""

from __future__ import annotations

from typing import Any, assert_never

from holdfast.core.placement import WorkerView
from holdfast.core.recovery import Remedy, next_look, recover
from holdfast.core.states import State
from holdfast.core.why import Finding, Reason, Weight, finding, ranked
from holdfast.core.why_approval import awaits_approval
from holdfast.core.why_facts import TAKEN_WITHIN_S, JobFacts
from holdfast.core.why_scheduled import effect_unknown, why_scheduled

OVERDUE_S = 10.0
"""Recovery looks every second: what it has left undone for so long, nobody does."""
RENEWALS_PER_LEASE = 3


def why_job(facts: JobFacts) -> list[Finding]:
    """Never empty: there is always one reason why a job is where it is."""
    return ranked([*_stuck(facts), *_standing(facts), *_notes(facts)])


def _standing(facts: JobFacts) -> list[Finding]:
    match facts.job.state:
        case State.PENDING:
            return [_pending(facts)]
        case State.APPROVAL_REQUIRED:
            return [awaits_approval(facts.job.approval, facts.approval, facts.job)]
        case State.SCHEDULED:
            return why_scheduled(facts)
        case State.DISPATCHED:
            return [_dispatched(facts)]
        case State.RUNNING:
            return [_running(facts)]
        case State.SUCCEEDED | State.FAILED | State.CANCELLED | State.TIMEOUT | State.DENIED:
            return [_ended(facts)]
        case never:
            assert_never(never)


def _stuck(facts: JobFacts) -> list[Finding]:
    """Time has left it behind, and nobody has done about it what the rules of recovery say."""
    job = facts.job
    action = recover(job, facts.topic, now=facts.now)
    due = next_look(job, facts.topic, now=0.0)
    # A scheduled job that is due is only looked at again: why nobody dispatches it is another question.
    # The same of one that the policy cannot decide about: it is asked again, to no avail.
    if action.remedy in (Remedy.NOTHING, Remedy.DISPATCH, Remedy.DECIDE) or facts.now - due < OVERDUE_S:
        return []
    return [
        finding(
            Reason.RECOVERY_OVERDUE,
            f"it should have been put right {facts.now - due:.0f} s ago ({action.reason}), and nobody has: "
            "no reconciler is at work, or the store does not take its writes",
            since=due,
            who="whoever runs the plane: start a reconciler, or look into the log of the one that runs",
            then=("holdfast why lock reconciler:default", "holdfast runbook jobs-stale"),
            due=action.reason,
            remedy=action.remedy.value,
        )
    ]


def _pending(facts: JobFacts) -> Finding:
    job, decision = facts.job, facts.job.decision or {}
    if decision.get("action") == "wait":
        return finding(
            Reason.POLICY_UNUSABLE,
            f"the policy could not decide about it: {decision.get('reason') or 'it cannot be used'}",
            since=job.since,
            until=job.since + facts.topic.pending_timeout_s,
            who="whoever publishes the policy",
            then=("holdfast policy show", f"holdfast job events {job.id}"),
            policy=decision.get("policy"),
            rule=decision.get("rule"),
            failed=decision.get("failed"),
        )
    return finding(
        Reason.DECISION_PENDING,
        "it is stored and not yet decided; what is not decided in time is decided again",
        since=job.since,
        until=job.since + facts.topic.pending_timeout_s,
    )


def _dispatched(facts: JobFacts) -> Finding:
    """A worker was told. Whether it lives, has room, or asks at all is what makes the difference."""
    job, worker = facts.job, facts.worker
    until = job.since + facts.topic.dispatch_timeout_s
    begun = [other for other in facts.in_hand if other.state is State.RUNNING]
    if worker is None or worker.last_seen < facts.alive_since:
        return _silent(facts, until)
    if len(begun) >= worker.slots:
        return finding(
            Reason.WORKER_BUSY,
            f"it waits at worker {worker.id}, whose {worker.slots} slots are taken",
            since=job.since,
            until=until,
            then=(f"holdfast why worker {worker.id}",),
            worker=worker.id,
            running=len(begun),
            slots=worker.slots,
        )
    if facts.now - job.since < TAKEN_WITHIN_S:
        return finding(
            Reason.DELIVERY_UNDER_WAY,
            f"it is on its way to worker {worker.id}",
            since=job.since,
            until=until,
            worker=worker.id,
        )
    if facts.is_claiming:
        return finding(
            Reason.DELIVERY_LOST,
            f"worker {worker.id} asks for work at this moment and has not got it: the delivery was lost on the bus",
            since=job.since,
            until=until,
            who="nobody: it is sent again when its dispatch timeout has passed",
            then=("holdfast doctor",),
            worker=worker.id,
            last_heard=worker.last_seen,
        )
    return _takes_none(facts, worker, until)


def _silent(facts: JobFacts, until: float) -> Finding:
    job, worker = facts.job, facts.worker
    return finding(
        Reason.WORKER_SILENT,
        f"it was given to worker {job.worker}, which is not heard of; it goes to another one",
        since=job.since,
        until=until,
        who=f"whoever runs worker {job.worker}",
        then=("holdfast worker list",),
        worker=job.worker,
        last_heard=None if worker is None or worker.last_seen == float("-inf") else worker.last_seen,
    )


def _takes_none(facts: JobFacts, worker: WorkerView, until: float) -> Finding:
    job = facts.job
    return finding(
        Reason.WORKER_TAKES_NONE,
        f"worker {worker.id} lives and has room, but has not taken what was sent to it {facts.now - job.since:.0f} s ago",
        since=job.since,
        until=until,
        who=f"whoever runs worker {worker.id}: it heartbeats, and takes no work",
        then=(f"holdfast why worker {worker.id}", f"holdfast worker drain {worker.id}"),
        worker=worker.id,
        last_heard=worker.last_seen,
        in_hand=len(facts.in_hand),
        slots=worker.slots,
    )


def _running(facts: JobFacts) -> Finding:
    job, worker = facts.job, facts.worker
    renewed_at = job.lease_until - facts.topic.lease_s
    left = job.lease_until - facts.now
    evidence: dict[str, Any] = {
        "worker": job.worker,
        "attempt": f"{job.attempts} of {job.max_attempts}",
        "fence": job.fence,
        "renewed_at": renewed_at,
        "progress": job.progress,
    }
    if left <= 0:
        return finding(
            Reason.LEASE_EXPIRED,
            f"worker {job.worker} has not renewed its lease, which ran out {-left:.0f} s ago: it is taken from it",
            since=job.lease_until,
            then=("holdfast worker list",),
            **evidence,
        )
    if job.cancel_requested:
        return finding(
            Reason.CANCEL_AWAITS_WORKER,
            f"it was asked to stop; worker {job.worker} has been told, and has not said that it has stopped",
            since=job.since,
            until=job.lease_until,
            who=f"worker {job.worker}; without a word of it, the end of its lease",
            **evidence,
        )
    is_silent = worker is None or worker.last_seen < facts.alive_since
    # Renewed every third of the lease: with less than half of it left, at least one renewal is missing.
    if is_silent or left < facts.topic.lease_s * (1 - 1.5 / RENEWALS_PER_LEASE):
        return finding(
            Reason.LEASE_RUNNING_OUT,
            f"worker {job.worker} renewed {facts.now - renewed_at:.0f} s ago and is late: "
            f"in {left:.0f} s the job is taken from it",
            since=renewed_at + facts.topic.lease_s / RENEWALS_PER_LEASE,
            until=job.lease_until,
            who=f"whoever runs worker {job.worker}: it is paused, cut off or gone",
            then=("holdfast worker list",),
            **evidence,
        )
    return finding(
        Reason.RUNNING,
        f"worker {job.worker} is at work on it and keeps its lease",
        since=job.since,
        until=job.since + facts.topic.running_timeout_s,
        then=(f"holdfast job watch {job.id}",),
        **evidence,
    )


def _ended(facts: JobFacts) -> Finding:
    job, error = facts.job, facts.job.error or {}
    code, message = str(error.get("code", "")), str(error.get("message", ""))
    match job.state:
        case State.SUCCEEDED:
            took = f"attempt {job.attempts} of {job.max_attempts}"
            return finding(Reason.SUCCEEDED, f"it has succeeded, in {took}", since=job.since, worker=job.worker)
        case State.DENIED if code == "rejected":
            return finding(
                Reason.REJECTED,
                f"{error.get('by') or 'a person'} said no",
                since=job.since,
                then=(f"holdfast approval show {job.approval}",),
                by=error.get("by"),
                comment=message,
                approval=job.approval,
            )
        case State.DENIED:
            return _denied(facts, message)
        case State.TIMEOUT if code == "approval-expired":
            return _expired(facts)
        case State.TIMEOUT:
            return finding(
                Reason.TIMED_OUT,
                f"its time ran out ({code or 'timeout'})",
                since=job.since,
                then=(f"holdfast job retry {job.id}",),
                code=code,
                deadline=job.deadline,
                running_timeout_s=facts.topic.running_timeout_s,
            )
        case State.CANCELLED:
            said = f": {message}" if message else ""
            return finding(Reason.CANCELLED, f"it was cancelled{said}", since=job.since, code=code)
        case _:
            return finding(
                Reason.FAILED,
                f"it failed for good after {job.attempts} of {job.max_attempts} attempts ({code or 'no code'})",
                since=job.since,
                who="whoever wrote its handler; or try it again",
                then=(f"holdfast job events {job.id}", f"holdfast job retry {job.id}"),
                code=code,
                message=message,
                worker=job.worker,
            )


def _expired(facts: JobFacts) -> Finding:
    job = facts.job
    return finding(
        Reason.APPROVAL_EXPIRED,
        "nobody decided on its approval in time",
        since=job.since,
        who="whoever needs it: submit it again, and tell those who may approve",
        then=(f"holdfast approval show {job.approval}", f"holdfast job retry {job.id}"),
        approval=job.approval,
        approvers=list(facts.approval.assignees) if facts.approval is not None else [],
    )


def _denied(facts: JobFacts, message: str) -> Finding:
    job, decision = facts.job, facts.job.decision or {}
    version, rule = decision.get("policy", 0), decision.get("rule", "")
    failed = decision.get("failed")
    summary = f"rule {rule} of policy version {version} denies it" if rule else f"it was denied: {message}"
    if failed:
        summary = f"the policy could not be used and fails {failed}: {message}"
    show = f"holdfast policy show --version {version}" if version else "holdfast policy show"
    return finding(
        Reason.DENIED,
        summary,
        since=job.since,
        who="whoever publishes the policy",
        then=(show,),
        rule=rule,
        policy=version,
        hash=decision.get("hash"),
        reason=decision.get("reason") or message,
        failed=failed,
    )


def _notes(facts: JobFacts) -> list[Finding]:
    job, notes = facts.job, []
    begun = [attempt for attempt in facts.attempts if attempt.began_at is not None]
    if len(begun) > 1:
        last = begun[-2]
        notes.append(
            finding(
                Reason.BEGAN_AGAIN,
                f"{len(begun)} attempts have begun; one result counts. The one before the last was "
                f"{last.worker}'s and ended as {last.ending}" + (f" ({last.reason})" if last.reason else ""),
                since=last.ended_at,
                then=(f"holdfast job events {job.id}",),
                attempts=len(begun),
                retries=job.retries,
            )
        )
    refused = [attempt for attempt in facts.attempts if attempt.refused]
    if refused:
        words = sum(attempt.refused for attempt in refused)
        notes.append(
            finding(
                Reason.WORD_REFUSED,
                f"{words} late words of {', '.join(dict.fromkeys(one.worker for one in refused))} were refused: "
                "the attempt was not theirs any more",
                since=refused[-1].refused_at,
                then=(f"holdfast job events {job.id}",),
                fences=[attempt.fence for attempt in refused],
            )
        )
    if job.is_terminal and facts.effects:
        keys = ", ".join(effect.key for effect in facts.effects)
        said = f"it may or may not have done {keys}: another round of it stops there before a person has found out"
        notes.append(effect_unknown(facts, said, weight=Weight.NOTE))
    if facts.dead_letter is not None:
        notes.append(_dead_letter(facts, facts.dead_letter))
    if job.replay_of is not None:
        notes.append(
            finding(
                Reason.REPLAYED,
                f"it is another round of job {job.replay_of}: what that one did once stays done",
                then=(f"holdfast why job {job.replay_of}",),
            )
        )
    if (job.decision or {}).get("failed") == "open":
        notes.append(_failed_open(job.decision or {}))
    return notes


def _failed_open(decision: dict[str, Any]) -> Finding:
    return finding(
        Reason.FAILED_OPEN,
        f"the policy could not be evaluated for it, and it was let through unasked: {decision.get('reason', '')}",
        who="whoever publishes the policy",
        then=("holdfast policy show", "holdfast runbook policy-fail-open"),
        rule=decision.get("rule"),
        policy=decision.get("policy"),
    )


def _dead_letter(facts: JobFacts, number: int) -> Finding:
    if facts.replayed_as:
        return finding(
            Reason.DEAD_LETTER,
            f"dead letter {number} was kept of it, and has been replayed as job {facts.replayed_as}",
            since=facts.job.since,
            then=(f"holdfast why job {facts.replayed_as}",),
        )
    return finding(
        Reason.DEAD_LETTER,
        f"dead letter {number} was kept of it, and waits for somebody",
        since=facts.job.since,
        who="whoever is on call",
        then=(f"holdfast dead-letter show {number}", f"holdfast dead-letter replay {number}"),
    )
