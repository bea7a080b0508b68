"""Loops: what every service of the plane is. One start/stop contract, no sleeping in tests."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.locks.runtime import Runtime
from holdfast.ports import JobEvent, Store

logger = logging.getLogger("holdfast")

LEFT_S = 10.0
LEFT_MAX = 2000


class Loop(ABC):
    """Calls `tick` every `every_s` seconds, and sooner when woken.

    `stop` is complete on return; both may be repeated. A tick that raises is logged and does not
    end the loop: the next one finds whatever it left. The runtime's jitter spreads replicas.
    """

    def __init__(self, name: str, *, every_s: float, runtime: Runtime) -> None:
        self.name = name
        self.failures = 0
        """Ticks that raised."""
        self._every_s = every_s
        self._jitter = runtime.jitter
        self._now = runtime.now
        self._done_at = runtime.now()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def tick(self) -> None: ...

    @property
    def idle_s(self) -> float:
        """Since the end of the last tick that went well."""
        return self._now() - self._done_at

    @property
    def every_s(self) -> float:
        return self._every_s

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"holdfast-{self.name}")

    def wake(self) -> None:
        """Tick soon. Many calls before the tick are one."""
        self._woken.set()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def log_failed(self, record: Record, error: Exception) -> None:
        """Looking after one of many records raised this, which is no reason to leave out the others."""
        told = {"event": "loop.record_failed", "loop": self.name, "kind": record.kind, "record": record.id}
        logger.error("loop.record_failed", extra=told, exc_info=error)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self.tick()
                self._done_at = self._now()
            except Exception:
                self.failures += 1
                logger.exception("loop.tick_failed", extra={"event": "loop.tick_failed", "loop": self.name})
                # Not at once again: whatever is broken may stay so for a while.
                await asyncio.sleep(min(1.0, self._every_s))
            try:
                async with asyncio.timeout(self._jitter(self._every_s)):
                    await self._woken.wait()
            except TimeoutError:
                continue


class Overdue:
    """What is due of one kind, but for what could not be looked after a moment ago: the longest overdue come first, and as
    many of those as are read at once would hide all others."""

    def __init__(self, kind: Kind, *, store: Store, runtime: Runtime) -> None:
        self._kind = kind
        self._store = store
        self._now = runtime.now
        self._left: dict[tuple[Tenant, str], float] = {}
        """Until when."""

    async def list(self, *, limit: int) -> list[Record]:
        now = self._now()
        self._left = {place: until for place, until in self._left.items() if until > now}
        found = await self._store.list_due(self._kind, limit=limit + len(self._left))
        return [record for record in found if (record.tenant, record.id) not in self._left][:limit]

    def leave(self, record: Record, for_s: float = LEFT_S) -> None:
        """Do not list it for so long. Of very many some are listed all the same: all of them would have to be read."""
        if len(self._left) < LEFT_MAX:
            self._left[record.tenant, record.id] = self._now() + for_s


class Listener(Loop):
    """A loop that hears what this process commits while it runs, and wakes for what concerns it."""

    def __init__(self, name: str, *, store: Store, every_s: float, runtime: Runtime) -> None:
        super().__init__(name, every_s=every_s, runtime=runtime)
        self._store = store
        self._unsubscribe: Callable[[], None] | None = None

    @abstractmethod
    def heard(self, events: Sequence[JobEvent]) -> None: ...

    def start(self) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._store.subscribe(self.heard)
        super().start()

    async def stop(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()
        await super().stop()
