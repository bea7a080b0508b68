"""What `holdfast.ports.Bus` promises, once, for every bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import servers
from harness import eventually
from plane.jobs import ManualRuntime, stepped, submitted
from plane.nats_buses import nats_bus, nats_running
from plane.store_fixtures import EVERY_EMPTY, TIMEOUT_S

from holdfast.buses.detached import DetachedBus, Fault
from holdfast.buses.embedded import EmbeddedBus
from holdfast.core.job import Job, JobId, step
from holdfast.core.states import Event
from holdfast.core.topic import Topics
from holdfast.errors import BusUnavailable
from holdfast.ports import Bus, Change, Delivery
from holdfast.stores import StoreWithBus, open_store

NATS_TAKEN_S = 0.3


@dataclass
class Line:
    """A bus, and how its deliveries are published: by a change of the job, or by themselves."""

    bus: Bus
    store: StoreWithBus
    send: Callable[[str, int], Awaitable[tuple[Delivery, Job]]]
    wait_due: Callable[[float], Awaitable[None]]
    """Until what was taken so many seconds ago would come again; a server's own clock is waited for."""


@pytest.fixture
def clock() -> ManualRuntime:
    return ManualRuntime()


@pytest.fixture(params=["sqlite", *EVERY_EMPTY])
def url(request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path) -> Iterator[str]:
    if request.param in EVERY_EMPTY:
        with EVERY_EMPTY[request.param](running) as url:
            yield url
    else:
        yield f"sqlite:///{tmp_path / 'plane.db'}"


@asynccontextmanager
async def opened_bus(kind: str, store: StoreWithBus) -> AsyncIterator[Bus]:
    if kind == "nats":
        with nats_running() as server:
            async with nats_bus(server.url, taken_s=NATS_TAKEN_S) as bus:
                yield bus
    else:
        yield EmbeddedBus(store) if kind == "embedded" else DetachedBus(store.now, fail=lambda deliveries: None)


@pytest.fixture(params=["embedded", "detached", "nats"])
async def line(request: pytest.FixtureRequest, clock: ManualRuntime, url: str) -> AsyncIterator[Line]:
    store = open_store(url, topics=Topics(), runtime=clock, timeout_s=TIMEOUT_S)
    await store.open()

    async def send(worker: str, fence: int) -> tuple[Delivery, Job]:
        job = await submitted(store)
        delivery = Delivery(worker, job.id, fence)
        sent = step(job, Event.DISPATCH, now=store.now(), worker=worker, fence=fence)
        change = Change(before=job, after=sent, kind="job.dispatched", send=delivery if bus.atomic else None)
        assert await store.apply([change]) == [True]
        if not bus.atomic:
            await bus.publish([delivery])
        return delivery, sent

    async def wait_due(seconds: float) -> None:
        clock.advance(seconds)
        if request.param == "nats":
            await asyncio.sleep(2 * NATS_TAKEN_S)

    async with opened_bus(request.param, store) as bus:
        yield Line(bus, store, send, wait_due)
    await store.close()


async def test_delivery_reaches_its_worker_alone_in_order(line: Line) -> None:
    first, _ = await line.send("w1", 1)
    second, _ = await line.send("w1", 2)
    await line.send("w2", 3)

    assert await line.bus.take("w1", limit=1) == [first]
    assert await line.bus.take("w1", limit=10) == [second]
    assert await line.bus.take("w3", limit=10) == []


async def test_what_was_taken_and_not_settled_comes_again_after_a_while(line: Line) -> None:
    delivery, _ = await line.send("w1", 1)
    assert await line.bus.take("w1", limit=10) == [delivery]
    assert await line.bus.take("w1", limit=10) == []

    await line.wait_due(5.0)

    assert await line.bus.take("w1", limit=10) == [delivery]


async def test_what_was_given_out_a_few_times_was_not_given_too_often(line: Line) -> None:
    delivery, _ = await line.send("w1", 1)
    for _ in range(2):
        assert await line.bus.take("w1", limit=10) == [delivery]
        assert line.bus.given_too_often(delivery) == 0
        await line.wait_due(5.0)


async def test_what_was_settled_does_not_come_again(line: Line) -> None:
    delivery, _ = await line.send("w1", 1)
    await line.bus.take("w1", limit=10)

    await line.bus.settle([delivery])
    await line.bus.settle([delivery])
    await line.wait_due(60)

    assert await line.bus.take("w1", limit=10) == []


async def test_arrival_is_announced_once_there_is_something_to_take(line: Line) -> None:
    found: list[Awaitable[list[Delivery]]] = []

    def take(worker: str) -> None:
        if worker:  # else it may be for anybody
            found.append(line.bus.take(worker, limit=10))

    line.bus.on_arrival(take)

    delivery, _ = await line.send("w1", 1)
    await eventually(lambda: asyncio.sleep(0, found))

    assert [await taking for taking in found] == [[delivery]]


async def test_same_delivery_again_is_one_delivery(line: Line) -> None:
    delivery, _ = await line.send("w1", 1)
    if not line.bus.atomic:
        await line.bus.publish([delivery])

    assert await line.bus.take("w1", limit=10) == [delivery]


async def test_embedded_delivery_goes_with_the_state_of_its_job(clock: ManualRuntime, url: str) -> None:
    """Neither is there without the other: a job that was started or requeued has left no delivery behind."""
    store = open_store(url, topics=Topics(), runtime=clock, timeout_s=TIMEOUT_S)
    await store.open()
    bus = EmbeddedBus(store)
    job = await submitted(store)
    sent = step(job, Event.DISPATCH, now=store.now(), worker="w1", fence=1)
    change = Change(before=job, after=sent, kind="job.dispatched", send=Delivery("w1", job.id, 1))

    assert await store.apply([change, change]) == [True, False]
    assert len(await store.list_deliveries("w1", limit=10)) == 1
    back = await stepped(store, sent, Event.REQUEUE, worker="")
    assert await bus.take("w1", limit=10) == []
    await stepped(store, back, Event.DISPATCH, worker="w1", fence=2)
    assert await bus.take("w1", limit=10) == []  # dispatched without `send`: nobody was told
    await store.close()


async def test_embedded_deliveries_outlive_the_process(clock: ManualRuntime, url: str) -> None:
    before = open_store(url, topics=Topics(), runtime=clock, timeout_s=TIMEOUT_S)
    await before.open()
    job = await submitted(before)
    delivery = Delivery("w1", job.id, 1)
    sent = step(job, Event.DISPATCH, now=before.now(), worker="w1", fence=1)
    await before.apply([Change(before=job, after=sent, kind="job.dispatched", send=delivery)])
    await EmbeddedBus(before).take("w1", limit=1)
    await before.close()

    after = open_store(url, topics=Topics(), runtime=clock, timeout_s=TIMEOUT_S)
    await after.open()

    assert await EmbeddedBus(after).take("w1", limit=10) == [delivery]
    await after.close()


@pytest.mark.parametrize(
    ("fault", "applied", "arrives"), [(Fault.NOT_APPLIED, False, 0), (Fault.APPLIED_UNKNOWN, None, 1)]
)
async def test_publish_that_fails_says_what_is_known(fault: Fault, applied: bool | None, arrives: int) -> None:
    bus = DetachedBus(lambda: 0.0, fail=lambda deliveries: fault)

    with pytest.raises(BusUnavailable) as caught:
        await bus.publish([Delivery("w1", JobId("j"), 1)])

    assert caught.value.applied is applied
    assert len(await bus.take("w1", limit=10)) == arrives
