"""`/v1/workers`: who works here, and no more jobs for one of them."""

from __future__ import annotations

import contextlib

from holdfast import api
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.work import NOTHING, drain
from holdfast.locks import UndeclaredClass


async def list_workers(desk: Desk, _: Call) -> Answer:
    plane = desk.plane
    now = plane.store.now()
    writer = None
    with contextlib.suppress(UndeclaredClass):  # a plane without a snapshot writer has none
        writer = await plane.locks.inspect("snapshot", "writer")
    return Answer(
        api.Workers(
            items=plane.registry.views(now=now),
            snapshot_age_s=plane.registry.snapshot_age(now=now),
            snapshot_writer=None if writer is None else writer.holder,
        )
    )


async def drain_worker(desk: Desk, call: Call) -> Answer:
    await drain(desk.plane, call.path["id"])
    return Answer(NOTHING)
