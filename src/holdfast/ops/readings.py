"""What a process of the plane has measured, read from its `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from holdfast.core.advice import LockCounts, Spread, advise_class, advise_topic, why_not_owned
from holdfast.core.promises import Ailment
from holdfast.core.topic import Topics
from holdfast.locks.policy import LockClass
from holdfast.stores import TIMEOUT_S


@dataclass(slots=True)
class Readings:
    samples: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    def of(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        for found, value in self.samples.get(name, ()):
            if labels.items() <= found.items():
                yield found, value

    def total(self, name: str, **labels: str) -> float:
        return sum(value for _, value in self.of(name, **labels))

    def spread(self, name: str, **labels: str) -> Spread:
        buckets = ((float(found["le"]), value) for found, value in self.of(f"{name}_bucket", **labels))
        return Spread(sorted(buckets))

    def labels(self, name: str, label: str) -> list[str]:
        return sorted({found[label] for found, _ in self.of(name)})


def read(exposition: str) -> Readings:
    readings = Readings()
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            readings.samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return readings


def advise(found: Readings, *, topics: Topics, classes: Iterable[LockClass]) -> list[Ailment]:
    """What the readings of one process suggest."""
    advice: list[Ailment] = []
    for name in found.labels("holdfast_attempt_seconds_count", "topic"):
        attempts = found.spread("holdfast_attempt_seconds", topic=name)
        starts = found.spread("holdfast_start_wait_seconds", topic=name)
        advice += advise_topic(topics.get(name), attempts=attempts, starts=starts)
    pause_s = found.total("holdfast_loop_lag_seconds")
    for lock_class in classes:
        counts = _counts(found, lock_class.name)
        advice += advise_class(lock_class, counts, pause_s=pause_s, store_timeout_s=TIMEOUT_S)
        advice += why_not_owned(lock_class, counts)
    return advice


def _counts(found: Readings, namespace: str) -> LockCounts:
    lost: dict[str, float] = {}
    for labels, value in found.of("holdfast_lock_abandoned_total", namespace=namespace):
        lost[labels["reason"]] = lost.get(labels["reason"], 0.0) + value
    return LockCounts(
        held=found.spread("holdfast_lock_held_seconds", namespace=namespace),
        not_owned=found.total("holdfast_lock_not_owned_total", namespace=namespace),
        renewed=found.total("holdfast_lock_renewals_total", namespace=namespace, result="renewed"),
        renewals_failed=found.total("holdfast_lock_renewals_total", namespace=namespace, result="failed"),
        abandoned={reason: count for reason, count in lost.items() if count},
    )
