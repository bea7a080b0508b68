"""A job and its life: one literal table says which event leads from which state to which.

Rule 1: everything that changes a job's state goes through `step`. Nothing else compares or
assigns states. `docs/explanation/job-states.md` is drawn from the table below.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NewType

import msgspec
from msgspec.structs import replace

JobId = NewType("JobId", str)
Tenant = NewType("Tenant", str)


class State(StrEnum):
    PENDING = "PENDING"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    SCHEDULED = "SCHEDULED"
    DISPATCHED = "DISPATCHED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    DENIED = "DENIED"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMEOUT, State.DENIED})
LIVE = tuple(state for state in State if state not in TERMINAL)


class Event(StrEnum):
    ALLOW = "allow"
    REQUIRE_APPROVAL = "require_approval"
    DENY = "deny"
    APPROVE = "approve"
    DISPATCH = "dispatch"
    ROLL_BACK = "roll_back"
    """The publish failed: nobody was told."""
    REQUEUE = "requeue"
    """Nobody took the delivery in time, or the worker it was meant for is gone."""
    START = "start"
    """The worker's word that it has begun."""
    SUCCEED = "succeed"
    RETRY = "retry"
    """The attempt failed, and another one is allowed."""
    FAIL = "fail"
    LOSE = "lose"
    """The worker's lease ran out, or its death was proved."""
    HAND_BACK = "hand_back"
    """The worker gave the job back unfinished, because it is shutting down."""
    CANCEL = "cancel"
    EXPIRE = "expire"
    """A limit of the job's own ran out: its deadline, its running time, its approval."""


_S, _E = State, Event

TRANSITIONS: dict[tuple[State, Event], State] = {
    (_S.PENDING, _E.ALLOW): _S.SCHEDULED,
    (_S.PENDING, _E.REQUIRE_APPROVAL): _S.APPROVAL_REQUIRED,
    (_S.PENDING, _E.DENY): _S.DENIED,
    (_S.PENDING, _E.CANCEL): _S.CANCELLED,
    (_S.PENDING, _E.EXPIRE): _S.TIMEOUT,
    (_S.APPROVAL_REQUIRED, _E.APPROVE): _S.SCHEDULED,
    (_S.APPROVAL_REQUIRED, _E.DENY): _S.DENIED,
    (_S.APPROVAL_REQUIRED, _E.CANCEL): _S.CANCELLED,
    (_S.APPROVAL_REQUIRED, _E.EXPIRE): _S.TIMEOUT,
    (_S.SCHEDULED, _E.DISPATCH): _S.DISPATCHED,
    (_S.SCHEDULED, _E.DENY): _S.DENIED,
    (_S.SCHEDULED, _E.CANCEL): _S.CANCELLED,
    (_S.SCHEDULED, _E.EXPIRE): _S.TIMEOUT,
    (_S.DISPATCHED, _E.ROLL_BACK): _S.SCHEDULED,
    (_S.DISPATCHED, _E.REQUEUE): _S.SCHEDULED,
    (_S.DISPATCHED, _E.START): _S.RUNNING,
    (_S.DISPATCHED, _E.CANCEL): _S.CANCELLED,
    (_S.DISPATCHED, _E.FAIL): _S.FAILED,
    (_S.DISPATCHED, _E.EXPIRE): _S.TIMEOUT,
    (_S.RUNNING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.RUNNING, _E.RETRY): _S.SCHEDULED,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
    (_S.RUNNING, _E.LOSE): _S.SCHEDULED,
    (_S.RUNNING, _E.HAND_BACK): _S.SCHEDULED,
    (_S.RUNNING, _E.CANCEL): _S.CANCELLED,
    (_S.RUNNING, _E.EXPIRE): _S.TIMEOUT,
}


PARKED_UNTIL = 253_402_300_799.0
"""The end of the year 9999: `not_before` of a job that waits for a person."""


class IllegalTransition(Exception):
    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"a {state} job cannot {event}")
        self.state = state
        self.event = event


class Risk(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the store keeps it. Times are seconds of the store's clock.

    A Struct, not a dataclass: one is made with every read and every change, five times cheaper.
    """

    id: JobId
    tenant: Tenant
    topic: str
    payload: bytes
    """JSON, as it was submitted."""
    labels: dict[str, str]
    priority: int
    """Higher goes first, -100 to 100."""
    risk: Risk
    max_attempts: int
    created_at: float
    deadline: float | None
    """When the job is no longer worth running, wherever it stands."""

    state: State
    version: int
    """Grows with each change; every write names the version it replaces."""
    since: float
    """When it came into this state."""
    not_before: float
    """Not to be dispatched earlier: back-off, or a start time."""
    attempts: int
    """Accepted deliveries: what counts against `max_attempts`."""
    schedulings: int
    """Times it was dispatched or tried to be; infrastructure's business, not the user's."""
    retries: dict[str, int]
    """Infrastructure's retries by phase: dispatched_write, publish, rollback_write, requeue, lease."""
    pool: str
    worker: str
    """Whom it was dispatched to; empty before that."""
    fence: int
    """Of the current attempt; 0 before the first. Whatever carries a lower one is refused."""
    lease_until: float
    cancel_requested: bool
    progress: dict[str, Any] | None
    result: bytes | None
    error: dict[str, Any] | None
    """`code`, `message` and what else is known of why it ended or was last retried."""
    replay_of: JobId | None
    """The job of which this is another round, however many there were before; see `origin`."""
    trace: str
    """The W3C traceparent it was submitted with; empty if none."""

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def origin(self) -> JobId:
        """The job it all began with. Replays share its effects: what was done once stays done."""
        return self.replay_of or self.id


def step(job: Job, event: Event, *, now: float, **changes: Any) -> Job:
    """The job after `event`, one version on. Raises `IllegalTransition`; changes nothing else by itself."""
    target = TRANSITIONS.get((job.state, event))
    if target is None:
        raise IllegalTransition(job.state, event)
    return replace(job, state=target, version=job.version + 1, since=now, **changes)


def amend(job: Job, **changes: Any) -> Job:
    """The job with something other than its state changed (a renewal, progress, a cancel request)."""
    return replace(job, version=job.version + 1, **changes)


def next_fence(job: Job, *, now: float) -> int:
    """For the job's next attempt: above all it ever had, and, should the store have forgotten some of
    them (a backup was restored), above those by the clock."""
    return max(job.fence + 1, int(now * 1_000_000))


def may(job: Job, event: Event) -> bool:
    return (job.state, event) in TRANSITIONS
