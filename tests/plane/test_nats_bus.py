"""What the bus on NATS does beyond the promises of every bus: a server that dies, pauses, forgets, or is shared."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import cast

import nats
import pytest
import servers
from flow.faulty_store import Fault, FaultyStore
from harness import eventually
from nats.js.errors import NotFoundError

from holdfast.buses import own_part
from holdfast.buses.nats import bus as nats_module
from holdfast.buses.nats.bus import NatsBus
from holdfast.buses.nats.stream import token_of
from holdfast.core.job import JobId
from holdfast.core.states import Event, State
from holdfast.core.topic import Topics
from holdfast.errors import BusUnavailable, StoreUnavailable
from holdfast.flow.execute import claim
from holdfast.ports import Delivery
from holdfast.stores import StoreWithBus
from holdfast.telemetry import Telemetry
from plane.jobs import dispatched, stepped
from plane.nats_buses import NAMES, nats_bus, nats_running

AWAY_S_MAX = 5.0
"""How long a publish may take that cannot be done."""


@pytest.fixture
def server() -> Iterator[servers.Server]:
    with nats_running() as server:
        yield server


def a_delivery(number: int = 1, worker: str = "w1") -> Delivery:
    return Delivery(worker, JobId(f"j{number}"), 1)


async def publish_until_taken(bus: NatsBus, delivery: Delivery) -> None:
    """As a dispatcher does, that comes round again."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await bus.publish([delivery])
            except BusUnavailable:
                await asyncio.sleep(0.05)


async def take_when_there(bus: NatsBus, worker: str) -> list[Delivery]:
    async with asyncio.timeout(20):
        while True:
            try:
                if taken := await bus.take(worker, limit=10):
                    return taken
            except BusUnavailable:
                pass
            await asyncio.sleep(0.02)


def is_cut_off(bus: NatsBus) -> bool:
    try:
        bus._link.client()
    except BusUnavailable:
        return True
    return False


async def claimed(store: StoreWithBus, bus: NatsBus) -> list[tuple[JobId, int]]:
    """What a worker with room for one gets to do."""
    jobs = await claim("w1", 1, start=True, store=store, bus=bus, topics=Topics(), telemetry=Telemetry(Topics()))
    return [(job.id, job.fence) for job in jobs]


async def shown(store: FaultyStore, bus: NatsBus) -> list[JobId]:
    """What a worker gets to see that begins nothing by taking it."""
    with_bus = cast(StoreWithBus, store)
    telemetry = Telemetry(Topics())
    jobs = await claim("w1", 1, start=False, store=with_bus, bus=bus, topics=Topics(), telemetry=telemetry)
    return [job.id for job in jobs]


async def shown_when_there(store: FaultyStore, bus: NatsBus) -> list[JobId]:
    async with asyncio.timeout(20):
        while not (found := await shown(store, bus)):
            await asyncio.sleep(0.02)
        return found


async def kept(server: servers.Server) -> int:
    """How many deliveries the server keeps."""
    client = await nats.connect(server.url)
    try:
        return (await client.jetstream().stream_info(NAMES.stream)).state.messages
    finally:
        await client.close()


@pytest.mark.parametrize("worker", ["w1", "a.b", "a b", "a>*", "ä/\\=", "", "x" * 500, "a=20b"])
async def test_any_worker_id_can_be_served(server: servers.Server, worker: str) -> None:
    async with nats_bus(server.url) as bus:
        await bus.publish([a_delivery(1, worker), a_delivery(2, "another")])

        assert await bus.take(worker, limit=10) == [a_delivery(1, worker)]


def test_no_two_worker_ids_share_a_token() -> None:
    ids = ["", "=", "==", "=3D", "a b", "a=20b", "a.b", "a_b", "A", "a", "x" * 500, "x" * 501, "é", "=C3=A9"]

    assert len({token_of(worker) for worker in ids}) == len(ids)


async def test_another_plane_hears_of_a_delivery_and_can_take_it(server: servers.Server) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with nats_bus(server.url) as one, nats_bus(server.url) as two:
        two.on_arrival(heard.put_nowait)
        await one.publish([a_delivery()])

        async with asyncio.timeout(5):
            assert await heard.get() == "w1"
        assert await two.take("w1", limit=10) == [a_delivery()]
        assert await one.take("w1", limit=10) == []
        await one.settle([a_delivery()])  # it did not take it, and cannot
        await two.settle([a_delivery()])
        await two.take("w1", limit=10)
        assert await kept(server) == 0


async def test_delivery_that_was_settled_cannot_be_published_again(server: servers.Server) -> None:
    """By whoever was not told that it had arrived, and says it once more."""
    async with nats_bus(server.url) as bus:
        await bus.publish([a_delivery()])
        await bus.settle(await bus.take("w1", limit=10))

        await bus.publish([a_delivery(), a_delivery()])

        assert await bus.take("w1", limit=10) == []


