"""Advice from what a plane has measured: times that do not fit the work, and why leases were lost.

Never more than advice: a proposal is a number to think about, and to publish as one publishes any setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.promises import Ailment, Severity
from holdfast.core.topic import Topic
from holdfast.locks.policy import LockClass, Pattern

SAMPLES_MIN = 50
"""Of fewer nobody should conclude anything."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram: so many observations of at most so many seconds, cumulative."""

    buckets: Sequence[tuple[float, float]] = ()

    @property
    def count(self) -> float:
        return self.buckets[-1][1] if self.buckets else 0.0

    def at_most(self, part: float) -> float:
        """What this part of them, such as 0.99, took at most. Infinite where the last bucket has no end."""
        wanted = part * self.count
        return next((limit for limit, count in self.buckets if count >= wanted), math.inf)

    @property
    def p99(self) -> float | None:
        return self.at_most(0.99) if self.count >= SAMPLES_MIN else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCounts:
    """What one class of locks has seen, in one process since it began."""

    held: Spread = field(default_factory=Spread)
    not_owned: float = 0.0
    renewed: float = 0.0
    renewals_failed: float = 0.0
    abandoned: Mapping[str, float] = field(default_factory=dict)
    """By the reason of the loss: stolen, expired, unreachable, paused, revoked."""


def advise_topic(topic: Topic, *, attempts: Spread, starts: Spread) -> list[Ailment]:
    """Timeouts that are too short for what was seen, or leave trouble unseen for long."""
    found = []
    took, waited = attempts.p99, starts.p99
    if took is not None and took > topic.running_timeout_s / 2:
        found.append(_times("running-timeout-tight", topic, "running_timeout_s", topic.running_timeout_s, took, 4))
    if took is not None and took * 50 < topic.running_timeout_s and topic.running_timeout_s > 120:
        found.append(_times("running-timeout-loose", topic, "running_timeout_s", topic.running_timeout_s, took, 10, 60))
    if waited is not None and waited > topic.dispatch_timeout_s / 3:
        found.append(_times("dispatch-timeout-tight", topic, "dispatch_timeout_s", topic.dispatch_timeout_s, waited, 6))
    if waited is not None and waited * 50 < topic.dispatch_timeout_s and topic.dispatch_timeout_s > 60:
        found.append(
            _times("dispatch-timeout-loose", topic, "dispatch_timeout_s", topic.dispatch_timeout_s, waited, 20, 30)
        )
    return found


def _times(
    code: str, topic: Topic, setting: str, now_s: float, p99_s: float, factor: float, least_s: float = 1.0
) -> Ailment:
    proposed = max(least_s, factor * p99_s)
    tight = code.endswith("tight")
    means = "jobs that are well would be ended" if tight else "jobs that are lost are found later than they need to be"
    fix = (
        f"{setting} = {math.ceil(proposed)}"
        if math.isfinite(proposed)
        else f"a longer {setting}: more than was measured"
    )
    return Ailment(
        code=code,
        severity=Severity.WARNING if tight else Severity.ADVICE,
        about=f"topic {topic.name}",
        summary=f"{setting} is {now_s:g} s, and 99 of 100 took {p99_s:g} s or less: {means}",
        evidence=f"p99 {p99_s:g} s",
        fix=fix,
    )


def advise_class(lock_class: LockClass, seen: LockCounts, *, pause_s: float, store_timeout_s: float) -> list[Ailment]:
    """A ttl that does not fit the work or the pauses of the process."""
    if lock_class.pattern is Pattern.TTL_HOLD:
        return []
    about, ttl, found = f"lock {lock_class.name}", lock_class.ttl, []
    held = seen.held.p99
    if not lock_class.renewal.every_s and held is not None and held > ttl / 2:
        fix = f"ttl = {4 * held:.3g}, or let it be renewed" if math.isfinite(held) else "let it be renewed"
        found.append(
            Ailment(
                code="ttl-below-work",
                severity=Severity.WARNING,
                about=about,
                summary=f"it is not renewed, and 99 of 100 hold it for up to {held:g} s of its {ttl:g} s",
                evidence=f"held p99 {held:g} s",
                fix=fix,
            )
        )
    if lock_class.renewal.every_s and pause_s > lock_class.renewal.trust_s - lock_class.renewal.every_s:
        found.append(
            Ailment(
                code="ttl-below-pause",
                severity=Severity.WARNING,
                about=about,
                summary=f"the process stood still for {pause_s:.1f} s: longer than a renewal of this class may be late",
                evidence=f"loop lag {pause_s:.1f} s, ttl {ttl:g} s",
                fix=f"find what stops the loop; or ttl = {3 * (pause_s + store_timeout_s):.0f}",
            )
        )
    return found


def why_not_owned(lock_class: LockClass, seen: LockCounts) -> list[Ailment]:
    """Leases that were not their holder's any more when it renewed or released: the likeliest cause, by the evidence."""
    lost = sum(seen.abandoned.values())
    if not seen.not_owned and not lost:
        return []
    code, means, fix = _cause(lock_class, seen)
    reasons = ", ".join(f"{reason} {count:g}" for reason, count in sorted(seen.abandoned.items()) if count)
    tried = seen.renewed + seen.renewals_failed
    return [
        Ailment(
            code=code,
            severity=Severity.WARNING,
            about=f"lock {lock_class.name}",
            summary=f"{seen.not_owned:g} times a lease was not its holder's any more, {lost:g} were given up: {means}",
            evidence=f"renewals {tried:g}, failed {seen.renewals_failed:g}; lost: {reasons or 'none'}",
            fix=fix,
        )
    ]


def _cause(lock_class: LockClass, seen: LockCounts) -> tuple[str, str, str]:
    held = seen.held.p99
    if seen.abandoned.get("paused"):
        return (
            "not-owned-pause",
            "processes were stopped for longer than the lease lasts",
            "look for suspended machines, stopped containers, long garbage collections",
        )
    outlasts = held is not None and held >= lock_class.ttl * 0.8
    if not lock_class.renewal.every_s and (outlasts or seen.abandoned.get("expired")):
        return (
            "not-owned-no-renewal",
            "the work takes longer than the ttl, and nothing renews it",
            f"let class {lock_class.name} be renewed, or give it a longer ttl",
        )
    if seen.renewals_failed or seen.abandoned.get("unreachable") or seen.abandoned.get("expired"):
        return (
            "not-owned-delay",
            "renewals failed or came later than the ttl: the store did not answer in time",
            "look at the store's latency and at the network between; `holdfast doctor` shows its settings",
        )
    if seen.abandoned.get("revoked"):
        return ("not-owned-evicted", "operators have ended leases", "holdfast audit list --plane --action lock.evicted")
    return ("not-owned-unexplained", "nothing that was measured explains it", "holdfast lock top")
