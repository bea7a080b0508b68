"""The one place that wires: which part is given which others. Each is made when it is first asked for."""

from __future__ import annotations

from functools import cached_property

from holdfast.approvals import ApprovalTimer
from holdfast.config import Settings
from holdfast.flow.advance import Advancer
from holdfast.flow.approve import APPROVAL, Approvals
from holdfast.flow.decide import LivePolicy
from holdfast.flow.dispatch import JOB
from holdfast.flow.kept_locks import ADMISSION, RUN, KeptLocks
from holdfast.flow.run_draft import Tools
from holdfast.flow.runs import Runs
from holdfast.flow.submit import Submitter
from holdfast.flow.workflows import Workflows
from holdfast.gateway.claims import Claims
from holdfast.gateway.plane import Plane
from holdfast.locks import Locks
from holdfast.locks.runtime import Runtime, is_gone
from holdfast.loops import Loop
from holdfast.policies import Policies
from holdfast.ports import Bus, Store
from holdfast.posting import Posting
from holdfast.pruner import WINDOW as PRUNER_WINDOW
from holdfast.pruner import Pruner
from holdfast.reconciler import WINDOW as RECONCILER_WINDOW
from holdfast.reconciler import Reconciler
from holdfast.registry import Registry
from holdfast.replayer import WINDOW as REPLAYER_WINDOW
from holdfast.replayer import Replayer
from holdfast.scheduler import Scheduler
from holdfast.snapshot import WRITER, SnapshotWriter
from holdfast.telemetry import Telemetry
from holdfast.timetable import WINDOW as TIMETABLE_WINDOW
from holdfast.timetable import Timetable
from holdfast.webhooks import Courier
from holdfast.workflow_engine import WINDOW as RUN_RECONCILER_WINDOW
from holdfast.workflow_engine import RunReconciler, WorkflowEngine

CLASSES = (
    JOB,
    APPROVAL,
    RUN,
    ADMISSION,
    RECONCILER_WINDOW,
    REPLAYER_WINDOW,
    RUN_RECONCILER_WINDOW,
    PRUNER_WINDOW,
    TIMETABLE_WINDOW,
    WRITER,
)
"""Every lock the plane takes. A key that none of them declares is an error."""


