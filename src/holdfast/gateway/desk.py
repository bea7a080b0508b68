"""What every route is given: the plane, and who waits for what in this process."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.gateway.exposition import Exposition
from holdfast.gateway.feed import Feed
from holdfast.gateway.handed import Handed
from holdfast.gateway.plane import Plane
from holdfast.gateway.summaries import Summaries
from holdfast.gateway.waiting import Hints
from holdfast.ports import JobEvent


class Desk:
    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.feed = Feed(plane.store)
        self.exposition = Exposition(plane.telemetry.registry)
        self.summaries = Summaries(plane)
        self.claims = plane.claims
        self.handed = Handed()
        self.cancels = Hints()
        """Given by a worker's id, when one of its jobs is to be stopped."""
        self.leaving = False
        """About to drain: no new callers, please."""
        self.draining = False
        plane.bus.on_arrival(self.claims.give_hint)
        self._unsubscribe = plane.store.subscribe(self._heard)

    def drain(self) -> None:
        """Not ready for new callers any more; those who wait are answered now."""
        self.leaving = self.draining = True
        self._unsubscribe()
        self.claims.close()
        self.cancels.close()
        self.feed.close()

    def _heard(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            if event.kind == "job.cancel_requested":
                self.cancels.give(event.detail["worker"])
