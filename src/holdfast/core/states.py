"""States: of jobs, with one literal table that says which event leads from which to which; of effects; and risks.

`docs/explanation/job-states.md` is drawn from the table. Only `core.job.step` changes a job's state
by it. Nothing is imported here: whoever needs no more than the names pays for no more.
"""

from __future__ import annotations

from enum import StrEnum


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
    (_S.SCHEDULED, _E.REQUIRE_APPROVAL): _S.APPROVAL_REQUIRED,
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


class Risk(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class EffectState(StrEnum):
    PREPARED = "prepared"
    """About to happen, or happening, under the fence that prepared it."""
    COMMITTED = "committed"
    """Happened; the result is remembered."""
    UNKNOWN = "unknown"
    """Prepared by an attempt that ended without a word: nobody here knows whether it happened."""
    ABSENT = "absent"
    """It did not happen, by the word of the attempt that prepared it or of a person who found out."""
