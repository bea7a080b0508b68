"""The pruner: removes what retention no longer asks to keep, one replica at a time, never in anybody's way."""

from __future__ import annotations

import asyncio

from holdfast.core.retention import Retention
from holdfast.flow.throttle import forget_rates
from holdfast.locks import LockClass, Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import Store
from holdfast.telemetry import Telemetry

POLL_S = 60.0
WINDOW = LockClass("pruner", ttl=2 * POLL_S, pattern="ttl_hold")


class Pruner(Loop):
    def __init__(
        self, *, store: Store, locks: Locks, retention: Retention, telemetry: Telemetry, runtime: Runtime
    ) -> None:
        super().__init__("pruner", every_s=POLL_S, runtime=runtime)
        self._store = store
        self._locks = locks
        self._retention = retention
        self._telemetry = telemetry
        self._runtime = runtime

    async def tick(self) -> None:
        """Everything that may go now, batch after batch. A second pruner would find nothing left to do."""
        if await self._locks.claim(WINDOW, "default") is None:
            return
        await forget_rates(self._store)
        limits = self._retention.limits(now=self._store.now())
        after: int | None = 0
        while after is not None:
            began = self._runtime.now()
            jobs, after = await self._store.prune(limits, after=after)
            if jobs:
                self._telemetry.jobs_pruned(jobs)
            # At most half of the time: what lives goes before what has ended.
            await asyncio.sleep(self._runtime.now() - began)
