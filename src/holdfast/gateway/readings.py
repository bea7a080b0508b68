"""What is not counted as it happens, but read when somebody asks for `/metrics`: how things stand now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast import __version__
from holdfast.core.placement import CONDITIONS
from holdfast.core.states import LIVE
from holdfast.errors import HoldfastError
from holdfast.gateway.plane import Plane


async def read(plane: Plane) -> Readings:
    """How things stand. A store that does not answer leaves out what only it knows."""
    now = plane.store.now()
    readings = Readings()
    readings.gauge("build_info", "The release that runs", "version", {__version__: 1})
    workers = Counter(view.condition for view in plane.registry.views(now=now))
    readings.gauge("workers", "Workers, as this plane sees them", "condition", _from_zero(CONDITIONS, workers))
    idle = {loop.name: loop.idle_s for loop in plane.loops}
    readings.gauge("loop_idle_seconds", "Since the last tick of a loop that went well", "loop", idle)
    failures = {loop.name: loop.failures for loop in plane.loops}
    readings.counter("loop_failures", "Ticks of a loop that raised", "loop", failures)
    age = plane.registry.snapshot_age(now=now)
    if age is not None:
        readings.gauge("snapshot_age_seconds", "Age of the worker snapshot", "", {"": age})
    try:
        jobs: Counter[str] = Counter()
        for (_, state), count in (await plane.store.count_jobs()).items():
            jobs[state] += count
    except HoldfastError:
        return readings
    readings.gauge("jobs", "Live jobs", "state", _from_zero(LIVE, jobs))
    return readings


def _from_zero(labels: Iterable[str], counted: Mapping[str, int]) -> dict[str, float]:
    return {label: counted.get(label, 0) for label in labels}


class Readings(CollectorRegistry):
    """Metrics that stand for one moment."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        return iter(self._found)

    def gauge(self, name: str, words: str, label: str, values: Mapping[str, float]) -> None:
        self._add(GaugeMetricFamily(f"holdfast_{name}", words, labels=[label] if label else []), values)

    def counter(self, name: str, words: str, label: str, values: Mapping[str, float]) -> None:
        self._add(CounterMetricFamily(f"holdfast_{name}", words, labels=[label]), values)

    def _add(self, family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> None:
        for label, value in values.items():
            family.add_metric([label] if label else [], value)
        self._found.append(family)
