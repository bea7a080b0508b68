"""One trace from whoever submits to the handler, and log lines that name it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway.conftest import serving
from msgspec import Raw
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from plane.jobs import a_job

from holdfast import tracing
from holdfast.api import NewJob
from holdfast.cli.logs import JsonLines
from holdfast.telemetry import Telemetry
from holdfast.worker import Job, Worker
from holdfast.worker.attempt import Attempt
from holdfast.worker.link import Delivered

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def collected() -> Iterator[InMemorySpanExporter]:
    """Spans of this process, kept here. The provider is not made OpenTelemetry's global one: that would stay."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.collect(provider)
    yield exporter
    tracing.collect(None)


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    number: int = span.parent.span_id
    return number


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.span_id
    return number


async def test_one_trace_from_the_caller_to_the_handler(collected: InMemorySpanExporter, tmp_path: Path) -> None:
    seen: list[str] = []
    async with serving(tmp_path) as served:
        worker = Worker(served.url)

        @worker.task("greet", isolation="async")
        async def greet(job: Job) -> str:
            seen.append(job.trace)
            return tracing.current()

        async with worker.running():
            with tracing.span("caller", "producer", trace=TRACE):
                ended = await served.client.run("greet", {}, timeout=20)

    spans = {span.name: span for span in collected.get_finished_spans()}
    assert spans.keys() == {"caller", "submit greet", "dispatch greet", "process greet"}
    assert {span.context.trace_id for span in spans.values() if span.context} == {int(TRACE[3:35], 16)}
    assert parent_of(spans["submit greet"]) == id_of(spans["caller"])
    assert parent_of(spans["dispatch greet"]) == id_of(spans["submit greet"])
    assert parent_of(spans["process greet"]) == id_of(spans["submit greet"])
    assert seen == [ended.result], "what the handler hands on is the span that it is in"
    assert seen[0][36:52] == f"{id_of(spans['process greet']):016x}"
    told = spans["process greet"].attributes or {}
    assert (told["holdfast.job.id"], told["holdfast.outcome"]) == (ended.id, "succeeded")
    assert told["holdfast.fence"] == (spans["dispatch greet"].attributes or {})["holdfast.fence"]


async def test_a_batch_is_one_span_between_the_caller_and_its_jobs(
    collected: InMemorySpanExporter, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        with tracing.span("caller", "producer", trace=TRACE):
            await served.client.submit_many([NewJob(topic="t"), NewJob(topic="t")], actor="ann")
        [first, second] = [await served.start(), await served.start()]
        [actor] = {(await served.client.get(one["job_id"])).actor for one in (first, second)}

    spans = {span.name: span for span in collected.get_finished_spans()}
    assert parent_of(spans["submit batch"]) == id_of(spans["caller"])
    assert (spans["submit batch"].attributes or {})["holdfast.jobs"] == 2
    assert {one["trace"][36:52] for one in (first, second)} == {f"{id_of(spans['submit batch']):016x}"}
    assert actor == "ann"


async def test_where_nobody_collects_the_callers_trace_is_handed_on_as_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post("/v1/jobs", {"topic": "t"}, traceparent=TRACE)
        delivery = await served.start()

    assert delivery["trace"] == TRACE
    assert otel.get_current_span().get_span_context().is_valid is False


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a plane and a worker would print with `--log-format json`."""
    printed = io.StringIO()
    shown = logging.StreamHandler(printed)
    shown.setFormatter(JsonLines())
    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.addHandler(shown)
    logger.setLevel(logging.DEBUG)
    yield printed
    logger.removeHandler(shown)
    logger.setLevel(level)


def test_log_lines_of_a_job_are_objects_with_its_ids(lines: io.StringIO) -> None:
    job = a_job(topic="mail", fence=7, trace=TRACE)
    Telemetry().dispatch_retried(job, phase="publish", error=OSError("away"))
    line = json.loads(lines.getvalue())

    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "WARNING", "logger": "holdfast", "event": "dispatch.retried", "job_id": job.id, "topic": "mail",
        "state": "SCHEDULED", "fence": 7, "trace": TRACE[3:35], "phase": "publish", "error": "away",
    }  # fmt: skip


def test_log_lines_of_an_attempt_name_job_fence_and_trace() -> None:
    delivered = Delivered(
        job_id="j", fence=7, topic="mail", payload=Raw(b"{}"), attempt=1, max_attempts=3, lease_s=30.0,
        running_timeout_s=900.0, labels={}, risk="low", trace=TRACE,
    )  # fmt: skip

    known = Attempt(delivered, began_at=0.0).known()
    assert known == {"job_id": "j", "fence": 7, "topic": "mail", "trace": TRACE[3:35]}


def test_what_failed_is_one_line_with_its_traceback(lines: io.StringIO) -> None:
    try:
        raise OSError("away")
    except OSError:
        logging.getLogger("holdfast").exception("loop.tick_failed", extra={"event": "loop.tick_failed", "loop": "x"})
    [line] = lines.getvalue().splitlines()

    assert json.loads(line)["traceback"].endswith("OSError: away")
