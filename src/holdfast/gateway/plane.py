"""What the routes stand on. Put together once, by whoever starts the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.topic import Topics
from holdfast.flow.approve import Approvals
from holdfast.flow.decide import LivePolicy
from holdfast.flow.runs import Runs
from holdfast.flow.submit import Submitter
from holdfast.flow.workflows import Workflows
from holdfast.gateway.claims import Claims
from holdfast.locks import Locks
from holdfast.locks.runtime import Runtime
from holdfast.ports import Bus, Store
from holdfast.registry import Registry
from holdfast.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    store: Store
    bus: Bus
    locks: Locks
    submitter: Submitter
    approvals: Approvals
    topics: Topics
    policy: LivePolicy
    telemetry: Telemetry
    runtime: Runtime
    registry: Registry
    claims: Claims
    workflows: Workflows
    runs: Runs
    private_webhooks: bool
    """Webhooks may lead to private and loopback addresses."""
    wake: Callable[[], None]
    """Tells the scheduler that there may be something to dispatch, or somebody to dispatch to."""
