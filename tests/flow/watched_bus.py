"""What an onlooker sees of a story: everything that is committed, published, taken, entered and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.job import JobId
from holdfast.errors import BusUnavailable
from holdfast.flow.record import End
from holdfast.ports import Bus, Delivery, JobEvent
from holdfast.stores import StoreWithBus


@dataclass
class Seen:
    """What an onlooker saw, each with how many events had been committed by then."""

    store: StoreWithBus
    events: list[JobEvent] = field(default_factory=list)
    acknowledged: list[tuple[JobId, int]] = field(default_factory=list)
    published: list[tuple[Delivery, int]] = field(default_factory=list)
    """Calls of publish, whatever came of them."""
    carried: list[Delivery] = field(default_factory=list)
    """What the bus has, or may have."""
    settled: list[tuple[Delivery, int]] = field(default_factory=list)
    entered: list[tuple[JobId, int]] = field(default_factory=list)
    """(job, fence) of each time a handler was entered."""
    accepted: list[tuple[JobId, int, End, int]] = field(default_factory=list)
    """Outcomes that were answered with ok: job, fence, how it ended, commits."""
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self) -> int:
        """Read what has been committed since the last look; how much that is in all."""
        async with self.looking:
            last = self.events[-1].number if self.events else 0
            self.events += await self.store.list_events(after=last, limit=1_000_000)
            return len(self.events)


class WatchedBus:
    """Any bus, with everything that passes it kept."""

    def __init__(self, inner: Bus, seen: Seen) -> None:
        self.inner = inner
        self._seen = seen
        self.before_publish: Callable[[], Any] | None = None

    @property
    def atomic(self) -> bool:
        return self.inner.atomic

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        if self.before_publish is not None:
            await self.before_publish()
        commits = await self._seen.look()
        self._seen.published += [(delivery, commits) for delivery in deliveries]
        try:
            await self.inner.publish(deliveries)
        except BusUnavailable as error:
            if error.applied is None:
                self._seen.carried += deliveries
            raise
        self._seen.carried += deliveries

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        return await self.inner.take(worker, limit=limit)

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        commits = await self._seen.look()
        self._seen.settled += [(delivery, commits) for delivery in deliveries]
        await self.inner.settle(deliveries)

    def given_too_often(self, delivery: Delivery) -> int:
        return self.inner.given_too_often(delivery)

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self.inner.on_arrival(callback)

    def on_return(self, callback: Callable[[], None]) -> None:
        self.inner.on_return(callback)
