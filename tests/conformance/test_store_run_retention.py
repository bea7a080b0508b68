"""What `holdfast.ports.Store` promises about what it removes of runs and other records, once, for every store."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import pytest
from plane.jobs import (
    ACME,
    OTHER,
    ManualRuntime,
    a_job,
    a_record,
    new,
    prune,
    replacing,
    running,
    stepped,
    stored,
    submitted,
)
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.job import Job, JobId
from holdfast.core.record import Kind, Record
from holdfast.core.retention import NEVER, Limits
from holdfast.core.states import Event, State
from holdfast.ports import Note, Submission, Transaction
from holdfast.stores import StoreWithBus


async def pruned(store: StoreWithBus, *, letters_too: bool = True) -> int:
    """Everything that has ended until now may go: how many jobs went."""
    return await prune(store, Limits(store.now(), store.now() if letters_too else NEVER))


async def a_run(
    store: StoreWithBus, *, state: str = "succeeded", jobs: int = 2, **changes: object
) -> tuple[Record, list[Job]]:
    """A run with everything that belongs to it."""
    run = await stored(store, state=state, **changes)
    ended = [
        await stepped(store, await running(store, fence=n + 1, run=run.id, tenant=run.tenant), Event.SUCCEED)
        for n in range(jobs)
    ]
    await store.transact(
        [
            new(
                *(
                    a_record(kind=kind, tenant=run.tenant, parent=run.id, created_at=store.now())
                    for kind in (Kind.STEP, Kind.KEY)
                ),
                a_record(
                    kind=Kind.APPROVAL, tenant=run.tenant, parent=run.id, state="approved", created_at=store.now()
                ),
            )
        ]
    )
    await store.add_notes([Note(run.tenant, JobId(""), "run.succeeded", {}, run=run.id)])
    return run, ended


async def left_of(store: StoreWithBus, run: Record) -> dict[str, int]:
    found = {kind.value: len(await store.list_records(kind, run.tenant, parent=run.id, limit=100)) for kind in Kind}
    found["run"] = sum(record is not None for record in await store.find_records(Kind.RUN, run.tenant, [run.id]))
    found["events"] = len(await store.list_events(after=0, limit=100, run=run.id))
    return {what: number for what, number in found.items() if number}


async def test_ended_run_goes_with_everything_that_is_its_own(store: StoreWithBus, clock: ManualRuntime) -> None:
    gone, jobs = await a_run(store)
    kept, _ = await a_run(store, state="running")
    theirs, _ = await a_run(store, tenant=OTHER, state="paused")
    before = [await left_of(store, run) for run in (gone, kept, theirs)]
    assert before[0] == {"run": 1, "step": 1, "key": 1, "approval": 1, "result": 2, "events": 9}
    last = (await store.list_events(after=0, limit=100, run=gone.id))[-1].number
    await submitted(store)
    clock.advance(1)

    assert await pruned(store) == 2

    assert [await left_of(store, run) for run in (gone, kept, theirs)] == [{}, *before[1:]]
    assert await store.find_jobs([job.id for job in jobs]) == [None, None]
    assert await store.pruned_until(ACME) == last


async def test_job_goes_only_with_its_run(store: StoreWithBus, clock: ManualRuntime) -> None:
    run, jobs = await a_run(store, state="running")
    orphan = await submitted(store, state=State.CANCELLED, run="no such run")
    await submitted(store)
    clock.advance(1e9)

    assert await pruned(store) == 1
    assert await store.find_jobs([job.id for job in (*jobs, orphan)]) == [*jobs, None]
    await store.transact([Transaction(records=[replacing(run, state="failed")])])
    assert await pruned(store) == 2


async def test_run_stays_until_it_has_ended_long_enough_ago(store: StoreWithBus, clock: ManualRuntime) -> None:
    run, _ = await a_run(store)
    clock.advance(10)
    limits = Limits(store.now() - 10, NEVER)  # when it ended
    await submitted(store)

    place: int | None = 0
    while place is not None:
        _, place = await store.prune(limits, after=place)
    assert await left_of(store, run) != {}


@pytest.mark.parametrize("reason", ["live job", "unsettled effect", "dead letter", "newest event"])
async def test_run_stays_whole_while_anything_of_it_is_needed(
    store: StoreWithBus, clock: ManualRuntime, reason: str
) -> None:
    run, _ = await a_run(store)
    if reason == "live job":
        await submitted(store, run=run.id)
    elif reason == "unsettled effect":
        working = await running(store, run=run.id, fence=9)
        await store.prepare_effect(working.id, 9, "charge", idempotent=False)
        await stepped(store, working, Event.FAIL)
    elif reason == "dead letter":
        await stepped(store, await running(store, run=run.id, fence=9), Event.FAIL, dead_letter="x")
    if reason != "newest event":
        await submitted(store)
    before = await left_of(store, run)
    clock.advance(1)

    assert await pruned(store, letters_too=False) == 0
    assert await left_of(store, run) == before


async def test_large_run_goes_in_several_batches(store: StoreWithBus, clock: ManualRuntime) -> None:
    run = await stored(store, state="succeeded")
    jobs = [a_job(run=run.id, state=State.CANCELLED, created_at=store.now(), since=store.now()) for _ in range(120)]
    await store.submit([Submission(job=job, key=None, digest="") for job in jobs])
    await store.transact([new(*(a_record(kind=Kind.STEP, parent=run.id, created_at=store.now()) for _ in range(1500)))])
    await store.add_notes([Note(ACME, JobId(""), "step.succeeded", {}, run=run.id)] * 2500)
    await submitted(store)
    clock.advance(1)
    limits = Limits(store.now(), NEVER)

    place, batches, most = 0, 0, 0
    while True:
        jobs_gone, after = await store.prune(limits, after=place)
        batches, most = batches + 1, max(most, jobs_gone)
        if after is None:
            break
        place = after

    assert await left_of(store, run) == {}
    assert batches > 4
    assert most < 120


async def test_approval_goes_with_its_job(store: StoreWithBus, clock: ManualRuntime) -> None:
    job, live = await submitted(store, state=State.CANCELLED), await submitted(store)
    cards = [await stored(store, kind=Kind.APPROVAL, parent=parent.id, state="consumed") for parent in (job, live)]
    clock.advance(1)

    assert await pruned(store) == 1
    assert await store.list_records(Kind.APPROVAL, ACME, limit=10) == cards[1:]


async def test_posts_that_have_ended_go_and_no_other_record_does(store: StoreWithBus, clock: ManualRuntime) -> None:
    for state in ("delivered", "failed"):
        await stored(store, kind=Kind.POST, parent="hook", state=state)
    kept = [await stored(store, kind=Kind.POST, parent="hook", state="pending")]
    kept += [await stored(store, kind=kind, state="failed") for kind in (Kind.WEBHOOK, Kind.SCHEDULE, Kind.WORKFLOW)]
    await submitted(store)
    clock.advance(1)
    young = await stored(store, kind=Kind.POST, parent="hook", state="delivered")

    await pruned(store)

    assert await store.list_records(Kind.POST, ACME, limit=10) == [kept[0], young]
    assert [await store.get_record(record.kind, ACME, record.id) for record in kept] == kept


async def test_record_written_anew_in_its_old_place_keeps_nothing_behind_it(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    policy = await stored(store, kind=Kind.POLICY, state="active")
    run, _ = await a_run(store)
    await stored(store, kind=Kind.POST, parent="hook", state="delivered")
    await submitted(store)
    clock.advance(1)
    await store.transact([Transaction(records=[replacing(policy, created_at=store.now())])])

    assert await pruned(store) == 2
    assert await left_of(store, run) == {}
    assert await store.list_records(Kind.POST, ACME, limit=10) == []
