"""`/livez`, `/readyz`, `/metrics`: what a machine asks before it sends traffic."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from holdfast.errors import Draining
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk

TEXT = b"text/plain; charset=utf-8"


async def tell_alive(_: Desk, __: Call) -> Answer:
    return Answer(b"alive\n", media=TEXT)


async def tell_ready(desk: Desk, _: Call) -> Answer:
    """Ready means: the store answers, and nobody has begun to shut this plane down."""
    if desk.draining:
        raise Draining("shutting down: ask another one")
    await desk.plane.store.read_snapshot()
    return Answer(b"ready\n", media=TEXT)


async def tell_metrics(desk: Desk, _: Call) -> Answer:
    return Answer(generate_latest(desk.plane.telemetry.registry), media=CONTENT_TYPE_LATEST.encode())
