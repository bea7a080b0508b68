"""The outbox: a bus whose messages are written in the store first, with the state, and passed on by a relay.

A dispatch is then one transaction, as with the bus in the store: there is nothing to roll back, whatever
becomes of the bus that carries. The price is one more step on the way of each delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from holdfast.errors import Invalid
from holdfast.ports import Bus, Delivery


class OutboxStore(Protocol):
    """A store that can say what is to be passed on, for whomever it is."""

    async def list_outbox(self, *, limit: int) -> list[Delivery]:
        """What was sent and not settled, oldest first. Whatever is not DISPATCHED any more is not in it."""

    async def left_of(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those of them that are not settled."""

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> None: ...

    def on_arrival(self, callback: Callable[[str], None]) -> None: ...


class OutboxBus:
    def __init__(self, store: object, carrier: Bus) -> None:
        """Raises `Invalid` for a store without an outbox."""
        assert not carrier.atomic, "a bus in the store needs no outbox"
        if not hasattr(store, "list_outbox"):
            raise Invalid('this store keeps no outbox: leave out dispatch = "outbox", or use an SQL store')
        self._store = cast(OutboxStore, store)
        self._carrier = carrier

    @property
    def atomic(self) -> bool:
        return True

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        raise AssertionError("deliveries of the outbox are sent by Change.send")

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        return await self._carrier.take(worker, limit=limit)

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        await self._carrier.settle(deliveries)

    def given_too_often(self, delivery: Delivery) -> int:
        return self._carrier.given_too_often(delivery)

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._carrier.on_arrival(callback)

    def on_return(self, callback: Callable[[], None]) -> None:
        self._carrier.on_return(callback)

    # -- for the relay -----------------------------------------------------------------------------

    async def list_waiting(self, *, limit: int) -> list[Delivery]:
        return await self._store.list_outbox(limit=limit)

    async def left_of(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those that the bus has not acknowledged: for the reconciler."""
        return await self._store.left_of(deliveries)

    async def pass_on(self, deliveries: Sequence[Delivery]) -> None:
        """Raises `BusUnavailable`; they stay in the outbox then."""
        await self._carrier.publish(deliveries)
        # Only now: a crash in between repeats them, and a worker's claim finds the second one started. The other
        # order would lose them.
        await self._store.settle_deliveries(deliveries)

    def on_waiting(self, callback: Callable[[], None]) -> None:
        self._store.on_arrival(lambda _: callback())
