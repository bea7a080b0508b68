"""The roll-call: keeps true what the registry says each worker has in hand, whoever dispatched it.

Every process hears what is committed, mostly. What it has missed, the store's own list corrects.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.job import Job
from holdfast.core.states import TERMINAL, State
from holdfast.locks.runtime import Runtime
from holdfast.loops import Listener
from holdfast.ports import JobEvent, Store
from holdfast.registry import Registry

LOOK_S = 2.0
UNANSWERED = ("lease-expired", "worker-silent")
"""What the reason of a job's recovery begins with, where its worker did not renew, or is doubted by whoever called
the job back: a process that was started since then would otherwise send it there again, and again."""


class RollCall(Listener):
    def __init__(self, *, store: Store, registry: Registry, runtime: Runtime) -> None:
        super().__init__("roll-call", store=store, every_s=LOOK_S, runtime=runtime)
        self._registry = registry

    async def tick(self) -> None:
        held: dict[str, list[Job]] = {worker: [] for worker in self._registry.workers()}
        if not held:
            return
        for job in await self._store.list_in_hand(*held, bare=True):
            held[job.worker].append(job)
        now = self._store.now()
        for worker, jobs in held.items():
            self._registry.holds(worker, [job.id for job in jobs])
            lying = [now - job.since for job in jobs if job.state is State.DISPATCHED]
            self._registry.lies_there(worker, for_s=max(lying, default=0.0), running=len(jobs) - len(lying))

    def heard(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            if event.kind == "job.dispatched":
                self._registry.took(event.detail["worker"], event.job_id)
            elif event.state is State.SCHEDULED or event.state in TERMINAL:
                if str(event.detail.get("reason", "")).startswith(UNANSWERED):
                    self._registry.lost(event.job_id, now=event.at)
                self._registry.freed(event.job_id)
