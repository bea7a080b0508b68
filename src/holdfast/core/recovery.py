"""Recovery: one total function from a job and the time to what must be done about it.

Every state has exactly one rule here, so no row can be orphaned: `tests/core/test_recovery.py`
walks the states and fails on one that has none. The reconciler and the replayer only carry out
what this says.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, assert_never

from holdfast.core.decision import EXPIRES_S
from holdfast.core.job import Job
from holdfast.core.states import Event, State
from holdfast.core.topic import Topic


class Remedy(StrEnum):
    NOTHING = "nothing"
    DECIDE = "decide"
    """Ask the policy again: the decision was lost on the way."""
    DISPATCH = "dispatch"
    """Wake the scheduler for it."""
    REQUEUE = "requeue"
    RETRY = "retry"
    """The worker is gone: back to SCHEDULED, the attempt spent."""
    FAIL = "fail"
    """As RETRY, but no attempt is left; or as REQUEUE, once too often."""
    EXPIRE = "expire"
    CANCEL = "cancel"


class Action(NamedTuple):
    remedy: Remedy
    reason: str = ""
    """A stable code, shown by `why` and kept in the job's events."""

    @property
    def event(self) -> Event | None:
        """The job's event that carries it out; None where nothing changes by itself."""
        return _EVENTS.get(self.remedy)

    @property
    def phase(self) -> str | None:
        """What the job counts it as among its `retries`."""
        return _PHASE_OF_NOBODY.get(self.reason) or _PHASES.get(self.remedy)


_EVENTS = {
    Remedy.REQUEUE: Event.REQUEUE,
    Remedy.RETRY: Event.LOSE,
    Remedy.FAIL: Event.FAIL,
    Remedy.EXPIRE: Event.EXPIRE,
    Remedy.CANCEL: Event.CANCEL,
}

_PHASES = {Remedy.REQUEUE: "requeue", Remedy.RETRY: "lease"}

NOTHING = Action(Remedy.NOTHING)
SPENT = Action(Remedy.FAIL, "given-too-often")
"""For a job whose delivery a bus has given out too often, while nobody has begun."""

UNSENT = Action(Remedy.REQUEUE, "never-sent")
"""For a job whose delivery still lies in the outbox when its dispatch timeout is over, or its worker gone: nobody was given it, so
nobody is to blame."""

DRAINING = "worker-draining"
"""A worker that leaves by its own will: no delivery is to blame for that, however often it happens."""
UNABLE = "worker-unable"
"""A worker that can begin nothing for a while: nor for that."""

_PHASE_OF_NOBODY = {UNSENT.reason: "publish", DRAINING: "hand_back", UNABLE: "hand_back"}
"""Of deliveries that came to nothing through no fault of their job: `requeue` counts none of them."""

ENDINGS = {
    "deadline-passed": "the time that its submitter gave it was over",
    "approval-expired": "nobody had decided in time",
    "running-timeout": "it had run for as long as its topic allows (running_timeout_s)",
    "lease-expired-no-attempts-left": "its worker had stopped renewing its lease, and no attempt was left",
    "never-started": "its deliveries had come to nothing too often, before any worker had begun",
    "given-too-often": "the bus had given it out too often, and no worker had begun",
}
"""What the code of an action that ends a job means, for people; other codes say that its worker was gone."""

ORPHANABLE = (State.PENDING, State.SCHEDULED)
"""Jobs that nobody has yet, and that only a lost wake-up can leave behind: the replayer's business."""

SCHEDULED_STALE_S = 10.0
"""A dispatchable job that nobody dispatched for this long: its wake-up was lost."""

UNSTARTED_MAX = 10
"""Deliveries in a row that may come to nothing before a worker has begun."""


def recover(job: Job, topic: Topic, *, now: float, is_sent: bool = True) -> Action:
    """What to do about the job now. Total: answers for every state. `is_sent`: its delivery, if there is one, has left the outbox."""
    if job.is_terminal:
        return NOTHING
    if job.deadline is not None and now >= job.deadline:
        return Action(Remedy.EXPIRE, "deadline-passed")
    match job.state:
        case State.PENDING:
            stale = now - job.since >= topic.pending_timeout_s
            return Action(Remedy.DECIDE, "decision-lost") if stale else NOTHING
        case State.APPROVAL_REQUIRED:
            expired = now >= _approval_expires_at(job)
            return Action(Remedy.EXPIRE, "approval-expired") if expired else NOTHING
        case State.SCHEDULED:
            stale = now - job.ready_since >= SCHEDULED_STALE_S
            return Action(Remedy.DISPATCH, "wake-up-lost") if stale else NOTHING
        case State.DISPATCHED:
            overdue = now - job.since >= topic.dispatch_timeout_s
            return requeue(job, "dispatch-timeout", is_sent=is_sent) if overdue else NOTHING
        case State.RUNNING:
            return _recover_running(job, topic, now)
        case State.SUCCEEDED | State.FAILED | State.CANCELLED | State.TIMEOUT | State.DENIED:
            return NOTHING
        case never:
            assert_never(never)


def requeue(job: Job, reason: str, *, is_sent: bool = True) -> Action:
    """A delivery came to nothing before anybody had begun. Once too often, and the job is to blame:
    whoever takes it may be dying of it."""
    if reason in _PHASE_OF_NOBODY:
        return Action(Remedy.REQUEUE, reason)
    if not is_sent:
        return UNSENT
    unstarted = job.retries.get("requeue", 0) + 1
    # Each attempt that did begin shows that it can be done.
    if unstarted >= UNSTARTED_MAX * (job.attempts + 1):
        return Action(Remedy.FAIL, "never-started")
    return Action(Remedy.REQUEUE, reason)


def _approval_expires_at(job: Job) -> float:
    """As the approval has it, which the job's decision repeats."""
    told = (job.decision or {}).get("approval", {})
    expires_at: float = told.get("expires_at", job.since + EXPIRES_S)
    return expires_at


def _recover_running(job: Job, topic: Topic, now: float) -> Action:
    if now >= job.lease_until:
        if job.cancel_requested:
            return Action(Remedy.CANCEL, "cancelled-worker-gone")
        if job.attempts >= job.max_attempts:
            return Action(Remedy.FAIL, "lease-expired-no-attempts-left")
        return Action(Remedy.RETRY, "lease-expired")
    if now - job.since >= topic.running_timeout_s:
        return Action(Remedy.EXPIRE, "running-timeout")
    return NOTHING


def next_look(job: Job, topic: Topic, *, now: float) -> float:
    """The earliest time at which `recover` could say something else. For an index, not a promise."""
    limits = [job.deadline] if job.deadline is not None else []
    match job.state:
        case State.PENDING:
            limits.append(job.since + topic.pending_timeout_s)
        case State.APPROVAL_REQUIRED:
            limits.append(_approval_expires_at(job))
        case State.SCHEDULED:
            limits.append(job.ready_since + SCHEDULED_STALE_S)
        case State.DISPATCHED:
            limits.append(job.since + topic.dispatch_timeout_s)
        case State.RUNNING:
            limits += [job.lease_until, job.since + topic.running_timeout_s]
        case _:
            return float("inf")
    return max(now, min(limits))
