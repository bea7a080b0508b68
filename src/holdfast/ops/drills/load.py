"""People who submit jobs the whole time, and keep what was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.errors import HoldfastError
from holdfast.locks.runtime import SYSTEM
from holdfast.ops.drills.stage import Stage

EVERY_S = 0.1
JOBS_MAX = 400


class Load:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.acknowledged: dict[str, str] = {}
        """Idempotency key → job: a key is repeated until it is acknowledged."""
        self.unanswered = 0
        self.latencies: list[float] = []

    async def submit(self) -> None:
        """One after the other, for ever."""
        for number in range(JOBS_MAX):
            key = f"load-{number}"
            while key not in self.acknowledged:
                await self._try(key)
                await asyncio.sleep(EVERY_S)

    async def _try(self, key: str) -> None:
        began = SYSTEM.now()
        try:
            job = await self._stage.client.submit("drill.load", self._stage.payload(), idempotency_key=key)
        except HoldfastError:
            self.unanswered += 1
            return
        self.latencies.append(SYSTEM.now() - began)
        self.acknowledged[key] = job.id

    @property
    def ids(self) -> list[str]:
        return list(self.acknowledged.values())

    async def grow(self, more: int, *, promise: str = "") -> None:
        """Wait until so many more are acknowledged."""
        target = len(self.acknowledged) + more
        await self._stage.until(f"{more} more jobs are acknowledged", lambda: self._has(target), promise=promise)

    async def _has(self, count: int) -> bool:
        return len(self.acknowledged) >= count


@asynccontextmanager
async def load_on(stage: Stage) -> AsyncIterator[Load]:
    load = Load(stage)
    submitting = asyncio.create_task(load.submit())
    try:
        yield load
    finally:
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
