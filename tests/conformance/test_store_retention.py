"""What `holdfast.ports.Store` promises about what it removes, and what it never does, once, for every store."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import pytest
from plane.jobs import ACME, OTHER, ManualRuntime, a_job, prune, running, stepped, submitted
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.job import Job, JobId
from holdfast.core.retention import NEVER, Limits
from holdfast.core.states import EffectState, Event, State
from holdfast.errors import NotFound
from holdfast.ports import Accepted, Note, Submission
from holdfast.stores import StoreWithBus


async def succeeded(store: StoreWithBus, **changes: object) -> Job:
    return await stepped(store, await running(store, **changes), Event.SUCCEED)  # type: ignore[arg-type]


async def failed(store: StoreWithBus, **changes: object) -> Job:
    return await stepped(store, await running(store, **changes), Event.FAIL, dead_letter="x")  # type: ignore[arg-type]


async def pruned(store: StoreWithBus, *, letters_too: bool = False) -> int:
    """Everything that has ended until now may go: how many jobs went."""
    return await prune(store, Limits(store.now(), store.now() if letters_too else NEVER))


async def test_ended_job_goes_with_everything_that_is_its_own(store: StoreWithBus, clock: ManualRuntime) -> None:
    job = a_job(payload=b"x" * 5000)
    await store.submit([Submission(job=job, key="k", digest="d")])
    sent = await stepped(store, job, Event.DISPATCH, worker="w1", fence=7)
    working = await stepped(store, sent, Event.START, attempts=1, lease_until=store.now() + 30)
    await store.prepare_effect(job.id, 7, "charge", idempotent=False)
    await store.commit_effect(job.id, 7, "charge", b"1")
    await stepped(store, working, Event.FAIL, dead_letter="x")
    await failed(store, fence=8)  # the newest of all stays
    clock.advance(1)

    assert await pruned(store, letters_too=True) == 1

    assert await store.find_jobs([job.id]) == [None]
    assert await store.list_events(after=0, limit=100, job_id=job.id) == []
    assert await store.list_effects(ACME, job_id=job.id) == []
    assert [letter.number for letter in await store.list_dead_letters(ACME, before=None, limit=10)] == [2]
    again = a_job(payload=b"other")
    assert await store.submit([Submission(job=again, key="k", digest="e")]) == [Accepted(again, repeated=False)]


async def test_job_stays_until_it_has_ended_long_enough_ago(store: StoreWithBus, clock: ManualRuntime) -> None:
    early = await succeeded(store)
    clock.advance(10)
    late = await succeeded(store, fence=8)
    limits = Limits(store.now(), NEVER)
    await submitted(store)

    assert (await store.prune(limits)).jobs == 1
    assert await store.find_jobs([early.id, late.id]) == [None, late]
    assert (await store.prune(Limits(NEVER, NEVER))).jobs == 0


@pytest.mark.parametrize("state", [state for state in State if state not in {State.DISPATCHED, State.RUNNING}])
async def test_live_job_never_goes(store: StoreWithBus, clock: ManualRuntime, state: State) -> None:
    job = await submitted(store, state=state)
    await submitted(store)
    clock.advance(1e9)

    await pruned(store, letters_too=True)

    assert await store.find_jobs([job.id]) == [None if job.is_terminal else job]


async def test_dispatched_and_running_jobs_never_go(store: StoreWithBus, clock: ManualRuntime) -> None:
    working = await running(store)
    await submitted(store)
    clock.advance(1e9)

    assert await pruned(store, letters_too=True) == 0
    assert await store.find_jobs([working.id]) == [working]


async def test_unknown_effect_keeps_its_job_until_a_person_has_resolved_it(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    job = await running(store)
    await store.prepare_effect(job.id, job.fence, "charge", idempotent=False)
    ended = await stepped(store, job, Event.FAIL)
    await submitted(store)
    clock.advance(1e9)

    assert await pruned(store) == 0
    assert await store.find_jobs([job.id]) == [ended]
    await store.resolve_effect(ACME, job.id, "charge", state=EffectState.ABSENT, result=None, note="asked")
    await submitted(store)
    assert await pruned(store) == 1


async def test_job_and_its_replays_go_together(store: StoreWithBus, clock: ManualRuntime) -> None:
    """They share effects: a replay that is still running would else do again what was done."""
    first = await failed(store)
    other = await succeeded(store, fence=8, replay_of=first.id)
    replay = await running(store, fence=9, replay_of=first.id)
    await failed(store, fence=10)  # the newest letter; and below, the newest event
    await submitted(store)
    clock.advance(1e6)

    assert await pruned(store, letters_too=True) == 0
    await stepped(store, replay, Event.SUCCEED)
    await submitted(store)
    assert await pruned(store, letters_too=True) == 0  # it has only just ended
    clock.advance(1)
    assert await pruned(store, letters_too=True) == 3
    assert await store.find_jobs([first.id, other.id, replay.id]) == [None, None, None]


async def test_dead_letter_keeps_its_job_for_longer_unless_it_was_replayed(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    waiting, replayed = await failed(store), await failed(store, fence=8)
    again = a_job(replay_of=replayed.id)
    await store.replay_dead_letter(ACME, 2, Submission(job=again, key=None, digest=""))
    await stepped(store, again, Event.CANCEL)
    newest = await failed(store, fence=9)
    clock.advance(1)

    assert await pruned(store) == 2
    assert await store.find_jobs([waiting.id, replayed.id, again.id]) == [waiting, None, None]
    assert await pruned(store, letters_too=True) == 1
    assert await store.find_jobs([waiting.id, newest.id]) == [None, newest]


async def test_numbers_of_events_never_begin_anew(store: StoreWithBus, clock: ManualRuntime) -> None:
    last = await succeeded(store)
    before = (await store.list_events(after=0, limit=100))[-1].number
    clock.advance(1)

    assert await pruned(store) == 0
    assert await store.find_jobs([last.id]) == [last]
    await submitted(store)
    assert (await store.list_events(after=before, limit=1))[0].number == before + 1
    assert await pruned(store) == 1


async def test_numbers_of_dead_letters_never_begin_anew(store: StoreWithBus, clock: ManualRuntime) -> None:
    last = await failed(store)
    await submitted(store)
    clock.advance(1)

    assert await pruned(store, letters_too=True) == 0
    assert await store.find_jobs([last.id]) == [last]
    await failed(store, fence=8)
    assert [letter.number for letter in await store.list_dead_letters(ACME, before=None, limit=10)] == [2, 1]
    assert await pruned(store, letters_too=True) == 1


async def test_how_far_events_are_gone_is_known_by_tenant(store: StoreWithBus, clock: ManualRuntime) -> None:
    assert (await store.pruned_until(), await store.pruned_until(ACME)) == (0, 0)
    ours = await succeeded(store)
    theirs = await succeeded(store, tenant=OTHER)
    last_of = {
        job.tenant: (await store.list_events(after=0, limit=100, job_id=job.id))[-1].number for job in (ours, theirs)
    }
    await submitted(store)
    clock.advance(1)

    await pruned(store)

    assert {tenant: await store.pruned_until(tenant) for tenant in (ACME, OTHER)} == last_of
    assert await store.pruned_until() == last_of[OTHER]


async def test_job_with_a_long_history_goes_in_several_batches(store: StoreWithBus, clock: ManualRuntime) -> None:
    job = await running(store)
    for _ in range(5):
        await store.add_notes([Note(ACME, job.id, "attempt.refused", {})] * 1000)
    await stepped(store, job, Event.SUCCEED)
    await submitted(store)
    clock.advance(1)
    limits = Limits(store.now(), NEVER)

    first = await store.prune(limits)

    assert first == (0, 0), "not all of it at once"
    assert await pruned(store) == 1
    assert await store.list_events(after=0, limit=10, job_id=job.id) == []


async def test_many_jobs_go_batch_by_batch_past_those_that_stay(store: StoreWithBus, clock: ManualRuntime) -> None:
    kept = [await submitted(store) for _ in range(300)]
    gone = [await submitted(store, state=State.CANCELLED) for _ in range(120)]
    kept.append(await submitted(store))
    clock.advance(1)
    limits = Limits(store.now(), NEVER)

    batch = await store.prune(limits)
    assert batch.after is not None
    assert batch.jobs < 120
    await pruned(store)

    assert await store.find_jobs([job.id for job in gone]) == [None] * 120
    assert await store.find_jobs([job.id for job in kept]) == kept


async def test_event_of_neither_a_job_nor_a_run_goes_by_its_age(store: StoreWithBus, clock: ManualRuntime) -> None:
    """In several batches, if there are many; but never the newest of all."""
    loose = [Note(ACME, JobId(""), "schedule.fired", {})] * 1100
    of_a_run = Note(ACME, JobId(""), "run.started", {}, run="r")
    await store.add_notes([*loose, of_a_run, Note(OTHER, JobId(""), "policy.published", {})])
    await submitted(store)
    clock.advance(10)
    await store.add_notes([Note(ACME, JobId(""), "workflow.applied", {})])

    for advance_s in (0, 10):  # it is too young; then it is old, but the newest
        clock.advance(advance_s)
        await pruned(store)
        left = [event.kind for event in await store.list_events(after=0, limit=1200)]
        assert left == ["run.started", "job.submitted", "workflow.applied"]
    assert [await store.pruned_until(tenant) for tenant in (ACME, OTHER)] == [1100, 1102]
    await submitted(store)
    await pruned(store)
    assert "workflow.applied" not in [event.kind for event in await store.list_events(after=0, limit=10)]


async def test_pruned_job_does_not_exist(store: StoreWithBus, clock: ManualRuntime) -> None:
    job = await succeeded(store)
    await submitted(store)
    clock.advance(1)
    await pruned(store)

    with pytest.raises(NotFound):
        await store.get_job(ACME, job.id)
