"""The relay: passes on what lies in the outbox. One replica at a time, by a window; a second one repeats, no more.

A delivery goes from the outbox only when the bus has acknowledged it, or when its job has moved on: until
then it is passed on again and again. What comes twice is dropped, by the bus within its window
(`<job>.<fence>`), and by the store when a worker claims it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.errors import BusUnavailable
from holdfast.locks import Lease, LockClass, Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import Delivery
from holdfast.telemetry import Telemetry

POLL_S = 0.5
"""The floor under the wake-ups; and how often a bus that is away is tried."""
BATCH = 500
FAILURES_MAX = 3
"""Deliveries that fail one after the other before the rest is left to the next look: the bus is away, most likely."""
WINDOW = LockClass("relay", ttl=4, pattern="ttl_hold")


class Outbox(Protocol):
    async def list_waiting(self, *, limit: int) -> list[Delivery]: ...

    async def pass_on(self, deliveries: Sequence[Delivery]) -> None: ...

    def on_waiting(self, callback: Callable[[], None]) -> None: ...


class Relay(Loop):
    def __init__(self, *, outbox: Outbox, locks: Locks, telemetry: Telemetry, runtime: Runtime) -> None:
        super().__init__("relay", every_s=POLL_S, runtime=runtime)
        self._outbox = outbox
        self._locks = locks
        self._telemetry = telemetry
        self._window: Lease | None = None
        outbox.on_waiting(self.wake)

    async def tick(self) -> None:
        while await self._has_window():
            waiting = await self._outbox.list_waiting(limit=BATCH)
            passed_on = await self._pass_on(waiting) if waiting else 0
            if passed_on < BATCH:
                return

    async def _has_window(self) -> bool:
        """Asked of the store now and then, not for each delivery: who goes on for a moment too long only repeats."""
        if self._window is None or self._window.remaining() < WINDOW.ttl / 2:
            self._window = await self._locks.claim(WINDOW, "default")
        return self._window is not None

    async def _pass_on(self, waiting: Sequence[Delivery]) -> int:
        """How many were. Where a batch fails they are tried one by one, so that none is stuck behind another."""
        try:
            await self._outbox.pass_on(waiting)
        except BusUnavailable as error:
            self._telemetry.relay_failed(error=error)
        else:
            return len(waiting)
        passed_on = failures = 0
        for delivery in waiting:
            try:
                await self._outbox.pass_on([delivery])
            except BusUnavailable:
                failures += 1
                if failures == FAILURES_MAX:
                    break
            else:
                passed_on, failures = passed_on + 1, 0
        return passed_on
