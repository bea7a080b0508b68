"""A real NATS server as the bus of a story, whose publish can be made to fail as that of `buses.detached`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from flow.wires import Wires
from holdfast.buses.detached import Fault
from holdfast.buses.nats.bus import NatsBus
from holdfast.buses.nats.options import parse
from holdfast.errors import BusUnavailable
from holdfast.locks.runtime import Runtime
from holdfast.ports import Delivery

TIMEOUT_S = 10.0


TAKES_MAX = 300
"""Questions for what was published and has not come: the server keeps it at once, and tells its consumer a moment later."""


class FaultyNats:
    """`fail` is asked before each publish: None lets it pass. What was published is there for whoever takes it."""

    def __init__(self, inner: NatsBus, wires: Wires, *, fail: Callable[[], Fault | None]) -> None:
        self._inner = inner
        self._wires = wires
        self._fail = fail
        self._return_callbacks: list[Callable[[], None]] = []
        self._published: Counter[str] = Counter()
        """What is still to be taken, by worker."""

    @property
    def atomic(self) -> bool:
        return self._inner.atomic

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        fault = self._fail()
        if fault is Fault.NOT_APPLIED:
            raise BusUnavailable("nats", "injected: the publish was refused", applied=False)
        with self._wires.waiting():
            await self._inner.publish(deliveries)
        self._published.update(delivery.worker for delivery in deliveries)
        if fault is Fault.APPLIED_UNKNOWN:
            raise BusUnavailable("nats", "injected: the publish was not acknowledged", applied=None)

    async def take(self, worker: str, *, limit: int) -> list[Delivery]:
        with self._wires.waiting():
            for _ in range(TAKES_MAX):
                taken = await self._inner.take(worker, limit=limit)
                if taken or not self._published[worker]:
                    break
        self._published[worker] = max(0, self._published[worker] - len(taken)) if taken else 0
        return taken

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        with self._wires.waiting():
            await self._inner.settle(deliveries)

    def given_too_often(self, delivery: Delivery) -> int:
        return self._inner.given_too_often(delivery)

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._inner.on_arrival(callback)

    def on_return(self, callback: Callable[[], None]) -> None:
        self._inner.on_return(callback)
        self._return_callbacks.append(callback)

    def returned(self) -> None:
        """It does not fail any more."""
        for callback in self._return_callbacks:
            callback()


@asynccontextmanager
async def faulty_nats(
    url: str, wires: Wires, runtime: Runtime, *, fail: Callable[[], Fault | None]
) -> AsyncIterator[FaultyNats]:
    inner = NatsBus(parse(url), runtime=runtime, timeout_s=TIMEOUT_S)
    with wires.waiting():
        await inner.open()
    try:
        yield FaultyNats(inner, wires, fail=fail)
    finally:
        with wires.waiting():
            await inner.close()
