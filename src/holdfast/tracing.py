"""Traces: what a job goes through, as spans of the trace that it was submitted in.

Nothing here imports OpenTelemetry before somebody has said that spans are collected, and until then
each call costs a comparison. The context travels with the job, as W3C's `traceparent`: through the
store and whatever bus there is, for a delivery names its job.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdfast.locks.runtime import SYSTEM

NAME = "holdfast"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

_tracer: Any = None


class Traced(NamedTuple):
    """A span that has begun, or nothing, where nobody collects them."""

    trace: str
    """What happens inside of it belongs to this `traceparent`."""
    say: Callable[[str, str], object]
    """Adds an attribute."""


def collect(provider: Any) -> None:  # noqa: ANN401  (OpenTelemetry may not be installed)
    """Give spans to this tracer provider from now on; None: to nobody."""
    global _tracer  # noqa: PLW0603  (one per process, as OpenTelemetry has it)
    _tracer = None if provider is None else provider.get_tracer(NAME)


def collect_if_configured() -> None:
    """For a process that was started under `opentelemetry-instrument`, or has set OpenTelemetry up itself."""
    if "opentelemetry.sdk.trace" in sys.modules:
        collect(sys.modules["opentelemetry.trace"].get_tracer_provider())


def current() -> str:
    """The `traceparent` of the span that the caller is in; empty if there is none."""
    api = sys.modules.get("opentelemetry.trace")
    return "" if api is None else _traceparent(api.get_current_span().get_span_context())


@contextmanager
def span(name: str, kind: str, *, trace: str, **attributes: str | int) -> Iterator[Traced]:
    """A span around the block, as a child of `trace`. `kind` is producer or consumer.

    Spans that the block begins by itself become children of it.
    """
    if _tracer is None:
        yield Traced(trace, _nothing)
        return
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    chosen = {"producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER}[kind]
    with _tracer.start_as_current_span(name, _context(trace), chosen, attributes=_dotted(attributes)) as begun:
        yield Traced(_traceparent(begun.get_span_context()), begun.set_attribute)


def tell(name: str, *, trace: str, lasted_s: float, **attributes: str | int) -> None:
    """A span that ends now and has lasted for so long."""
    if _tracer is not None and trace:
        now_ns = SYSTEM.wall_us() * 1000
        begun = _tracer.start_span(
            name, _context(trace), attributes=_dotted(attributes), start_time=now_ns - round(lasted_s * 1e9)
        )
        begun.end(now_ns)


def trace_id(trace: str) -> str:
    """The part of a `traceparent` that all spans of a trace share; empty if it is none."""
    return trace[3:35]


def _dotted(attributes: dict[str, str | int]) -> dict[str, str | int]:
    """As OpenTelemetry names them: job_id → holdfast.job.id."""
    return {f"{NAME}.{name.replace('_', '.')}": value for name, value in attributes.items()}


def _context(trace: str) -> Any:  # noqa: ANN401
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context  # noqa: PLC0415

    found = _TRACEPARENT.fullmatch(trace)
    if found is None:
        return None
    parent = SpanContext(
        int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16))
    )
    return set_span_in_context(NonRecordingSpan(parent))


def _traceparent(context: Any) -> str:  # noqa: ANN401
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _nothing(_: str, __: str) -> None: ...
