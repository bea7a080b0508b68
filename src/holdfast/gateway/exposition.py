"""The text of `/metrics`, several times as fast as the client library writes it.

A plane has thousands of series, and writes them in the loop that serves everybody. What is slow about it
is to write names and labels, and these never change: here each is written once.
"""

# ruff: noqa: SLF001  (a metric's values, which the client library gives out only together with its labels)
from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics import MetricWrapperBase

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Exposition:
    """Of a registry that has counters, gauges and histograms, and nothing else."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._starts: dict[MetricWrapperBase, list[str]] = {}
        """How the lines of a series begin, up to the value."""

    def text(self) -> bytes:
        lines: list[str] = []
        for family in tuple(self._registry._collector_to_names):
            assert isinstance(family, MetricWrapperBase)
            name = f"{family._name}_total" if family._type == "counter" else family._name
            lines.append(f"# HELP {name} {family._documentation}\n# TYPE {name} {family._type}\n")
            for labels, series in _series(family):
                starts = self._starts.get(series) or self._begin(series, name, _labels(family, labels))
                lines += [f"{start}{value!r}\n" for start, value in zip(starts, _values(series), strict=True)]
        return "".join(lines).encode()

    def _begin(self, series: MetricWrapperBase, name: str, labels: list[str]) -> list[str]:
        if isinstance(series, Histogram):
            bounds = [f'le="{"+Inf" if bound == float("inf") else bound}"' for bound in series._upper_bounds]
            starts = [_start(f"{name}_bucket", sorted([*labels, bound])) for bound in bounds]
            starts += [_start(f"{name}_count", labels), _start(f"{name}_sum", labels)]
        else:
            starts = [_start(name, labels)]
        self._starts[series] = starts
        return starts


def _series(family: MetricWrapperBase) -> Iterator[tuple[Sequence[str], MetricWrapperBase]]:
    if family._labelnames:
        yield from tuple(family._metrics.items())
    else:
        yield (), family


def _labels(family: MetricWrapperBase, values: Sequence[str]) -> list[str]:
    return sorted(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(family._labelnames, values, strict=True)
    )


def _start(name: str, labels: list[str]) -> str:
    return f"{name}{{{','.join(labels)}}} " if labels else f"{name} "


def _values(series: MetricWrapperBase) -> list[float]:
    if not isinstance(series, Histogram):
        return [sample.value for sample in series._child_samples()]
    below = 0.0
    values = [below := below + bucket.get() for bucket in series._buckets]
    return [*values, below, series._sum.get()]
