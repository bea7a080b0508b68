"""A bus of its own, apart from the store, in this process: its publish can fail while the state is written.

It stands where NATS stands on a cluster. What it carries is lost with the process, as a bus may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from holdfast.buses.embedded import TAKEN_S
from holdfast.errors import BusUnavailable
from holdfast.ports import Delivery


class Fault(StrEnum):
    """How a publish fails."""

    NOT_APPLIED = "not_applied"
    """The bus refused: nobody will be told."""
    APPLIED_UNKNOWN = "applied_unknown"
    """The bus took it, and its answer was lost."""


class DetachedBus:
    """`fail` is asked before each publish: None lets it pass."""

    def __init__(self, now: Callable[[], float], *, fail: Callable[[Sequence[Delivery]], Fault | None]) -> None:
        self._now = now
        self._fail = fail
        self._queues: dict[str, dict[Delivery, float]] = {}
        """By worker: until when each delivery is somebody's; 0 before it was taken."""
        self._callbacks: list[Callable[[str], None]] = []
        self._return_callbacks: list[Callable[[], None]] = []

    @property
    def atomic(self) -> bool:
        return False

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        fault = self._fail(deliveries)
        if fault is Fault.NOT_APPLIED:
            raise BusUnavailable("detached bus", "the publish was refused", applied=False)
        for delivery in deliveries:
            self._queues.setdefault(delivery.worker, {}).setdefault(delivery, 0.0)
        for worker in dict.fromkeys(delivery.worker for delivery in deliveries):
            for callback in self._callbacks:
                callback(worker)
        if fault is Fault.APPLIED_UNKNOWN:
            raise BusUnavailable("detached bus", "the publish was not acknowledged", applied=None)

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        now = self._now()
        queue = self._queues.get(worker, {})
        fresh = [delivery for delivery, until in queue.items() if until <= now][:limit]
        queue.update(dict.fromkeys(fresh, now + TAKEN_S))
        return fresh

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            queue = self._queues.get(delivery.worker, {})
            queue.pop(delivery, None)
            if not queue:
                self._queues.pop(delivery.worker, None)

    def given_too_often(self, delivery: Delivery) -> int:
        """Never: its job's dispatch timeout is the bound."""
        return 0

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    def on_return(self, callback: Callable[[], None]) -> None:
        self._return_callbacks.append(callback)

    def returned(self) -> None:
        """It does not fail any more."""
        for callback in self._return_callbacks:
            callback()
