"""What somebody who looks at a plane should look into, worst first. For people; alerts are made of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.recovery import SCHEDULED_STALE_S

LOOP_IDLE_S = 30.0
"""Every loop ticks more often than that, but those that have a minute."""


class Warned(NamedTuple):
    code: str
    summary: str
    then: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    conditions: Mapping[str, int] = field(default_factory=dict)
    """Workers by condition: ready, draining, silent, stuck, unable."""
    waiting_longest_s: float | None = None
    waiting_longest: str = ""
    """The job."""
    effects_unknown: int = 0
    approvals_pending: int = 0
    frozen: Sequence[str] = ()
    loops_idle: Mapping[str, float] = field(default_factory=dict)
    """By how much a loop is late, in seconds; only those that are."""
    contended: str = ""
    """The key of the lock that most wait for."""
    waiters: int = 0


def warnings(signs: Signs) -> list[Warned]:
    found = [
        Warned("loop-late", f"loop {name} has not ticked for {late:.0f} s", "holdfast runbook loop-stalled")
        for name, late in sorted(signs.loops_idle.items())
    ]
    stuck, silent, unable = (signs.conditions.get(condition, 0) for condition in ("stuck", "silent", "unable"))
    if stuck:
        summary = _counted(stuck, "worker heartbeats and takes no work", "workers heartbeat and take no work")
        found.append(Warned("workers-stuck", summary, "holdfast worker list"))
    if unable:
        summary = _counted(unable, "worker says that it can begin nothing", "workers say that they can begin nothing")
        found.append(Warned("workers-unable", summary, "holdfast worker list"))
    if signs.effects_unknown:
        summary = _counted(signs.effects_unknown, "effect", "effects") + " may or may not have happened"
        found.append(Warned("effects-unknown", summary, "holdfast effect list"))
    found += [Warned("frozen", f"{scope} is frozen", "holdfast freeze list") for scope in signs.frozen]
    if signs.waiting_longest_s is not None and signs.waiting_longest_s >= SCHEDULED_STALE_S:
        summary = f"a job has waited for {signs.waiting_longest_s:.0f} s"
        found.append(Warned("waiting-long", summary, f"holdfast why job {signs.waiting_longest}"))
    if silent:
        summary = _counted(silent, "worker is not heard of", "workers are not heard of")
        found.append(Warned("workers-silent", summary, "holdfast worker list"))
    if signs.approvals_pending:
        summary = _counted(signs.approvals_pending, "approval waits", "approvals wait") + " for somebody"
        found.append(Warned("approvals-pending", summary, "holdfast approval list"))
    if signs.waiters:
        summary = _counted(signs.waiters, "waits", "wait") + f" for lock {signs.contended}"
        found.append(Warned("lock-contended", summary, f"holdfast why lock {signs.contended}"))
    return found


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
