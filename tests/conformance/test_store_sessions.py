"""What `holdfast.ports.Store` promises about sessions and limits: whose turn it is, once, for every store."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio
import random

import pytest
from plane.jobs import (
    ACME,
    OTHER,
    ManualRuntime,
    a_job,
    bare,
    cancelling,
    dispatched,
    replacing,
    running,
    sending,
    stepped,
    stored,
    submitted,
)
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.job import PARKED_UNTIL, Job, amend, may, step
from holdfast.core.states import Event, State
from holdfast.ports import Change, Submission, Transaction
from holdfast.stores import StoreWithBus


async def listed(store: StoreWithBus) -> list[Job]:
    return await store.list_dispatchable(limit=100)


# -- one at a time ---------------------------------------------------------------------------------


async def test_of_a_session_only_the_first_is_listed_whatever_the_others_priority(store: StoreWithBus) -> None:
    first = await submitted(store, session="s")
    await submitted(store, session="s", priority=50)
    theirs = await submitted(store, session="s", tenant=OTHER)
    another, plain = await submitted(store, session="t"), await submitted(store)

    assert await listed(store) == [first, theirs, another, plain]


async def test_session_at_work_is_not_listed_until_it_is_done(store: StoreWithBus) -> None:
    working = await dispatched(store, session="s")
    following = [await submitted(store, session="s") for _ in range(3)]
    assert await listed(store) == []

    working = await stepped(store, working, Event.START, attempts=1, lease_until=store.now() + 30)
    assert await listed(store) == []
    await stepped(store, working, Event.SUCCEED)
    assert await listed(store) == following[:1]
    await stepped(store, following[0], Event.CANCEL)
    assert await listed(store) == following[1:2]


async def test_job_that_waits_for_an_approval_holds_nobody_up(store: StoreWithBus) -> None:
    asking = await submitted(store, session="s", state=State.APPROVAL_REQUIRED)
    waiting = await submitted(store, session="s")
    assert await listed(store) == [waiting]

    approved = await stepped(store, asking, Event.APPROVE)

    assert await listed(store) == [approved], "it is older"


async def test_job_that_was_begun_goes_on_before_others_begin(store: StoreWithBus, clock: ManualRuntime) -> None:
    working = await running(store, session="s")
    waiting = await submitted(store, session="s")
    again = await stepped(store, working, Event.RETRY, not_before=store.now() + 5)
    assert await listed(store) == []

    clock.advance(5)
    assert await listed(store) == [again]
    await stepped(store, again, Event.CANCEL)
    assert await listed(store) == [waiting]


async def test_job_that_starts_later_or_is_parked_holds_nobody_up(store: StoreWithBus, clock: ManualRuntime) -> None:
    working = await running(store, session="s")
    await store.prepare_effect(working.id, working.fence, "charge", idempotent=False)
    await stepped(store, working, Event.RETRY, not_before=PARKED_UNTIL)
    tomorrow = await submitted(store, session="s", not_before=store.now() + 86_400)
    today = await submitted(store, session="s")

    assert await listed(store) == [today]
    await stepped(store, today, Event.CANCEL)
    assert await listed(store) == []
    clock.advance(86_400)
    assert await listed(store) == [tomorrow]


async def test_dispatch_is_refused_while_another_of_the_session_is_at_work(store: StoreWithBus) -> None:
    one, two = await submitted(store, session="s"), await submitted(store, session="s")
    theirs, another = await submitted(store, session="s", tenant=OTHER), await submitted(store, session="t")

    answers = await store.apply([sending(store, job) for job in (one, two, theirs, another)])

    assert answers == [True, False, True, True]
    assert await store.get_job(ACME, two.id) == two
    sent = sending(store, one).after
    working = await stepped(store, sent, Event.START, attempts=1, lease_until=store.now() + 30)
    assert await store.apply([sending(store, two)]) == [False]
    await stepped(store, working, Event.SUCCEED)
    assert await store.apply([sending(store, two)]) == [True]


async def test_of_concurrent_dispatches_in_a_session_one_wins(store: StoreWithBus) -> None:
    jobs = [await submitted(store, session="s") for _ in range(10)]

    answers = await asyncio.gather(*(store.apply([sending(store, job)]) for job in jobs))

    assert sum(done for [done] in answers) == 1
    assert len(await store.list_in_hand("w1")) == 1


async def test_transaction_with_a_dispatch_that_is_refused_is_refused(store: StoreWithBus) -> None:
    one, two = await submitted(store, session="s"), await submitted(store, session="s")
    record = await stored(store)
    both = Transaction(changes=[sending(store, one), sending(store, two)], records=[replacing(record)])
    single = Transaction(changes=[sending(store, one)])
    second = Transaction(changes=[sending(store, two)], records=[replacing(record)])

    assert await store.transact([both, single, second]) == [False, True, False]
    assert await store.get_record(record.kind, ACME, record.id) == record


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_the_one_whose_turn_it_is_is_listed(store: StoreWithBus, seed: int) -> None:
    """Random lives of jobs in three sessions, against the rule read off the jobs themselves."""
    chance = random.Random(seed)
    jobs: dict[str, Job] = {}
    for _ in range(120):
        if chance.random() < 0.3 or not jobs:
            state = chance.choice([State.SCHEDULED, State.APPROVAL_REQUIRED])
            not_before = store.now() + chance.choice([0, 0, 60])
            made = await submitted(store, session=chance.choice("stu"), state=state, not_before=not_before)
            jobs[made.id] = made
        else:
            job = jobs[chance.choice(list(jobs))]
            event = chance.choice([event for event in Event if may(job, event)] or [None])
            if event is not None:
                changes = {"attempts": job.attempts + (event is Event.START), "not_before": job.not_before}
                if event is Event.RETRY:
                    changes["not_before"] = store.now() + chance.choice([0, 60])
                after = step(job, event, now=store.now(), worker="w1", fence=job.fence + 1, **changes)
                if (await store.apply([Change(before=job, after=after, kind=f"job.{event}")]))[0]:
                    jobs[job.id] = after
        first = [whose_turn(jobs, session) for session in "stu"]
        expected = {job.id for job in first if job is not None and job.not_before <= store.now()}
        assert {job.id for job in await listed(store)} == expected


def whose_turn(jobs: dict[str, Job], session: str) -> Job | None:
    ours = [job for job in jobs.values() if job.session == session]
    if any(job.state in {State.DISPATCHED, State.RUNNING} for job in ours):
        return None
    waiting = [job for job in ours if job.state is State.SCHEDULED]
    return min(waiting, key=lambda job: (job.attempts == 0, job.not_before, job.id), default=None)


async def test_live_jobs_of_a_session_are_listed_in_order(store: StoreWithBus) -> None:
    working = await running(store, session="s")
    asking = await submitted(store, session="s", state=State.APPROVAL_REQUIRED)
    waiting = await submitted(store, session="s", not_before=store.now() + 9)
    await submitted(store, session="s", state=State.CANCELLED)
    await submitted(store, session="s", tenant=OTHER)
    await submitted(store)

    assert await store.list_session(ACME, "s") == [bare(job) for job in (working, asking, waiting)]
    assert await store.list_session(ACME, "t") == []


# -- alone -----------------------------------------------------------------------------------------


def alone(job: Job, key: str | None = None) -> Submission:
    return Submission(job=job, key=key, digest="d", alone=True)


async def test_submission_that_is_to_be_alone_is_refused_while_its_session_is_not_empty(store: StoreWithBus) -> None:
    for state in (State.PENDING, State.APPROVAL_REQUIRED, State.SCHEDULED, State.DISPATCHED, State.RUNNING):
        await submitted(store, session=f"s-{state}", state=state)
        job = a_job(session=f"s-{state}")
        assert await store.transact([Transaction(submissions=[alone(job)])]) == [False]
        assert await store.find_jobs([job.id]) == [None]
    await submitted(store, session="s", state=State.FAILED)
    await submitted(store, session="s", tenant=OTHER)
    await running(store, session="s", cancel_requested=True)
    await submitted(store, session="s", run="r", step="s1~undo")

    assert await store.transact([Transaction(submissions=[alone(a_job(session="s"))])]) == [True]
    assert await store.transact([Transaction(submissions=[alone(a_job(session="s"))])]) == [False]
    assert await store.transact([Transaction(submissions=[alone(a_job())])] * 2) == [True, True]


async def test_submission_is_alone_if_the_transaction_itself_stops_the_others(store: StoreWithBus) -> None:
    working, waiting = await running(store, session="s"), await submitted(store, session="s")
    asked = Change(before=working, after=amend(working, cancel_requested=True), kind="job.cancel_requested")
    job = a_job(session="s")

    half = Transaction(submissions=[alone(job)], changes=[asked])
    whole = Transaction(submissions=[alone(job)], changes=[asked, cancelling(store, waiting)])

    assert await store.transact([half, whole]) == [False, True]
    assert await store.list_session(ACME, "s") == [bare(asked.after), bare(job)]


@pytest.mark.parametrize("key", ["k", None])
async def test_repeated_submission_that_was_to_be_alone_stops_nobody(store: StoreWithBus, key: str | None) -> None:
    first, record = a_job(session="s"), await stored(store)
    assert await store.transact([Transaction(submissions=[alone(first, key)])]) == [True]
    again = first if key is None else a_job(session="s")

    repeated = Transaction(
        submissions=[alone(again, key)], changes=[cancelling(store, first)], records=[replacing(record)]
    )

    assert await store.transact([repeated]) == [True]
    assert await store.list_session(ACME, "s") == [bare(first)]
    assert await store.get_record(record.kind, ACME, record.id) == record


async def test_of_concurrent_submissions_that_are_to_be_alone_one_is(store: StoreWithBus) -> None:
    answers = await asyncio.gather(
        *(store.transact([Transaction(submissions=[alone(a_job(session="s"))])]) for _ in range(10))
    )

    assert sum(done for [done] in answers) == 1
    assert len(await store.list_session(ACME, "s")) == 1


async def test_whoever_was_asked_to_stop_or_undoes_a_step_does_not_make_a_session_busy(store: StoreWithBus) -> None:
    for _ in range(30):
        await submitted(store, session="s", step="pay~undo")
    stopping = await running(store, session="s")
    asked = Change(before=stopping, after=amend(stopping, cancel_requested=True), kind="job.cancel_requested")
    assert await store.apply([asked]) == [True]
    assert await store.find_busy(ACME, "s") is None

    behind = await submitted(store, session="s")

    assert await store.find_busy(ACME, "s") == behind
    assert [await store.find_busy(OTHER, "s"), await store.find_busy(ACME, "t")] == [None, None]
    assert await store.transact([Transaction(submissions=[alone(a_job(session="s"))])]) == [False]
    stopped = Transaction(submissions=[alone(a_job(session="s"))], changes=[cancelling(store, behind)])
    assert await store.transact([stopped]) == [True]


async def test_who_stops_all_of_a_session_but_one_is_not_alone(store: StoreWithBus) -> None:
    others = [await submitted(store, session="s") for _ in range(30)]
    every = [cancelling(store, job) for job in others]
    newest = alone(a_job(session="s"))

    def stopping(*changes: Change) -> Transaction:
        return Transaction(submissions=[newest], changes=changes)

    left_over = [stopping(*every[:n], *every[n + 1 :]) for n in (0, 17, 29)]
    assert await store.transact([stopping(), *left_over]) == [False] * 4
    assert await store.transact([left_over[1], stopping(*every)]) == [False, True]
    assert await store.list_session(ACME, "s") == [bare(newest.job)]


# -- limits ----------------------------------------------------------------------------------------


async def test_jobs_in_hand_are_counted_by_tenant_topic_and_key(store: StoreWithBus) -> None:
    limited = {"action": "allow", "concurrency": {"limit": 2, "key": "mail/acme"}}
    await dispatched(store, topic="a")
    await running(store, topic="a", fence=8)
    await running(store, topic="a", fence=9, decision=limited)
    await running(store, topic="b", tenant=OTHER, decision={"action": "allow"})
    await submitted(store, topic="a", decision=limited)
    await stepped(store, await running(store, topic="a", fence=10), Event.SUCCEED)

    counts = await store.count_active()

    assert counts == {(ACME, "a", ""): 2, (ACME, "a", "mail/acme"): 1, (OTHER, "b", ""): 1}


async def test_live_jobs_are_counted_by_tenant_and_topic(store: StoreWithBus) -> None:
    await submitted(store, topic="a")
    await running(store, topic="a")
    await submitted(store, topic="b", tenant=OTHER, state=State.PENDING)
    await submitted(store, topic="a", state=State.FAILED)

    assert await store.count_topics() == {(ACME, "a"): 2, (OTHER, "b"): 1}


async def test_topics_tenants_and_keys_are_left_out(store: StoreWithBus) -> None:
    plain = await submitted(store, topic="a")
    limited = await submitted(store, topic="b", decision={"concurrency": {"limit": 1, "key": "k"}})
    theirs = await submitted(store, topic="c", tenant=OTHER)

    async def left(**without: list[str]) -> list[Job]:
        return await store.list_dispatchable(limit=10, **without)  # type: ignore[arg-type]

    assert await left() == [plain, theirs, limited]
    assert await left(except_topics=["a"], except_keys=["k"]) == [theirs]
    assert await left(except_tenants=[OTHER], except_keys=["other"]) == [plain, limited]
    assert await left(except_keys=["k"], except_tenants=[OTHER]) == [plain]
