"""What `holdfast.ports.Store` promises about records, once, for every store."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from plane.jobs import (
    ACME,
    OTHER,
    ManualRuntime,
    a_record,
    new,
    removing,
    replacing,
    stored,
)
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.record import Kind, Record, first_version
from holdfast.errors import NotFound
from holdfast.ports import RecordChange, Transaction
from holdfast.stores import StoreWithBus


async def find(store: StoreWithBus, record: Record) -> Record | None:
    [found] = await store.find_records(record.kind, record.tenant, [record.id])
    return found


# -- one record ------------------------------------------------------------------------------------


async def test_record_comes_back_as_it_was_written(store: StoreWithBus) -> None:
    record = a_record(id="ü/1", due=5.5, body=b'{"a":[1,"\xc3\xbc"]}')

    assert await store.transact([new(record)]) == [True]

    assert await store.get_record(Kind.RUN, ACME, "ü/1") == record
    assert await store.find_records(Kind.RUN, ACME, ["none", "ü/1"]) == [None, record]


@pytest.mark.parametrize("size", [0, 5000, 300_000])
async def test_body_may_be_of_any_size(store: StoreWithBus, size: int) -> None:
    record = await stored(store, body=b"1" * size)
    assert await store.transact([Transaction(records=[replacing(record, body=b"2" * size)])]) == [True]

    assert (await store.get_record(Kind.RUN, ACME, record.id)).body == b"2" * size


async def test_id_is_unique_within_kind_and_tenant(store: StoreWithBus) -> None:
    same = [a_record(id="x"), a_record(id="x", tenant=OTHER), a_record(id="x", kind=Kind.STEP)]

    assert await store.transact([new(record) for record in same]) == [True] * 3
    assert await store.transact([new(a_record(id="x", body=b"[]"))]) == [False]

    assert [await find(store, record) for record in same] == same


async def test_record_that_is_not_there_is_not_found(store: StoreWithBus) -> None:
    record = await stored(store)

    for kind, tenant, record_id in (
        (Kind.RUN, ACME, "none"),
        (Kind.RUN, OTHER, record.id),
        (Kind.STEP, ACME, record.id),
    ):
        with pytest.raises(NotFound):
            await store.get_record(kind, tenant, record_id)


async def test_record_is_replaced_as_a_whole_and_only_by_the_version_that_is_named(store: StoreWithBus) -> None:
    first = await stored(store, due=1.0)
    second = replacing(first, state="paused", parent="", due=None, body=b"[]")

    assert await store.transact([Transaction(records=[second])]) == [True]
    assert await store.transact([Transaction(records=[replacing(first, state="failed")])]) == [False]
    assert await store.transact([Transaction(records=[removing(first)])]) == [False]

    assert await find(store, first) == second.after


async def test_of_many_concurrent_replacements_one_wins(store: StoreWithBus) -> None:
    record = await stored(store)

    answers = await asyncio.gather(
        *(store.transact([Transaction(records=[replacing(record, state=f"s{n}")])]) for n in range(20))
    )

    assert sum(done for [done] in answers) == 1
    [winner] = [n for n, [done] in enumerate(answers) if done]
    assert (await store.get_record(Kind.RUN, ACME, record.id)).state == f"s{winner}"


async def test_record_that_was_removed_may_be_made_anew(store: StoreWithBus) -> None:
    record = await stored(store)

    assert await store.transact([Transaction(records=[removing(record)])]) == [True]
    assert await find(store, record) is None
    assert await store.transact([Transaction(records=[removing(record)])]) == [False]
    assert await store.transact([new(record)]) == [True]


async def test_record_may_begin_with_any_version_so_that_nobody_takes_it_for_the_one_before(
    store: StoreWithBus,
) -> None:
    record = await stored(store)
    anew = replace(record, version=first_version(store.now()))
    await store.transact([Transaction(records=[removing(record)])])

    assert await store.transact([Transaction(records=[RecordChange(after=anew, replaces=0)])]) == [True]
    assert await store.transact([Transaction(records=[removing(record)])]) == [False]
    assert await find(store, record) == anew
    assert await store.transact([Transaction(records=[removing(anew)])]) == [True]


async def test_change_to_a_version_that_does_not_follow_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="version 1 of a record cannot replace version 1"):
        RecordChange(after=a_record(), replaces=1)


# -- lists -----------------------------------------------------------------------------------------


async def test_list_is_in_the_order_of_ids_in_pages_both_ways(store: StoreWithBus) -> None:
    made = [a_record(id=f"r{n}") for n in (3, 1, 4, 2, 5)]
    await store.transact([new(*made, a_record(id="r0", tenant=OTHER), a_record(id="r0", kind=Kind.STEP))])
    one, two, three, four, five = sorted(made, key=lambda record: record.id)

    assert await store.list_records(Kind.RUN, ACME, limit=2) == [one, two]
    assert await store.list_records(Kind.RUN, ACME, after="r2", limit=10) == [three, four, five]
    assert await store.list_records(Kind.RUN, ACME, before="", limit=2) == [five, four]
    assert await store.list_records(Kind.RUN, ACME, before="r4", limit=10) == [three, two, one]


@pytest.mark.parametrize("kind", list(Kind))
async def test_list_by_state_and_parent(store: StoreWithBus, kind: Kind) -> None:
    records = {
        (state, parent): a_record(kind=kind, state=state, parent=parent)
        for state in ("", "a", "b")
        for parent in ("", "p", "q")
    }
    await store.transact([new(*records.values())])

    async def listed(**wanted: str) -> list[Record]:
        return await store.list_records(kind, ACME, limit=100, **wanted)

    assert await listed() == list(records.values())
    for state in ("", "a"):
        assert await listed(state=state) == [records[state, parent] for parent in ("", "p", "q")]
        assert await listed(state=state, parent="q") == [records[state, "q"]]
    for parent in ("", "p"):
        assert await listed(parent=parent) == [records[state, parent] for state in ("", "a", "b")]
    assert await listed(parent="p", before="") == [records[state, "p"] for state in ("b", "a", "")]


@pytest.mark.parametrize("kind", [Kind.RUN, Kind.STEP])
async def test_records_are_counted_by_state(store: StoreWithBus, kind: Kind) -> None:
    for state in ("running", "running", "failed", "paused"):
        await stored(store, kind=kind, state=state)
    await stored(store, kind=kind, state="running", tenant=OTHER)

    counts = await store.count_records(kind, ACME, states=("running", "paused", "waiting"))

    assert counts == {"running": 2, "paused": 1}


async def test_due_are_those_of_all_tenants_whose_time_has_come_longest_overdue_first(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    late = await stored(store, due=store.now() - 1)
    later = await stored(store, due=store.now() + 5, tenant=OTHER)
    latest = await stored(store, due=store.now() - 2)
    await stored(store, due=None)
    await stored(store, due=store.now() - 9, kind=Kind.SCHEDULE)

    assert await store.list_due(Kind.RUN, limit=10) == [latest, late]
    assert await store.list_due(Kind.RUN, limit=1) == [latest]
    clock.advance(5)
    assert await store.list_due(Kind.RUN, limit=10) == [latest, late, later]

    put_off = replacing(latest, due=store.now() + 1)
    await store.transact([Transaction(records=[put_off, replacing(late, due=None)])])
    assert await store.list_due(Kind.RUN, limit=10) == [later]
