"""Decide: may this job run? Asks the policy, and writes its word into the job."""

from __future__ import annotations

from holdfast.core.decision import Decision
from holdfast.core.job import Job, amend, step
from holdfast.core.policy import Policy, Rulebook, consequences
from holdfast.core.states import Event
from holdfast.locks.runtime import Runtime
from holdfast.telemetry import Telemetry

__all__ = ["AllowAll", "Decision", "LivePolicy", "Policy", "decided", "rule_on"]

UNREAD = Decision(None, "the policy has not been read yet", failed="closed")


class AllowAll:
    """A plane to which no policy was ever published."""

    version = 0
    hash = ""

    def decide(self, job: Job) -> Decision:
        return Decision(Event.ALLOW)


class LivePolicy:
    """The policy that holds now: what the gateway and the services ask. `policies.Policies` keeps it current."""

    def __init__(self, telemetry: Telemetry, runtime: Runtime) -> None:
        self._telemetry = telemetry
        self._runtime = runtime
        self._book: Rulebook | AllowAll | None = None
        self.since: float | None = None
        """When this process began to use it, by the store's clock."""

    @property
    def version(self) -> int:
        return 0 if self._book is None else self._book.version

    @property
    def hash(self) -> str:
        return "" if self._book is None else self._book.hash

    @property
    def is_read(self) -> bool:
        return self._book is not None

    def use(self, book: Rulebook | AllowAll, *, now: float) -> None:
        self._book, self.since = book, now
        self._telemetry.policy_used(book.version)

    def decide(self, job: Job) -> Decision:
        book = self._book
        if isinstance(book, AllowAll):
            return book.decide(job)
        if book is None:
            decision = UNREAD
        else:
            clock = self._runtime.now
            end = clock() + book.timeout_s
            decision = book.decide(job, timed_out=lambda: clock() >= end)
        self._telemetry.policy_decided(job, action=decision.event or "wait", failed=decision.failed)
        return decision


def decided(job: Job, policy: Policy, *, now: float) -> Job:
    """The job after the policy's word on it. It stays PENDING while nobody knows."""
    return rule_on(job, policy, now=now)[0]


def rule_on(job: Job, policy: Policy, *, now: float) -> tuple[Job, Decision]:
    """The job after the policy's word on it, and the word."""
    decision = policy.decide(job)
    changes = consequences(job, decision)
    if decision.event is None:
        return amend(job, **changes), decision
    if decision.event is Event.DENY:
        changes["error"] = {"code": "denied", "message": decision.reason}
    return step(job, decision.event, now=now, **changes), decision
