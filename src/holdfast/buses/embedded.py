"""The bus inside the store: a delivery is written in the transaction that dispatches its job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.ports import Delivery

TAKEN_S = 5.0
"""What was taken and not settled comes again after this long."""


class DeliveryStore(Protocol):
    """A store that keeps deliveries with its jobs."""

    def now(self) -> float: ...

    async def list_deliveries(self, worker: str, *, limit: int) -> list[Delivery]: ...

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> None: ...

    def on_arrival(self, callback: Callable[[str], None]) -> None: ...


class EmbeddedBus:
    """Deliveries are durable; who has taken one is remembered here only. If that is forgotten, a
    delivery comes twice, and the second one finds its job started: a commit per take would buy nothing."""

    def __init__(self, store: DeliveryStore) -> None:
        self._store = store
        self._taken: dict[Delivery, float] = {}
        """Until when; oldest first."""

    @property
    def atomic(self) -> bool:
        return True

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        raise AssertionError("deliveries of the embedded bus are sent by Change.send")

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        now = self._store.now()
        for delivery, until in tuple(self._taken.items()):
            if until > now:
                break
            del self._taken[delivery]
        taken = sum(delivery.worker == worker for delivery in self._taken)
        waiting = await self._store.list_deliveries(worker, limit=limit + taken)
        fresh = [delivery for delivery in waiting if delivery not in self._taken][:limit]
        self._taken.update(dict.fromkeys(fresh, now + TAKEN_S))
        return fresh

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        await self._store.settle_deliveries(deliveries)
        for delivery in deliveries:
            self._taken.pop(delivery, None)

    def given_too_often(self, delivery: Delivery) -> int:
        """Never: its job's dispatch timeout is the bound."""
        return 0

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._store.on_arrival(callback)

    def on_return(self, callback: Callable[[], None]) -> None:
        """Never: it is away only with the store."""
