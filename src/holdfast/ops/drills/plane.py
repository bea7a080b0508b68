"""A plane whose bus is apart from its store and fails when told: what NATS would be, without a server.

`python -m holdfast.ops.drills.plane --config FILE --store URL --port N --folder FOLDER`. The switch is in the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from holdfast.app import up
from holdfast.buses.detached import DetachedBus
from holdfast.config import load
from holdfast.errors import BusUnavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.ops.drills.bus_switch import BusFault, Switch
from holdfast.ports import Delivery

PUBLISH_S = 3.0
"""How long a publish waits for an answer: longer than the store may be away for it to matter."""
LOOK_S = 0.01


class SwitchedBus(DetachedBus):
    """In this process, beside the store; asks its switch before each publish."""

    def __init__(self, switch: Switch, now: Callable[[], float]) -> None:
        super().__init__(now, fail=lambda _: None)
        self._switch = switch

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        fault = self._switch.read()
        if fault is BusFault.REFUSE:
            raise BusUnavailable("switched bus", "the publish was refused", applied=False)
        if fault is BusFault.SILENT:
            deadline = SYSTEM.now() + PUBLISH_S
            while self._switch.read() is BusFault.SILENT and SYSTEM.now() < deadline:  # noqa: ASYNC110  (a file)
                await asyncio.sleep(LOOK_S)
            raise BusUnavailable("switched bus", "the publish was not answered", applied=None)
        for delivery in deliveries:
            self._switch.note_publish(delivery.job_id, delivery.fence)
        await super().publish(deliveries)
        if fault is BusFault.LOSE_ANSWER:
            raise BusUnavailable("switched bus", "the publish was not acknowledged", applied=None)


def _announce(url: str) -> None:
    sys.stderr.write(f"holdfast is up at {url}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="holdfast.ops.drills.plane")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    settings = load(given.config, {"store": given.store, "port": given.port})
    bus = SwitchedBus(Switch(given.folder), SYSTEM.now)
    uvloop.run(up(settings, bus=bus, announce=_announce))


if __name__ == "__main__":
    main()
