"""Doctor: connects to the store and the bus as they are configured, and says what they promise together."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from holdfast.buses import inspect_bus
from holdfast.config import Settings
from holdfast.core.blind_window import Polls, Window, judge_settings, windows
from holdfast.core.inspection import Inspection
from holdfast.core.promises import Ailment, Severity, Survival, judge, judge_clock, survivals
from holdfast.core.topic import Topic
from holdfast.locks.runtime import Runtime
from holdfast.ops.readings import advise, read
from holdfast.reconciler import POLL_S as RECONCILER_S
from holdfast.replayer import POLL_S as REPLAYER_S
from holdfast.scheduler import POLL_S as SCHEDULER_S
from holdfast.stores import TIMEOUT_S, inspect_store
from holdfast.wiring import CLASSES

_WORST_FIRST = {severity: place for place, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    store: Inspection
    bus: Inspection | None
    """None: it is in the store."""
    survivals: Sequence[Survival]
    windows: Sequence[Window]
    ailments: Sequence[Ailment]
    """Worst first."""

    @property
    def is_broken(self) -> bool:
        return any(found.severity is Severity.BROKEN for found in self.ailments)


async def examine(settings: Settings, *, runtime: Runtime, measured: Sequence[str] = ()) -> Examination:
    """`measured` are the `/metrics` of processes of the plane. Raises what opening the store or the bus would: `StoreUnavailable`, `BusUnavailable`, `Invalid`, `ValueError`."""
    topics = settings.topics.declared or (Topic(name="*"),)
    store, store_skew = await _timed("store", inspect_store(settings.store, runtime=runtime), runtime)
    bus, bus_skew = await _timed("bus", inspect_bus(settings.bus, runtime=runtime), runtime)
    assert store is not None
    found = [
        *judge("store", store),
        *store_skew,
        *([] if bus is None else judge("bus", bus)),
        *bus_skew,
        *judge_settings(topics, CLASSES, store_timeout_s=TIMEOUT_S),
        *(one for text in measured for one in advise(read(text), topics=settings.topics, classes=CLASSES)),
    ]
    return Examination(
        store=store,
        bus=bus,
        survivals=survivals(store, bus),
        windows=windows(topics, CLASSES, Polls(SCHEDULER_S, RECONCILER_S, REPLAYER_S)),
        ailments=sorted(found, key=lambda one: _WORST_FIRST[one.severity]),
    )


async def _timed(
    part: str, asking: Awaitable[Inspection | None], runtime: Runtime
) -> tuple[Inspection | None, list[Ailment]]:
    """The answer, and what its clock says compared with ours: it was read at some time between asking and hearing."""
    asked = runtime.wall_us() / 1e6
    found = await asking
    heard = runtime.wall_us() / 1e6
    if found is None or found.clock is None:
        return found, []
    ahead_s, unsure_s = found.clock - (asked + heard) / 2, (heard - asked) / 2
    return found, judge_clock(part, ahead_s=ahead_s, unsure_s=unsure_s, fix=found.clock_fix)
