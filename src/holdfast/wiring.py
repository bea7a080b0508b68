"""The one place that wires: which part is given which others. Each is made when it is first asked for."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from holdfast.approvals import ApprovalTimer
from holdfast.attendance import Attendance
from holdfast.buses.outbox import OutboxBus
from holdfast.config import Settings
from holdfast.flow.advance import Advancer
from holdfast.flow.approve import Approvals
from holdfast.flow.audit import Audit
from holdfast.flow.decide import LivePolicy
from holdfast.flow.explain import Explainer
from holdfast.flow.explain_run import RunExplainer
from holdfast.flow.freeze import LiveFreezes
from holdfast.flow.give import Giver
from holdfast.flow.kept_locks import ADMISSION, RUN, KeptLocks
from holdfast.flow.renewals import RenewalLog
from holdfast.flow.run_tools import Tools
from holdfast.flow.runs import Runs
from holdfast.flow.submit import Submitter
from holdfast.flow.workflows import Workflows
from holdfast.freezes import Freezes
from holdfast.gateway.claims import Claims
from holdfast.gateway.plane import Plane
from holdfast.lock_classes import CLASSES
from holdfast.locks import Locks
from holdfast.locks.runtime import Runtime, is_gone
from holdfast.loops import Loop
from holdfast.matrix import Matrix
from holdfast.policies import Policies
from holdfast.ports import Bus, Store
from holdfast.posting import Posting
from holdfast.pruner import Pruner
from holdfast.reconciler import Reconciler
from holdfast.registry import SILENT_S, Registry
from holdfast.relay import Relay
from holdfast.replayer import Replayer
from holdfast.roles import Role
from holdfast.roll_call import RollCall
from holdfast.scheduler import Scheduler
from holdfast.snapshot import SnapshotWriter
from holdfast.stores import is_shared
from holdfast.telemetry import Telemetry
from holdfast.timetable import Timetable
from holdfast.webhooks import Courier
from holdfast.workflow_engine import RunReconciler, WorkflowEngine

__all__ = ["CLASSES", "Wiring"]


class Wiring:
    """One process's parts, around a store, a bus and locks that are open."""

    def __init__(
        self,
        settings: Settings,
        *,
        roles: Collection[Role],
        store: Store,
        bus: Bus,
        locks: Locks,
        outside: Posting,
        telemetry: Telemetry,
        renewals: RenewalLog,
        runtime: Runtime,
    ) -> None:
        self._settings = settings
        self._roles = roles
        self._topics = settings.topics
        self._store = store
        self._bus = bus
        self._outbox = bus if isinstance(bus, OutboxBus) else None
        self._locks = locks
        self._outside = outside
        self._runtime = runtime
        self._telemetry = telemetry
        self._renewals = renewals
        self._registry = Registry()
        self._claims = Claims(runtime)
        self._policy = LivePolicy(self._telemetry, runtime)
        self._frozen = LiveFreezes(store)
        if settings.run_renewal_failure != RUN.on_renewal_failure:
            locks.override(RUN.name, reason="configured so", on_renewal_failure=settings.run_renewal_failure)

    async def warm_up(self) -> None:
        """Before anything starts: the rules in force, and the workers that another replica knew."""
        await self.policies.warm_up(self._settings.policy.file)
        await self.snapshot_writer.warm_up()

    async def close(self) -> None:
        """Give back the locks that are kept from one use to the next."""
        for locks in (self.run_locks, self.admission):
            await locks.close()

    @property
    def services(self) -> tuple[Loop, ...]:
        """All that ticks here, in the order in which it is started."""
        return (
            *self.everywhere,
            *(service for role in Role if role in self._roles for service in self.services_of(role)),
        )

    @property
    def everywhere(self) -> tuple[Loop, ...]:
        """What keeps this process's own knowledge current, whatever its roles are."""
        own = (self.policies, self.freezes, self.matrix, self.roll_call)
        return (*own, self.attendance) if is_shared(self._settings.store) else own

    def services_of(self, role: Role) -> tuple[Loop, ...]:
        """Those of one role and no other. Each may run in any number of processes."""
        match role:
            case Role.GATEWAY:
                return ()
            case Role.SCHEDULER:
                moving = (self.scheduler, self.workflow_engine, self.timetable, self.snapshot_writer)
                return moving if self.relay is None else (*moving, self.relay)
            case Role.RECONCILER:
                return (
                    self.reconciler,
                    self.replayer,
                    self.run_reconciler,
                    self.approval_timer,
                    self.courier,
                    self.pruner,
                )

    @cached_property
    def plane(self) -> Plane:
        return Plane(
            store=self._store,
            bus=self._bus,
            outbox=self._outbox,
            locks=self._locks,
            classes=CLASSES,
            submitter=self.submitter,
            approvals=self.approvals,
            audit=self.audit,
            freezes=self._frozen,
            topics=self._topics,
            policy=self._policy,
            telemetry=self._telemetry,
            loops=self.services,
            runtime=self._runtime,
            registry=self._registry,
            claims=self._claims,
            workflows=self.tools.workflows,
            runs=self.runs,
            gate=self.admission,
            advancer=self.advancer,
            explainer=self.explainer,
            run_explainer=self.run_explainer,
            private_webhooks=self._settings.webhooks.allow_private,
            wake=self._wake_scheduler,
        )

    def _wake_scheduler(self) -> None:
        """The one here; others hear of what is committed."""
        if Role.SCHEDULER in self._roles:
            self.scheduler.wake()

    # -- looking ------------------------------------------------------------------------------------

    @cached_property
    def explainer(self) -> Explainer:
        return Explainer(
            store=self._store,
            locks=self._locks,
            topics=self._topics,
            quotas=self._settings.tenants,
            workers=self._registry.candidates,
            is_claiming=self._claims.waits,
            is_gone=is_gone,
            silent_s=SILENT_S,
        )

    @cached_property
    def run_explainer(self) -> RunExplainer:
        return RunExplainer(
            self.explainer, store=self._store, locks=self._locks, workflows=self.tools.workflows, is_gone=is_gone
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
            giver=self.giver,
        )

    @property
    def giver(self) -> Giver | None:
        return self.scheduler if Role.SCHEDULER in self._roles else None

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
            is_gone=is_gone,
            quotas=self._settings.tenants,
            freezes=self._frozen,
        )

    @cached_property
    def relay(self) -> Relay | None:
        """Only where deliveries go through an outbox."""
        if self._outbox is None:
            return None
        return Relay(outbox=self._outbox, locks=self._locks, telemetry=self._telemetry, runtime=self._runtime)

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
            outbox=self._outbox,
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
            wake_scheduler=self._wake_scheduler,
        )

    @cached_property
    def roll_call(self) -> RollCall:
        return RollCall(store=self._store, registry=self._registry, runtime=self._runtime)

    @cached_property
    def attendance(self) -> Attendance:
        return Attendance(
            store=self._store,
            registry=self._registry,
            roles=[role for role in Role if role in self._roles],
            wake=self._wake_scheduler,
            runtime=self._runtime,
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
    def audit(self) -> Audit:
        return Audit(self._store, self._runtime)

    @cached_property
    def matrix(self) -> Matrix:
        return Matrix(
            store=self._store,
            locks=self._locks,
            classes=CLASSES,
            renewals=self._renewals,
            audit=self.audit,
            holder=self._runtime.token()[:16],
            runtime=self._runtime,
        )

    @cached_property
    def freezes(self) -> Freezes:
        return Freezes(
            store=self._store,
            live=self._frozen,
            audit=self.audit,
            wake=self._wake_scheduler,
            telemetry=self._telemetry,
            runtime=self._runtime,
        )

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
        return Tools(
            store=self._store,
            workflows=workflows,
            submitter=self.submitter,
            runtime=self._runtime,
            live_runs_max=self._settings.live_runs_max,
            giver=self.giver,
        )

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
            freezes=self._frozen,
        )
