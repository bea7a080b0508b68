"""Why something is as it is: findings, each with a stable code, ranked so that the true cause comes first.

Facts go in, findings come out; nothing here asks anybody. What kinds of trouble there are is the
table `Reason`, in the order of rank; `docs/reference/why.md` shows the same table, and a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec


class Weight(StrEnum):
    """What a finding means for whoever asks. Heaviest first."""

    BLOCKED = "blocked"
    """Nothing happens until somebody acts."""
    WAITING = "waiting"
    """It goes on by itself: at a time, or when something else is done."""
    WORKING = "working"
    """Nothing is wrong: it is being worked on."""
    ENDED = "ended"
    """It is over; this is how."""
    NOTE = "note"
    """Not the cause; but whoever looks for one should know."""


class Reason(StrEnum):
    """Of findings of one weight, the first in this table is the cause, and the later ones wait behind it."""

    # -- blocked: somebody must act
    FROZEN = "frozen"
    RECOVERY_OVERDUE = "recovery-overdue"
    RUN_UNATTENDED = "run-unattended"
    POLICY_UNUSABLE = "policy-unusable"
    EFFECT_UNKNOWN = "effect-unknown"
    APPROVAL_REQUIRED = "approval-required"
    RUN_PAUSED = "run-paused"
    NO_WORKER = "no-worker"
    POOL_MISMATCH = "pool-mismatch"
    LABELS_MISMATCH = "labels-mismatch"
    WORKERS_SILENT = "workers-silent"
    WORKERS_DRAINING = "workers-draining"
    WORKERS_UNABLE = "workers-unable"
    WORKER_TAKES_NONE = "worker-takes-none"
    NOBODY_DISPATCHES = "nobody-dispatches"
    COMPENSATION_FAILED = "compensation-failed"
    # -- waiting: it goes on by itself
    SESSION_BUSY = "session-busy"
    TENANT_AT_LIMIT = "tenant-at-limit"
    TOPIC_AT_LIMIT = "topic-at-limit"
    RULE_AT_LIMIT = "rule-at-limit"
    PUBLISH_FAILED = "publish-failed"
    BACKOFF = "backoff"
    THROTTLED = "throttled"
    DELAYED = "delayed"
    DISPATCH_LOCKED = "dispatch-locked"
    BEHIND_OTHERS = "behind-others"
    WORKERS_FULL = "workers-full"
    DECISION_PENDING = "decision-pending"
    WORKER_SILENT = "worker-silent"
    DELIVERY_LOST = "delivery-lost"
    WORKER_BUSY = "worker-busy"
    DELIVERY_UNDER_WAY = "delivery-under-way"
    LEASE_EXPIRED = "lease-expired"
    CANCEL_AWAITS_WORKER = "cancel-awaits-worker"
    LEASE_RUNNING_OUT = "lease-running-out"
    APPROVAL_UNUSED = "approval-unused"
    RUN_LOCK_HELD = "run-lock-held"
    RUN_COMPENSATING = "run-compensating"
    RUN_CANCELLING = "run-cancelling"
    WAITS_FOR_STEP = "waits-for-step"
    RUN_AT_LIMIT = "run-at-limit"
    HOLDER_GONE = "holder-gone"
    WORKER_DRAINING = "worker-draining"
    READY = "ready"
    # -- working: nothing is wrong
    RUNNING = "running"
    LOCK_HELD = "lock-held"
    WINDOW_HELD = "window-held"
    LOCK_FREE = "lock-free"
    WORKER_FULL = "worker-full"
    WORKER_IDLE = "worker-idle"
    WORKER_FIT = "worker-fit"
    # -- ended: how
    SUCCEEDED = "succeeded"
    DENIED = "denied"
    REJECTED = "rejected"
    APPROVAL_EXPIRED = "approval-expired"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    FAILED = "failed"
    APPROVED = "approved"
    APPROVAL_CONSUMED = "approval-consumed"
    SUPERSEDED = "superseded"
    # -- notes
    BEGAN_AGAIN = "began-again"
    WORD_REFUSED = "word-refused"
    DEAD_LETTER = "dead-letter"
    REPLAYED = "replayed"
    FAILED_OPEN = "failed-open"
    LOCK_QUEUE = "lock-queue"
    LOCK_EXPIRIES = "lock-expiries"
    JOBS_UNFIT = "jobs-unfit"


def _ranks() -> dict[Reason, tuple[int, Weight]]:
    firsts = {
        Reason.FROZEN: Weight.BLOCKED,
        Reason.SESSION_BUSY: Weight.WAITING,
        Reason.RUNNING: Weight.WORKING,
        Reason.SUCCEEDED: Weight.ENDED,
        Reason.BEGAN_AGAIN: Weight.NOTE,
    }
    weight = Weight.BLOCKED
    ranks = {}
    for place, reason in enumerate(Reason):
        weight = firsts.get(reason, weight)
        ranks[reason] = place, weight
    return ranks


RANKS = _ranks()
_HEAVIEST_FIRST = {weight: place for place, weight in enumerate(Weight)}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    reason: Reason
    weight: Weight
    summary: str
    """One sentence, for people."""
    since: float | None = None
    """Since when it is so, as far as anybody knows."""
    until: float | None = None
    """When it ends by itself, if nothing else happens."""
    who: str = ""
    """Who can do something about it; empty: nobody needs to."""
    then: tuple[str, ...] = ()
    """What to type next."""
    evidence: dict[str, Any] = {}


def finding(
    reason: Reason,
    summary: str,
    /,
    *,
    since: float | None = None,
    until: float | None = None,
    who: str = "",
    then: Iterable[str] = (),
    weight: Weight | None = None,
    **evidence: Any,
) -> Finding:
    """A finding of this reason, with the reason's own weight unless another is given."""
    return Finding(
        reason=reason,
        weight=weight or RANKS[reason][1],
        summary=summary,
        since=since,
        until=until,
        who=who,
        then=tuple(then),
        evidence={name: value for name, value in evidence.items() if value is not None and value not in ("", [], {})},
    )


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The cause first. What is under way of its own accord is left out where something is in its way."""
    known = sorted(findings, key=lambda found: (_HEAVIEST_FIRST[found.weight], RANKS[found.reason][0]))
    stands_still = any(found.weight in (Weight.BLOCKED, Weight.WAITING) for found in known)
    return [found for found in known if not (stands_still and found.reason is Reason.READY and found is not known[0])]
