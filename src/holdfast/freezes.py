"""Freezes: keeps what this process takes for frozen current, and ends freezes whose time is over. Every replica has one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from holdfast.core.audit import Act
from holdfast.core.freeze import Freeze
from holdfast.core.policy_version import PLANE
from holdfast.flow.audit import Audit, Entry
from holdfast.flow.freeze import LiveFreezes, end
from holdfast.locks.runtime import Runtime
from holdfast.loops import Listener
from holdfast.ports import JobEvent, Store
from holdfast.telemetry import Telemetry

POLL_S = 1.0
OVER = "its time is over"


class Freezes(Listener):
    def __init__(
        self,
        *,
        store: Store,
        live: LiveFreezes,
        audit: Audit,
        wake: Callable[[], None],
        telemetry: Telemetry,
        runtime: Runtime,
    ) -> None:
        """`wake` is told when something has thawed."""
        super().__init__("freezes", store=store, every_s=POLL_S, runtime=runtime)
        self._live = live
        self._audit = audit
        self._wake = wake
        self._telemetry = telemetry

    async def tick(self) -> None:
        before = self._live.known.freezes
        stored = await self._live.refresh()
        holding = self._live.known.freezes
        self._telemetry.freezes_hold(Counter(freeze.breadth for freeze in holding))
        if {freeze.scope for freeze in before} - {freeze.scope for freeze in holding}:
            self._wake()
        for freeze in stored:
            if freeze.has_ended(self._store.now()):
                await self._end(freeze)

    def heard(self, events: Sequence[JobEvent]) -> None:
        if any(event.kind.startswith("freeze.") for event in events):
            self.wake()

    async def _end(self, freeze: Freeze) -> None:
        """Of all replicas that see it, one is first."""
        act = Act(tenant=PLANE, action="freeze.ended", subject=f"freeze/{freeze.scope}", reason=OVER)
        await end(freeze, reason=OVER, by="", store=self._store, entry=Entry(self._audit, act))
