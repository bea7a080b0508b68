"""`/livez`, `/readyz`, `/metrics`: what a machine asks before it sends traffic."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from holdfast.errors import Draining
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.readings import read

TEXT = b"text/plain; charset=utf-8"


async def tell_alive(_: Desk, __: Call) -> Answer:
    return Answer(b"alive\n", media=TEXT)


async def tell_ready(desk: Desk, _: Call) -> Answer:
    """Ready means: the store answers, and nobody has begun to shut this plane down."""
    if desk.leaving:
        raise Draining("shutting down: ask another one")
    await desk.plane.store.read_snapshot()
    # How much, not what: everybody may ask this.
    frozen = len(desk.plane.freezes.known.freezes)
    return Answer(b"ready\nfrozen scopes: %d\n" % frozen if frozen else b"ready\n", media=TEXT)


async def tell_metrics(desk: Desk, _: Call) -> Answer:
    counted = desk.exposition.text()
    return Answer(counted + generate_latest(await read(desk.plane)), media=CONTENT_TYPE_LATEST.encode())
