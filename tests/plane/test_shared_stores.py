"""Several planes on one server: they hear of each other, write in one order, and none is told what is not so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import servers
from harness import eventually, sockets

from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.core.states import State
from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.ops.proxy import Proxy
from holdfast.ports import Change, Delivery, JobEvent, Store, Submission, Transaction
from holdfast.stores import open_store
from plane.jobs import ACME, a_job, replacing, sending, stored, submitted
from plane.postgres_schemas import PLANES, several
from plane.store_fixtures import FRESH


@pytest.fixture(params=list(FRESH))
def url(request: pytest.FixtureRequest, running: dict[str, servers.Server | None]) -> Iterator[str]:
    with FRESH[request.param](running) as url:
        yield url


def submission() -> Submission:
    return Submission(job=a_job(), key=None, digest="")


async def test_reader_never_skips_an_event_that_was_numbered_lower_and_committed_later(url: str) -> None:
    async with several(url) as stores:
        writing = [
            asyncio.create_task(stores[n % PLANES].submit([submission() for _ in range(1 + n % 7)])) for n in range(90)
        ]
        seen: list[int] = []
        while not all(task.done() for task in writing) or await stores[0].list_events(
            after=seen[-1] if seen else 0, limit=1
        ):
            after = seen[-1] if seen else 0
            seen += [event.number for event in await stores[0].list_events(after=after, limit=50)]
            await asyncio.sleep(0)

        assert seen == list(range(1, 1 + sum(1 + n % 7 for n in range(90))))


async def test_every_plane_hears_of_all_commits_in_order(url: str) -> None:
    async with several(url) as stores:
        heard: list[list[int]] = [[] for _ in stores]
        for store, numbers in zip(stores, heard, strict=True):

            def listen(events: Sequence[JobEvent], numbers: list[int] = numbers) -> None:
                numbers.extend(event.number for event in events)

            store.subscribe(listen)
        await asyncio.sleep(0.3)  # until all of them listen; before that, polling is all there is
        await asyncio.gather(*(submitted(stores[n % PLANES]) for n in range(60)))

        async def all_heard() -> bool:
            return all(len(numbers) == 60 for numbers in heard)

        await eventually(all_heard)
        assert heard == [list(range(1, 61))] * PLANES


async def test_plane_is_told_what_another_one_has_sent_to_its_worker(url: str) -> None:
    async with several(url) as stores:
        told: list[str] = []
        stores[1].on_arrival(told.append)
        await asyncio.sleep(0.3)
        job = await submitted(stores[0])
        change = sending(stores[0], job)
        sent = Change(before=job, after=change.after, kind="x", send=Delivery("w1", job.id, change.after.fence))
        assert await stores[0].apply([sent]) == [True]

        async def arrived() -> bool:
            # Beside it each plane is told, when it has begun to listen, that something may have come for anybody.
            return [worker for worker in told if worker] == ["w1"]

        await eventually(arrived)


async def test_plane_that_could_not_hear_for_a_while_is_told_that_something_may_have_come_for_anybody(url: str) -> None:
    async with Proxy(urlsplit(url).port or 0) as proxy, several(url) as stores:
        deaf, told = open_store(proxy.url(url), topics=Topics(), runtime=SYSTEM), list[str]()

        async def hears() -> bool:
            with suppress(StoreUnavailable):
                await deaf.count_jobs()  # whoever connects only to ask does so
            return "" in told

        deaf.on_arrival(told.append)
        await deaf.open()
        try:
            await eventually(hears)
            proxy.refusing = True
            proxy.cut()
            told.clear()
            job = await submitted(stores[0])
            change = sending(stores[0], job)
            sent = Change(before=job, after=change.after, kind="x", send=Delivery("w1", job.id, change.after.fence))
            assert await stores[0].apply([sent]) == [True]
            proxy.refusing = False

            await eventually(hears)
        finally:
            await deaf.close()


async def test_transactions_on_the_same_records_in_any_order_all_end(url: str) -> None:
    """Two planes that lock the same rows in opposite order would wait for each other."""
    async with several(url) as stores:
        records = [await stored(stores[0], id=f"r{n}") for n in range(6)]

        async def write(n: int) -> bool:
            store = stores[n % PLANES]
            current = [await store.get_record(Kind.RUN, ACME, record.id) for record in records]
            changes = [replacing(record, state=f"s{n}") for record in current]
            [done] = await store.transact([Transaction(records=changes if n % 2 else changes[::-1])])
            return done

        answers = await asyncio.gather(*(write(n) for n in range(30)))

        states = {(await stores[0].get_record(Kind.RUN, ACME, record.id)).state for record in records}
        versions = {(await stores[0].get_record(Kind.RUN, ACME, record.id)).version for record in records}
        assert len(states) == 1, "all of a transaction, or nothing"
        assert versions == {1 + sum(answers)}
        assert any(answers)


async def test_of_the_same_change_at_several_planes_one_wins(url: str) -> None:
    async with several(url) as stores:
        jobs = [await submitted(stores[0]) for _ in range(10)]

        answers = await asyncio.gather(*(store.apply([sending(store, job)]) for job in jobs for store in stores))

        assert sum(done for [done] in answers) == len(jobs)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds sockets by /proc")
@pytest.mark.parametrize("is_writing", [False, True])
async def test_closing_that_is_cancelled_leaves_no_connection_behind(url: str, is_writing: bool) -> None:
    """Whoever is told to end a second time has no time to wait for the first, and closes nothing again."""
    before, turns, was_cancelled = sockets(), 0, True

    async def are_those_of_before() -> bool:
        return sockets() <= before

    while was_cancelled:
        turns += 1 + turns // 4
        store = open_store(url, topics=Topics(), runtime=SYSTEM)
        await store.open()
        await asyncio.gather(*(store.count_jobs() for _ in range(3)))
        writing = [asyncio.create_task(submitted(store))] if is_writing else []
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = closing.cancel()
        await asyncio.gather(closing, *writing, return_exceptions=True)
        await eventually(are_those_of_before)

    assert turns > 1


async def test_many_who_ask_a_server_that_does_not_answer_wait_no_longer_than_one(url: str) -> None:
    """Nor one after the other: a gateway may have hundreds of readers when its server stops."""
    async with Proxy(urlsplit(url).port or 0) as proxy:
        store = open_store(proxy.url(url), topics=Topics(), runtime=SYSTEM, timeout_s=0.5)
        await store.open()
        try:
            await store.count_jobs()
            proxy.deaf = True
            async with asyncio.timeout(10):
                answers = await asyncio.gather(*(store.count_jobs() for _ in range(50)), return_exceptions=True)

            assert {(type(answer), getattr(answer, "applied", None)) for answer in answers} == {
                (StoreUnavailable, False)
            }
            proxy.deaf = False
            assert await eventually_counted(store) == {}
        finally:
            await store.close()


async def eventually_counted(store: Store) -> dict[tuple[Tenant, State], int]:
    """What was left of the connections is found to be dead first."""
    while True:
        with suppress(StoreUnavailable):
            return await store.count_jobs()
