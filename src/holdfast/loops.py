"""Loops: what every service of the plane is made of. One start/stop contract, no sleeping in tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger("holdfast")


class Loop:
    """Calls `tick` every `every_s` seconds, and sooner when woken.

    `stop` is complete on return; both may be repeated. A tick that raises is logged and does not
    end the loop: the next one finds whatever it left. `jitter` spreads replicas.
    """

    def __init__(
        self, name: str, tick: Callable[[], Awaitable[None]], *, every_s: float, jitter: Callable[[float], float]
    ) -> None:
        self._name = name
        self._tick = tick
        self._every_s = every_s
        self._jitter = jitter
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"holdfast-{self._name}")

    def wake(self) -> None:
        """Tick soon. Many calls before the tick are one."""
        self._wake.set()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._tick()
            except Exception:
                logger.exception("loop.tick_failed", extra={"loop": self._name})
                # Not at once again: whatever is broken may stay so for a while.
                await asyncio.sleep(min(1.0, self._every_s))
            try:
                async with asyncio.timeout(self._jitter(self._every_s)):
                    await self._wake.wait()
            except TimeoutError:
                continue
