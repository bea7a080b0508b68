"""`/v1/workers`: who works here, and no more jobs for one of them."""

from __future__ import annotations

import contextlib

from holdfast import api
from holdfast.core.policy_version import PLANE
from holdfast.flow.audit import transact
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.work import NOTHING, drain
from holdfast.locks import UndeclaredClass
from holdfast.ports import Transaction


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
    plane, worker = desk.plane, call.path["id"]
    # Whoever asks must say so rightly, also where there is nothing to write down.
    entry = entry_of(desk, call, "worker.drained", f"worker/{worker}", tenant=PLANE)
    if any(one.id == worker and not one.draining for one in plane.registry.views(now=plane.store.now())):
        # The registry is no part of the store. The line comes first: a worker that nobody has stopped is worse.
        await transact(Transaction(), store=plane.store, entry=entry)
    await drain(plane, worker)
    return Answer(NOTHING)