async def test_stale_delivery_is_settled_and_not_given_out(server: servers.Server, store: StoreWithBus) -> None:
    """And nobody has to be woken again for what lies behind it."""
    job = await dispatched(store, worker="w1", fence=1)
    back = await stepped(store, job, Event.REQUEUE, worker="")
    again = await stepped(store, back, Event.DISPATCH, worker="w1", fence=2)
    async with nats_bus(server.url) as bus:
        await bus.publish([Delivery("w1", job.id, 1), Delivery("w1", job.id, 2)])

        claimed = await claim("w1", 1, start=True, store=store, bus=bus, topics=Topics(), telemetry=Telemetry(Topics()))

        assert [(job.id, job.fence) for job in claimed] == [(again.id, 2)]
        await bus.take("w1", limit=10)
        assert await kept(server) == 0


async def test_duplicate_beyond_the_dedup_window_is_settled_and_not_run(
    server: servers.Server, store: StoreWithBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.buses.nats.stream.DEDUP_S", 0.1)
    job = await dispatched(store, worker="w1", fence=1)
    async with nats_bus(server.url) as bus:
        await bus.publish([Delivery("w1", job.id, 1)])
        assert len(await claimed(store, bus)) == 1
        async with asyncio.timeout(10):
            while not await kept(server):
                await bus.publish([Delivery("w1", job.id, 1)])
                await asyncio.sleep(0.05)

        assert await claimed(store, bus) == []
        await bus.take("w1", limit=10)
        assert await kept(server) == 0


async def test_publish_fails_at_once_while_the_server_is_away(server: servers.Server) -> None:
    async with nats_bus(server.url) as bus:
        server.kill()
        await eventually(lambda: asyncio.sleep(0, is_cut_off(bus)))

        began = time.monotonic()
        with pytest.raises(BusUnavailable) as caught:
            await bus.publish([a_delivery()])
        with pytest.raises(BusUnavailable):
            await bus.take("w1", limit=10)

        assert time.monotonic() - began < AWAY_S_MAX
        assert caught.value.applied is False


async def test_publish_that_is_not_acknowledged_may_have_been_taken(server: servers.Server) -> None:
    async with nats_bus(server.url, timeout_s=0.5) as bus:
        server.pause()
        with pytest.raises(BusUnavailable) as caught:
            await bus.publish([a_delivery()])
        server.resume()

        assert caught.value.applied is None
        assert await take_when_there(bus, "w1") == [a_delivery()]


async def test_bus_opens_without_its_server_and_finds_it_later(server: servers.Server) -> None:
    server.stop()
    async with nats_bus(server.url) as bus:
        with pytest.raises(BusUnavailable):
            await bus.publish([a_delivery()])
        server.start()

        await publish_until_taken(bus, a_delivery())

        assert await take_when_there(bus, "w1") == [a_delivery()]


async def test_return_of_the_server_is_told_when_it_can_be_used_again(server: servers.Server) -> None:
    async with nats_bus(server.url) as bus:
        returned = asyncio.Event()
        bus.on_return(returned.set)
        server.kill()
        assert not returned.is_set()
        server.start()
        async with asyncio.timeout(20):
            await returned.wait()

        await bus.publish([a_delivery()])
        assert await bus.take("w1", limit=1) == [a_delivery()]


async def test_deliveries_outlive_a_kill_of_the_server(server: servers.Server) -> None:
    """And who waits for them is woken when it is back: what came meanwhile was announced to nobody."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with nats_bus(server.url) as bus:
        await bus.publish([a_delivery(number) for number in range(50)])
        assert len(await bus.take("w1", limit=10)) == 10
        bus.on_arrival(heard.put_nowait)
        server.kill()
        server.start()

        async with asyncio.timeout(20):
            assert await heard.get() == "w1"
        came: set[Delivery] = set()
        while len(came) < 50:
            came.update(await take_when_there(bus, "w1"))

    assert came == {a_delivery(number) for number in range(50)}


async def test_what_an_operator_removed_is_made_again(server: servers.Server) -> None:
    client = await nats.connect(server.url)
    async with nats_bus(server.url) as bus:
        await bus.publish([a_delivery()])
        await bus.take("w1", limit=10)
        await client.jetstream().delete_consumer(NAMES.stream, token_of("w1"))
        assert await bus.take("w1", limit=10) == [a_delivery()]

        await client.jetstream().delete_stream(NAMES.stream)
        await publish_until_taken(bus, a_delivery(2))
        assert await take_when_there(bus, "w1") == [a_delivery(2)]
    await client.close()


async def test_delivery_that_nobody_ever_begins_is_a_dead_letter_before_it_is_terminated(
    server: servers.Server, store: StoreWithBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_module, "GIVEN_MAX", 2)
    job = await dispatched(store, worker="w1", fence=1)
    faulty = FaultyStore(store)
    async with nats_bus(server.url, taken_s=0.1) as bus:
        await bus.publish([Delivery("w1", job.id, 1)])
        for _ in range(2):
            assert await shown_when_there(faulty, bus) == [job.id]

        # The store cannot be told: the message stays, or nobody would ever hear of the job again.
        faulty.fault("apply", Fault.FAIL, times=2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await shown_when_there(faulty, bus)
            assert await kept(server) == 1
        assert (await store.find_jobs([job.id]))[0] == job

        async with asyncio.timeout(20):
            while await kept(server):
                assert await shown(faulty, bus) == []
                await asyncio.sleep(0.02)

    [letter] = await store.list_dead_letters(job.tenant, before=None, limit=10)
    assert (letter.job_id, letter.reason, letter.job.state) == (job.id, "given-too-often", State.FAILED)
    [failed] = [event for event in await store.list_events(after=0, limit=100) if event.kind == "job.failed"]
    assert failed.detail["worker"] == "w1"
    assert failed.detail["given"] > 2


async def test_delivery_that_was_given_out_often_is_begun_by_who_starts_what_it_takes(
    server: servers.Server, store: StoreWithBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a store that was away for long: the attempts of the job are the bound, and this is the first."""
    monkeypatch.setattr(nats_module, "GIVEN_MAX", 2)
    job = await dispatched(store, worker="w1", fence=1)
    async with nats_bus(server.url, taken_s=0.1) as bus:
        await bus.publish([Delivery("w1", job.id, 1)])
        for _ in range(3):
            [taken] = await take_when_there(bus, "w1")
        assert bus.given_too_often(taken) == 3
        async with asyncio.timeout(20):
            while not (begun := await claimed(store, bus)):
                await asyncio.sleep(0.02)
        assert begun == [(job.id, 1)]
        assert bus.given_too_often(taken) == 0
        await bus.take("w1", limit=10)
        assert await kept(server) == 0


async def test_what_came_for_a_claim_that_was_given_up_comes_again_soon(server: servers.Server) -> None:
    async with nats_bus(server.url, taken_s=30) as bus:
        await bus.take("w1", limit=10)  # its consumer is there
        await bus.publish([a_delivery()])
        server.pause()  # so that the question is answered when nobody waits for it
        taking = asyncio.create_task(bus.take("w1", limit=10))
        await asyncio.sleep(0.05)
        taking.cancel()
        await asyncio.wait([taking])
        assert taking.cancelled()
        server.resume()

        async with asyncio.timeout(5):
            assert await take_when_there(bus, "w1") == [a_delivery()]


async def test_foreign_message_is_removed(server: servers.Server) -> None:
    client = await nats.connect(server.url)
    async with nats_bus(server.url) as bus:
        await client.jetstream().publish(f"holdfast.deliveries.{token_of('w1')}", b"not one of ours")

        assert await bus.take("w1", limit=10) == []
        await bus.take("w1", limit=10)
        assert await kept(server) == 0
    await client.close()


async def test_consumers_go_when_nobody_asks_any_more(server: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.buses.nats.stream.IDLE_S_MAX", 0.2)
    client = await nats.connect(server.url)
    async with nats_bus(server.url) as bus:
        await bus.take("w1", limit=10)
        await bus.publish([a_delivery()])
        async with asyncio.timeout(10):
            while True:
                try:
                    await client.jetstream().consumer_info(NAMES.stream, "w1")
                except NotFoundError:
                    break
                await asyncio.sleep(0.05)

        # What was sent to it has stayed.
        assert await bus.take("w1", limit=10) == [a_delivery()]
    await client.close()


async def test_server_that_acknowledges_before_it_syncs_is_warned_of(
    server: servers.Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with nats_bus(f"{server.url}?sync=always"):
            assert caplog.records == []
        async with nats_bus(server.url):
            assert ["sync_interval: always" in record.message for record in caplog.records] == [True]


async def test_deployments_with_a_namespace_each_share_a_server_and_nothing_else(server: servers.Server) -> None:
    heard: list[str] = []
    async with nats_bus(server.url) as ours, nats_bus(f"{server.url}?namespace=staging") as theirs:
        theirs.on_arrival(heard.append)
        await ours.publish([a_delivery(1)])
        await theirs.publish([a_delivery(2)])

        assert await theirs.take("w1", limit=10) == [a_delivery(2)]
        assert await ours.take("w1", limit=10) == [a_delivery(1)]
    assert heard == ["w1"]


async def test_part_of_a_server_goes_with_all_that_was_in_it(server: servers.Server) -> None:
    async with own_part(server.url, "drill") as url, nats_bus(url) as bus, nats_bus(server.url) as beside:
        await bus.publish([a_delivery(1)])
        await beside.publish([a_delivery(2)])

    client = await nats.connect(server.url)
    try:
        assert [stream.config.name for stream in await client.jetstream().streams_info()] == [NAMES.stream]
    finally:
        await client.close()
