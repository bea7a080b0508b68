"""The scheduler: gives dispatchable jobs to workers. Any number of replicas may run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.core.job import TERMINAL, Job, State
from holdfast.core.placement import WorkerView, place
from holdfast.flow.dispatch import Dispatched, dispatch
from holdfast.locks import Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import Bus, JobEvent, Store
from holdfast.registry import SILENT_S, Registry, with_one_more
from holdfast.telemetry import Telemetry

BATCH = 200
POLL_S = 0.25
"""The floor under the wake-ups: a job whose back-off has passed, or whose wake-up was lost, waits this long."""


class Scheduler:
    def __init__(
        self, *, store: Store, bus: Bus, locks: Locks, registry: Registry, telemetry: Telemetry, runtime: Runtime
    ) -> None:
        self._store = store
        self._bus = bus
        self._locks = locks
        self._registry = registry
        self._telemetry = telemetry
        self._runtime = runtime
        self._loop = Loop("scheduler", self.tick, every_s=POLL_S, jitter=runtime.jitter)
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._store.subscribe(self._heard)
        self._loop.start()

    async def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._loop.stop()

    def wake(self) -> None:
        self._loop.wake()

    async def tick(self) -> None:
        """Dispatch what fits now, batch after batch, until nothing more fits or nothing is left.

        Jobs that no worker can take now are looked past, so that they do not starve those behind.
        """
        passed_over: set[str] = set()
        while True:
            candidates = {view.id: view for view in self._registry.candidates()}
            if not any(view.room > 0 and not view.draining for view in candidates.values()):
                return
            jobs = await self._store.list_dispatchable(limit=BATCH, except_topics=passed_over)
            sent, left = await self._dispatch_all(jobs, candidates)
            topics = {job.topic for job in left} - passed_over
            if len(jobs) < BATCH or (sent == 0 and not topics):
                return
            passed_over |= topics

    async def _dispatch_all(self, jobs: Sequence[Job], candidates: dict[str, WorkerView]) -> tuple[int, list[Job]]:
        """How many were sent, and the jobs for which there is no worker now."""
        alive_since = self._store.now() - SILENT_S
        placed: list[tuple[Job, str]] = []
        left: list[Job] = []
        for job in jobs:
            chosen = place(job, job.pool, candidates.values(), alive_since=alive_since)
            if chosen is None:
                left.append(job)
            else:
                candidates[chosen.id] = with_one_more(chosen)
                placed.append((job, chosen.id))
        outcomes = await asyncio.gather(*(self._dispatch(job, worker) for job, worker in placed))
        return sum(outcome is Dispatched.SENT for outcome in outcomes), left

    async def _dispatch(self, job: Job, worker: str) -> Dispatched:
        # Counted before it is sent: the next look at the registry must not give the same room away.
        self._registry.took(worker, job.id)
        outcome = await dispatch(
            job,
            worker,
            store=self._store,
            bus=self._bus,
            locks=self._locks,
            telemetry=self._telemetry,
            runtime=self._runtime,
        )
        if outcome is not Dispatched.SENT:
            self._registry.freed(job.id)
        return outcome

    def _heard(self, events: Sequence[JobEvent]) -> None:
        """What was committed: room that became free, or a job that became dispatchable."""
        for event in events:
            if event.state in TERMINAL or event.state is State.SCHEDULED:
                self._registry.freed(event.job_id)
                self._loop.wake()
