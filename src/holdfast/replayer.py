"""The replayer: finds jobs whose wake-up was lost before anybody had them, and sends them on."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.job import Job, JobId
from holdfast.core.recovery import ORPHANABLE, SCHEDULED_STALE_S, Remedy, recover
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
        self._looked_at = float("-inf")

    async def tick(self) -> None:
        if await self._locks.claim(WINDOW, "pending") is None:
            self._telemetry.looked(_NONE_STALE)
            return
        looked_at, self._looked_at = self._looked_at, self._store.now()
        stale = dict(_NONE_STALE)
        after: JobId | None = None
        while True:
            page = await self._store.list_recoverable(limit=BATCH, after=after)
            orphans = [job for job in page if job.state in ORPHANABLE]
            for job in orphans:
                stale[job.state] += 1
            await recover_jobs(
                orphans, store=self._store, topics=self._topics, policy=self._policy, telemetry=self._telemetry
            )
            now = self._store.now()
            lost = [
                job for job in orphans if recover(job, self._topics.get(job.topic), now=now).remedy is Remedy.DISPATCH
            ]
            if lost:
                # They may also wait for a worker that fits: then this changes nothing, and each counts once.
                self._telemetry.orphans_replayed(sum(_lost_since(job) > looked_at for job in lost))
                self._wake_scheduler()
            if len(page) < BATCH:
                break
            after = page[-1].id
        self._telemetry.looked(stale)


def _lost_since(job: Job) -> float:
    return max(job.since, job.not_before) + SCHEDULED_STALE_S
