"""What every route is given: the plane, and who waits for what in this process."""

from __future__ import annotations

from holdfast.gateway.feed import Feed
from holdfast.gateway.plane import Plane
from holdfast.gateway.waiting import Hints


class Desk:
    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.feed = Feed(plane.store)
        self.arrivals = Hints()
        self.draining = False
        plane.bus.on_arrival(self.arrivals.give)

    def drain(self) -> None:
        """Not ready for new callers any more; those who wait are answered now."""
        self.draining = True
        self.arrivals.close()
        self.feed.close()