class Wiring:
    """One process's parts, around a store, a bus and locks that are open."""

    def __init__(
        self, settings: Settings, *, store: Store, bus: Bus, locks: Locks, outside: Posting, runtime: Runtime
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._store = store
        self._bus = bus
        self._locks = locks
        self._outside = outside
        self._runtime = runtime
        self._telemetry = Telemetry(settings.topics)
        self._registry = Registry()
        self._claims = Claims(runtime)
        self._policy = LivePolicy(self._telemetry, runtime)
        if settings.run_renewal_failure != RUN.on_renewal_failure:
            locks.override(RUN.name, reason="configured so", on_renewal_failure=settings.run_renewal_failure)

    async def warm_up(self) -> None:
        """Before anything starts: the rules in force, and the workers that another replica knew."""
        await self.policies.warm_up(self._settings.policy.file)
        await self.snapshot_writer.warm_up()

    @property
    def services(self) -> tuple[Loop, ...]:
        """All that ticks, in the order in which it is started."""
        return (
            self.policies,
            self.scheduler,
            self.reconciler,
            self.replayer,
            self.snapshot_writer,
            self.pruner,
            self.approval_timer,
            self.courier,
            self.timetable,
            self.workflow_engine,
            self.run_reconciler,
        )

    @cached_property
    def plane(self) -> Plane:
        return Plane(
            store=self._store,
            bus=self._bus,
            locks=self._locks,
            submitter=self.submitter,
            approvals=self.approvals,
            topics=self._topics,
            policy=self._policy,
            telemetry=self._telemetry,
            runtime=self._runtime,
            registry=self._registry,
            claims=self._claims,
            workflows=self.tools.workflows,
            runs=self.runs,
            private_webhooks=self._settings.webhooks.allow_private,
            wake=self.scheduler.wake,
        )

    # -- jobs --------------------------------------------------------------------------------------

    @cached_property
    def submitter(self) -> Submitter:
        settings = self._settings
        return Submitter(
            self._store,
            self._topics,
            self._policy,
            self._runtime,
            live_jobs_max=settings.live_jobs_max,
            quotas=settings.tenants,
        )

    @cached_property
    def scheduler(self) -> Scheduler:
        return Scheduler(
            store=self._store,
            bus=self._bus,
            locks=self._locks,
            registry=self._registry,
            topics=self._topics,
            policy=self._policy,
            doors=self._claims,
            telemetry=self._telemetry,
            runtime=self._runtime,
            quotas=self._settings.tenants,
        )

    @cached_property
    def reconciler(self) -> Reconciler:
        return Reconciler(
            store=self._store,
            locks=self._locks,
            registry=self._registry,
            topics=self._topics,
            policy=self._policy,
            telemetry=self._telemetry,
            runtime=self._runtime,
        )

    @cached_property
    def replayer(self) -> Replayer:
        return Replayer(
            store=self._store,
            locks=self._locks,
            topics=self._topics,
            policy=self._policy,
            telemetry=self._telemetry,
            runtime=self._runtime,
            wake_scheduler=self.scheduler.wake,
        )

    @cached_property
    def snapshot_writer(self) -> SnapshotWriter:
        return SnapshotWriter(store=self._store, locks=self._locks, registry=self._registry, runtime=self._runtime)

    @cached_property
    def pruner(self) -> Pruner:
        return Pruner(
            store=self._store,
            locks=self._locks,
            retention=self._settings.retention,
            telemetry=self._telemetry,
            runtime=self._runtime,
        )

    # -- rules and people --------------------------------------------------------------------------

    @cached_property
    def policies(self) -> Policies:
        return Policies(store=self._store, policy=self._policy, telemetry=self._telemetry, runtime=self._runtime)

    @cached_property
    def approvals(self) -> Approvals:
        return Approvals(
            store=self._store,
            locks=self._locks,
            topics=self._topics,
            policy=self._policy,
            telemetry=self._telemetry,
        )

    @cached_property
    def approval_timer(self) -> ApprovalTimer:
        return ApprovalTimer(store=self._store, approvals=self.approvals, runtime=self._runtime)

    @cached_property
    def courier(self) -> Courier:
        return Courier(store=self._store, send=self._outside.send, telemetry=self._telemetry, runtime=self._runtime)

    # -- runs --------------------------------------------------------------------------------------

    @cached_property
    def tools(self) -> Tools:
        workflows = Workflows(self._store, threads=not self._runtime.inline())
        return Tools(store=self._store, workflows=workflows, submitter=self.submitter, runtime=self._runtime)

    @cached_property
    def run_locks(self) -> KeptLocks:
        return KeptLocks(self._locks, RUN, runtime=self._runtime, is_gone=is_gone)

    @cached_property
    def admission(self) -> KeptLocks:
        return KeptLocks(self._locks, ADMISSION, runtime=self._runtime, is_gone=is_gone)

    @cached_property
    def advancer(self) -> Advancer:
        return Advancer(tools=self.tools, locks=self.run_locks, telemetry=self._telemetry)

    @cached_property
    def runs(self) -> Runs:
        return Runs(
            tools=self.tools,
            advancer=self.advancer,
            gate=self.admission,
            telemetry=self._telemetry,
            live_runs_max=self._settings.live_runs_max,
        )

    @cached_property
    def workflow_engine(self) -> WorkflowEngine:
        return WorkflowEngine(
            store=self._store,
            advancer=self.advancer,
            locks=(self.run_locks, self.admission),
            runtime=self._runtime,
        )

    @cached_property
    def run_reconciler(self) -> RunReconciler:
        return RunReconciler(
            store=self._store,
            advancer=self.advancer,
            locks=self._locks,
            telemetry=self._telemetry,
            runtime=self._runtime,
        )

    @cached_property
    def timetable(self) -> Timetable:
        return Timetable(
            store=self._store,
            locks=self._locks,
            submitter=self.submitter,
            runs=self.runs,
            telemetry=self._telemetry,
            runtime=self._runtime,
        )
