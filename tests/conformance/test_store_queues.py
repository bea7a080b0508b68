"""What `holdfast.ports.Store` promises about who is next: to be dispatched, to be looked after, to be recovered."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio

from msgspec.structs import replace
from plane.jobs import (
    ACME,
    LIVE,
    OTHER,
    ManualRuntime,
    bare,
    cancelling,
    dispatched,
    recoverable,
    running,
    sending,
    stepped,
    submitted,
)
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.recovery import SCHEDULED_STALE_S
from holdfast.core.states import Event, State
from holdfast.gateway.limits import PAYLOAD_BYTES_MAX
from holdfast.ports import LISTED_PAYLOAD_MAX, Accepted, Submission
from holdfast.stores import StoreWithBus


async def test_dispatchable_by_priority_then_oldest_first_and_not_before_their_time(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    low = await submitted(store, priority=-5)
    clock.advance(1)
    first, second = await submitted(store), await submitted(store)
    high = await submitted(store, priority=100)
    later = await submitted(store, priority=100, not_before=store.now() + 10)
    await running(store, priority=100)

    assert await store.list_dispatchable(limit=10) == [high, first, second, low]
    assert await store.list_dispatchable(limit=2) == [high, first]
    clock.advance(10)
    assert later in await store.list_dispatchable(limit=10)


async def test_tenant_with_few_jobs_does_not_wait_behind_a_tenant_with_many(store: StoreWithBus) -> None:
    many = [await submitted(store) for _ in range(20)]
    few = [await submitted(store, tenant=OTHER) for _ in range(2)]

    found = await store.list_dispatchable(limit=6)

    assert found == [many[0], few[0], many[1], few[1], many[2], many[3]]


async def test_every_tenant_has_its_turn_when_there_are_more_of_them_than_fit(store: StoreWithBus) -> None:
    for n in range(7):
        await submitted(store, tenant=f"t{n}")
        await submitted(store, tenant=f"t{n}")

    turns = [job.tenant for _ in range(7) for job in await store.list_dispatchable(limit=3)]

    assert {turns.count(tenant) for tenant in set(turns)} == {3}
    assert len(set(turns)) == 7


async def test_in_hand_are_the_dispatched_and_the_running(store: StoreWithBus) -> None:
    waiting, working = await dispatched(store), await running(store, fence=8)
    await running(store, worker="w2")
    ended = await stepped(store, await running(store, fence=9), Event.SUCCEED)

    assert await store.list_in_hand("w1") == [waiting, working]
    assert ended.worker == "w1"


async def test_in_hand_of_several_workers_are_read_at_once_and_bare_if_nobody_wants_more(store: StoreWithBus) -> None:
    large = b'"' + b"x" * 10_000 + b'"'
    jobs = [
        await dispatched(store, payload=large),
        await running(store, worker="w2", fence=8),
        await running(store, worker="w3", fence=9),
    ]

    assert await store.list_in_hand("w1", "w2", "nobody") == jobs[:2]
    assert await store.list_in_hand("w1", "w2", bare=True) == [bare(job) for job in jobs[:2]]
    assert await store.list_in_hand() == []


async def test_many_jobs_with_the_largest_payloads_are_listed_together(store: StoreWithBus) -> None:
    """More than a server lets one who listens leave unread: 32 MB, of Redis."""
    large = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
    jobs = [await submitted(store, payload=large) for _ in range(40)]

    assert [job.id for job in await store.list_dispatchable(limit=100)] == [job.id for job in jobs]


async def test_large_payloads_are_left_out_of_the_queues_and_stay_what_they_are(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    """The queues are read by the hundred, many times a second, and mostly for their heads."""
    small = await submitted(store, payload=b'"' + b"x" * (LISTED_PAYLOAD_MAX - 2) + b'"')
    large = await submitted(store, payload=b'"' + b"x" * (LISTED_PAYLOAD_MAX - 1) + b'"')
    clock.advance(SCHEDULED_STALE_S)

    listed = await store.list_dispatchable(limit=10)
    assert listed == [small, bare(large)]
    assert sorted(await recoverable(store), key=lambda job: job.id) == sorted(listed, key=lambda job: job.id)

    sent = [sending(store, job) for job in listed]
    order = Submission(job=large, key="k", digest="d")
    written, [repeated] = await asyncio.gather(
        store.apply(sent), store.submit([order])
    )  # in one batch, where there are any
    assert written == [True, True]
    assert isinstance(repeated, Accepted)
    assert repeated.job.payload == large.payload
    whole = [replace(change.after, payload=job.payload) for change, job in zip(sent, (small, large), strict=True)]
    assert await store.find_jobs([small.id, large.id]) == whole


async def test_recoverable_are_live_jobs_whose_time_has_come(store: StoreWithBus, clock: ManualRuntime) -> None:
    waiting = await dispatched(store, topic="quick")
    working = await running(store, topic="quick", fence=8)
    await stepped(store, await running(store, topic="quick", fence=9), Event.SUCCEED)
    assert await recoverable(store) == []

    clock.advance(2.5)
    assert await recoverable(store) == [waiting]
    clock.advance(10)
    assert await recoverable(store) == [waiting, working]


async def test_recoverable_are_listed_by_state_and_page_by_page(store: StoreWithBus, clock: ManualRuntime) -> None:
    """Each once: also of those that have been waiting since the very same moment, and although others are in between."""
    waiting = [await submitted(store, tenant=tenant) for tenant in (ACME, OTHER) for _ in range(4)]
    asked = [await submitted(store, state=State.APPROVAL_REQUIRED, deadline=store.now() + 5) for _ in range(2)]
    clock.advance(1)
    sent = [await dispatched(store, fence=n) for n in range(3)]
    working = [await running(store, worker=worker) for worker in ("w1", "w2")]
    clock.advance(60 * 60)
    of_state = {
        (State.SCHEDULED,): waiting,
        (State.APPROVAL_REQUIRED,): asked,
        (State.DISPATCHED, State.RUNNING): [*sent, *working],
        (State.APPROVAL_REQUIRED, State.DISPATCHED, State.RUNNING): [*asked, *sent, *working],
        LIVE: [*waiting, *asked, *sent, *working],
    }

    for states, jobs in of_state.items():
        for limit in (1, 3, 100):
            assert await recoverable(store, *states, limit=limit) == jobs
    assert await recoverable(store, State.PENDING) == []


async def test_page_goes_on_where_the_last_one_ended_although_its_jobs_have_moved_on(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    jobs = [await submitted(store) for _ in range(5)]
    clock.advance(60)
    first, after = await store.list_recoverable(states=[State.SCHEDULED], limit=2)
    await store.apply([cancelling(store, job) for job in first])
    second, after = await store.list_recoverable(states=[State.SCHEDULED], limit=10, after=after)

    assert sorted(job.id for job in [*first, *second]) == [job.id for job in jobs]
    assert after == ""


async def test_deadline_makes_a_job_recoverable_wherever_it_stands(store: StoreWithBus, clock: ManualRuntime) -> None:
    job = await submitted(store, state=State.APPROVAL_REQUIRED, deadline=store.now() + 5)
    assert await recoverable(store) == []
    clock.advance(5)

    assert await recoverable(store) == [job]
