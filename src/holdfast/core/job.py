"""A job, and the one way to change its state: `step`, by the table in `core.states`."""

from __future__ import annotations

from typing import Any, NewType

import msgspec
from msgspec.structs import replace

from holdfast.core.states import TERMINAL, TRANSITIONS, Event, Risk, State

JobId = NewType("JobId", str)
Tenant = NewType("Tenant", str)


UNDO = "~undo"
"""Ends the name of a step that undoes another one of its run."""
PARKED_UNTIL = 253_402_300_799.0
"""The end of the year 9999: `not_before` of a job that waits for a person."""


class IllegalTransition(Exception):
    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"a {state} job cannot {event}")
        self.state = state
        self.event = event


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
    actor: str = ""
    """Who asked for it, by the name the caller gave; empty if none."""
    session: str = ""
    """Jobs of one session of a tenant are run one after the other; empty: with no regard to others."""
    run: str = ""
    """The run it belongs to; empty if none."""
    step: str = ""
    """The step of the run, `name` or `name[item]`."""
    decision: dict[str, Any] | None = None
    """The policy's last word on it: `action`, `rule`, `policy` (version) and what else it asks for."""
    approval: str = ""
    """The approval it waits for, or that let it run; empty if none was required."""

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def makes_busy(self) -> bool:
        """Whether newer ones of its session may be refused, or stop it, because of it. What was asked to stop, or undoes
        a step of a run, they only wait for: that is not cancelled."""
        return not (self.is_terminal or self.cancel_requested or self.step.endswith(UNDO))

    @property
    def ready_since(self) -> float:
        """Of a SCHEDULED job: since when it could have been dispatched, or when it can be."""
        return max(self.since, self.not_before)

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
