"""What `holdfast.ports.Store` promises about writes that happen together or not at all, once, for every store."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from plane.jobs import (
    ACME,
    OTHER,
    a_job,
    a_record,
    cancelling,
    dispatched,
    new,
    removing,
    replacing,
    running,
    sending,
    stepped,
    stored,
    submitted,
)
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.job import Job, JobId, amend, step
from holdfast.core.record import Kind, Record
from holdfast.core.states import Event, State
from holdfast.ports import Accepted, Change, Delivery, Note, RecordChange, Submission, Transaction
from holdfast.stores import StoreWithBus


def submission(job: Job, key: str | None = None, digest: str = "d") -> Submission:
    return Submission(job=job, key=key, digest=digest)


async def find(store: StoreWithBus, record: Record) -> Record | None:
    [found] = await store.find_records(record.kind, record.tenant, [record.id])
    return found


async def results(store: StoreWithBus) -> list[str]:
    return [record.id for record in await store.list_due(Kind.RESULT, limit=100)]


# -- transactions ----------------------------------------------------------------------------------


async def test_everything_of_a_transaction_happens(store: StoreWithBus) -> None:
    run, job = await stored(store), await submitted(store)
    made = a_job(run=run.id, step="next")
    sent = step(job, Event.DISPATCH, now=store.now(), worker="w1", fence=7)

    answer = await store.transact(
        [
            Transaction(
                submissions=[submission(made, "k")],
                changes=[
                    Change(before=job, after=sent, kind="job.dispatched", send=Delivery("w1", job.id, 7)),
                ],
                records=[replacing(run, state="paused"), RecordChange(after=a_record(id="new"), replaces=0)],
                notes=[Note(ACME, JobId(""), "run.paused", {"by": "x"}, run=run.id)],
            )
        ]
    )

    assert answer == [True]
    assert await store.find_jobs([made.id, job.id]) == [made, sent]
    assert (await store.get_record(Kind.RUN, ACME, run.id)).state == "paused"
    assert await store.get_record(Kind.RUN, ACME, "new")
    assert await store.list_deliveries("w1", limit=10) == [Delivery("w1", job.id, 7)]
    kinds = [event.kind for event in await store.list_events(after=1, limit=10)]
    assert sorted(kinds) == ["job.dispatched", "job.submitted", "run.paused"]


async def test_a_job_is_stored_sent_and_started_by_one_transaction(store: StoreWithBus) -> None:
    ended = await stepped(store, await submitted(store, run="r"), Event.DISPATCH, worker="w1", fence=6)
    made = a_job(run="r", step="next")
    sent = step(made, Event.DISPATCH, now=store.now(), worker="w1", fence=7)
    started = step(sent, Event.START, now=store.now(), attempts=1, lease_until=store.now() + 30)
    before = (await store.list_events(after=0, limit=100))[-1].number
    transaction = Transaction(
        submissions=[submission(made)],
        changes=[
            cancelling(store, ended),
            Change(before=made, after=sent, kind="job.dispatched", detail={"worker": "w1"}),
            Change(before=sent, after=started, kind="job.started", detail={"worker": "w1"}),
        ],
    )

    assert await store.transact([transaction]) == [True]
    assert await store.find_jobs([made.id]) == [started]
    events = await store.list_events(after=before, limit=100)
    assert [(event.job_id, event.kind, event.state) for event in events] == [
        (ended.id, "job.cancelled", State.CANCELLED),
        (made.id, "job.submitted", State.SCHEDULED),
        (made.id, "job.dispatched", State.DISPATCHED),
        (made.id, "job.started", State.RUNNING),
    ]
    assert (await store.count_jobs())[ACME, State.RUNNING] == 1
    assert await store.list_dispatchable(limit=10) == []
    # Once more, its answer was lost: the job has moved on from there.
    assert await store.transact([replace(transaction, changes=transaction.changes[1:])]) == [False]
    assert await store.find_jobs([made.id]) == [started]


async def test_changes_of_a_submission_are_made_with_it_and_not_when_it_is_repeated(store: StoreWithBus) -> None:
    job, alone = given(store), a_job(not_before=store.now())

    answers = await store.submit([job, submission(alone)])
    again = await store.submit([given(store)])

    begun = job.changes[-1].after
    assert answers == [Accepted(begun, repeated=False), Accepted(alone, repeated=False)]
    assert again == [Accepted(begun, repeated=True)]
    assert await store.find_jobs([begun.id, alone.id]) == [begun, alone]
    assert [event.kind for event in await store.list_events(after=0, limit=10, job_id=begun.id)] == [
        "job.submitted",
        "job.dispatched",
        "job.started",
    ]
    assert await store.count_jobs() == {(ACME, State.RUNNING): 1, (ACME, State.SCHEDULED): 1}
    assert await store.list_deliveries("w1", limit=10) == []
    assert await store.list_in_hand("w1") == [begun]
    assert await store.list_dispatchable(limit=10) == [alone]


def given(store: StoreWithBus) -> Submission:
    """One that is dispatched and started as it is stored."""
    job = a_job(not_before=store.now())
    dispatch = sending(store, job)
    started = step(dispatch.after, Event.START, now=store.now(), attempts=1, lease_until=store.now() + 30)
    start = Change(before=dispatch.after, after=started, kind="job.started")
    return Submission(job=job, key="k", digest="d", changes=[dispatch, start])


async def test_an_end_that_its_run_hears_at_once_leaves_no_result(store: StoreWithBus) -> None:
    heard, unheard = await submitted(store, run="r"), await submitted(store, run="r")

    assert await store.apply([replace(cancelling(store, heard), heard=True), cancelling(store, unheard)]) == [True] * 2
    assert await results(store) == [unheard.id]


@pytest.mark.parametrize(
    "fault", ["job", "no such job", "record", "no such record", "record is there", "record of a submission", "key"]
)
async def test_nothing_of_a_transaction_happens_if_one_part_cannot(store: StoreWithBus, fault: str) -> None:
    run, job, moved = await stored(store), await submitted(store), await submitted(store)
    moved_on = await stepped(store, moved, Event.CANCEL)
    await store.submit([submission(a_job(), "used", "first")])
    before = await store.list_events(after=0, limit=100)
    fresh, fresh_record = a_job(), a_record()
    submissions = [submission(fresh, "k")]
    changes = [cancelling(store, job)]
    records = [replacing(run), RecordChange(after=fresh_record, replaces=0)]
    if fault == "job":
        changes.append(cancelling(store, moved))
    elif fault == "no such job":
        changes.append(cancelling(store, a_job()))
    elif fault == "record":
        records.append(RecordChange(after=replace(run, version=6), replaces=5))
    elif fault == "no such record":
        records.append(replacing(a_record()))
    elif fault == "record is there":
        records.append(RecordChange(after=replace(run, version=1), replaces=0))
    elif fault == "record of a submission":
        stale = RecordChange(after=replace(run, version=6), replaces=5)
        submissions.append(Submission(job=a_job(), key=None, digest="", records=[stale]))
    else:
        submissions.append(submission(a_job(), "used", "second"))
    note = Note(ACME, job.id, "attempt.refused", {})

    answer = await store.transact(
        [Transaction(submissions=submissions, changes=changes, records=records, notes=[note])]
    )

    assert answer == [False]
    assert await store.find_jobs([job.id, moved.id, fresh.id]) == [job, moved_on, None]
    assert [await find(store, record) for record in (run, fresh_record)] == [run, None]
    assert await store.list_events(after=0, limit=100) == before
    taken = await store.submit([submission(fresh, "k", "another digest")])
    assert taken == [Accepted(fresh, repeated=False)], "the key was not used up"


async def test_transactions_of_one_call_are_independent_and_see_each_other(store: StoreWithBus) -> None:
    record = await stored(store)
    second = replacing(record, state="second")
    lost = replacing(record, state="lost")
    third = replacing(second.after, state="third")

    answers = await store.transact([Transaction(records=[change]) for change in (second, lost, third)])

    assert answers == [True, False, True]
    assert await find(store, record) == third.after


async def test_changes_of_one_transaction_may_follow_one_another(store: StoreWithBus) -> None:
    job, record = await submitted(store), await stored(store)
    sent = step(job, Event.DISPATCH, now=store.now(), worker="w1", fence=7)
    working = step(sent, Event.START, now=store.now(), attempts=1, lease_until=store.now() + 30)
    handed_over = [
        Change(before=job, after=sent, kind="job.dispatched"),
        Change(before=sent, after=working, kind="job.started"),
    ]
    second = replacing(record, state="second")
    third = replacing(second.after, state="third")

    assert await store.transact([Transaction(changes=handed_over, records=[second, third])]) == [True]

    assert await store.find_jobs([job.id]) == [working]
    assert await find(store, record) == third.after
    assert await store.transact([Transaction(changes=handed_over[1:])]) == [False]


async def test_submission_that_is_there_already_changes_nothing_and_the_rest_happens(store: StoreWithBus) -> None:
    first, record = a_job(), await stored(store)
    await store.submit([submission(first, "k")])
    repeated = Transaction(submissions=[submission(a_job(), "k"), submission(first)], records=[replacing(record)])

    assert await store.transact([repeated]) == [True]

    assert [event.kind for event in await store.list_events(after=0, limit=10)] == ["job.submitted"]
    assert (await store.get_record(Kind.RUN, ACME, record.id)).version == 2


async def test_one_key_twice_in_a_transaction_is_one_job_or_none(store: StoreWithBus) -> None:
    one, two = a_job(), a_job()

    assert await store.transact([Transaction(submissions=[submission(one, "k"), submission(two, "k", "e")])]) == [False]
    assert await store.transact([Transaction(submissions=[submission(one, "k"), submission(two, "k")])]) == [True]
    assert await store.find_jobs([one.id, two.id]) == [one, None]


async def test_what_cannot_be_stored_fails_whole_and_alone(store: StoreWithBus) -> None:
    good, run = a_record(), a_record()
    bad = Transaction(records=new(run).records, submissions=[submission(a_job(topic="\ud800"))])

    answers = await asyncio.gather(store.transact([new(good)]), store.transact([bad]), return_exceptions=True)

    assert answers[0] == [True]
    assert isinstance(answers[1], ValueError)
    assert [await find(store, record) for record in (good, run)] == [good, None]


async def test_records_and_notes_of_a_submission_are_written_once_with_the_new_job(store: StoreWithBus) -> None:
    job = a_job(state=State.APPROVAL_REQUIRED)
    card = a_record(kind=Kind.APPROVAL, id=f"a-{job.id}", parent=job.id)
    asked = Submission(
        job=job, key="k", digest="d", records=new(card).records, notes=[Note(ACME, job.id, "approval.requested", {})]
    )

    for _ in range(2):
        await store.submit([asked])
        assert await store.transact([Transaction(submissions=[asked])]) == [True]

    assert await store.list_records(Kind.APPROVAL, ACME, limit=10) == [card]
    assert [e.kind for e in await store.list_events(after=0, limit=10)] == ["job.submitted", "approval.requested"]


# -- what a job's change does to records and events ------------------------------------------------


async def test_payload_may_be_replaced_large_or_small(store: StoreWithBus) -> None:
    job = await submitted(store, state=State.APPROVAL_REQUIRED)
    for payload in (b"x" * 5000, b"y" * 6000, b'{"to":"y"}', b'{"to":"z"}'):
        edited = amend(job, payload=payload)
        assert await store.apply([Change(before=job, after=edited, kind="job.edited")]) == [True]
        assert await store.get_job(ACME, job.id) == edited
        job = edited
    stale = amend(replace(job, version=1), payload=b"stale")
    assert await store.transact(
        [Transaction(changes=[Change(before=replace(job, version=1), after=stale, kind="x")])]
    ) == [False]
    assert (await store.get_job(ACME, job.id)).payload == b'{"to":"z"}'


async def test_what_a_later_decision_bounds_is_replaced(store: StoreWithBus) -> None:
    job = await submitted(store, state=State.PENDING, labels={"zone": "us"}, priority=50, max_attempts=9)
    bounds = {"labels": {"zone": "us", "require.zone": "eu"}, "priority": 5, "max_attempts": 1, "deadline": 4e9}
    decided = amend(job, **bounds)
    assert await store.apply([Change(before=job, after=decided, kind="job.decided")]) == [True]
    assert await store.get_job(ACME, job.id) == decided


async def test_decision_and_approval_are_replaced_with_each_version(store: StoreWithBus) -> None:
    job = await submitted(store, actor="ann", session="s", run="r", step="a[1]", decision={"action": "allow"})
    assert await store.get_job(ACME, job.id) == job
    decided = amend(job, decision={"action": "deny", "rule": "x"}, approval="a1")

    assert await store.apply([Change(before=job, after=decided, kind="job.decided")]) == [True]
    assert await store.get_job(ACME, job.id) == decided


async def test_job_of_a_run_that_ends_leaves_a_result_that_is_due_at_once(store: StoreWithBus) -> None:
    working = await running(store, run="r1", step="a")
    assert await results(store) == []
    ended = await stepped(store, working, Event.SUCCEED)

    [result] = await store.list_records(Kind.RESULT, ACME, parent="r1", limit=10)

    assert (result.id, result.parent, result.state, result.version) == (ended.id, "r1", "job", 1)
    assert await store.list_due(Kind.RESULT, limit=10) == [result]


async def test_result_is_left_however_the_job_ends_and_only_by_jobs_of_runs(store: StoreWithBus) -> None:
    await stepped(store, await running(store), Event.SUCCEED)
    denied = a_job(run="r1", state=State.DENIED)
    await store.submit([submission(denied), submission(a_job(state=State.DENIED))])
    denied_later = a_job(run="r1", state=State.DENIED)
    waiting = await submitted(store, run="r1")
    transaction = Transaction(submissions=[submission(denied_later)], changes=[cancelling(store, waiting)])
    assert await store.transact([transaction]) == [True]
    failed = await stepped(store, await running(store, fence=8, run="r1"), Event.FAIL, dead_letter="x")

    assert sorted(await results(store)) == sorted(job.id for job in (denied, denied_later, waiting, failed))


async def test_result_is_not_left_twice(store: StoreWithBus) -> None:
    denied = a_job(run="r1", state=State.DENIED)
    await store.submit([submission(denied, "k")])
    [result] = await store.list_due(Kind.RESULT, limit=10)
    assert await store.transact([Transaction(records=[removing(result)])]) == [True]

    await store.submit([submission(denied, "k"), submission(denied)])
    await store.apply([Change(before=denied, after=amend(denied), kind="job.amended")])

    assert await results(store) == []


async def test_refused_change_leaves_no_result(store: StoreWithBus) -> None:
    job = await submitted(store, run="r1")

    assert await store.apply([cancelling(store, amend(job))]) == [False]
    assert await results(store) == []


async def test_timeline_of_a_run_is_its_own_events_and_those_of_its_jobs(store: StoreWithBus) -> None:
    job = await dispatched(store, run="r1")
    await submitted(store)
    await submitted(store, run="r2")
    await store.add_notes(
        [
            Note(ACME, JobId(""), "run.paused", {"by": "ann"}, run="r1"),
            Note(ACME, JobId(""), "policy.published", {"version": 2}),
            Note(ACME, job.id, "attempt.refused", {}),
        ]
    )

    timeline = await store.list_events(after=0, limit=10, run="r1")
    published = [event for event in await store.list_events(after=0, limit=20) if event.kind == "policy.published"]

    assert [(event.kind, event.job_id, event.state) for event in timeline] == [
        ("job.submitted", job.id, State.SCHEDULED),
        ("job.dispatch", job.id, State.DISPATCHED),
        ("run.paused", "", None),
        ("attempt.refused", job.id, State.DISPATCHED),
    ]
    assert {event.run for event in timeline} == {"r1"}
    assert timeline[2].detail == {"by": "ann"}
    assert [(event.run, event.job_id, event.state) for event in published] == [("", "", None)]
    assert await store.list_events(after=timeline[1].number, limit=1, run="r1") == [timeline[2]]
    assert await store.list_events(after=0, limit=10, run="r1", tenant=OTHER) == []


async def test_note_of_a_transaction_tells_of_the_job_as_it_is_after_the_changes(store: StoreWithBus) -> None:
    job, made = await submitted(store), a_job()
    notes = [Note(ACME, job.id, "approval.decided", {}), Note(ACME, made.id, "approval.requested", {})]

    await store.transact([Transaction(submissions=[submission(made)], changes=[cancelling(store, job)], notes=notes)])

    told = [(event.kind, event.job_id, event.state) for event in await store.list_events(after=0, limit=10)][-2:]
    assert told == [("approval.decided", job.id, State.CANCELLED), ("approval.requested", made.id, State.SCHEDULED)]
