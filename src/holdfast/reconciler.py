"""The reconciler: puts right what time has left behind, one replica at a time.

It holds a window (`ttl_hold`) rather than a lock: whoever has it ticks at every poll, nobody
else inside it. What it does is compare-and-set all the same, so a reconciler that was paused
in its tick and goes on in somebody else's window changes nothing twice.
"""

from __future__ import annotations

from holdfast.core.job import Job
from holdfast.core.states import State
from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.flow.decide import Policy
from holdfast.flow.recover import Outbox, lose_attempts, recover_jobs
from holdfast.locks import LockClass, Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import Store
from holdfast.registry import Registry
from holdfast.telemetry import Telemetry

POLL_S = 1.0
BATCH = 200
WINDOW = LockClass("reconciler", ttl=2 * POLL_S, pattern="ttl_hold")
_WATCHED = (State.APPROVAL_REQUIRED, State.DISPATCHED, State.RUNNING)
"""The others are the replayer's: however many jobs wait for a worker, nobody waits for them here."""
_NONE_STALE = dict.fromkeys(_WATCHED, 0)


class Reconciler(Loop):
    def __init__(
        self,
        *,
        store: Store,
        locks: Locks,
        registry: Registry,
        topics: Topics,
        policy: Policy,
        telemetry: Telemetry,
        runtime: Runtime,
        outbox: Outbox | None = None,
    ) -> None:
        super().__init__("reconciler", every_s=POLL_S, runtime=runtime)
        self._store = store
        self._locks = locks
        self._registry = registry
        self._topics = topics
        self._policy = policy
        self._telemetry = telemetry
        self._outbox = outbox

    async def tick(self) -> None:
        if await self._locks.claim(WINDOW, "default") is None:
            # What it saw in a window of its own is over: the owner of this one tells.
            self._telemetry.looked(_NONE_STALE, blind_s=0.0, now=self._store.now())
            return
        await self._recover_overdue()
        await self._part_with_silent_workers()

    async def _recover_overdue(self) -> None:
        """Page by page, past jobs that cannot be helped: a stuck head does not starve the rest."""
        after = ""
        stale = dict(_NONE_STALE)
        oldest = now = self._store.now()
        while True:
            jobs, after = await self._store.list_recoverable(states=_WATCHED, limit=BATCH, after=after)
            for job in jobs:
                stale[job.state] += 1
                oldest = min(oldest, _unprotected_since(job, now))
                if job.state is State.RUNNING and job.lease_until <= now:
                    self._registry.doubt(job.worker, now=now)
            try:
                await recover_jobs(
                    jobs,
                    store=self._store,
                    topics=self._topics,
                    policy=self._policy,
                    telemetry=self._telemetry,
                    outbox=self._outbox,
                )
            except StoreUnavailable:
                # Nothing puts them right now: that is when somebody must hear of them.
                self._telemetry.looked(stale, blind_s=now - oldest, now=now)
                raise
            if not after:
                break
        self._telemetry.looked(stale, blind_s=now - oldest, now=now)

    async def _part_with_silent_workers(self) -> None:
        """What was dispatched to a worker that no longer speaks goes to another one at once; what
        runs on it is left to its lease, because it may well be alive and working."""
        now = self._store.now()
        # Silence may last for an hour, and most of it with empty hands.
        silent = [worker for worker in self._registry.silent(now=now) if self._registry.may_hold(worker)]
        held = await self._store.list_in_hand(*silent, bare=True) if silent else []
        waiting = [job for job in held if job.state is State.DISPATCHED]
        await lose_attempts(
            waiting, reason="worker-silent", store=self._store, telemetry=self._telemetry, outbox=self._outbox
        )
        self._registry.forget_old(now=now)


def _unprotected_since(job: Job, now: float) -> float:
    """Since when nobody looks after the job: neither a live lease nor a delivery that may be taken."""
    if job.state is State.RUNNING:
        return min(now, job.lease_until)
    return job.since if job.state is State.DISPATCHED else now
