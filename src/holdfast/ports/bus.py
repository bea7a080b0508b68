"""The contract of a bus: a wake-up, which may lose, repeat or reorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.ports.words import Delivery


class Bus(Protocol):
    """Carries deliveries to workers."""

    @property
    def atomic(self) -> bool:
        """True: deliveries are published by `Change.send`, together with the state; `publish` is not used."""

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Raises `BusUnavailable`; `applied` is None where the bus may have taken them. The same
        delivery again is one delivery."""

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        """Deliveries for a worker that it has not settled. What was taken and not settled comes
        again after a while: the answer may have been lost."""

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """They were started, or are stale: do not deliver them again. Only after the store has committed."""

    def given_too_often(self, delivery: Delivery) -> int:
        """How often it was given out, as it was last taken here, if that is more often than a bus gives out what
        nobody settles; else 0. Whoever took it ends its job, with a dead letter, and only then settles it."""

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        """Call `callback(worker)` when there may be something to take; with an empty name where nobody knows for whom, since
        hints may have been missed. A hint."""

    def on_return(self, callback: Callable[[], None]) -> None:
        """Call `callback()` when the bus can be reached again that could not be. A hint."""
