"""Decide: may this job run? The seam that policy fills; for now everything is allowed."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.core.job import Job, step
from holdfast.core.states import Event


class Decision(NamedTuple):
    event: Event
    """ALLOW, REQUIRE_APPROVAL or DENY."""
    reason: str = ""


class Policy(Protocol):
    def decide(self, job: Job) -> Decision: ...


class AllowAll:
    def decide(self, job: Job) -> Decision:
        return Decision(Event.ALLOW)


def decided(job: Job, policy: Policy, *, now: float) -> Job:
    """The job after the policy's word on it."""
    decision = policy.decide(job)
    error = {"code": "denied", "message": decision.reason} if decision.event is Event.DENY else job.error
    return step(job, decision.event, now=now, error=error)
