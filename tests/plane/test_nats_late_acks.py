"""Acknowledgements that come too late: NATS has given the delivery out once more, and its job is run once all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import nats
import pytest
import servers

from holdfast.buses.nats.bus import NatsBus
from holdfast.core.job import Job
from holdfast.core.states import Event, State
from holdfast.core.topic import Topics
from holdfast.flow.execute import Attempt, Standing, claim, start_attempts
from holdfast.ports import Delivery
from holdfast.stores import StoreWithBus
from holdfast.telemetry import Telemetry
from plane.jobs import dispatched, stepped
from plane.nats_buses import NAMES, nats_bus, nats_running

TAKEN_S = 0.2
"""How long NATS waits for an acknowledgement."""


@pytest.fixture
def server() -> Iterator[servers.Server]:
    with nats_running() as server:
        yield server


async def claimed(store: StoreWithBus, bus: NatsBus, *, start: bool) -> list[tuple[str, int]]:
    jobs = await claim("w1", 1, start=start, store=store, bus=bus, topics=Topics(), telemetry=Telemetry(Topics()))
    return [(job.id, job.fence) for job in jobs]


async def claimed_when_there(store: StoreWithBus, bus: NatsBus) -> list[tuple[str, int]]:
    async with asyncio.timeout(20):
        while not (found := await claimed(store, bus, start=True)):
            await asyncio.sleep(0.02)
        return found


async def start(store: StoreWithBus, bus: NatsBus, attempt: Attempt) -> Standing:
    """What the worker says of a delivery that it was shown, and with it the acknowledgement goes out."""
    [standing] = await start_attempts(
        "w1", [attempt], store=store, bus=bus, topics=Topics(), telemetry=Telemetry(Topics())
    )
    return standing


async def wait_nothing_kept(server: servers.Server, bus: NatsBus) -> None:
    client = await nats.connect(server.url)
    try:
        async with asyncio.timeout(20):
            while (await client.jetstream().stream_info(NAMES.stream)).state.messages:
                assert await bus.take("w1", limit=10) == [], "it was given out once more"
                await asyncio.sleep(0.02)
    finally:
        await client.close()


async def kinds(store: StoreWithBus, job: Job) -> list[str]:
    return [event.kind for event in await store.list_events(after=0, limit=100, job_id=job.id)]


async def test_ack_after_a_redelivery_that_was_started_changes_nothing(
    server: servers.Server, store: StoreWithBus
) -> None:
    """One plane shows the delivery to its worker and is silent; another one gets it again, and starts it."""
    job = await dispatched(store, worker="w1", fence=1)
    async with nats_bus(server.url, taken_s=TAKEN_S) as slow, nats_bus(server.url, taken_s=TAKEN_S) as quick:
        await slow.publish([Delivery("w1", job.id, 1)])
        assert await claimed(store, slow, start=False) == [(job.id, 1)]
        assert await claimed_when_there(store, quick) == [(job.id, 1)]

        late = await start(store, slow, Attempt(job.id, 1))
        await wait_nothing_kept(server, quick)

    assert late.job is not None
    assert (late.job.state, late.job.attempts) == (State.RUNNING, 1), "the same attempt, and no second one"
    assert (await kinds(store, job)).count("job.started") == 1


async def test_ack_of_an_attempt_that_is_over_is_refused_and_leaves_the_next_delivery_alone(
    server: servers.Server, store: StoreWithBus
) -> None:
    job = await dispatched(store, worker="w1", fence=1)
    async with nats_bus(server.url, taken_s=TAKEN_S) as slow, nats_bus(server.url, taken_s=TAKEN_S) as quick:
        await slow.publish([Delivery("w1", job.id, 1)])
        assert await claimed(store, slow, start=False) == [(job.id, 1)]
        back = await stepped(store, job, Event.REQUEUE, worker="")
        await stepped(store, back, Event.DISPATCH, worker="w1", fence=2)
        await quick.publish([Delivery("w1", job.id, 2)])

        late = await start(store, slow, Attempt(job.id, 1))

        assert (late.job, late.code, late.current_fence) == (None, "stale-fence", 2)
        assert await claimed_when_there(store, quick) == [(job.id, 2)]
        await wait_nothing_kept(server, quick)

    told = await kinds(store, job)
    assert (told.count("job.started"), told.count("attempt.refused")) == (1, 1)
