"""What `holdfast.ports.Store` promises about jobs, once, for every store."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from plane.jobs import ACME, OTHER, ManualRuntime, a_job, dispatched, recoverable, running, stepped, submitted
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.job import Job, JobId, amend, step
from holdfast.core.record import Kind, Record
from holdfast.core.states import Event, State
from holdfast.errors import NotFound, StoreUnavailable, VersionMismatch
from holdfast.ports import (
    Accepted,
    Change,
    Delivery,
    JobEvent,
    JobFilter,
    KeyReused,
    Note,
    RecordChange,
    Snapshot,
    Submission,
    Transaction,
)
from holdfast.stores import StoreWithBus


def submission(job: Job, key: str | None = None, digest: str = "d") -> Submission:
    return Submission(job=job, key=key, digest=digest)


async def kinds(store: StoreWithBus, job: Job) -> list[str]:
    return [event.kind for event in await store.list_events(after=0, limit=100, job_id=job.id)]


# -- submit ----------------------------------------------------------------------------------------


async def test_job_comes_back_as_it_was_submitted(store: StoreWithBus) -> None:
    job = a_job(
        payload=b"x" * 5000,
        labels={"a": "ü"},
        deadline=9e9,
        trace="00-1",
        retries={"publish": 2},
        progress={"done": 1},
        error={"code": "x"},
        result=b"[]",
        replay_of=JobId("before"),
        cancel_requested=True,
    )

    answer = await store.submit([submission(job)])

    assert answer == [Accepted(job, repeated=False)]
    assert await store.get_job(ACME, job.id) == job
    assert await kinds(store, job) == ["job.submitted"]


async def test_same_key_and_digest_again_gives_the_first_job_whatever_became_of_it(store: StoreWithBus) -> None:
    first = a_job()
    await store.submit([submission(first, "k")])
    cancelled = await stepped(store, first, Event.CANCEL)

    answer = await store.submit([submission(a_job(), "k")])

    assert answer == [Accepted(cancelled, repeated=True)]
    assert await kinds(store, first) == ["job.submitted", "job.cancel"]


async def test_same_key_with_another_digest_stores_nothing(store: StoreWithBus) -> None:
    first, second, third = a_job(), a_job(), a_job()
    await store.submit([submission(first, "k")])

    answers = await store.submit([submission(second, "k", "other"), submission(third, "k2")])

    assert answers == [KeyReused(first.id), Accepted(third, repeated=False)]
    assert await store.find_jobs([second.id, third.id]) == [None, third]


async def test_key_is_per_tenant(store: StoreWithBus) -> None:
    ours, theirs = a_job(), a_job(tenant=OTHER)

    answers = await store.submit([submission(ours, "k"), submission(theirs, "k", "other")])

    assert answers == [Accepted(ours, repeated=False), Accepted(theirs, repeated=False)]


async def test_same_submission_without_a_key_again_is_one_job(store: StoreWithBus) -> None:
    job = a_job()
    await store.submit([submission(job)])

    assert await store.submit([submission(job)]) == [Accepted(job, repeated=True)]
    assert await kinds(store, job) == ["job.submitted"]


async def test_concurrent_submissions_with_one_key_make_one_job(store: StoreWithBus) -> None:
    answers = await asyncio.gather(*(store.submit([submission(a_job(), "k")]) for _ in range(20)))

    jobs = {answer.job.id for [answer] in answers if isinstance(answer, Accepted)}
    assert len(jobs) == 1
    assert len(await store.list_jobs(ACME, JobFilter(), before=None, limit=100)) == 1


async def test_submission_that_cannot_be_stored_fails_alone(store: StoreWithBus) -> None:
    good, bad = a_job(), a_job(topic="\ud800")

    answers = await asyncio.gather(
        store.submit([submission(good)]), store.submit([submission(bad)]), return_exceptions=True
    )

    assert answers[0] == [Accepted(good, repeated=False)]
    assert isinstance(answers[1], ValueError)


# -- reading ---------------------------------------------------------------------------------------


async def test_another_tenants_job_does_not_exist(store: StoreWithBus) -> None:
    job = await submitted(store)

    with pytest.raises(NotFound):
        await store.get_job(OTHER, job.id)
    with pytest.raises(NotFound):
        await store.get_job(ACME, JobId("none"))
    assert await store.list_jobs(OTHER, JobFilter(), before=None, limit=10) == []
    assert await store.list_events(after=0, limit=10, tenant=OTHER, job_id=job.id) == []


async def test_jobs_are_found_in_the_order_asked_for(store: StoreWithBus) -> None:
    one, two = await submitted(store), await submitted(store, tenant=OTHER)

    assert await store.find_jobs([two.id, JobId("none"), one.id]) == [two, None, one]


async def test_list_goes_newest_first_in_pages(store: StoreWithBus) -> None:
    jobs = [await submitted(store) for _ in range(5)]

    first = await store.list_jobs(ACME, JobFilter(), before=None, limit=2)
    rest = await store.list_jobs(ACME, JobFilter(), before=first[-1].id, limit=10)

    assert first + rest == jobs[::-1]


@pytest.mark.parametrize("state", list(State))
async def test_list_by_state(store: StoreWithBus, state: State) -> None:
    for each in State:
        await submitted(store, state=each)

    found = await store.list_jobs(ACME, JobFilter(state=state), before=None, limit=10)

    assert [job.state for job in found] == [state]


async def test_list_by_topic_label_and_worker(store: StoreWithBus) -> None:
    plain = await submitted(store, topic="a%.x")
    labelled = await submitted(store, topic="a%.y", labels={"team": "red", "o'k": "1"})
    working = await running(store, worker="w9", topic="b")

    async def ids(**wanted: object) -> list[Job]:
        return await store.list_jobs(ACME, JobFilter(**wanted), before=None, limit=10)  # type: ignore[arg-type]

    assert await ids(topic="a%.x") == [plain]
    assert await ids(topic="a%*") == [labelled, plain]
    assert await ids(labels={"team": "red", "o'k": "1"}) == [labelled]
    assert await ids(labels={"team": "blue"}) == []
    assert await ids(worker="w9") == [working]


# -- apply -----------------------------------------------------------------------------------------


async def test_change_replaces_only_the_version_it_names(store: StoreWithBus) -> None:
    job = await submitted(store)
    sent = step(job, Event.DISPATCH, now=store.now(), worker="w1", fence=1)
    cancelled = step(job, Event.CANCEL, now=store.now())
    to_send = Change(before=job, after=sent, kind="job.dispatched", send=Delivery("w1", job.id, 1))
    to_cancel = Change(before=job, after=cancelled, kind="job.cancelled", dead_letter="no")

    answers = await store.apply([to_send, to_cancel])

    assert answers == [True, False]
    assert await store.get_job(ACME, job.id) == sent
    assert await kinds(store, job) == ["job.submitted", "job.dispatched"]
    assert await store.list_dead_letters(ACME, before=None, limit=10) == []
    assert await store.apply([to_send]) == [False]


async def test_of_many_concurrent_changes_one_wins(store: StoreWithBus) -> None:
    job = await submitted(store)
    changes = [
        Change(before=job, after=step(job, Event.DISPATCH, now=store.now(), fence=n), kind="job.dispatched")
        for n in range(1, 20)
    ]

    answers = await asyncio.gather(*(store.apply([change]) for change in changes))

    assert sum(written for [written] in answers) == 1
    assert await kinds(store, job) == ["job.submitted", "job.dispatched"]


async def test_change_of_a_job_that_does_not_exist_is_refused(store: StoreWithBus) -> None:
    job = a_job()

    assert await store.apply([Change(before=job, after=amend(job), kind="job.amended")]) == [False]


async def test_dead_letter_is_written_with_its_change_and_shows_the_job(store: StoreWithBus) -> None:
    job = await running(store)
    failed = await stepped(store, job, Event.FAIL, error={"code": "x"}, dead_letter="no-attempts-left")

    [letter] = await store.list_dead_letters(ACME, before=None, limit=10)

    assert (letter.job, letter.reason, letter.topic) == (failed, "no-attempts-left", failed.topic)
    assert await store.get_dead_letter(ACME, letter.number) == letter
    assert await store.list_dead_letters(ACME, before=letter.number, limit=10) == []
    with pytest.raises(NotFound):
        await store.get_dead_letter(OTHER, letter.number)


async def test_dead_letter_is_replayed_once(store: StoreWithBus) -> None:
    await stepped(store, await running(store), Event.FAIL, dead_letter="x")
    [letter] = await store.list_dead_letters(ACME, before=None, limit=10)
    again = a_job(replay_of=letter.job_id)

    first = await store.replay_dead_letter(ACME, letter.number, submission(again))
    second = await store.replay_dead_letter(ACME, letter.number, submission(a_job()))

    assert (first, second) == (Accepted(again, repeated=False), Accepted(again, repeated=True))
    assert (await store.get_dead_letter(ACME, letter.number)).replayed_as == again.id
    with pytest.raises(NotFound):
        await store.replay_dead_letter(OTHER, letter.number, submission(a_job()))


async def test_records_are_written_with_a_replay_or_neither_is(store: StoreWithBus) -> None:
    await stepped(store, await running(store), Event.FAIL, dead_letter="x")
    record = Record(kind=Kind.AUDIT, tenant=ACME, id="1", version=2, created_at=0.0, body=b"{}")
    late = Submission(job=a_job(), key=None, digest="", records=[RecordChange(after=record, replaces=1)])

    with pytest.raises(VersionMismatch):
        await store.replay_dead_letter(ACME, 1, late)
    assert (await store.get_dead_letter(ACME, 1)).replayed_as is None

    assert await store.transact([Transaction(records=[RecordChange(after=replace(record, version=1), replaces=0)])])
    assert not (await store.replay_dead_letter(ACME, 1, late)).repeated
    assert await store.get_record(Kind.AUDIT, ACME, "1") == record


# -- leases, notes, events -------------------------------------------------------------------------


async def test_lease_is_renewed_only_while_running_under_its_fence(store: StoreWithBus, clock: ManualRuntime) -> None:
    job = await running(store, fence=7)
    waiting = await dispatched(store, fence=8)
    clock.advance(5)

    kept, stale, not_running, unknown = await store.renew_leases(
        [(job.id, 7), (job.id, 6), (waiting.id, 8), (JobId("none"), 1)]
    )

    assert kept == replace(job, lease_until=store.now() + 30.0, version=job.version + 1)
    assert (stale, not_running, unknown) == (None, None, None)
    assert await store.get_job(ACME, job.id) == kept


async def test_lease_is_as_long_as_the_topic_says_and_never_shortened(
    store: StoreWithBus, clock: ManualRuntime
) -> None:
    job = await running(store, fence=7, topic="quick")

    [kept] = await store.renew_leases([(job.id, 7)])
    clock.advance(40)
    [renewed] = await store.renew_leases([(job.id, 7)])

    assert kept is not None
    assert renewed is not None
    assert (kept.lease_until, renewed.lease_until) == (job.lease_until, store.now() + 1.0)


async def test_renewal_puts_recovery_off(store: StoreWithBus, clock: ManualRuntime) -> None:
    job = await running(store)
    clock.advance(29)
    await store.renew_leases([(job.id, 7)])
    clock.advance(29)

    assert await recoverable(store) == []


async def test_notes_are_kept_in_the_jobs_history_and_change_nothing(store: StoreWithBus) -> None:
    job = await running(store)

    await store.add_notes([Note(ACME, job.id, "attempt.refused", {"offered_fence": 3})])

    assert await store.get_job(ACME, job.id) == job
    last = (await store.list_events(after=0, limit=10, job_id=job.id))[-1]
    assert (last.kind, last.detail, last.state) == ("attempt.refused", {"offered_fence": 3}, State.RUNNING)


async def test_events_are_numbered_without_gaps_over_the_whole_store(store: StoreWithBus) -> None:
    jobs = await asyncio.gather(*(submitted(store, tenant=f"t{n % 3}") for n in range(30)))
    job = jobs[0]
    await store.apply([Change(before=amend(job), after=amend(amend(job)), kind="never")])

    events = await store.list_events(after=0, limit=100)

    assert [event.number for event in events] == list(range(1, 31))
    assert await store.list_events(after=28, limit=100) == events[28:]
    assert {e.tenant for e in await store.list_events(after=0, limit=100, tenant=jobs[1].tenant)} == {"t1"}


async def test_subscriber_hears_each_commit_in_order_until_it_ends(store: StoreWithBus) -> None:
    heard: list[JobEvent] = []

    def listen(events: Sequence[JobEvent]) -> None:
        heard.extend(events)

    end = store.subscribe(listen)
    await asyncio.gather(*(submitted(store) for _ in range(10)))
    await asyncio.sleep(0.01)
    end()
    await submitted(store)
    await asyncio.sleep(0.01)

    assert heard == await store.list_events(after=0, limit=10)


async def test_live_jobs_are_counted_by_tenant_and_state(store: StoreWithBus) -> None:
    await submitted(store)
    await submitted(store, tenant=OTHER, state=State.PENDING)
    await running(store)
    await stepped(store, await running(store, fence=8), Event.SUCCEED)

    counts = await store.count_jobs()

    assert counts == {(ACME, State.SCHEDULED): 1, (ACME, State.RUNNING): 1, (OTHER, State.PENDING): 1}


# -- snapshot, clock, lifecycle --------------------------------------------------------------------


async def test_snapshot_is_replaced_only_by_a_higher_one(store: StoreWithBus) -> None:
    assert await store.read_snapshot() is None
    current = Snapshot(5, 2, 10.0, b"[]")
    assert await store.write_snapshot(current)

    for older in (Snapshot(5, 2, 11.0, b"x"), Snapshot(5, 1, 11.0, b"x"), Snapshot(4, 9, 11.0, b"x")):
        assert not await store.write_snapshot(older)

    assert await store.read_snapshot() == current
    assert await store.write_snapshot(Snapshot(6, 0, 9.0, b"y"))


async def test_clock_grows_and_does_not_step_with_the_hosts(store: StoreWithBus, clock: ManualRuntime) -> None:
    before, wall_s = store.now(), clock.wall_s
    clock.wall_s -= 3600
    clock.clock_s += 2

    assert store.now() == pytest.approx(before + 2)
    assert before == pytest.approx(wall_s)


async def test_closed_store_is_unavailable_and_nothing_was_applied(store: StoreWithBus) -> None:
    await store.close()

    with pytest.raises(StoreUnavailable) as caught:
        await store.submit([submission(a_job())])
    assert caught.value.applied is False
    with pytest.raises(StoreUnavailable):
        await store.find_jobs([JobId("x")])
    await store.close()
