"""The plane on a Redis Cluster that moves its slot: for a while its keys are in two places, and some commands are turned away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, cycle
from pathlib import Path

import pytest
import servers
from harness import SOON_S, eventually
from locks.redis_moving import Slot, moving
from locks.redis_setup import client, dropping_replies, formed_cluster
from msgspec.structs import replace

from holdfast.core.job import Job, amend
from holdfast.core.record import Kind
from holdfast.core.states import Event
from holdfast.errors import StoreUnavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores.redis.cluster import Place, slot_of
from holdfast.locks.stores.redis.connection import Connection
from holdfast.locks.stores.redis.wire import Caller, parse_url
from holdfast.moving import export_store
from holdfast.ports import Change, Delivery, JobFilter, Snapshot
from holdfast.stores import StoreWithBus
from holdfast.stores.redis.database import namespace_of
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.link import PlaneLink
from plane.jobs import ACME, running, sending, stepped, stored, submitted
from plane.over_http import plane, submit, wait_ended, working
from plane.redis_namespaces import named, opened
from plane.shared_planes import JOBS, ends, on

pytest_plugins = ["locks.redis_fixtures"]

_namespaces = (f"m{n}" for n in count() if slot_of(f"{{m{n}}}") < 8192)


@pytest.fixture
def url(cluster: list[servers.Server]) -> str:
    """Of a plane that begins on the first server."""
    return f"redis+cluster://127.0.0.1:{cluster[0].port}?namespace={next(_namespaces)}"


@pytest.fixture
def slot(cluster: list[servers.Server], url: str) -> Iterator[Slot]:
    with moving(cluster, named(url, "")) as slot:
        yield slot


def asking_to_cancel(job: Job) -> Change:
    return Change(before=job, after=amend(job, cancel_requested=True), kind="job.cancel_requested")


# -- what reads ------------------------------------------------------------------------------------


async def read(store: StoreWithBus, job: Job) -> list[object]:
    """By commands and by scripts, with one key and with several, of what is there and of what is not."""
    return [
        await store.find_jobs([job.id]),
        await store.list_jobs(ACME, JobFilter(), before=None, limit=10),
        await store.list_dispatchable(limit=10),
        await store.list_events(after=0, limit=10),
        await store.list_events(after=0, limit=10, job_id=job.id),
        await store.list_records(Kind.RUN, ACME, limit=10),
        await store.list_in_hand("w1", "nobody"),
        await store.list_dead_letters(ACME, before=None, limit=10),
        await store.count_jobs(),
        await store.read_snapshot(),
    ]


async def test_what_is_there_is_read_before_while_and_after_the_slot_is_moved(slot: Slot, url: str) -> None:
    async with opened(url) as store:
        await submitted(store)
        job = await stepped(store, await running(store), Event.SUCCEED, result=b"1")
        await stored(store)
        before = await read(store, job)
        slot.begin()

        assert await read(store, job) == before
        slot.carry_all()
        assert await read(store, job) == before
        slot.target.script_flush()  # the permission to ask is for one command
        assert await read(store, job) == before
        slot.finish()
        assert await read(store, job) == before


async def test_what_is_read_in_one_moment_waits_for_what_is_on_its_way(slot: Slot, url: str) -> None:
    async with opened(url) as store:
        job = await stepped(store, await running(store), Event.SUCCEED, result=b"1")
        record = await stored(store)
        slot.begin()
        slot.carry(named(url, "payloads"), named(url, "bodies"))
        reading = [
            asyncio.create_task(store.get_job(ACME, job.id)),
            asyncio.create_task(store.get_record(Kind.RUN, ACME, record.id)),
        ]
        await eventually(slot.has_turned_away)
        assert [each.done() for each in reading] == [False, False]
        slot.carry_all()

        assert await asyncio.gather(*reading) == [job, record]
        slot.finish()


class Overtaken(PlaneLink):
    """Before it asks whom it was sent to, something happens."""

    meanwhile: Callable[[], None]

    async def _beside(self, place: Place) -> Connection:
        self.meanwhile()
        return await super()._beside(place)


async def test_what_is_asked_first_is_never_younger_than_the_rest(slot: Slot, url: str) -> None:
    """A write that was decided on the rest would name that head, and be taken for one of now."""
    keys = Keys(namespace_of(url))
    caller = Caller(url, holder="", prefix=keys.prefix, runtime=SYSTEM, timeout_s=10.0)
    link = Overtaken(parse_url(url), caller, slot=slot_of(keys.head))
    link.open()
    await link.ask(("SET", keys.head, "old"), ("HSET", keys.jobs, "id", "old"))
    slot.begin()
    slot.carry(keys.head)

    def write() -> None:
        slot.carry_all()
        slot.finish()
        slot.target.set(keys.head, "new")
        slot.target.hset(keys.jobs, "id", "new")

    link.meanwhile = write
    assert await link.ask(("GET", keys.head), ("HGET", keys.jobs, "id")) == [b"new", b"new"]
    await link.close()


async def test_export_has_also_what_is_on_its_way(slot: Slot, url: str, tmp_path: Path) -> None:
    async with opened(url) as store:
        sent = sending(store, await submitted(store))
        assert await store.apply([replace(sent, send=Delivery("w1", sent.after.id, sent.after.fence))]) == [True]
    before = await export_store(url, tmp_path / "before.jsonl", alone=False, runtime=SYSTEM)
    slot.begin()
    slot.carry(named(url, "inbox:w1"))
    exporting = asyncio.create_task(export_store(url, tmp_path / "then.jsonl", alone=False, runtime=SYSTEM))

    async def is_waiting() -> bool:
        return exporting.done() or await slot.has_turned_away()

    await eventually(is_waiting)
    slot.carry_all()
    slot.finish()

    assert await exporting == before


async def test_others_are_heard_after_the_slot_has_left_a_server_that_is_taken_out_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs on, and nobody tells it anything."""
    monkeypatch.setattr("holdfast.stores.redis.database.CLOCK_S", 0.05)
    with formed_cluster() as nodes, client(nodes[0]) as source:
        seeds = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        url = f"redis+cluster://{seeds}?namespace={next(_namespaces)}"
        with moving(nodes, named(url, "")) as slot:
            async with opened(url) as store, opened(url) as other:
                told: list[str] = []
                other.subscribe(lambda events: told.extend(event.kind for event in events))
                job = await submitted(store)
                slot.begin()
                slot.carry_all()
                slot.finish()
                slot.target.config_set("cluster-require-full-coverage", "no")
                slot.target.cluster("FORGET", source.cluster("MYID"))
                source.cluster("RESET")
                assert await store.apply([asking_to_cancel(job)]) == [True]

                async def is_told() -> bool:
                    return told == ["job.submitted", "job.cancel_requested"]

                await eventually(is_told)


