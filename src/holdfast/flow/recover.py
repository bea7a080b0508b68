"""Recover: carry out what `core.recovery` says about jobs that time has left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.core.decision import told
from holdfast.core.job import Job, JobId, step
from holdfast.core.recovery import ENDINGS, Action, Remedy, recover, requeue
from holdfast.core.states import State
from holdfast.core.topic import Topics
from holdfast.flow.decide import Policy, decided
from holdfast.flow.gate import apply_changes
from holdfast.flow.session import why_stopped
from holdfast.flow.whole import with_payloads
from holdfast.ports import Change, Delivery, Store
from holdfast.telemetry import Telemetry


class Outbox(Protocol):
    async def left_of(self, deliveries: Sequence[Delivery]) -> list[Delivery]: ...


async def recover_jobs(
    jobs: Sequence[Job],
    *,
    store: Store,
    topics: Topics,
    policy: Policy,
    telemetry: Telemetry,
    outbox: Outbox | None = None,
) -> int:
    """Apply the recovery rule to each job, by compare-and-set: a second reconciler is a no-op."""
    unsent, now = await _unsent(jobs, outbox), store.now()
    planned = [(job, recover(job, topics.get(job.topic), now=now, is_sent=job.id not in unsent)) for job in jobs]
    undecided = [job for job, action in planned if action.remedy is Remedy.DECIDE]
    whole = {job.id: job for job in await with_payloads(undecided, store=store) if job is not None}
    changes = []
    for job, action in planned:
        decides = action.remedy is Remedy.DECIDE  # for which the policy reads the payload
        if decides and job.id not in whole:
            continue  # it has moved on
        change = remedy(whole[job.id] if decides else job, action, policy=policy, now=now)
        if change is not None:
            changes.append(change)
    if not changes:
        return 0
    done = 0
    for change, written in zip(changes, await apply_changes(changes, store=store), strict=True):
        if written:
            done += 1
            telemetry.job_recovered(change.before, change.after, reason=change.detail["reason"])
    return done


async def lose_attempts(
    jobs: Sequence[Job], *, reason: str, store: Store, telemetry: Telemetry, outbox: Outbox | None = None
) -> int:
    """The worker of these jobs is known to be gone: do now what the expiry of its leases would do later."""
    unsent, now = await _unsent(jobs, outbox), store.now()
    changes = []
    for job in jobs:
        action = _bereaved(job, reason, is_sent=job.id not in unsent)
        change = remedy(job, action, policy=None, now=now)
        if change is not None:
            changes.append(change)
    written = await apply_changes(changes, store=store) if changes else []
    for change, done in zip(changes, written, strict=True):
        if done:
            telemetry.job_recovered(change.before, change.after, reason=change.detail["reason"])
    return sum(written)


async def _unsent(jobs: Sequence[Job], outbox: Outbox | None) -> set[JobId]:
    """Those that nobody was given: their deliveries lie in the outbox. While the bus is away their dispatch timeouts run out one after
    the other, however good they are, and workers come and go."""
    sent = [Delivery(job.worker, job.id, job.fence) for job in jobs if job.state is State.DISPATCHED]
    if outbox is None or not sent:
        return set()
    return {delivery.job_id for delivery in await outbox.left_of(sent)}


def _bereaved(job: Job, reason: str, *, is_sent: bool) -> Action:
    if job.state is State.DISPATCHED:
        return requeue(job, reason, is_sent=is_sent)
    if job.state is not State.RUNNING:
        return Action(Remedy.NOTHING)
    if job.cancel_requested:
        return Action(Remedy.CANCEL, reason)
    return Action(Remedy.FAIL if job.attempts >= job.max_attempts else Remedy.RETRY, reason)


def remedy(job: Job, action: Action, *, policy: Policy | None, now: float) -> Change | None:
    """The change that carries an action out; None where the scheduler's next look is enough."""
    detail: dict[str, Any] = {"reason": action.reason, "remedy": action.remedy}
    if action.remedy is Remedy.DECIDE and policy is not None:
        after = decided(job, policy, now=now)
        # Still nobody knows: what was written about it before is all there is to say.
        waits = after.state is State.PENDING and after.decision == job.decision
        detail |= {"decision": told(after)}
        return None if waits else Change(before=job, after=after, kind="job.decided", detail=detail)
    if action.event is None:
        return None
    told_people = ENDINGS.get(action.reason, "its worker was gone")
    error = {"code": action.reason, "message": f"{told_people}; it was {job.state}"}
    if action.remedy is Remedy.CANCEL:
        error = why_stopped(job) or error
    phase = action.phase
    retries = job.retries if phase is None else {**job.retries, phase: job.retries.get(phase, 0) + 1}
    back = action.remedy in (Remedy.REQUEUE, Remedy.RETRY)
    after = step(
        job,
        action.event,
        now=now,
        retries=retries,
        error=job.error if back else error,
        worker="" if back else job.worker,
        not_before=now if back else job.not_before,
    )
    dead = action.reason if action.remedy in (Remedy.FAIL, Remedy.EXPIRE) else ""
    return Change(before=job, after=after, kind=f"job.{_KINDS[action.remedy]}", detail=detail, dead_letter=dead)


_KINDS = {
    Remedy.REQUEUE: "requeued",
    Remedy.RETRY: "lost",
    Remedy.FAIL: "failed",
    Remedy.EXPIRE: "timed_out",
    Remedy.CANCEL: "cancelled",
}
