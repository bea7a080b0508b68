"""A plane on virtual time: its parts wired as `holdfast.wiring` wires them, over one store in memory.

Everything that is committed, published, taken, entered and answered is observed, so that
`plane_invariants.check_plane` can judge the whole story at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from locks.virtual import VirtualRuntime

from flow.faulty_bus import FaultyNats, faulty_nats
from flow.faulty_store import FaultyStore
from flow.places import HERE
from flow.watched_bus import Seen, WatchedBus
from holdfast import api
from holdfast.buses.detached import DetachedBus
from holdfast.buses.detached import Fault as BusFault
from holdfast.buses.embedded import EmbeddedBus
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.share import Quotas
from holdfast.core.topic import Topics
from holdfast.flow.advance import Advancer
from holdfast.flow.decide import AllowAll, Policy
from holdfast.flow.dispatch import Dispatched, Dispatcher, Placed
from holdfast.flow.execute import Attempt, Standing, claim, renew_attempts, start_attempts
from holdfast.flow.freeze import LiveFreezes
from holdfast.flow.record import End, Outcome, record
from holdfast.flow.submit import Order, Submitter
from holdfast.gateway.claims import Claims
from holdfast.locks import Locks
from holdfast.locks.runtime import Runtime
from holdfast.ports import Accepted, Bus
from holdfast.reconciler import Reconciler
from holdfast.registry import Registry
from holdfast.replayer import Replayer
from holdfast.roll_call import RollCall
from holdfast.scheduler import Scheduler
from holdfast.snapshot import SnapshotWriter
from holdfast.stores import StoreWithBus, lock_prefix, open_store
from holdfast.telemetry import Telemetry
from holdfast.wiring import CLASSES

ACME = Tenant("acme")
CLAIM_S = 0.5
"""How often a worker asks for more."""


@dataclass(kw_only=True)
class Replica:
    """One process of the plane: its own view of store and locks, its own registry and loops."""

    name: str
    store: FaultyStore
    bus: WatchedBus
    locks: Locks
    topics: Topics
    policy: Policy
    runtime: Runtime
    telemetry: Telemetry = field(default_factory=Telemetry)
    registry: Registry = field(default_factory=Registry)
    quotas: Quotas = field(default_factory=Quotas)
    gone: set[str] = field(default_factory=set)
    """Holders of locks whose processes are known to run no more."""
    claims: Claims = field(init=False)
    freezes: LiveFreezes = field(init=False)
    dispatcher: Dispatcher = field(init=False)
    scheduler: Scheduler = field(init=False)
    reconciler: Reconciler = field(init=False)
    replayer: Replayer = field(init=False)
    roll_call: RollCall = field(init=False)
    writer: SnapshotWriter = field(init=False)

    def __post_init__(self) -> None:
        store, bus = self.typed_store, cast(Bus, self.bus)
        self.claims = Claims(self.runtime)
        shared: dict[str, Any] = {
            "store": store, "locks": self.locks, "telemetry": self.telemetry, "runtime": self.runtime,
        }  # fmt: skip
        ruled: dict[str, Any] = {**shared, "topics": self.topics, "policy": self.policy}
        self.freezes = LiveFreezes(store)
        sending: dict[str, Any] = {
            **ruled, "bus": bus, "doors": self.claims, "freezes": self.freezes, "is_gone": self.gone.__contains__,
        }  # fmt: skip
        self.dispatcher = Dispatcher(**sending)
        self.scheduler = Scheduler(registry=self.registry, quotas=self.quotas, **sending)
        self.reconciler = Reconciler(registry=self.registry, **ruled)
        self.replayer = Replayer(wake_scheduler=self.scheduler.wake, **ruled)
        self.roll_call = RollCall(store=store, registry=self.registry, runtime=self.runtime)
        self.writer = SnapshotWriter(store=store, locks=self.locks, registry=self.registry, runtime=self.runtime)

    @property
    def typed_store(self) -> StoreWithBus:
        return cast(StoreWithBus, self.store)

    async def dispatch(self, job: Job, worker: str = "w1") -> Dispatched:
        [outcome] = await self.dispatcher.dispatch([Placed(job, worker)])
        return outcome

    def hello(
        self,
        worker: str,
        *,
        slots: int = 4,
        backlog: int = 0,
        topics: Sequence[str] = ("*",),
        unable: str = "",
        **labels: str,
    ) -> None:
        said = api.Hello(
            worker=worker, name=worker, topics=list(topics), slots=slots, backlog=backlog, unable=unable, labels=labels
        )
        self.registry.hello(said, now=self.store.now())

    def counted(self, metric: str, **labels: str) -> float:
        return self.telemetry.registry.get_sample_value(f"holdfast_{metric}_total", labels) or 0.0

    @asynccontextmanager
    async def loops(self) -> AsyncIterator[None]:
        services = (self.roll_call, self.scheduler, self.reconciler, self.replayer, self.writer)
        for service in services:
            service.start()
        try:
            yield
        finally:
            for service in services:
                await service.stop()


@dataclass(kw_only=True)
class Stage(Replica):
    """The plane most stories need: one replica, and what people and workers say to it."""

    url: str
    inner: StoreWithBus
    seen: Seen
    submitter: Submitter
    stack: AsyncExitStack
    publish_fault: BusFault | None = None

    async def replica(self, name: str, *, lock_url: str = "", runtime: Runtime | None = None) -> Replica:
        """Another process on the same store. With a `lock_url` of its own, its locks exclude nobody; with a `runtime` it is on
        another host, and opens the store itself."""
        at, inner = runtime or self.runtime, self.inner
        locks = await self.stack.enter_async_context(locks_at(lock_url or self.url, name, at))
        if runtime is not None:
            inner = open_store(self.url, topics=self.topics, runtime=runtime)
            await inner.open()
            self.stack.push_async_callback(inner.close)
        return Replica(
            name=name,
            store=FaultyStore(inner),
            bus=self.bus,
            locks=locks,
            topics=self.topics,
            policy=self.policy,
            runtime=at,
        )

    def bus_returned(self) -> None:
        assert isinstance(self.bus.inner, DetachedBus | FaultyNats)
        self.bus.inner.returned()

    async def submit(self, topic: str = "mail.send", tenant: Tenant = ACME, **order: Any) -> Job:
        accepted = await self.order(topic, tenant, **order)
        return accepted.job

    async def submit_all(self, orders: Sequence[Order]) -> list[Job]:
        """Many at once, in one write."""
        accepted = [answer for answer in await self.submitter.submit(orders) if isinstance(answer, Accepted)]
        assert len(accepted) == len(orders)
        commits = await self.seen.look()
        self.seen.acknowledged += [(each.job.id, commits) for each in accepted]
        return [each.job for each in accepted]

    async def order(self, topic: str = "mail.send", tenant: Tenant = ACME, **order: Any) -> Accepted:
        wanted = {"payload": b"{}", "labels": {}, **order}
        accepted = await self.submitter.submit_one(Order(tenant=tenant, topic=topic, **wanted))
        self.seen.acknowledged.append((accepted.job.id, await self.seen.look()))
        return accepted

    async def job(self, job_id: JobId) -> Job:
        [job] = await self.inner.find_jobs([job_id])
        assert job is not None
        return job

    async def claim(self, worker: str = "w1", *, limit: int = 10, start: bool = True, **more: Any) -> list[Job]:
        return await claim(
            worker,
            limit,
            start=start,
            **more,
            store=self.typed_store,
            bus=self.bus,
            topics=self.topics,
            telemetry=self.telemetry,
        )

    async def claim_one(self, worker: str = "w1") -> Job:
        """Exactly one delivery, started: its handler is entered."""
        [job] = await self.claim(worker)
        self.seen.entered.append((job.id, job.fence))
        return job

    async def begun(self, worker: str = "w1", **order: Any) -> Job:
        """A job that a worker has started."""
        await self.dispatch(await self.submit(**order), worker)
        return await self.claim_one(worker)

    async def start(self, job: Job, worker: str) -> Standing:
        [standing] = await start_attempts(
            worker,
            [Attempt(job.id, job.fence)],
            store=self.typed_store,
            bus=self.bus,
            topics=self.topics,
            telemetry=self.telemetry,
        )
        return standing

    async def renew(self, job: Job) -> Standing:
        attempts = [Attempt(job.id, job.fence)]
        [standing] = await renew_attempts(attempts, store=self.typed_store, telemetry=self.telemetry)
        return standing

    async def complete(
        self, job: Job, end: End = End.SUCCEEDED, *, advancer: Advancer | None = None, **said: Any
    ) -> Standing:
        """The worker's word on the attempt it was given as `job`."""
        wanted = {"result": b"null" if end is End.SUCCEEDED else None, **said}
        [standing] = await record(
            [Outcome(job.id, job.fence, end, **wanted)],
            store=self.typed_store,
            topics=self.topics,
            telemetry=self.telemetry,
            runtime=self.runtime,
            advancer=advancer,
        )
        if standing.code == "ok":
            self.seen.accepted.append((job.id, job.fence, end, await self.seen.look()))
        return standing

    async def kinds(self, job_id: JobId) -> list[str]:
        await self.seen.look()
        return [event.kind for event in self.seen.events if event.job_id == job_id]

    async def wait_ended(self, *jobs: Job, within_s: float) -> list[Job]:
        async with asyncio.timeout(within_s):
            while True:
                found = await self.inner.find_jobs([job.id for job in jobs])
                now = [job for job in found if job is not None]
                assert len(now) == len(jobs)
                if all(job.is_terminal for job in now):
                    return now
                await asyncio.sleep(0.5)

    @asynccontextmanager
    async def working(
        self, worker: str = "w1", *, slots: int = 4, work_s: float = 0.0, replica: Replica | None = None
    ) -> AsyncIterator[None]:
        """A worker that is well: it claims, keeps its leases and reports success."""
        task = asyncio.create_task(self._work(replica or self, worker, slots, work_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _work(self, replica: Replica, worker: str, slots: int, work_s: float) -> None:
        async with asyncio.TaskGroup() as attempts:
            hands = asyncio.Semaphore(slots)
            while True:
                replica.hello(worker, slots=slots)
                for job in await self.claim(worker, limit=slots):
                    self.seen.entered.append((job.id, job.fence))
                    attempts.create_task(self._attempt(job, hands, work_s))
                await asyncio.sleep(CLAIM_S)

    async def _attempt(self, job: Job, hands: asyncio.Semaphore, work_s: float) -> None:
        async with hands:
            lease_s = self.topics.get(job.topic).lease_s
            left = work_s
            while left > 0:
                await asyncio.sleep(min(left, lease_s / 3))
                left -= lease_s / 3
                if (await self.renew(job)).code != "ok":
                    return
            await self.complete(job)


def locks_at(url: str, holder: str, runtime: Runtime) -> Locks:
    return Locks(url, classes=CLASSES, holder=holder, prefix=lock_prefix(url), runtime=runtime)


@asynccontextmanager
async def staged(
    runtime: VirtualRuntime,
    *,
    topics: Topics | None = None,
    detached: bool = False,
    policy: Policy | None = None,
    live_jobs_max: int = 100_000,
    quotas: Quotas | None = None,
    url: str = "",
) -> AsyncIterator[Stage]:
    """On the store of `flow.places`. `detached`: deliveries travel on a bus of their own, whose publish fails as
    `stage.publish_fault` says; where the place is on NATS, they always do."""
    place = HERE[-1]
    wires, apart = place.reach(runtime), detached or place.apart
    # A database in memory that has a name is shared: by the store, and by the locks of every replica.
    url = url or place.url or f"sqlite:///:memory:{runtime.token()}"
    declared, ruling = topics or Topics(), policy or AllowAll()
    async with AsyncExitStack() as stack:
        inner = open_store(url, topics=declared, runtime=runtime)
        await inner.open()
        stack.push_async_callback(inner.close)
        seen, faulty = Seen(inner), FaultyStore(inner)
        locks = await stack.enter_async_context(locks_at(url, "S1", runtime))
        submitter = Submitter(
            cast(StoreWithBus, faulty), declared, ruling, runtime, live_jobs_max=live_jobs_max, quotas=quotas
        )
        made: list[Stage] = []
        bus: Bus = DetachedBus(inner.now, fail=lambda _: made[0].publish_fault) if apart else EmbeddedBus(inner)
        if place.unasked is not None:
            bus = cast(Bus, place.unasked)
        elif wires is not None and place.nats:
            nats = faulty_nats(place.nats, wires, runtime, fail=lambda: made[0].publish_fault)
            bus = await stack.enter_async_context(nats)
        stage = Stage(
            name="S1",
            url=url,
            store=faulty,
            inner=inner,
            bus=WatchedBus(bus, seen),
            locks=locks,
            topics=declared,
            policy=ruling,
            runtime=runtime,
            seen=seen,
            submitter=submitter,
            quotas=quotas or Quotas(),
            stack=stack,
        )
        made.append(stage)
        yield stage
