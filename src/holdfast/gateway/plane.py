"""What the routes stand on. Put together once, by whoever starts the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.core.topic import Topics
from holdfast.flow.advance import Advancer
from holdfast.flow.approve import Approvals
from holdfast.flow.audit import Audit
from holdfast.flow.decide import LivePolicy
from holdfast.flow.explain import Explainer
from holdfast.flow.explain_run import RunExplainer
from holdfast.flow.freeze import LiveFreezes
from holdfast.flow.kept_locks import KeptLocks
from holdfast.flow.recover import Outbox
from holdfast.flow.runs import Runs
from holdfast.flow.submit import Submitter
from holdfast.flow.workflows import Workflows
from holdfast.gateway.claims import Claims
from holdfast.locks import LockClass, Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import Bus, Store
from holdfast.registry import Registry
from holdfast.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    store: Store
    bus: Bus
    outbox: Outbox | None
    """Where deliveries lie until the bus has taken them, if they go through one."""
    locks: Locks
    classes: Sequence[LockClass]
    """Every lock that the plane takes, as declared."""
    submitter: Submitter
    approvals: Approvals
    audit: Audit
    freezes: LiveFreezes
    topics: Topics
    policy: LivePolicy
    telemetry: Telemetry
    loops: Sequence[Loop]
    """What ticks in this process."""
    runtime: Runtime
    registry: Registry
    claims: Claims
    workflows: Workflows
    runs: Runs
    gate: KeptLocks
    """By tenant: held by whoever counts what a tenant has, and adds to it if that is not too much."""
    advancer: Advancer
    explainer: Explainer
    run_explainer: RunExplainer
    private_webhooks: bool
    """Webhooks may lead to private and loopback addresses."""
    wake: Callable[[], None]
    """Tells the scheduler that there may be something to dispatch, or somebody to dispatch to."""
