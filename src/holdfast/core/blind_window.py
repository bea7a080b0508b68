"""Blind windows: for how long, at worst, something is nobody's after whoever had it is gone; and settings with no margin.

Sums of what is declared; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core.promises import Ailment, Severity
from holdfast.core.recovery import SCHEDULED_STALE_S
from holdfast.core.topic import Topic
from holdfast.locks.policy import LockClass, Pattern


class Polls(NamedTuple):
    """How often the loops look, in seconds."""

    scheduler_s: float
    reconciler_s: float
    replayer_s: float


class Window(NamedTuple):
    component: str
    trouble: str
    worst_s: float
    sum: str
    """What it consists of."""


def windows(topics: Iterable[Topic], classes: Iterable[LockClass], polls: Polls) -> list[Window]:
    """The longest that each kind of trouble can last before the plane has put it right by itself."""
    found = [_window_of_wake_up(polls)]
    for topic in topics:
        found += _of_topic(topic, polls)
    return found + [_of_class(lock_class) for lock_class in classes]


def _window_of_wake_up(polls: Polls) -> Window:
    worst = SCHEDULED_STALE_S + polls.replayer_s
    return Window(
        "scheduler", "a wake-up is lost", polls.scheduler_s, f"poll {polls.scheduler_s:g}; without one, {worst:g}"
    )


def _of_topic(topic: Topic, polls: Polls) -> list[Window]:
    # Whoever takes the window of a reconciler that died waits for its end: two polls.
    look_s = 3 * polls.reconciler_s
    name = f"topic {topic.name}"
    return [
        Window(
            name, "its worker dies at work", topic.lease_s + look_s, f"lease {topic.lease_s:g} + reconciler {look_s:g}"
        ),
        Window(
            name,
            "its delivery is lost",
            topic.dispatch_timeout_s + look_s,
            f"dispatch timeout {topic.dispatch_timeout_s:g} + reconciler {look_s:g}",
        ),
        Window(
            name,
            "its decision is lost",
            topic.pending_timeout_s + polls.replayer_s,
            f"pending timeout {topic.pending_timeout_s:g} + replayer {polls.replayer_s:g}",
        ),
    ]


def _of_class(lock_class: LockClass) -> Window:
    name, ttl = f"lock {lock_class.name}", lock_class.ttl
    if lock_class.pattern is Pattern.TTL_HOLD:
        return Window(name, "the replica that has the window dies", 1.5 * ttl, f"ttl {ttl:g} + poll {ttl / 2:g}")
    return Window(name, "its holder dies", ttl, f"ttl {ttl:g}; trusted for {lock_class.renewal.trust_s:g} of it")


def judge_settings(topics: Iterable[Topic], classes: Iterable[LockClass], *, store_timeout_s: float) -> list[Ailment]:
    """Times that leave no room for one store call that takes as long as it may."""
    found: list[Ailment] = []
    for lock_class in classes:
        if lock_class.pattern is Pattern.PER_ITEM and lock_class.ttl < 2 * store_timeout_s:
            found.append(
                Ailment(
                    code="ttl-below-store-timeout",
                    severity=Severity.WARNING,
                    about=f"lock {lock_class.name}",
                    summary=f"its ttl of {lock_class.ttl:g} s is less than two store calls may take: "
                    "a slow store alone loses the lease (P2)",
                    evidence=f"ttl {lock_class.ttl:g} s, store timeout {store_timeout_s:g} s",
                    fix=f"a ttl of {2 * store_timeout_s:g} s or more",
                )
            )
        if lock_class.renewal.every_s and lock_class.renewal.retry_s <= 0.0:
            found.append(
                Ailment(
                    code="renewal-no-margin",
                    severity=Severity.WARNING,
                    about=f"lock {lock_class.name}",
                    summary="there is no time for a second try between a failed renewal and the end of its trust (P2)",
                    evidence=f"renewed every {lock_class.renewal.every_s:g} s, trusted {lock_class.renewal.trust_s:g} s",
                    fix=f"renew every {lock_class.ttl / 3:.3g} s, or allow fewer failures",
                )
            )
    for topic in topics:
        found += _of_times(topic, store_timeout_s)
    return found


def _of_times(topic: Topic, store_timeout_s: float) -> list[Ailment]:
    found = []
    if topic.lease_s < 2 * store_timeout_s:
        found.append(
            Ailment(
                code="lease-below-store-timeout",
                severity=Severity.WARNING,
                about=f"topic {topic.name}",
                summary=f"its lease of {topic.lease_s:g} s is less than two store calls may take: "
                "a slow store alone takes its jobs from live workers (P5)",
                evidence=f"lease_s {topic.lease_s:g}, store timeout {store_timeout_s:g} s",
                fix=f"lease_s = {max(10.0, 5 * store_timeout_s):g} or more",
            )
        )
    if topic.running_timeout_s < topic.lease_s:
        found.append(
            Ailment(
                code="running-timeout-below-lease",
                severity=Severity.WARNING,
                about=f"topic {topic.name}",
                summary="its jobs are ended for their running time before the lease of a dead worker has run out: "
                "they time out instead of being tried again",
                evidence=f"running_timeout_s {topic.running_timeout_s:g}, lease_s {topic.lease_s:g}",
                fix="a running_timeout_s of several leases",
            )
        )
    return found
