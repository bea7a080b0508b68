"""Every metric moves when what it counts happens, by the way it happens in, and is read where the runbooks look.

One row per metric: what is done to a plane, over HTTP or by a failing store or bus, and the series that must grow.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from gateway.conftest import serving
from gateway.test_webhooks import PRIVATE, receiving
from locks.virtual import VirtualRuntime, on_virtual_time
from metric_moves import governed, jobs, process
from metrics_plane import APART, ROWS, Mover, standing
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast import __version__
from holdfast.gateway.exposition import Exposition

PAGE = Path(__file__).parent.parent / "docs/reference/metrics.md"
MOVED_BY = (jobs, governed, process)

ELSEWHERE = {
    "holdfast_lock_fence_refused_total": "tests/locks/test_observers.py",  # no guard of a caller's resource is the plane's
    "holdfast_loop_lag_seconds": "tests/locks/test_observers.py",  # a loop that is stuck for real
    "holdfast_build_info": "tests/test_metrics.py",  # below: it never moves
    "holdfast_webhook_tries_total": "tests/test_metrics.py",  # below: a receiver is not on virtual time
}
"""Metrics that a plane serves and that move elsewhere: most of them only in an application of the library."""


@pytest.mark.parametrize("mover", ROWS, ids=lambda mover: mover.__name__)
@on_virtual_time
async def test_metric_moves_and_is_served(
    runtime: VirtualRuntime, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with standing(runtime, monkeypatch, detached=mover in APART) as plane:
        before = await plane.read(*ROWS[mover])
        await mover(plane)
        assert await plane.moved(before) == before.keys()


@on_virtual_time
async def test_the_release_that_runs_is_served(runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    async with standing(runtime, monkeypatch) as plane:
        series = f'holdfast_build_info{{version="{__version__}"}}'
        assert await plane.read(series) == {series: 1}


async def test_tries_of_a_webhook_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path, webhooks=PRIVATE) as served, receiving() as receiver:
        await served.client.add_webhook("ops", receiver.url, events=["job.*"])
        await served.client.submit("t")
        await receiver.wait_posts(1)
        arrived = 'holdfast_webhook_tries_total{outcome="arrived"} 1.0'
        served_lines: list[str] = []
        for _ in range(1000):  # it is counted once the receiver has answered
            served_lines = (await served.http.get("/metrics")).text.splitlines()
            if arrived in served_lines:
                break
            await asyncio.sleep(0.02)
        assert arrived in served_lines


def test_text_is_what_the_client_library_would_write() -> None:
    """Which takes it several times as long."""
    registry = CollectorRegistry()
    told = Counter("told", "What was said", ["by", "to"], registry=registry)
    waited = Histogram("waited_seconds", "How long", ["by"], buckets=(0.5, 1, 2.5), registry=registry)
    Gauge("now", "What is", registry=registry).set(2.5)
    Gauge("asked", "What is asked", registry=registry).set_function(lambda: 7.0)
    exposition = Exposition(registry)
    for by in ("ann", 'a "b" \\c\n'):
        told.labels(by, "x").inc()
        waited.labels(by).observe(0.7)
        exposition.text()
    waited.labels("ann").observe(99)

    lines = exposition.text().decode().splitlines()
    assert sorted(lines) == sorted(generate_latest(registry).decode().splitlines())


def test_every_metric_has_a_row() -> None:
    documented = set(re.findall(r"^\| `(holdfast_\w+)` \|", PAGE.read_text(), re.MULTILINE))
    moved = {re.sub(r"_(count|sum|bucket)$", "", series.partition("{")[0]) for rows in ROWS.values() for series in rows}

    assert moved | ELSEWHERE.keys() == documented
    assert not moved & ELSEWHERE.keys()


@on_virtual_time
async def test_what_is_served_is_what_is_documented(runtime: VirtualRuntime) -> None:
    """Names and labels, both ways. Series that have none yet show no labels, so some of all kinds are made first."""
    rows = dict(re.findall(r"^\| `(holdfast_\w+)` \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE))
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows.items()}
    with pytest.MonkeyPatch.context() as patching:
        async with standing(runtime, patching) as plane:
            await asyncio.sleep(10)  # until there is a snapshot that has an age
            names = await plane.names()

    assert names.keys() == documented.keys()
    assert {name: labels for name, labels in names.items() if labels and labels != documented[name]} == {}
