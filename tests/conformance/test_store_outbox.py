"""What a store promises that keeps an outbox (`holdfast.buses.outbox.OutboxStore`)."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

from typing import Any

import pytest
from plane.jobs import stepped, submitted
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.job import Job, step
from holdfast.core.states import Event
from holdfast.ports import Change, Delivery


async def sent(store: Any, worker: str, fence: int) -> tuple[Delivery, Job]:
    job = await submitted(store)
    delivery = Delivery(worker, job.id, fence)
    after = step(job, Event.DISPATCH, now=store.now(), worker=worker, fence=fence)
    change = Change(before=job, after=after, kind="job.dispatched", send=delivery)
    assert await store.apply([change]) == [True]
    return delivery, after


async def test_outbox_has_whatever_was_sent_and_not_settled_oldest_first(store: Any) -> None:
    if not hasattr(store, "list_outbox"):
        pytest.skip("this store keeps no outbox, and a plane says so when it is asked for one")
    last, _ = await sent(store, "w1", 30)
    first, _ = await sent(store, "w2", 10)
    started, job = await sent(store, "w1", 20)
    assert await store.list_outbox(limit=10) == [first, started, last]
    assert await store.list_outbox(limit=2) == [first, started]

    await stepped(store, job, Event.START, attempts=1, lease_until=store.now() + 9)
    assert await store.list_outbox(limit=10) == [first, last], "its job is not DISPATCHED any more"
    assert sorted(await store.left_of([last, started, first])) == sorted([first, last])
    await store.settle_deliveries([first, started])
    assert await store.list_outbox(limit=10) == [last]