# -- what writes -----------------------------------------------------------------------------------


async def test_write_waits_until_the_slot_has_arrived(slot: Slot, url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        job = await submitted(store)
        slot.begin()
        changing = asyncio.create_task(store.apply([asking_to_cancel(job)]))
        adding = asyncio.create_task(submitted(other))
        for carry in (lambda: slot.carry_some(3), slot.carry_all):
            await eventually(slot.has_turned_away)
            assert (changing.done(), adding.done()) == (False, False)
            carry()
        slot.finish()

        assert await changing == [True]
        second = await adding
        assert await store.find_jobs([job.id, second.id]) == [amend(job, cancel_requested=True), second]
        events = await store.list_events(after=0, limit=10)
        assert Counter(event.kind for event in events) == {"job.submitted": 2, "job.cancel_requested": 1}


async def test_write_is_not_begun_while_the_slot_is_on_its_way(
    cluster: list[servers.Server], slot: Slot, url: str
) -> None:
    """All that the script names is there, and something that it changes is not: it would be stopped half-way."""
    async with opened(url, timeout_s=0.5) as store:
        await submitted(store, session="s")
        job = await submitted(store)
        with client(cluster[0]) as raw:
            plane_id, _, _ = str(raw.get(named(url, "head"))).partition(":")
            raw.set(named(url, "turn"), plane_id)
        slot.begin()
        slot.carry(named(url, f"history:{job.id}"))
        began = SYSTEM.now()
        with pytest.raises(StoreUnavailable, match="moves the slot") as caught:
            await store.apply([asking_to_cancel(job)])
        assert SYSTEM.now() - began < SOON_S
        slot.carry_all()
        slot.finish()

        assert caught.value.applied is False
        assert [event.kind for event in await store.list_events(after=2, limit=10)] == []
        assert await store.apply([asking_to_cancel(job)]) == [True]
        assert [event.kind for event in await store.list_events(after=2, limit=10)] == ["job.cancel_requested"]


async def test_write_whose_answer_was_lost_is_asked_after_when_the_slot_has_arrived() -> None:
    with formed_cluster() as nodes, client(nodes[0]) as source:
        async with dropping_replies(nodes[0].port, to=b"job.cancel_requested") as (proxy, _):
            url = f"redis+cluster://127.0.0.1:{proxy}?namespace={next(_namespaces)}"
            source.config_set("cluster-announce-port", proxy)
            with moving(nodes, named(url, "")) as slot:
                async with opened(url) as store:
                    job = await submitted(store)
                    slot.begin()
                    plane_id, _, _ = str(source.get(named(url, "head"))).partition(":")
                    slot.carry(named(url, f"done:{plane_id}"))
                    changing = asyncio.create_task(store.apply([asking_to_cancel(job)]))
                    await eventually(slot.has_turned_away)
                    slot.carry_all()
                    slot.finish()

                    assert await changing == [True]
                    events = await store.list_events(after=0, limit=10)
                    assert [event.kind for event in events] == ["job.submitted", "job.cancel_requested"]


async def test_single_key_is_written_where_it_is(slot: Slot, url: str) -> None:
    async with opened(url) as store:
        job = await submitted(store)
        change = sending(store, job)
        delivery = Delivery("w1", job.id, change.after.fence)
        assert await store.apply([replace(change, send=delivery)]) == [True]
        slot.begin()
        assert await store.write_snapshot(Snapshot(1, 1, 1.0, b"[]"))
        slot.carry_all()
        assert await store.write_snapshot(Snapshot(1, 2, 2.0, b"[]"))
        assert not await store.write_snapshot(Snapshot(1, 1, 3.0, b"[]"))
        slot.finish()

        assert await store.read_snapshot() == Snapshot(1, 2, 2.0, b"[]")
        assert await store.write_snapshot(Snapshot(1, 3, 2.0, b"[]"))


async def test_plane_starts_while_its_slot_is_moved(slot: Slot, url: str) -> None:
    async with opened(url) as store:
        await stepped(store, await running(store), Event.SUCCEED, result=b"1")
        job = await submitted(store)
    slot.begin()
    slot.carry_all()

    async with opened(url) as store:
        assert await store.list_dispatchable(limit=10) == [job]
        slot.finish()
        assert await store.apply([asking_to_cancel(job)]) == [True]


async def key_by_key(slot: Slot) -> None:
    slot.begin()
    while slot.carry_some(10):
        await asyncio.sleep(0.01)
    slot.finish()


async def as_a_whole(slot: Slot) -> None:
    slot.migrate()
    await eventually(slot.has_arrived)


@pytest.mark.parametrize("carried", [key_by_key, as_a_whole])
async def test_nothing_is_lost_and_nothing_ends_twice_while_the_slot_is_moved_to_and_fro(
    cluster: list[servers.Server], url: str, carried: Callable[[Slot], Awaitable[None]]
) -> None:
    stop = asyncio.Event()

    async def move() -> None:
        for nodes in cycle((cluster, cluster[::-1])):
            began = SYSTEM.now()
            with moving(nodes, named(url, "")) as slot:
                await carried(slot)
            if stop.is_set():
                return
            await asyncio.sleep(
                max(0.1, SYSTEM.now() - began)
            )  # half of the time is the planes', however slow the machine

    async with plane(on(url)) as one, plane(on(url)) as two:
        async with working(one, "w1"), working(two, "w2"):
            shifting = asyncio.create_task(move())
            ids = await asyncio.gather(*(submit((one, two)[n % 2], n) for n in range(JOBS)))
            await wait_ended(two, ids)
            stop.set()
            await shifting

    assert len(set(ids)) == JOBS
    assert await ends(url) == Counter(dict.fromkeys(ids, 1))
