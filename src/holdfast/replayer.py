"""The replayer: finds jobs whose wake-up was lost before anybody had them, and sends them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.job import Job
from holdfast.core.recovery import ORPHANABLE, SCHEDULED_STALE_S, Remedy, recover
from holdfast.core.states import State
from holdfast.core.topic import Topics
from holdfast.flow.decide import Policy
from holdfast.flow.recover import recover_jobs
from holdfast.locks import LockClass, Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import Store
from holdfast.telemetry import Telemetry

POLL_S = 5.0
BATCH = 200
PAGES = 50
"""Of SCHEDULED jobs at a tick. A deadline among more of them than that is seen some ticks later."""
WINDOW = LockClass("replayer", ttl=2 * POLL_S, pattern="ttl_hold")
_NONE_STALE = dict.fromkeys(ORPHANABLE, 0)


class Replayer(Loop):
    def __init__(
        self,
        *,
        store: Store,
        locks: Locks,
        topics: Topics,
        policy: Policy,
        telemetry: Telemetry,
        runtime: Runtime,
        wake_scheduler: Callable[[], None],
    ) -> None:
        super().__init__("replayer", every_s=POLL_S, runtime=runtime)
        self._store = store
        self._locks = locks
        self._topics = topics
        self._policy = policy
        self._telemetry = telemetry
        self._wake_scheduler = wake_scheduler
        self._after = ""
        """How far the walk past jobs that are SCHEDULED has come; empty: the next tick begins one."""
        self._began_at = self._last_began_at = float("-inf")
        """When this walk began, and the one before it."""
        self._stale = self._stale_so_far = 0
        """What the last whole walk has counted, and this one."""
        self._pending = 0

    async def tick(self) -> None:
        if await self._locks.claim(WINDOW, "pending") is None:
            self._after = ""
            self._telemetry.looked(_NONE_STALE)
            return
        try:
            await self._replay_pending()
            if await self._replay_scheduled():
                self._wake_scheduler()
        finally:
            # Also where the store takes no writes: nothing puts them right then, and somebody must hear of them.
            scheduled = max(self._stale, self._stale_so_far)
            self._telemetry.looked({State.PENDING: self._pending, State.SCHEDULED: scheduled})

    async def _replay_pending(self) -> None:
        stale, after = 0, ""
        while True:
            jobs, after = await self._store.list_recoverable(states=(State.PENDING,), limit=BATCH, after=after)
            stale += len(jobs)
            self._pending = stale
            await self._recover(jobs)
            if not after:
                return

    async def _replay_scheduled(self) -> bool:
        """Walk past all that wait for too long, or as far as one tick goes: they may be very many, and most of them
        wait for a worker, which no walk gives them. True if there are any: for the scheduler to look, once for them all."""
        found = False
        for _ in range(PAGES):
            if not self._after:
                self._last_began_at, self._began_at = self._began_at, self._store.now()
                self._stale_so_far = 0
            jobs, self._after = await self._store.list_recoverable(
                states=(State.SCHEDULED,), limit=BATCH, after=self._after
            )
            self._stale_so_far += len(jobs)
            await self._recover(jobs)
            now = self._store.now()
            lost = [job for job in jobs if recover(job, self._topics.get(job.topic), now=now).remedy is Remedy.DISPATCH]
            if lost:
                # They may also wait for a worker that fits: then this changes nothing, and each counts once, in the first
                # walk that began when it was lost already.
                self._telemetry.orphans_replayed(
                    sum(self._last_began_at < _lost_since(job) <= self._began_at for job in lost)
                )
                found = True
            if not self._after:
                self._stale = self._stale_so_far
                break
        return found

    async def _recover(self, jobs: Sequence[Job]) -> None:
        await recover_jobs(jobs, store=self._store, topics=self._topics, policy=self._policy, telemetry=self._telemetry)


def _lost_since(job: Job) -> float:
    return job.ready_since + SCHEDULED_STALE_S
