"""The pause of a worker that has no process to run a job in: it takes nothing until one could be started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.locks.runtime import Runtime
from holdfast.worker.starting import NotStarted

logger = logging.getLogger("holdfast.worker")

WAIT_S = 0.5
WAIT_S_MAX = 30.0


class Processes(Protocol):
    async def have_one(self) -> None:
        """See to it that one is ready. Raises `NotStarted`."""


class Pause:
    """`tell` lets the plane know why the worker can begin nothing; with no reason, that it can again."""

    def __init__(
        self, tell: Callable[[str], Awaitable[None]], processes: Processes | None, *, runtime: Runtime
    ) -> None:
        self._tell = tell
        self._processes = processes
        self._runtime = runtime
        self._telling = asyncio.Lock()
        self._told = ""
        self._wait_s = WAIT_S
        self._then = ""
        self.why = ""
        """Empty: there is none."""

    async def begin(self, none: NotStarted) -> None:
        """When this ends the plane knows, if it can be reached: what is handed back from now on is not given here again."""
        self.why, self._then = none.why, none.then
        await self._tell_plane()

    async def sit_out(self) -> None:
        """Until a process could be started; no job is taken to find that out. Waits longer each time that none could, and
        each time that one was of no use, until `worked`."""
        while self.why and self._processes is not None:
            wait_s = self._runtime.jitter(self._wait_s)
            self._wait_s = min(2 * self._wait_s, WAIT_S_MAX)
            logger.warning("worker.paused wait_s=%.1f error=%s next=%s", wait_s, self.why, self._then)
            await asyncio.sleep(wait_s)
            try:
                await self._processes.have_one()
            except NotStarted as still:
                await self.begin(still)
            else:
                self.why = ""
                await self._tell_plane()
                logger.info("worker.resumed")

    def worked(self) -> None:
        """A process that was started lately has done a job."""
        self._wait_s = WAIT_S

    async def _tell_plane(self) -> None:
        async with self._telling:
            while self._told != self.why:  # more may have come to be known meanwhile
                telling = self.why
                await self._tell(telling)
                self._told = telling
