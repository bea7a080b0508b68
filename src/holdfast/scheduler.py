"""The scheduler: gives dispatchable jobs to workers. Any number of replicas may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.job import Job
from holdfast.core.placement import WorkerView, place
from holdfast.core.states import TERMINAL, State
from holdfast.flow.dispatch import Dispatched, Dispatcher, Placed
from holdfast.locks import Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import Bus, JobEvent, Store
from holdfast.registry import SILENT_S, Registry, with_one_more
from holdfast.telemetry import Telemetry

BATCH = 200
POLL_S = 0.25
"""The floor under the wake-ups: a job whose back-off has passed, or whose wake-up was lost, waits this long."""
STORE_RETRY_S = 1.0
"""After a write that the store did not answer."""


class Scheduler(Loop):
    def __init__(
        self, *, store: Store, bus: Bus, locks: Locks, registry: Registry, telemetry: Telemetry, runtime: Runtime
    ) -> None:
        super().__init__("scheduler", every_s=POLL_S, runtime=runtime)
        self._store = store
        self._registry = registry
        self._runtime = runtime
        self._dispatcher = Dispatcher(store=store, bus=bus, locks=locks, telemetry=telemetry, runtime=runtime)
        self._not_before = 0.0
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._store.subscribe(self._heard)
        super().start()

    async def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await super().stop()

    async def tick(self) -> None:
        """Dispatch what fits now, batch after batch, until nothing more fits or nothing is left.

        Jobs that no worker can take now are looked past, so that they do not starve those behind.
        """
        passed_over: set[str] = set()
        while self._runtime.now() >= self._not_before:
            candidates = {view.id: view for view in self._registry.candidates()}
            if not any(view.room > 0 and not view.draining for view in candidates.values()):
                return
            jobs = await self._store.list_dispatchable(limit=BATCH, except_topics=passed_over)
            placed, left = self._place(jobs, candidates)
            outcomes = await self._dispatch(placed) if placed else []
            topics = {job.topic for job in left} - passed_over
            if len(jobs) < BATCH or (Dispatched.SENT not in outcomes and not topics):
                return
            passed_over |= topics

    def _place(self, jobs: Sequence[Job], candidates: dict[str, WorkerView]) -> tuple[list[Placed], list[Job]]:
        """Each job with its worker, and the jobs for which there is none now."""
        alive_since = self._store.now() - SILENT_S
        placed: list[Placed] = []
        left: list[Job] = []
        for job in jobs:
            chosen = place(job, job.pool, candidates.values(), alive_since=alive_since)
            if chosen is None:
                left.append(job)
            else:
                candidates[chosen.id] = with_one_more(chosen)
                placed.append(Placed(job, chosen.id))
        return placed, left

    async def _dispatch(self, placed: Sequence[Placed]) -> list[Dispatched]:
        # Counted before it is sent: the next look at the registry must not give the same room away.
        for job, worker in placed:
            self._registry.took(worker, job.id)
        outcomes = await self._dispatcher.dispatch(placed)
        for (job, _), outcome in zip(placed, outcomes, strict=True):
            if outcome is not Dispatched.SENT:
                self._registry.freed(job.id)
        if Dispatched.UNANSWERED in outcomes:
            self._not_before = self._runtime.now() + STORE_RETRY_S
        return outcomes

    def _heard(self, events: Sequence[JobEvent]) -> None:
        """What was committed: room that became free, or a job that became dispatchable."""
        for event in events:
            if event.state in TERMINAL or event.state is State.SCHEDULED:
                self._registry.freed(event.job_id)
                self.wake()
