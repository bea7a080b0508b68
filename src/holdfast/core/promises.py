"""What a store and a bus, set as they are, survive; and which of their settings break a promise.

One source: `holdfast doctor` prints these rows, and `docs/reference/promises.md` has them as a table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.core.inspection import Aspect, Eviction, Files, Inspection, Replicas, Sync, Writes

SKEW_WARNED_S = 0.5
SKEW_REFUSED_S = 10.0


class Severity(StrEnum):
    BROKEN = "broken"
    """A promise does not hold: do not run like this."""
    WARNING = "warning"
    """A promise holds less than it could."""
    ADVICE = "advice"
    """Everything holds; this would be better."""


class Ailment(msgspec.Struct, frozen=True, kw_only=True):
    """What `holdfast doctor` found. `code` is stable."""

    code: str
    severity: Severity
    about: str
    """store, bus, a lock class, a topic."""
    summary: str
    evidence: str = ""
    fix: str = ""


class Ruling(NamedTuple):
    code: str
    severity: Severity
    means: str


Part = str
_B, _W = Severity.BROKEN, Severity.WARNING

RULINGS: dict[tuple[Part, Aspect, str], Ruling] = {
    ("store", Aspect.SYNC, Sync.INTERVAL): Ruling(
        "sync-interval", _W, "a power loss takes back what was acknowledged in the last moments (P4)"
    ),
    ("store", Aspect.SYNC, Sync.NEVER): Ruling(
        "sync-off", _B, "a power loss may take back, or damage, anything that was acknowledged (P4)"
    ),
    ("store", Aspect.SYNC, Sync.NOTHING): Ruling(
        "not-kept", _B, "everything is gone when the process or the server ends (P4)"
    ),
    ("store", Aspect.REPLICAS, Replicas.ASYNCHRONOUS): Ruling(
        "async-replicas", _W, "a failover takes back what was acknowledged in the last moments (P4)"
    ),
    ("store", Aspect.EVICTION, Eviction.EVICTS): Ruling(
        "evicts", _B, "when its memory is full the server drops jobs and locks (P3, P4)"
    ),
    ("store", Aspect.FILES, Files.NETWORK): Ruling(
        "network-file", _B, "locks and syncs of a network file system cannot be relied upon: two may hold one lock (P3, P4)"
    ),
    ("store", Aspect.FILES, Files.MEMORY): Ruling(
        "memory-file", _B, "the file system goes with the machine's power (P4)"
    ),
    ("store", Aspect.WRITES, Writes.REFUSED): Ruling(
        "no-writes", _B, "no write is acknowledged: no job is taken, and what runs loses its lease"
    ),
    ("bus", Aspect.SYNC, Sync.INTERVAL): Ruling(
        "bus-sync-interval", _W, "after a power loss some jobs wait for their dispatch timeout; none is lost"
    ),
    ("bus", Aspect.SYNC, Sync.NOTHING): Ruling(
        "bus-not-kept", _W, "whenever its server ends, all deliveries are gone, and their jobs wait for their dispatch timeout; none is lost"
    ),
    ("bus", Aspect.REPLICAS, Replicas.NONE): Ruling(
        "bus-one-copy", _W, "while its one server is away nothing is dispatched, and jobs that were wait for their timeout"
    ),
}  # fmt: skip
"""What a setting of a store or a bus breaks. What is not here is as it should be."""


def judge(part: Part, found: Inspection) -> list[Ailment]:
    """What is wrong with the settings of a store or a bus."""
    ruled = ((fact, RULINGS.get((part, fact.aspect, fact.value))) for fact in found.facts)
    return [
        Ailment(
            code=ruling.code,
            severity=ruling.severity,
            about=part,
            summary=f"{found.engine} has {fact.setting} = {fact.found}: {ruling.means}",
            evidence=f"{fact.setting} = {fact.found}",
            fix=fact.fix,
        )
        for fact, ruling in ruled
        if ruling is not None
    ]


def judge_clock(part: Part, *, ahead_s: float, unsure_s: float, fix: str) -> list[Ailment]:
    """Of a clock that is ahead of this machine's (or behind, below 0), as well as it could be measured."""
    skew_s = max(0.0, abs(ahead_s) - unsure_s)
    if skew_s < SKEW_WARNED_S:
        return []
    return [
        Ailment(
            code="clock-skew",
            severity=Severity.BROKEN if skew_s >= SKEW_REFUSED_S else Severity.WARNING,
            about=part,
            summary=f"the clock of the {part} is {'ahead of' if ahead_s > 0 else 'behind'} this machine's by {skew_s:.1f} s "
            "or more: schedules go by the store's, and after a failover fences grow only if clocks differ by less than it took (P1)",
            evidence=f"measured {ahead_s:+.3f} s, sure to {unsure_s:.3f} s",
            fix=fix,
        )
    ]


# -- what survives --------------------------------------------------------------------------------------


class Survival(NamedTuple):
    """One row: what happens, and what of it all is still there afterwards."""

    fault: str
    survives: str


_POWER = {
    Sync.COMMIT: "everything that was acknowledged",
    Sync.INTERVAL: "all but the last moments (as long as the interval)",
    Sync.NEVER: "what the operating system happened to have written",
    Sync.NOTHING: "nothing",
}
_FAILOVER = {
    Replicas.NONE: "there is nobody to take over: it all waits for the server to come back",
    Replicas.SYNCHRONOUS: "everything that was acknowledged",
    Replicas.ASYNCHRONOUS: "all but the last moments before it",
}
KILL = "kill -9 of any process, the store's own too"
POWER = "power loss of the store's machine"
FAILOVER = "failover of the store"
FENCE = "fences grow"
BUS = "loss of the bus"


def survivals(store: Inspection, bus: Inspection | None) -> list[Survival]:
    """The promise table of this combination. Without a bus of its own, deliveries are in the store."""
    sync = Sync(store.value(Aspect.SYNC))
    replicas = Replicas(store.value(Aspect.REPLICAS) or Replicas.NONE)
    kept = sync is not Sync.NOTHING
    rows = [
        Survival(KILL, "everything that was acknowledged" if kept else "nothing"),
        Survival(POWER, _POWER[sync]),
        Survival(FAILOVER, _FAILOVER[replicas]),
        Survival(FENCE, fence_bound(sync, replicas)),
    ]
    if bus is None:
        return [*rows, Survival(BUS, "there is none: deliveries are written with the state, and survive with it")]
    return [*rows, Survival(BUS, "every job; those on their way wait for their dispatch timeout and are sent again")]


def fence_bound(sync: Sync, replicas: Replicas) -> str:
    """What keeps a fence above all that were given before."""
    if sync is Sync.NOTHING:
        return "within the life of the process; after it by the clock"
    if sync is Sync.COMMIT and replicas is not Replicas.ASYNCHRONOUS:
        return "always: by the counter in the store"
    return "by the counter; where the store forgot some, by the clock, if clocks differ by less than the outage took"
